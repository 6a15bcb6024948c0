from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskmq import App, Config, InvalidArgument, Limit, Partition, PayloadTooLarge, Retry, Task, codec
from taskmq.durations import Moment
from taskmq.message import Message

MINUTE = 60_000_000


@pytest.fixture
def app() -> Iterator[App]:
    with App("memory://") as app:
        yield app


@pytest.fixture
def send(app: App) -> Task[..., Any]:
    def send(to: str, n: int = 1) -> str:
        return to * n

    return app.task(send)


# ── the handler itself ──


def test_a_plain_call_runs_the_function(send: Task[..., Any]) -> None:
    """Calling a task is calling its function: nothing is published."""
    assert send("ab", n=2) == "abab"


def test_a_plain_call_of_a_coroutine_function_gives_its_coroutine(app: App) -> None:
    """The task of an async def can be awaited here and now."""

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    assert asyncio.run(double(3)) == 6


def test_the_default_name_is_module_and_function(send: Task[..., Any]) -> None:
    """A handler is named after where it is defined."""
    assert send.name == f"{__name__}.send"
    assert send.__name__ == "send"


def test_a_script_is_named_as_when_it_is_imported(monkeypatch: pytest.MonkeyPatch, app: App) -> None:
    """A handler of a program that is run has the name that a worker which imports it will know."""
    import sys
    from types import ModuleType

    script = ModuleType("__main__")
    script.__file__ = "/srv/shop.py"
    monkeypatch.setitem(sys.modules, "__main__", script)

    def send() -> None: ...

    send.__module__ = "__main__"
    assert app.task(send).name == "shop.send"


def test_defaults_are_those_of_the_design(send: Task[..., Any]) -> None:
    """Without options: queue default, priority 0, three attempts, nothing else."""
    message = send.message("a")
    assert (message.queue, message.priority, message.max_attempts) == ("default", 0, 3)
    assert message == Message(id=message.id, queue="default", handler=send.name, body=message.body)
    assert message.body == b'{"args":["a"]}'


def test_options_of_the_handler_go_into_every_message(app: App) -> None:
    """What @app.task says holds for each task that is published."""

    @app.task(
        name="fetch", queue="mail", priority=3, retry=Retry(max_attempts=5, on=(OSError,)), expires="1h", retention=0
    )
    def fetch() -> None: ...

    message = fetch.message()
    assert (message.handler, message.queue, message.priority, message.max_attempts) == ("fetch", "mail", 3, 5)
    assert (message.expires, message.retention) == (Moment(60 * MINUTE, relative=True), 0)
    assert (fetch.queue, fetch.priority) == ("mail", 3)


def test_what_the_worker_decides_is_not_published(app: App) -> None:
    """Timeout and retry classes stay in code, so a new deployment changes them for waiting tasks, too."""

    @app.task(name="f", timeout="30s", pool="threads", retry=Retry(never=(ValueError,)))
    def handler() -> None: ...

    assert handler.message().body == b"{}"
    assert (handler.timeout, handler.pool, handler.retry.never) == (30_000_000, "threads", (ValueError,))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "two words"},
        {"name": ""},
        {"queue": "a,b"},
        {"priority": 10},
        {"priority": True},
        {"retry": 5},
        {"timeout": 0},
        {"timeout": "8d"},
        {"expires": -1},
        {"retention": "366d"},
        {"pool": "greenlets"},
    ],
    ids=str,
)
def test_wrong_options_of_a_handler_are_refused(app: App, wrong: Any) -> None:
    """Every option of @app.task is checked where it is written."""
    with pytest.raises(InvalidArgument):
        app.task(**wrong)(lambda: None)


def test_an_unknown_option_is_told_the_nearest_one(app: App) -> None:
    """A typing error is refused with the name that was probably meant."""
    with pytest.raises(InvalidArgument, match="no option 'priorty': did you mean 'priority'"):
        app.task(priorty=3)(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="did you mean 'partition'"):
        app.ref("x", partitions="a")  # type: ignore[call-arg]


# ── using ──


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"queue": "mail"}, "queue", "mail"),
        ({"priority": 9}, "priority", 9),
        ({"run_after": "5m"}, "run_after", Moment(5 * MINUTE, relative=True)),
        ({"run_after": datetime(2026, 3, 1, tzinfo=UTC)}, "run_after", Moment(1772323200_000000, relative=False)),
        ({"delay": timedelta(minutes=1)}, "run_after", Moment(MINUTE, relative=True)),
        ({"partition": "!x"}, "partition", Partition("!x")),
        ({"partition": Partition("x", weight=3)}, "partition", Partition("x", weight=3)),
        ({"ordered_by": "acct-42"}, "partition", Partition("!acct-42")),
        ({"partition": None}, "partition", None),
        ({"key": "order-1"}, "key", "order-1"),
        ({"key": "order-1", "key_ttl": 60}, "key_ttl", MINUTE),
        ({"key": "order-1", "key_until": "finished"}, "key_until", "finished"),
        ({"expires": 60}, "expires", Moment(MINUTE, relative=True)),
        ({"deadline": "1m"}, "deadline", Moment(MINUTE, relative=True)),
        ({"retry": Retry(max_attempts=7)}, "max_attempts", 7),
        ({"limit": Limit("user:7", 2)}, "limit", Limit("user:7", 2)),
        ({"retention": 0}, "retention", 0),
        ({"tags": ["a", "b"]}, "tags", ("a", "b")),
    ],
    ids=str,
)
def test_each_option_becomes_its_field(send: Task[..., Any], options: Any, field: str, value: Any) -> None:
    """An option of using is a field of the message."""
    assert getattr(send.using(**options).message("a"), field) == value


def test_what_the_handler_needs_travels_in_the_envelope(send: Task[..., Any]) -> None:
    """Timeout, retry numbers, headers and tags are in the body."""
    options: Any = {"timeout": 5, "headers": {"trace": "1"}, "tags": ["a"]}
    message = send.using(retry=Retry(base="2s", backoff="fixed"), **options).message("a")
    envelope = codec.decode(message.body)
    assert (envelope.timeout, envelope.headers, envelope.tags) == (5_000_000, {"trace": "1"}, ["a"])
    assert envelope.retry == codec.RetryWire(backoff="fixed", base=2.0)


def test_later_options_win_over_earlier_ones(send: Task[..., Any]) -> None:
    """Options can be given in steps; the task itself stays as it was."""
    bound = send.using(priority=3, key="k").using(priority=4)
    message = bound.message("a")
    assert (message.priority, message.key) == (4, "k")
    assert send.message("a").priority == 0


@pytest.mark.parametrize("priority", [-1, 10, 3.0, "3", True, None, 10**30], ids=repr)
def test_priorities_that_are_none_are_refused(send: Task[..., Any], priority: Any) -> None:
    """A priority is an int from 0 to 9 and nothing that looks like one."""
    with pytest.raises(ValueError, match="priority"):
        send.using(priority=priority)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"run_after": datetime(2026, 3, 1)}, "no time zone"),  # noqa: DTZ001
        ({"expires": datetime(2026, 3, 1)}, "no time zone"),  # noqa: DTZ001
        ({"deadline": datetime(2026, 3, 1)}, "no time zone"),  # noqa: DTZ001
        ({"delay": datetime(2026, 3, 1, tzinfo=UTC)}, "give it as run_after"),
        ({"run_after": 1, "delay": 1}, "run_after and delay"),
        ({"partition": "a", "ordered_by": "b"}, "partition and ordered_by"),
        ({"queue": "two words"}, "queue"),
        ({"queue": None}, "queue"),
        ({"delay": -1}, "delay"),
        ({"delay": math.inf}, "delay"),
        ({"run_after": "11000d"}, "run_after"),
        ({"partition": ""}, "partition code"),
        ({"partition": "x" * 256}, "partition code"),
        ({"partition": 7}, "partition code"),
        ({"ordered_by": 42}, "ordered_by 42 is not text"),
        ({"key": ""}, "key"),
        ({"key": "k" * 513}, "key"),
        ({"key": "k", "key_ttl": "366d"}, "key_ttl"),
        ({"key": "k", "key_until": "tomorrow"}, "key_until"),
        ({"key_ttl": 5}, "key_ttl needs key"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "8d"}, "timeout"),
        ({"retry": 3}, "is not a Retry"),
        ({"retry": Retry(on=(OSError,))}, r"@app\.task"),
        ({"retry": Retry(never=(OSError,))}, r"@app\.task"),
        ({"limit": 2}, "Limit"),
        ({"retention": "400d"}, "retention"),
        ({"headers": {"a": 1}}, "headers"),
        ({"headers": ["a"]}, "headers"),
        ({"headers": {"a": "\ud800"}}, "headers"),
        ({"tags": "abc"}, "tags"),
        ({"tags": [1]}, "tag"),
        ({"tags": [""]}, "tag"),
        ({"tags": ["x"] * 17}, "17 tags are more than 16"),
    ],
    ids=ascii,
)
def test_options_outside_their_range_are_refused(send: Task[..., Any], wrong: Any, match: str) -> None:
    """Every option is checked before anything is published, and the message names it."""
    with pytest.raises(InvalidArgument, match=match):
        send.using(**wrong)


def test_headers_and_tags_have_4_kib_together(send: Task[..., Any]) -> None:
    """What fills the limit passes; one byte more is refused with size and limit."""
    send.using(headers={"h": "x" * 4000}, tags=["y" * 95])
    with pytest.raises(PayloadTooLarge) as caught:
        send.using(headers={"h": "x" * 4000}, tags=["y" * 96])
    assert (caught.value.size, caught.value.limit) == (4097, 4096)


# ── arguments ──


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((3,), {}), (("a", "2"), {}), (("a", 2.0), {}), (("a",), {"m": 1}), (("a", 1, 2), {}), ((b"a",), {})],
    ids=str,
)
def test_arguments_that_do_not_fit_publish_nothing(app: App, send: Task[..., Any], args: Any, kwargs: Any) -> None:
    """They are refused at the enqueue, and the store stays empty."""
    with pytest.raises(InvalidArgument, match=r"test_task\.send"):
        send.enqueue(*args, **kwargs)
    assert list(app.tasks()) == []


def test_a_payload_above_the_limit_is_refused_with_both_numbers() -> None:
    """The default limit is 256 KiB of the whole body; the error has size and limit."""
    with App("memory://") as app:
        ref = app.ref("x")
        size = 256 * 1024
        assert len(ref.message("a" * (size - 13)).body) == size
        with pytest.raises(PayloadTooLarge, match="262,145 bytes; 262,144 are allowed") as caught:
            ref.message("a" * (size - 12))
        assert (caught.value.size, caught.value.limit) == (size + 1, size)


def test_the_limit_can_be_set() -> None:
    """Config.max_payload is the limit."""
    with App(Config(url="memory://", max_payload=20)) as app, pytest.raises(PayloadTooLarge):
        app.ref("x").message("a" * 20)


# ── by name ──


def test_a_ref_publishes_by_name(app: App) -> None:
    """A handler that is not known here can be enqueued, with any JSON data and any option."""
    message = app.ref("mail.send", queue="mail").using(priority=2).message("a", n=[1, None])
    assert (message.handler, message.queue, message.priority) == ("mail.send", "mail", 2)
    assert message.body == b'{"args":["a"],"kwargs":{"n":[1,null]}}'


@pytest.mark.parametrize("name", ["", "two words", "x" * 129, None], ids=repr)
def test_a_ref_needs_a_name(app: App, name: Any) -> None:
    """A name that no handler can have is refused."""
    with pytest.raises(InvalidArgument, match="handler"):
        app.ref(name)


def test_a_ref_takes_json_data_only(app: App) -> None:
    """Where no annotation says what comes out, only what arrives as it is goes in."""
    with pytest.raises(InvalidArgument, match="annotate"):
        app.ref("x").enqueue(datetime(2026, 3, 1, tzinfo=UTC))


# ── publishing ──


def test_enqueue_stores_the_task(app: App, send: Task[..., Any]) -> None:
    """When enqueue returns, the task is in the store."""
    handle = send.using(priority=2).enqueue("a", n=2)
    info = app.get(handle.id)
    assert (info.handler, info.priority, info.args, info.kwargs) == (send.name, 2, ["a"], {"n": 2})


def test_aenqueue_does_the_same(app: App, send: Task[..., Any]) -> None:
    """The twin for coroutines gives the same handle, and the same errors."""
    assert asyncio.run(send.aenqueue("a")).queue == "default"
    with pytest.raises(InvalidArgument):
        asyncio.run(send.aenqueue(3))


def test_ids_grow(send: Task[..., Any]) -> None:
    """An id is 32 lower-case hex digits, and later ones are greater."""
    first, second = send.message("a").id, send.message("a").id
    assert first < second
    assert (len(first), first) == (32, f"{int(first, 16):032x}")
