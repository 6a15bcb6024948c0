"""One row a bad input: what the library answers. A row's name begins with its number in reliability.md §4."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from taskmq import (
    App,
    ConfigError,
    IdempotencyConflict,
    InvalidArgument,
    Limit,
    Partition,
    PayloadTooLarge,
    QueueConfig,
    Rate,
    Retry,
    TaskInfo,
    TaskMQError,
    TaskNotFound,
)
from taskmq.outcome import Ack
from taskmq.transport.base import Reserve, Settle, Settlement
from taskmq.worker.failure import MAX_TRACEBACK

HUGE = 10**5000
"""More digits than Python turns into text."""
EAST = timezone(timedelta(hours=23, minutes=59))
LONGEST = 300
"""Characters of a message, whatever was given."""


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    with App("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/q.db") as app:
        yield app


class Ugly:
    def __repr__(self) -> str:
        raise RuntimeError


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def typed(app: App) -> Any:
    @app.task(name="typed")
    def handler(to: str, n: int = 1) -> None: ...

    return handler


def using(**options: Any) -> Callable[[App], object]:
    return lambda app: app.ref("h").using(**options).enqueue()


def sent(*args: Any, **kwargs: Any) -> Callable[[App], object]:
    return lambda app: app.ref("h").enqueue(*args, **kwargs)


def typed_sent(*args: Any, **kwargs: Any) -> Callable[[App], object]:
    return lambda app: typed(app).enqueue(*args, **kwargs)


def conflict(app: App) -> None:
    for argument in (1, 2):
        app.ref("h", key="k").enqueue(argument)


def made(what: Callable[..., object], **fields: Any) -> Callable[[App], object]:
    return lambda _: what(**fields)


def opened(url: Any, **settings: Any) -> Callable[[App], object]:
    return lambda _: App(url, **settings).store


def twice_named(app: App) -> None:
    for _ in range(2):
        app.task(name="one")(lambda: None)


class Refused(NamedTuple):
    name: str
    call: Callable[[App], object]
    told: str
    error: type[TaskMQError] = InvalidArgument


REFUSED = [
    Refused("B4 NaN", sent(math.nan), "nan is not a JSON number"),
    Refused("B4 Infinity inside", sent({"a": [math.inf]}), "inf is not a JSON number"),
    Refused("B3 nested without end", sent(deep()), "cannot be sent as JSON"),
    Refused("B3 a list in itself", sent(endless()), "cannot be sent as JSON"),
    Refused("B5 more than 4,300 digits", sent(HUGE), "cannot be sent as JSON: Exceeds the limit"),
    Refused("B5 more than 4,300 digits inside", sent([HUGE]), "cannot be sent as JSON: Exceeds the limit"),
    Refused("B5 priority of so many digits", using(priority=HUGE), "priority <int> is not an integer from 0 to 9"),
    Refused("B5 delay of so many digits", using(delay=HUGE), "delay <int> is not a duration"),
    Refused("B5 weight of so many digits", made(QueueConfig, weight=HUGE), "queue weight <int> is not an integer"),
    Refused("B5 rate of so many digits", made(QueueConfig, rate="9" * 5000 + "/s"), "is not of the form"),
    Refused("B6 argument", sent("\ud800"), "surrogates not allowed"),
    Refused("B6 name of an argument", sent(**{"\ud800": 1}), "is not text"),
    Refused("B6 key of an object", sent({"\ud800": 1}), "surrogates not allowed"),
    Refused("B6 queue", using(queue="\ud800"), r"queue '\\ud800' is not 1 to 128"),
    Refused("B6 handler", lambda app: app.ref("\ud800"), r"handler '\\ud800' is not 1 to 128"),
    Refused("B6 partition", using(partition="\ud800"), "partition code .* lone surrogate"),
    Refused("B6 key", using(key="\ud800"), "key .* lone surrogate"),
    Refused("B6 tag", using(tags=["\ud800"]), "tag .* lone surrogate"),
    Refused("B6 limit", lambda _: Limit("\ud800", 1), "limit key .* lone surrogate"),
    Refused("B6 header", using(headers={"a": "\ud800"}), "headers have a text that is none"),
    Refused("B6 id", lambda app: app.get("\ud800"), r"'\\ud800' is no task id"),
    Refused("B6 url", opened("sqlite:///\udcff.db"), "bytes that are not UTF-8", ConfigError),
    Refused("B7 NUL in a queue", using(queue="a\0"), r"queue 'a\\x00' is not"),
    Refused("B7 line end after a queue", using(queue="a\n"), r"queue 'a\\n' is not"),
    Refused("B7 CRLF in a handler", lambda app: app.ref("a\r\nb"), r"handler 'a\\r\\nb' is not"),
    Refused("B7 bidi in a queue", using(queue="a\u202e"), "queue .* is not 1 to 128"),
    Refused("B7 zero width in a queue", using(queue="a\u200b"), "queue .* is not 1 to 128"),
    Refused("B7 CRLF in a header", using(headers={"a": "x\r\nb: y"}), r"headers: 'x\\r\\nb: y' has a control"),
    Refused("B7 CRLF in a header's name", using(headers={"a\r\nb": "x"}), "headers: .* has a control character"),
    Refused("B7 NUL in a partition", using(partition="a\0"), "partition code .* control character"),
    Refused("B7 C1 in a key", using(key="a\x85"), "key .* control character"),
    Refused("B7 escape in a tag", using(tags=["\x1b[31m"]), "tag .* control character"),
    Refused("B7 line end in a namespace", opened("memory://", namespace="a\n"), "namespace .* is not", ConfigError),
    Refused("B9 % in a queue", using(queue="a%"), "queue 'a%' is not"),
    Refused("B9 * in a handler", lambda app: app.tasks(handler="a*"), r"handler 'a\*' is not"),
    Refused("B10 look-alike in a queue", using(queue="mаil"), "queue .* is not"),
    *[
        Refused(f"B11 priority {value!r}", using(priority=value), "priority .* is not an integer from 0 to 9")
        for value in (-1, 10, 1.0, 1.5, True, "5", 10**10, None)
    ],
    *[
        Refused(
            f"B12 {what.__name__} weight {value!r}", made(what, weight=value, **rest), "weight .* is not an integer"
        )
        for what, rest in ((QueueConfig, {}), (Partition, {"code": "a"}))
        for value in (0, -1, 1.5, math.nan, math.inf, 1e308, 1_000_001, True)
    ],
    Refused("B13 more than ten years", using(run_after="3654d"), "run_after '3654d' is not within 0s to 3653d"),
    Refused("B13 the year 9999", using(run_after=datetime(9999, 12, 31, tzinfo=UTC)), "more than ten years ahead"),
    Refused("B13 the last moment", using(run_after=datetime.max.replace(tzinfo=UTC)), "more than ten years ahead"),
    Refused("B13 negative delay", using(delay=-1), "delay -1 is not within"),
    Refused("B13 negative timedelta", using(delay=timedelta(seconds=-1)), "delay .* is not within"),
    Refused("B13 expires never", using(expires=timedelta.max), "expires .* is not within"),
    Refused("B14 naive", using(run_after=datetime(2030, 1, 1)), "run_after .* has no time zone"),  # noqa: DTZ001
    Refused("B14 a date", using(run_after=date(2030, 1, 1)), "run_after .* is not a duration"),
    Refused("B14 a moment as delay", using(delay=datetime(2030, 1, 1, tzinfo=UTC)), "give it as run_after"),
    Refused("B15 2**70 seconds", using(delay=2**70), "delay .* is not within"),
    Refused("B15 10**400 seconds", using(delay=10**400), "delay .* is not a duration"),
    Refused("B15 NaN seconds", using(delay=math.nan), "delay nan is not a duration"),
    Refused("B15 text of 400 digits", using(delay="9" * 400), "delay .* is not within"),
    Refused("B32 missing", typed_sent(), "typed.* missing a required argument: 'to'"),
    Refused("B32 too many", typed_sent("a", 1, 2), "too many positional arguments"),
    Refused("B32 unknown name", typed_sent("a", m=1), "unexpected keyword argument 'm'"),
    Refused("B32 wrong type", typed_sent("a", "1"), "argument 'n: int' of typed: expected `int`, got `str`"),
    Refused("B32 no JSON", sent(object()), "cannot be sent as JSON"),
    Refused("B32 a set", sent({1}), "set would not arrive as one"),
    Refused("B32 bytes without annotation", sent(b"x"), "bytes would not arrive as one"),
    Refused("B35 empty key", using(key=""), "key '' is 0 bytes long; 1 to 512"),
    Refused("B35 key of 10 kB", using(key="k" * 10_000), "is 10000 bytes long; 1 to 512"),
    Refused("B35 key that is a number", using(key=5), "key 5 is not text"),
    Refused("B35 key with other content", conflict, "key 'k' of queue 'default' is taken by task", IdempotencyConflict),
    Refused("B36 arguments above the limit", sent("x" * 300_000), "300,013 bytes; 262,144", PayloadTooLarge),
    Refused("B37 lease 0", made(QueueConfig, lease=0), "queue lease 0 is not within 0.2s to 1h"),
    Refused("B37 lease of ten years", opened("memory://", lease="3650d"), "lease .* 0.2s to 1h", ConfigError),
    Refused("B37 lease below 0", opened("memory://", lease=-1), "lease -1 is not within", ConfigError),
    Refused("B37 max_attempts 0", made(Retry, max_attempts=0), "max_attempts 0 is not an integer"),
    Refused("B37 max_attempts 10**9", made(Retry, max_attempts=10**9), "max_attempts 1000000000 is not"),
    Refused("B37 max_attempts 3.0", made(Retry, max_attempts=3.0), "max_attempts 3.0 is not an integer"),
    Refused("B37 base 2**10000", made(Retry, base=2**10_000), "retry base .* is not a duration"),
    Refused("B37 cap 2 days", made(Retry, cap="2d"), "retry cap '2d' is not within"),
    Refused("B37 timeout 0", using(timeout=0), "timeout 0 is not within"),
    Refused("B37 retention 366 days", using(retention="366d"), "retention '366d' is not within 0s to 365d"),
    Refused("B37 limit 0", lambda _: Limit("a", 0), "limit 0 is not an integer"),
    Refused("B37 rate 0", made(QueueConfig, rate="0/s"), "rate count 0 is not"),
    Refused("B37 rate of another unit", made(QueueConfig, rate="1/y"), "rate '1/y' is not of the form"),
    Refused("B37 rate per 0", made(Rate, count=1, per=0.0), "rate per 0.0 is not within"),
    Refused("B40 no URL", opened("nothing"), "'nothing' is not a store's URL", ConfigError),
    Refused("B40 a number", opened(5), "url 5 is not a store's URL", ConfigError),
    Refused("B40 unknown scheme", opened("ftp://me:hunter2@h"), r"'ftp://me:\*\*\*@h': the scheme must", ConfigError),
    Refused("B40 half an address", opened("redis://[::1/0"), "cannot be read: Invalid IPv6", ConfigError),
    Refused("B40 unknown option", opened("sqlite:///x.db?synchronus=full"), "unknown option 'synchronus'", ConfigError),
    Refused(
        "B40 wrong option", opened("sqlite:///x.db?synchronous=maybe"), "not one of full, normal, off", ConfigError
    ),
    Refused("B40 two slashes", opened("sqlite://x.db"), "three or four slashes", ConfigError),
    Refused("B40 no file", opened("sqlite:///"), "names no file", ConfigError),
    Refused("B40 NUL in a path", opened("sqlite:///a%00b"), "has a NUL in its path", ConfigError),
    Refused("B40 a directory", opened("sqlite:////tmp"), "cannot be opened", ConfigError),
    Refused("B40 no directory", opened("sqlite:////nowhere/x.db"), "does not exist; create it first", ConfigError),
    Refused("B40 unknown setting", opened("memory://", leese=3), "'leese': did you mean 'lease'", ConfigError),
    Refused("B40 option of using", using(prioritie=3), "'prioritie': did you mean 'priority'"),
    Refused("B40 option of task", lambda app: app.task(quue="q")(print), "'quue': did you mean 'queue'"),
    Refused("B40 option of a worker", lambda app: app.worker(concurency=1), "'concurency': did you mean 'concurrency'"),
    Refused("B40 setting of a queue", lambda app: app.queue("q").configure(wieght=1), "did you mean 'weight'"),
    Refused("B40 one name twice", twice_named, "two handlers are named 'one'", ConfigError),
    Refused("an id that is none", lambda app: app.get("x"), "'x' is no task id"),
    Refused("an id in capitals", lambda app: app.why("A" * 32), "is no task id"),
    Refused("an id to replay", lambda app: app.dead_letters("q").replay("x"), "'x' is no task id"),
    Refused("a state that is none", lambda app: app.tasks(state="DONE"), "state 'DONE' is none of SCHEDULED"),
    Refused("a state that is a number", lambda app: app.tasks(state=5), "state 5 is none of"),  # type: ignore[arg-type]
    Refused("a value that cannot be shown", using(delay=Ugly()), "delay <Ugly> is not a duration"),
    Refused("a limit that is none", using(limit=("a", 1)), "is not a Limit, e.g."),
    Refused("tags that are text", using(tags="abc"), "tags must be a list of texts"),
    Refused("17 tags", using(tags=["t"] * 17), "17 tags are more than 16"),
    Refused("headers of numbers", using(headers={"a": 1}), "headers must map text to text"),
    Refused("headers of 5 KB", using(headers={"a": "x" * 5000}), "headers and tags are 5,001 bytes", PayloadTooLarge),
    Refused("an ordered partition without a code", using(partition="!"), "without a code"),
    Refused("a message that is none", lambda app: app.enqueue_many(["x"]), "'x' is not a message"),  # type: ignore[list-item]
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_a_bad_input_is_refused_where_it_is_given(app: App, row: Refused) -> None:
    """The error is of the right type, names the value without repeating a huge one, and nothing is stored."""
    before = len(list(app.tasks()))
    with pytest.raises(row.error, match=row.told) as caught:
        row.call(app)
    assert len(str(caught.value)) < LONGEST
    assert "hunter2" not in str(caught.value)
    assert len(list(app.tasks())) == before + (row.error is IdempotencyConflict)


@pytest.mark.parametrize(
    "value", [2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**100, 10**4000], ids=lambda n: f"{n.bit_length()} bits"
)
def test_a_large_number_stays_exact(app: App, value: int) -> None:
    """B5: an argument beyond what other languages count to arrives digit by digit."""
    assert app.get(app.ref("h").enqueue(value, n=[value]).id).args == [value]


@pytest.mark.parametrize("text", ["a\0b", "\u202e", "\u200b", "\r\n", "\x1b[31m", "😀", "\uffff"], ids=ascii)
def test_any_text_may_be_data(app: App, text: str) -> None:
    """B7: what no name may have in it is allowed in arguments, and comes back."""
    assert app.get(app.ref("h").enqueue(text).id).args == [text]


@pytest.mark.parametrize(
    ("one", "other"), [("A", "a"), ("a", "a "), ("é", "e\u0301"), ("ß", "ss"), ("a%", "ab"), ("a_", "ab"), ("*", "a")]
)
def test_keys_and_codes_are_compared_as_bytes(app: App, one: str, other: str) -> None:
    """B9, B10: what only looks alike, or would be a pattern, is another key, another partition and another tag."""
    first, second = (app.ref("h").using(key=text, partition=text, tags=[text]).enqueue().id for text in (one, other))
    assert first != second
    for text, found in ((one, first), (other, second)):
        assert [task.id for task in app.tasks(partition=text)] == [found]
        assert [task.id for task in app.tasks(tag=text)] == [found]


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2000, 1, 1, tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=EAST),
    ],
    ids=["2000", "year 1", "year 1 of an eastern zone"],
)
def test_a_moment_in_the_past_is_now(app: App, moment: datetime) -> None:
    """B13: a task that was due long ago is ready at once."""
    assert app.ref("h").using(run_after=moment).enqueue().state() == "QUEUED"


# ── what only a worker meets ─────────────────────────────────────────────────────────────────────────────────────────


def worked(app: App, name: str, *args: Any) -> TaskInfo:
    """The task of this handler, published by its name, after an embedded worker has had it."""
    handle = app.ref(name, retry=Retry(max_attempts=1)).enqueue(*args)
    with app.worker(queues=["default"], concurrency=1) as worker:
        assert worker.drain(60)
    return handle.info()


@pytest.mark.parametrize("name", ["os.system", "__class__", "builtins.exec"])
def test_a_name_never_imports_anything(app: App, name: str, tmp_path: Path) -> None:
    """B31: a handler's name that is one of Python's is unknown like any other: it waits, nothing is called."""
    task = worked(app, name, f"touch {tmp_path}/here")
    assert (task.state, task.attempt) == ("RETRYING", 0)
    assert not (tmp_path / "here").exists()


def test_arguments_that_do_not_fit_are_dead_at_once(app: App) -> None:
    """B32: what was published by name with wrong arguments is dead after one attempt, and the error names the field."""
    typed(app)
    task = worked(app, "typed", "a", "1")
    assert (task.state, task.attempt) == ("FAILED", 1)
    assert "argument 'n: int' of typed: expected `int`, got `str`" in (task.error or "")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def unprintable() -> None:
    raise Unprintable


def long_winded() -> None:
    raise ValueError("x" * 100_000)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda: object(), "cannot be sent as JSON"),
        (lambda: math.nan, "nan is not a JSON number"),
        (lambda: "\ud800", "surrogates not allowed"),
        (lambda: "x" * 300_000, "300,002 bytes; 262,144 are allowed"),
        (lambda: HUGE, "Exceeds the limit"),
        (unprintable, "Unprintable: (its text cannot be made: __str__ raised RuntimeError"),
        (long_winded, "ValueError: xxx"),
    ],
    ids=["no JSON", "NaN", "surrogate", "300 kB", "5,000 digits", "__str__ raises", "100 kB of text"],
)
def test_a_bad_end_is_a_failed_attempt(app: App, function: Callable[[], object], told: str) -> None:
    """B36: a result that cannot be kept, or an exception that cannot be shown, ends that attempt with a typed error."""
    app.task(name="h")(function)
    task = worked(app, "h")
    assert task.state == "FAILED"
    assert told in (task.error or "")
    assert len(task.error or "") < 2100
    assert len((task.traceback or "").encode()) <= MAX_TRACEBACK


@pytest.mark.parametrize("backoff", ["exponential", "linear", "fixed"])
def test_a_late_attempt_does_not_overflow(backoff: Any) -> None:
    """B37: after a thousand attempts the delay is the cap, not an overflow."""
    policy = Retry(max_attempts=1000, backoff=backoff, base=86400.0, cap=86400.0, jitter=False)
    assert policy.delay(10_000, Random(0)) == 86400 * 1_000_000


# ── what only a store meets ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_settle_needs_the_epoch(app: App) -> None:
    """B38: a settle with an epoch that is not the task's, older or invented, changes nothing."""
    handle = app.ref("h").enqueue()
    (delivery,) = app.store.reserve(Reserve(queues=["default"], limit=1, worker="w")).deliveries
    for epoch in (0, 2, -1, 2**62):
        delivery.epoch = epoch
        assert app.store.settle(Settle(items=[Settlement(delivery, Ack())])) == [False]
    assert handle.state() == "RUNNING"
    delivery.epoch = 1
    assert app.store.settle(Settle(items=[Settlement(delivery, Ack())])) == [True]


def test_a_namespace_does_not_know_of_another(tmp_path: Path) -> None:
    """B38: a task's id is, in another namespace of the same store, the id of nothing."""
    url = f"sqlite:///{tmp_path}/q.db"
    with App(url) as mine, App(url, namespace="other") as other:
        handle = mine.ref("h").enqueue()
        with pytest.raises(TaskNotFound):
            other.get(handle.id)
        assert other.store.cancel([handle.id]) == [None]
        assert handle.state() == "QUEUED"


@pytest.mark.parametrize("name", ["TASKMQ_URI", "TASKMQ_ULR", "TASKMQ_UR", "TASKMQURL"])
def test_a_misspelled_variable_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """B40: a variable that was surely meant to be TASKMQ_URL is told, before another store is used instead."""
    monkeypatch.delenv("TASKMQ_URL", raising=False)
    monkeypatch.setenv(name, "redis://:hunter2@h/0")
    with pytest.raises(ConfigError, match=f"{name}, which means nothing: did you mean TASKMQ_URL") as caught:
        App()
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("TASKMQ_URL", "memory://")
    assert App().config.url == "memory://"


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """B40: a variable that only begins like ours is nobody's mistake."""
    monkeypatch.delenv("TASKMQ_URL", raising=False)
    monkeypatch.setenv("TASKMQ_TOKEN", "x")
    monkeypatch.setenv("TASKMQ_EXAMPLES", "x")
    assert App().config.url == "sqlite:///taskmq.db"
