from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from taskmq import App, Config, Context, Dead, Defer, Retry, RetryLater, Task, current, outcome
from taskmq.message import Delivery, Message
from taskmq.worker.executor import Executor

NOW = 1_800_000_000_000_000
LEASE = 30_000_000
HOUR = 3600 * 1_000_000


class Loop:
    """An event loop in a thread, started when it is asked for."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None

    def __call__(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
            self.thread.start()
        return self.loop

    def close(self) -> None:
        if self.loop is not None and self.thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()


@pytest.fixture
def app() -> Iterator[App]:
    with App("memory://") as app:
        yield app


@pytest.fixture
def executor(app: App) -> Iterator[Executor]:
    loop = Loop()
    yield Executor(app, loop, Random(1))
    loop.close()


def deliver(message: Message, **changes: Any) -> Delivery:
    fields: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue,
        "handler": message.handler,
        "body": message.body,
        "priority": message.priority,
        "attempt": 1,
        "max_attempts": message.max_attempts,
        "epoch": 1,
        "lease_until": NOW + LEASE,
        "lease": LEASE,
        "created_at": NOW,
    }
    return Delivery(**{**fields, **changes})


def run(executor: Executor, task: Task[..., Any], *args: Any, **changes: Any) -> outcome.Outcome:
    return executor.run(deliver(task.message(*args), **changes))


def raising(app: App, error: BaseException, **options: Any) -> Task[..., Any]:
    @app.task(name="raising", **options)
    def handler() -> None:
        raise error

    return handler


# ── success ──


def test_a_return_value_is_an_ack_with_json(app: App, executor: Executor) -> None:
    """What the handler returns is the result."""

    @app.task
    def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    assert run(executor, add, 1, 2) == outcome.Ack(b'{"sum":3}')


def test_none_is_no_result(app: App, executor: Executor) -> None:
    """A handler that returns nothing leaves nothing to store."""

    @app.task
    def nothing() -> None: ...

    assert run(executor, nothing) == outcome.Ack(None)


def test_the_traceback_of_a_coroutine_begins_in_it(app: App, executor: Executor) -> None:
    """Neither the worker's frames nor asyncio's are in it."""

    @app.task
    async def handler() -> None:
        raise ValueError("bad")

    ended = run(executor, handler)
    assert isinstance(ended, outcome.Retry)
    assert "in handler" in str(ended.traceback)
    assert "taskmq/worker" not in str(ended.traceback)


def test_a_coroutine_runs_on_the_loop(app: App, executor: Executor) -> None:
    """An async def is awaited on the worker's loop, with its context."""

    @app.task
    async def where(n: int) -> list[Any]:
        await asyncio.to_thread(lambda: current().attempt)
        return [n, threading.current_thread() is not threading.main_thread(), current().attempt]

    assert run(executor, where, 7) == outcome.Ack(b"[7,true,1]")


def test_the_context_is_that_of_the_task_and_gone_afterwards(app: App, executor: Executor) -> None:
    """Inside, current() is the running task; outside there is none again."""
    seen: list[Context] = []

    @app.task
    def look() -> None:
        seen.append(current())

    message = look.message()
    executor.run(deliver(message, attempt=2, epoch=9))
    assert (seen[0].task_id, seen[0].attempt, seen[0].epoch) == (message.id, 2, 9)
    with pytest.raises(Exception, match="only inside a handler"):
        current()


def test_the_happy_path_writes_no_log(app: App, executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    """A line per task would cost more than the task."""

    @app.task
    def nothing() -> None: ...

    with caplog.at_level(logging.DEBUG):
        run(executor, nothing)
    assert caplog.records == []


# ── failure ──


def test_an_exception_is_tried_again_after_the_policy_s_delay(app: App, executor: Executor) -> None:
    """The outcome has the delay, the error in one line, and the traceback from the handler on."""
    handler = raising(app, ValueError("bad"), retry=Retry(backoff="linear", base=2, jitter=False))
    ended = run(executor, handler, attempt=2)
    assert isinstance(ended, outcome.Retry)
    assert (ended.delay, ended.error) == (4_000_000, "ValueError: bad")
    assert ended.traceback is not None
    assert "in handler" in ended.traceback
    assert "taskmq/worker" not in ended.traceback


def test_jitter_draws_from_the_executor_s_randomness(app: App) -> None:
    """Two executors with the same randomness choose the same delay."""
    handler = raising(app, ValueError(), retry=Retry(base=10))
    one, other = (run(Executor(app, Loop(), Random(3)), handler) for _ in range(2))
    assert isinstance(one, outcome.Retry)
    assert isinstance(other, outcome.Retry)
    assert 0 < one.delay == other.delay < 10_000_000


def test_numbers_given_at_the_enqueue_win(app: App, executor: Executor) -> None:
    """The envelope's retry numbers replace the handler's; its classes stay."""
    handler = raising(app, ValueError(), retry=Retry(base=1, jitter=False, on=(ValueError,)))
    message = handler.using(retry=Retry(base=7, backoff="fixed", jitter=False)).message()
    ended = executor.run(deliver(message))
    assert isinstance(ended, outcome.Retry)
    assert ended.delay == 7_000_000


def test_retry_numbers_of_another_writer_that_are_none_are_passed_over(app: App, executor: Executor) -> None:
    """Numbers this version does not understand fall back to the handler's."""
    handler = raising(app, ValueError(), retry=Retry(base=1, jitter=False))
    ended = executor.run(deliver(handler.message(), body=b'{"retry":{"backoff":"fibonacci"}}'))
    assert isinstance(ended, outcome.Retry)
    assert ended.delay == 1_000_000


@pytest.mark.parametrize(
    ("policy", "attempt", "reason"),
    [
        (Retry(max_attempts=2), 2, "max_attempts"),
        (Retry(max_attempts=1), 1, "max_attempts"),
        (Retry(on=(OSError,)), 1, "failed"),
        (Retry(never=(ValueError,)), 1, "failed"),
    ],
    ids=str,
)
def test_a_task_that_may_not_be_tried_again_is_dead(
    app: App, executor: Executor, policy: Retry, attempt: int, reason: str
) -> None:
    """The reason says whether the budget is used up or the exception is not one to try again."""
    ended = run(executor, raising(app, ValueError("bad"), retry=policy), attempt=attempt)
    assert isinstance(ended, outcome.Dead)
    assert (ended.reason, ended.error) == (reason, "ValueError: bad")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_an_exit_ends_the_task_and_not_the_worker(app: App, executor: Executor, error: BaseException) -> None:
    """What is no Exception fails its task like any other error."""
    ended = run(executor, raising(app, error))
    assert isinstance(ended, outcome.Dead)
    assert ended.reason == "failed"


def test_an_exit_of_a_coroutine_leaves_the_loop_running(app: App, executor: Executor) -> None:
    """A coroutine that raises SystemExit fails alone: the next one runs on the same loop."""

    @app.task
    async def leave(code: int) -> int:
        if code:
            raise SystemExit(code)
        return code

    assert isinstance(run(executor, leave, 3), outcome.Dead)
    assert run(executor, leave, 0) == outcome.Ack(b"0")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_without_words_is_named(app: App, executor: Executor) -> None:
    """An exception whose text cannot be made is reported all the same."""
    ended = run(executor, raising(app, Unspeakable()))
    assert isinstance(ended, outcome.Retry)
    assert ended.error == "Unspeakable: (its text cannot be made: __str__ raised RuntimeError)"


def test_texts_are_cut_and_storable(app: App, executor: Executor) -> None:
    """A huge message is cut with a mark, a traceback has at most 8 KiB, and neither has what is no text."""
    ended = run(executor, raising(app, ValueError("\ud800\0" + "x" * 100_000)))
    assert isinstance(ended, outcome.Retry)
    assert ended.error is not None
    assert ended.error.startswith("ValueError: ??xxx")
    assert ended.error.endswith("… (cut)")
    assert ended.traceback is not None
    assert len(ended.traceback.encode()) <= 8192
    assert ended.traceback.startswith("… (cut")


def test_causes_are_in_the_traceback(app: App, executor: Executor) -> None:
    """The exception behind the exception is not lost."""

    @app.task
    def handler() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    ended = run(executor, handler)
    assert isinstance(ended, outcome.Retry)
    assert "KeyError: 'first'" in str(ended.traceback)


# ── results that are none ──


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (object(), "InvalidArgument: the result of h cannot be sent as JSON"),
        (math.nan, "InvalidArgument: the result of h cannot be sent as JSON"),
        ("x" * 100, "PayloadTooLarge: the result of h is 102 bytes; 50 are allowed"),
    ],
    ids=["object", "nan", "large"],
)
def test_a_result_that_cannot_be_stored_is_dead_at_once(result: Any, error: str) -> None:
    """Another attempt would bring the same result, and the handler's effects once more."""
    app = App(Config(url="memory://", max_result=50))
    executor = Executor(app, Loop())
    handler = app.task(name="h")(lambda: result)
    ended = run(executor, handler)
    assert isinstance(ended, outcome.Dead)
    assert ended.reason == "result"
    assert str(ended.error).startswith(error)


class BadText(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class BadCause(Exception):
    @property
    def __cause__(self) -> BaseException:
        raise ValueError


@dataclasses.dataclass
class BadResult:
    x: int

    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            raise SystemExit(1)
        return object.__getattribute__(self, name)


def test_nothing_a_handler_brings_gets_out_of_its_attempt(app: App, executor: Executor) -> None:
    """Exceptions that cannot be described and results that end the process when looked at end only their own task."""

    @app.task
    def bad_text() -> None:
        raise BadText

    @app.task
    def bad_cause() -> None:
        raise BadCause

    @app.task
    def bad_result() -> BadResult:
        return BadResult(1)

    for handler in (bad_text, bad_cause, bad_result):
        assert isinstance(run(executor, handler), outcome.Retry), handler.name


# ── signals ──


def test_retry_later_chooses_its_own_delay(app: App, executor: Executor) -> None:
    """RetryLater is a retry after its delay, and may block the whole partition."""
    ended = run(executor, raising(app, RetryLater("5s", partition=True)))
    assert isinstance(ended, outcome.Retry)
    assert (ended.delay, ended.partition) == (5_000_000, True)


def test_retry_later_consumes_attempts(app: App, executor: Executor) -> None:
    """On the last attempt it is dead, with the cause as its error."""
    error = RetryLater(5)
    error.__cause__ = TimeoutError("slow")
    ended = run(executor, raising(app, error), attempt=3)
    assert isinstance(ended, outcome.Dead)
    assert (ended.reason, ended.error) == ("max_attempts", "TimeoutError: slow")


def test_defer_consumes_none(app: App, executor: Executor) -> None:
    """Defer is a defer even on the last attempt."""
    handler = raising(app, Defer(2, partition=True))
    assert run(executor, handler, attempt=3) == outcome.Defer(2_000_000, partition=True)


def test_dead_gives_up_at_once(app: App, executor: Executor) -> None:
    """Dead is dead with its own reason, whatever attempts are left, and even if the policy would try it again."""
    ended = run(executor, raising(app, Dead("no such account"), retry=Retry(max_attempts=9)))
    assert isinstance(ended, outcome.Dead)
    assert ended.reason == "no such account"


def test_signals_reach_from_coroutines_too(app: App, executor: Executor) -> None:
    """An async def raises the same signals."""

    @app.task
    async def handler() -> None:
        raise Defer(1)

    assert run(executor, handler) == outcome.Defer(1_000_000)


@pytest.mark.parametrize("make", [RetryLater, Defer])
@pytest.mark.parametrize("delay", [-1, "soon", math.nan, None], ids=repr)
def test_a_signal_checks_its_delay(make: Any, delay: Any) -> None:
    """A wrong delay fails where it is written."""
    with pytest.raises(ValueError, match="delay"):
        make(delay)


@pytest.mark.parametrize("reason", ["", None, 3])
def test_dead_needs_a_reason(reason: Any) -> None:
    """A reason is text that says something."""
    with pytest.raises(ValueError, match="reason"):
        Dead(reason)


# ── arguments and unknown handlers ──


@pytest.mark.parametrize(
    "body", [b'{"args":["x"]}', b'{"args":[1,2]}', b'{"kwargs":{"m":1}}', b"{}", b"not JSON", b"\xff"]
)
def test_arguments_that_do_not_fit_are_dead_at_once(app: App, executor: Executor, body: bytes) -> None:
    """No attempt can make them good, so none is made."""
    called: list[int] = []

    @app.task(name="h")
    def handler(n: int) -> None:
        called.append(n)

    ended = executor.run(deliver(handler.message(1), body=body))
    assert isinstance(ended, outcome.Dead)
    assert ended.reason == "arguments"
    assert str(ended.error).startswith("InvalidArgument: ")
    assert called == []


@pytest.mark.parametrize(("age", "delay"), [(0, 5), (4, 5), (20, 20), (200, 200), (4000, 300), (100 * 3600, 300)])
def test_an_unknown_handler_waits_longer_each_time(
    app: App, executor: Executor, caplog: pytest.LogCaptureFixture, age: int, delay: int
) -> None:
    """The task is deferred for 5 s growing to 5 min, and the log says so loudly."""
    message = app.ref("not.here").message()
    ended = executor.run(deliver(message, created_at=NOW - age * 1_000_000))
    assert ended == outcome.Defer(delay * 1_000_000)
    assert caplog.records[0].levelno == logging.ERROR
    assert "does not know its handler 'not.here'" in caplog.text


@pytest.mark.parametrize(
    ("age", "epoch", "dead"),
    [(25 * HOUR, 300, True), (23 * HOUR, 300, False), (25 * HOUR, 1, False)],
    ids=["waited a day", "not yet a day", "published long ago, claimed for the first time"],
)
def test_an_unknown_handler_is_given_up_after_a_day_of_waiting(
    app: App, executor: Executor, age: int, epoch: int, dead: bool
) -> None:
    """Dead as handler_unknown after 24 h of claims; a task that was due later has its day, too."""
    ended = executor.run(deliver(app.ref("not.here").message(), created_at=NOW - age, epoch=epoch))
    assert isinstance(ended, outcome.Dead) is dead
    if isinstance(ended, outcome.Dead):
        assert ended.reason == "handler_unknown"


# ── timeouts and cancelling ──


def test_a_coroutine_over_its_timeout_is_stopped(app: App, executor: Executor) -> None:
    """The timeout is a TimeoutError, classified by the policy."""

    @app.task(timeout=0.001)
    async def endless() -> None:
        await asyncio.Event().wait()

    ended = run(executor, endless)
    assert isinstance(ended, outcome.Retry)
    assert ended.error == "TimeoutError: the attempt took longer than its timeout of 0.001 s"


def test_the_timeout_of_the_enqueue_wins(app: App, executor: Executor) -> None:
    """A timeout given at the enqueue replaces the handler's."""

    @app.task(timeout="1d")
    async def endless() -> None:
        await asyncio.Event().wait()

    ended = executor.run(deliver(endless.using(timeout=0.001).message()))
    assert isinstance(ended, outcome.Retry)


def test_a_coroutine_s_own_timeout_error_is_its_own(app: App, executor: Executor) -> None:
    """A TimeoutError of the handler keeps its text."""

    @app.task(timeout="1d")
    async def handler() -> None:
        raise TimeoutError("the remote side")

    ended = run(executor, handler)
    assert isinstance(ended, outcome.Retry)
    assert ended.error == "TimeoutError: the remote side"


def test_a_thread_over_its_timeout_is_told(app: App, executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    """A function cannot be stopped: its context says cancelled, and a warning is logged once."""

    @app.task(timeout=5)
    def handler() -> list[bool]:
        before = current().cancelled
        executor.overdue(-math.inf)
        early = current().cancelled
        executor.overdue(math.inf)
        executor.overdue(math.inf)
        return [before, early, current().cancelled]

    assert run(executor, handler) == outcome.Ack(b"[false,false,true]")
    assert len(caplog.records) == 1
    assert "longer than its timeout" in caplog.text


def test_a_function_without_a_timeout_is_never_overdue(app: App, executor: Executor) -> None:
    """Without a timeout nobody is told anything."""

    @app.task
    def handler() -> bool:
        executor.overdue(1e300)
        return current().cancelled

    assert run(executor, handler) == outcome.Ack(b"false")


def test_cancel_sets_the_flag_of_that_delivery_only(app: App, executor: Executor) -> None:
    """A cancel reaches the context of the running delivery; one for another epoch of the task reaches nobody."""
    deliveries: list[Delivery] = []

    @app.task
    def handler() -> list[bool]:
        executor.cancel(deliver(message))
        other = current().cancelled
        executor.cancel(deliveries[0])
        return [other, current().cancelled]

    message = handler.message()
    deliveries.append(deliver(message))
    assert executor.run(deliveries[0]) == outcome.Ack(b"[false,true]")


def test_cancel_stops_a_coroutine(app: App, executor: Executor) -> None:
    """A running coroutine gets CancelledError; it is tried again even if the policy knows no such error."""
    running = threading.Event()
    cleaned: list[bool] = []

    @app.task(retry=Retry(on=(OSError,)))
    async def endless() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(current().cancelled)

    message = endless.message()
    ended: list[outcome.Outcome] = []
    delivery = deliver(message)
    thread = threading.Thread(target=lambda: ended.append(executor.run(delivery)))
    thread.start()
    running.wait()
    executor.cancel(delivery)
    executor.cancel(delivery)  # the heartbeat says it again; the cleanup is not cancelled
    thread.join()
    assert cleaned == [True]
    assert isinstance(ended[0], outcome.Retry)
    assert ended[0].error == "Interrupted: cancelled by the worker"


def test_a_coroutine_cancelled_before_it_begins_does_not_begin(app: App, executor: Executor) -> None:
    """A cancel between claim and start is not lost."""
    called: list[int] = []

    @app.task
    async def handler() -> None:
        called.append(1)

    @app.on("before_run")
    def cancel(context: Context) -> None:
        context.cancelled = True

    assert isinstance(run(executor, handler), outcome.Retry)
    assert called == []


# ── hooks ──


def test_hooks_see_what_happens_in_order(app: App, executor: Executor) -> None:
    """before_run, then failed and dead where they apply, then after_run, each with the task's context."""
    seen: list[tuple[Any, ...]] = []
    app.on("before_run")(lambda context: seen.append(("before_run", context.task_id)))
    app.on("failed")(lambda context, error: seen.append(("failed", context.task_id, str(error))))
    app.on("dead")(lambda context, ended: seen.append(("dead", context.task_id, ended.reason)))
    app.on("after_run")(lambda context, ended: seen.append(("after_run", context.task_id, type(ended).__name__)))

    message = raising(app, ValueError("bad")).message()
    executor.run(deliver(message, attempt=3))
    executor.run(deliver(app.task(name="good")(lambda: None).message(), id="good"))
    executor.run(deliver(message, id="misfit", body=b'{"args":[1]}'))
    assert seen == [
        ("before_run", message.id),
        ("failed", message.id, "bad"),
        ("dead", message.id, "max_attempts"),
        ("after_run", message.id, "Dead"),
        ("before_run", "good"),
        ("after_run", "good", "Ack"),
        ("dead", "misfit", "arguments"),
    ]


@pytest.mark.parametrize("event", ["before_run", "after_run", "failed", "dead"])
def test_a_hook_that_fails_loses_no_task(
    app: App, executor: Executor, caplog: pytest.LogCaptureFixture, event: Any
) -> None:
    """Its exception is logged, and the outcome is the same."""

    @app.on(event)
    def broken(*_args: Any) -> None:
        raise RuntimeError("broken hook")

    ended = run(executor, raising(app, ValueError("bad")), attempt=3)
    assert isinstance(ended, outcome.Dead)
    assert "broken hook" in caplog.text


def test_a_fault_of_the_worker_itself_is_an_outcome(
    app: App, executor: Executor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Run never raises, not even when taskmq is wrong."""

    @app.task
    def handler() -> None: ...

    monkeypatch.setattr("taskmq.worker.executor.Executor._decode", lambda *_: 1 / 0)
    ended = run(executor, handler)
    assert isinstance(ended, outcome.Retry)
    assert ended.error == "ZeroDivisionError: division by zero"
    assert caplog.records[0].levelno == logging.CRITICAL
