from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import taskmq
from taskmq import App, Config, ConfigError, IdempotencyConflict, InvalidArgument, QueueConfig, TaskNotFound, TaskState
from taskmq import TransportError as StoreError
from taskmq.message import Message
from taskmq.outcome import Dead
from taskmq.transport.base import Reserve, Settle, Settlement
from taskmq.transport.registry import open_store


@pytest.fixture
def app() -> Iterator[App]:
    with App("memory://") as app:
        yield app


def kill(app: App, count: int, queue: str = "mail") -> None:
    """Make the next tasks of the queue dead letters."""
    deliveries = app.store.reserve(Reserve(queues=[queue], limit=count, worker="w")).deliveries
    app.store.settle(Settle(items=[Settlement(delivery, Dead("failed", "ValueError: x")) for delivery in deliveries]))


def publish(app: App, count: int, **options: Any) -> list[str]:
    ref = app.ref("mail.send", queue="mail", **options)
    return [handle.id for handle in app.enqueue_many(ref.message(n) for n in range(count))]


# ── making one ──


def test_a_url_and_settings_are_short_for_a_config() -> None:
    """App(url, …) is App(Config(url=url, …))."""
    short = App("memory://", lease=5, queues={"mail": QueueConfig(weight=3)}).config
    assert (short.url, short.lease_s, short.queues["mail"].weight) == ("memory://", 5.0, 3)
    assert App(url="memory://", namespace="n").config.namespace == "n"


def test_without_a_url_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """App() takes TASKMQ_URL."""
    monkeypatch.setenv("TASKMQ_URL", "memory://")
    assert App().config.url == "memory://"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: App(Config(url="memory://"), lease=5), "given twice"),
        (lambda: App("memory://", url="memory://"), "given twice"),
        (lambda: App("memory://", leese=5), "no setting 'leese': did you mean 'lease'"),  # type: ignore[call-arg]
        (lambda: App("memory://", lease=0, namespace="a b"), "namespace.*lease"),
        (lambda: App("no url"), "url"),
        (lambda: App(7), "url 7"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_cannot_be_used_are_refused(make: Any, match: str) -> None:
    """Every fault is a ConfigError that names it."""
    with pytest.raises(ConfigError, match=match):
        make()


def test_an_unknown_scheme_is_told_the_known_ones() -> None:
    """A URL no store knows is refused at first use, without its password."""
    with pytest.raises(ConfigError, match="memory://") as caught:
        App("mongodb://me:hunter2@h").ref("x").enqueue()
    assert "hunter2" not in str(caught.value)


def test_the_store_is_opened_once_and_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened before the first use, and many threads open one store, with its queues seeded once."""
    opened: list[str] = []

    def counting(url: str, **options: Any) -> Any:
        opened.append(url)
        return open_store(url, **options)

    monkeypatch.setattr("taskmq.app.open_store", counting)
    app = App("memory://", queues={"mail": QueueConfig(weight=3)})
    assert opened == []
    barrier = threading.Barrier(8)
    stores: list[Any] = []

    def use() -> None:
        barrier.wait()
        stores.append(app.store)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1
    assert len({id(store) for store in stores}) == 1
    assert app.queue("mail").stats().config.weight == 3


def test_a_closed_app_stays_closed() -> None:
    """After close every use of the store raises; closing again does nothing."""
    with App("memory://") as app:
        app.ref("x").enqueue()
    app.close()
    with pytest.raises(StoreError, match="closed"):
        app.ref("x").enqueue()


# ── handlers ──


def test_two_handlers_of_one_name_are_refused(app: App) -> None:
    """The second one is refused, and the message names both."""

    @app.task(name="send")
    def one() -> None: ...

    with pytest.raises(ConfigError, match=r"two handlers are named 'send'.*one.*two"):

        @app.task(name="send")
        def two() -> None: ...

    assert app.handlers["send"] is one


@pytest.mark.parametrize("thing", ["send", 7, None.__class__.__name__])
def test_only_functions_can_be_handlers(app: App, thing: Any) -> None:
    """A name where the function belongs is told where names go."""
    with pytest.raises(InvalidArgument, match="name="):
        app.task(thing)


def test_an_unknown_event_is_refused(app: App) -> None:
    """A hook for an event that never happens would be a silent mistake."""
    with pytest.raises(InvalidArgument, match="no event"):
        app.on("before_enqeue")(lambda: None)  # type: ignore[arg-type]


def test_before_enqueue_sees_each_message(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """The hook gets the message; what it raises is logged and the task is published."""
    seen: list[Message] = []

    @app.on("before_enqueue")
    def watch(message: Message) -> None:
        seen.append(message)
        raise RuntimeError("broken hook")

    handle = app.ref("x").enqueue()
    assert [message.id for message in seen] == [handle.id]
    assert app.get(handle.id).state is TaskState.QUEUED
    assert "broken hook" in caplog.text


# ── publishing ──


def test_many_messages_are_one_publish_in_order(app: App) -> None:
    """Handles come in the order of the messages."""
    messages = [app.ref("x", queue=queue).message() for queue in ("a", "b", "a")]
    handles = app.enqueue_many(messages)
    assert [handle.id for handle in handles] == [message.id for message in messages]
    assert [handle.queue for handle in handles] == ["a", "b", "a"]
    assert app.enqueue_many([]) == []


def test_one_conflict_refuses_the_whole_batch(app: App) -> None:
    """Up to 1,000 messages are stored all or none."""
    app.ref("x", key="k").enqueue(1)
    with pytest.raises(IdempotencyConflict):
        app.enqueue_many([app.ref("x").message(), app.ref("x", key="k").message(2)])
    assert len(list(app.tasks())) == 1


def test_more_than_a_thousand_go_in_chunks(app: App) -> None:
    """2,001 messages are three chunks; a fault in the third leaves the first two stored."""
    app.ref("x", key="k").enqueue(1)
    messages = [app.ref("x").message() for _ in range(2000)]
    with pytest.raises(IdempotencyConflict):
        app.enqueue_many([*messages, app.ref("x", key="k").message(2)])
    assert len(list(app.tasks())) == 2001


def test_only_messages_can_be_published(app: App) -> None:
    """Something else is refused before anything is stored."""
    with pytest.raises(InvalidArgument, match=r"task\.message"):
        app.enqueue_many([app.ref("x").message(), "x"])  # type: ignore[list-item]
    assert list(app.tasks()) == []


def test_aenqueue_many_does_the_same(app: App) -> None:
    """The twin for coroutines gives the same handles."""
    handles = asyncio.run(app.aenqueue_many([app.ref("x").message()]))
    assert app.get(handles[0].id).handler == "x"


# ── looking and operating ──


def test_get_raises_for_what_is_not_there(app: App) -> None:
    """An id without a record is TaskNotFound."""
    with pytest.raises(TaskNotFound):
        app.get("0" * 32)


def test_tasks_reads_page_by_page(app: App) -> None:
    """All tasks come, newest first, however many pages they are."""
    ids = publish(app, 250)
    assert [task.id for task in app.tasks(queue="mail")] == ids[::-1]
    assert len(next(iter(app.tasks(queue="mail").pages()))) == 100


def test_tasks_can_be_narrowed(app: App) -> None:
    """Queue, state, handler, partition and tag narrow the list."""
    one = app.ref("a", queue="q", partition="p", tags=["t"]).enqueue()
    app.ref("b").enqueue().cancel()
    for condition in ({"queue": "q"}, {"state": "QUEUED"}, {"handler": "a"}, {"partition": "p"}, {"tag": "t"}):
        assert [task.id for task in app.tasks(**condition)] == [one.id]
    assert len(list(app.tasks(state=[TaskState.QUEUED, "CANCELLED"]))) == 2


@pytest.mark.parametrize(
    "wrong", [{"state": "DONE"}, {"queue": "a b"}, {"handler": ""}, {"partition": ""}, {"tag": 1}], ids=str
)
def test_conditions_are_checked(app: App, wrong: Any) -> None:
    """A condition that no task can fulfil by its form is refused."""
    with pytest.raises(InvalidArgument):
        app.tasks(**wrong)


def test_cancel_all_cancels_what_has_not_ended(app: App) -> None:
    """It returns how many there were, over all pages, and leaves ended ones alone."""
    publish(app, 150)
    kill(app, 3)
    assert app.tasks(queue="mail").cancel_all() == 147
    assert {task.state for task in app.tasks(queue="mail")} == {TaskState.CANCELLED, TaskState.FAILED}


def test_a_queue_can_be_paused_and_resumed(app: App) -> None:
    """A paused queue gives nothing to claims; stats say so."""
    publish(app, 1)
    app.queue("mail").pause()
    assert app.queue("mail").stats().config.paused
    assert app.store.reserve(Reserve(queues=["mail"], limit=1, worker="w")).deliveries == []
    app.queue("mail").resume()
    assert len(app.store.reserve(Reserve(queues=["mail"], limit=1, worker="w")).deliveries) == 1


def test_configure_changes_only_what_is_given(app: App) -> None:
    """The other settings stay, and a paused queue stays paused."""
    app.queue("mail").configure(weight=5)
    app.queue("mail").pause()
    assert app.queue("mail").configure(max_running=7).weight == 5
    config = app.queue("mail").stats().config
    assert (config.weight, config.max_running, config.paused) == (5, 7, True)


@pytest.mark.parametrize(("change", "match"), [({"wieght": 1}, "did you mean 'weight'"), ({"weight": 0}, "weight")])
def test_configure_checks(app: App, change: Any, match: str) -> None:
    """Unknown and wrong settings are refused."""
    with pytest.raises(InvalidArgument, match=match):
        app.queue("mail").configure(**change)


def test_a_queue_nobody_has_used_has_stats(app: App) -> None:
    """An empty queue is empty, with the default settings."""
    stats = app.queue("never").stats()
    assert (stats.name, stats.ready, stats.config) == ("never", 0, QueueConfig())


def test_dead_letters_are_listed_newest_first(app: App) -> None:
    """The list has the newest ones, as many as are asked for."""
    ids = publish(app, 150)
    kill(app, 150)
    letters = app.dead_letters("mail")
    assert [task.id for task in letters.list()] == ids[:-101:-1]
    assert [task.id for task in letters.list(limit=2)] == [ids[149], ids[148]]
    assert app.dead_letters("other").list() == []


def test_dead_letters_can_be_replayed_one_by_one(app: App) -> None:
    """A replayed one is queued again, in its queue or another; what is not dead is False."""
    ids = publish(app, 3)
    kill(app, 2)
    letters = app.dead_letters("mail")
    assert letters.replay(ids[0], ids[2]) == [True, False]
    assert letters.replay(ids[1], queue="other") == [True]
    assert [app.get(task_id).queue for task_id in ids] == ["mail", "other", "mail"]
    assert {app.get(task_id).state for task_id in ids} == {TaskState.QUEUED}


def test_dead_letters_can_be_replayed_and_purged_all(app: App) -> None:
    """Both tell how many there were, over all pages."""
    publish(app, 150)
    kill(app, 150)
    letters = app.dead_letters("mail")
    assert letters.replay_all() == 150
    assert letters.list() == []
    kill(app, 120)
    assert letters.purge() == 120
    assert len(list(app.tasks(queue="mail"))) == 30


# ── the package ──


def test_public_names_are_sorted_and_there() -> None:
    """Everything in __all__ can be had, and nothing else is meant to be used."""
    assert list(taskmq.__all__) == sorted(taskmq.__all__)
    assert all(getattr(taskmq, name) is not None for name in taskmq.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        taskmq.nothing  # noqa: B018


def test_importing_taskmq_imports_no_heavy_module() -> None:
    """Who only publishes pays neither for asyncio nor for any store or command line."""
    heavy = ("asyncio", "sqlalchemy", "sqlite3", "click", "rich", "taskmq.worker.worker", "taskmq.transport.memory")
    code = f"import sys, taskmq; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
