"""One Delivery → Outcome: resolve, decode, call, classify. It never raises and never touches the store.

Each step is a small function that is handed one Execution. What a handler does to its task is decided here, in
``_failure`` and ``_answer``; what that does to the queue is the store's business.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from contextvars import copy_context
from os import _exit, getpid
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from taskmq import codec, outcome, signals
from taskmq.clock import SECOND
from taskmq.codec import Envelope
from taskmq.context import Context, Report, enter, leave
from taskmq.errors import InvalidArgument, PayloadTooLarge
from taskmq.message import Delivery
from taskmq.outcome import Outcome
from taskmq.policy.retry import Retry
from taskmq.task import Task
from taskmq.worker.failure import Interrupted, describe, trace

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from taskmq.app import App

log = logging.getLogger("taskmq.worker")

UNKNOWN_FIRST = 5 * SECOND
UNKNOWN_LONGEST = 300 * SECOND
UNKNOWN_FOR = 24 * 3600 * SECOND
UNKNOWN_CLAIMS = UNKNOWN_FOR // UNKNOWN_LONGEST
"""Claims that 24 h of deferring take."""

_NOTHING = outcome.Ack()


class Execution(msgspec.Struct, eq=False):
    """One run of a handler.

    ``overdue_at``  monotonic, when a handler in a thread has used up its timeout
    ``told``        it was asked to stop, by an operator or because the worker stops
    """

    task: Task[..., Any]
    delivery: Delivery
    envelope: Envelope
    context: Context
    args: list[Any]
    kwargs: dict[str, Any]
    overdue_at: float = math.inf
    told: bool = False
    coroutine: Any = None
    """What can cancel an ``async def`` handler: its CoroutineRun or Drive."""


class Executor:
    """Runs handlers, in whichever thread ``run`` is called.

    ``loop``    gives the event loop for ``async def`` ones
    ``report``  is told the progress of handlers

    ``run`` is the whole pipeline. A pool that must not block while a handler runs goes through its steps itself:
    ``prepare``, ``begin``, then the handler, ``returned`` or ``raised``, ``finish``; and ``broken`` if a step fails.
    """

    def __init__(
        self,
        app: App,
        loop: Callable[[], AbstractEventLoop],
        rng: Random | None = None,
        report: Report | None = None,
    ) -> None:
        self._handlers = app.handlers
        self._hooks = app.hooks
        self._max_result = app.config.max_result
        self._loop = loop
        self._rng = rng or Random()
        self._report = report
        self._pid = getpid()
        self._running: dict[int, Execution] = {}  # by the id() of the delivery, which lives as long

    # ── from handler threads ──

    def run(self, delivery: Delivery) -> Outcome:
        """Execute a delivery and say how it ended. Never raises."""
        try:
            attempt = self.prepare(delivery)
            if type(attempt) is not Execution:
                return attempt  # type: ignore[return-value]
            # In a context of its own: what a handler sets, the next task of this thread must not see.
            ended = copy_context().run(self._attempt, attempt)
        except BaseException as error:  # whatever arguments, results or our own faults do, the worker goes on
            ended = self.broken(delivery, error)
        if getpid() != self._pid:
            _exit(0)  # a process that the handler forked: it is not the worker and must not speak for it
        return ended

    def handler(self, delivery: Delivery) -> Task[..., Any] | None:
        """The handler of a delivery, if it is known here."""
        return self._handlers.get(delivery.handler)

    @property
    def known(self) -> frozenset[str]:
        """The names of the handlers that are known here."""
        return frozenset(self._handlers)

    def bound(self, delivery: Delivery) -> tuple[float, bool] | None:
        """Seconds that the attempt may take, and whether its handler is a coroutine; None without a timeout."""
        task = self._handlers.get(delivery.handler)
        try:
            timeout = _timeout(codec.decode(delivery.body), task)
        except InvalidArgument:  # which the attempt itself will find out
            return None
        return None if timeout is None else (timeout, bool(task and task.is_coroutine))

    def prepare(self, delivery: Delivery) -> Execution | Outcome:
        """What is to be run, or how the delivery ends without."""
        task = self._handlers.get(delivery.handler)
        if task is None:
            return self._unknown(delivery)
        try:
            return self._decode(task, delivery)
        except InvalidArgument as error:
            return self._misfit(delivery, error)

    def broken(self, delivery: Delivery, error: BaseException) -> Outcome:
        """How a delivery ends whose attempt failed outside its handler, before it was finished."""
        self._running.pop(id(delivery), None)
        text, frames = describe(error), trace(error)
        log.critical("task %s (%s) broke its attempt: %s\n%s", delivery.id, delivery.handler, text, frames)
        return _again(delivery, UNKNOWN_FIRST, text, frames)

    def perished(self, delivery: Delivery, error: BaseException, *, told: bool) -> Outcome:
        """How a delivery ends whose process has died under its handler: with this error, by its retry policy.

        ``told``: it was asked to stop before. Never raises.
        """
        try:
            attempt = self.prepare(delivery)
            if type(attempt) is not Execution:
                return attempt  # type: ignore[return-value]
            attempt.told = attempt.context.cancelled = told
            ended = self.raised(attempt, error)
            self.finish(attempt, ended)
            return ended
        except BaseException as fault:
            return self.broken(delivery, fault)

    # ── from the heartbeat thread ──

    def cancel(self, delivery: Delivery) -> None:
        """Ask this running delivery to stop, once: its context says ``cancelled``, and a coroutine is cancelled."""
        attempt = self._running.get(id(delivery))
        if attempt is not None and not attempt.told:
            attempt.told = attempt.context.cancelled = True
            if attempt.coroutine is not None:
                attempt.coroutine.cancel()

    def overdue(self, now: float) -> None:
        """Tell handlers in threads that their timeout is over at ``now`` (monotonic); a thread cannot be ended."""
        for attempt in list(self._running.values()):
            if now >= attempt.overdue_at and not attempt.context.cancelled:
                attempt.context.cancelled = True
                log.warning(
                    "task %s (%s) runs longer than its timeout: its context says cancelled; a thread cannot be stopped",
                    attempt.delivery.id,
                    attempt.delivery.handler,
                )

    # ── the pipeline ──

    def _attempt(self, attempt: Execution) -> Outcome:
        self.begin(attempt)
        token = enter(attempt.context)
        try:
            ended = self._ended(attempt)
        finally:
            leave(token)
        self.finish(attempt, ended)
        return ended

    def begin(self, attempt: Execution) -> None:
        """The handler is about to run; from now on it can be cancelled."""
        if self._hooks.before_run:
            self._hooks.fire("before_run", attempt.context)
        self._running[id(attempt.delivery)] = attempt

    def finish(self, attempt: Execution, ended: Outcome) -> None:
        """The handler has ended."""
        self._running.pop(id(attempt.delivery), None)
        hooks = self._hooks
        if type(ended) is outcome.Dead and hooks.dead and not attempt.told:
            hooks.fire("dead", attempt.context, ended)
        if hooks.after_run:
            hooks.fire("after_run", attempt.context, ended)

    def _ended(self, attempt: Execution) -> Outcome:
        try:
            result = self._call(attempt)
        except BaseException as error:  # a SystemExit, too, ends this task and not the worker
            return self.raised(attempt, error)
        return self.returned(attempt, result)

    def returned(self, attempt: Execution, result: Any) -> Outcome:
        """How an attempt ends whose handler has returned this."""
        return _NOTHING if result is None else self._success(attempt, result)

    def raised(self, attempt: Execution, error: BaseException) -> Outcome:
        """How an attempt ends whose handler has raised this."""
        if isinstance(error, signals.RetryLater | signals.Defer | signals.Dead):
            return self._answer(attempt, error)
        return self._failure(attempt, error, "failed")

    def timeout_of(self, attempt: Execution) -> float | None:
        """Seconds that this attempt may take."""
        return _timeout(attempt.envelope, attempt.task)

    def _call(self, attempt: Execution) -> Any:
        timeout = self.timeout_of(attempt)
        if attempt.task.is_coroutine:
            return self._call_coroutine(attempt, timeout)
        if timeout is not None:
            attempt.overdue_at = monotonic() + timeout
        return attempt.task.function(*attempt.args, **attempt.kwargs)

    def _call_coroutine(self, attempt: Execution, timeout: float | None) -> Any:
        from taskmq.worker.coroutines import CoroutineRun  # asyncio: 35 ms for those who need it

        attempt.coroutine = CoroutineRun(self._loop())
        if attempt.context.cancelled:  # it was asked to stop before there was a coroutine to cancel
            attempt.coroutine.cancel()
        return attempt.coroutine.result(lambda: attempt.task.function(*attempt.args, **attempt.kwargs), timeout)

    # ── classification ──

    def _success(self, attempt: Execution, result: Any) -> Outcome:
        try:
            data = attempt.task.signature.encode_result(result)
            if data is not None and len(data) > self._max_result:
                raise PayloadTooLarge(
                    f"the result of {attempt.task.name} is {len(data):,} bytes; {self._max_result:,} are allowed "
                    "(max_result): store the data elsewhere and return its address",
                    size=len(data),
                    limit=self._max_result,
                )
        except InvalidArgument as error:  # running it again would bring the same, side effects included
            log.error("task %s (%s) is dead (result): %s", attempt.delivery.id, attempt.delivery.handler, error)
            return outcome.Dead("result", describe(error), trace(error))
        return outcome.Ack(data)

    def _answer(self, attempt: Execution, signal: signals.RetryLater | signals.Defer | signals.Dead) -> Outcome:
        """What the handler asked for."""
        if isinstance(signal, signals.Defer):
            return outcome.Defer(signal.delay, partition=signal.partition)
        cause = signal.__cause__ or signal
        if isinstance(signal, signals.RetryLater):
            return _again(attempt.delivery, signal.delay, describe(cause), trace(cause), partition=signal.partition)
        log.error("task %s (%s) is dead: %s", attempt.delivery.id, attempt.delivery.handler, signal.reason)
        return outcome.Dead(signal.reason, describe(cause), trace(cause))

    def _failure(self, attempt: Execution, error: BaseException, reason: str) -> Outcome:
        """By the retry policy. An interrupted one is always tried again: that it was stopped is not its fault."""
        delivery = attempt.delivery
        if self._hooks.failed:
            self._hooks.fire("failed", attempt.context, error)
        text = describe(error)
        if not (attempt.task.retry.retries(error) or isinstance(error, Interrupted)):
            ended: Outcome = outcome.Dead(reason, text, trace(error))
        else:
            interrupted = isinstance(error, Interrupted)
            delay = 0 if interrupted else _policy(attempt).delay(delivery.attempt, self._rng)
            ended = _again(delivery, delay, text, trace(error))
        if attempt.told:
            log.info("task %s (%s) stopped on request: %s", delivery.id, delivery.handler, text)
        elif isinstance(ended, outcome.Dead):
            log.error("task %s (%s) is dead (%s): %s", delivery.id, delivery.handler, ended.reason, text)
        else:
            log.warning("task %s (%s) failed, attempt %d: %s", delivery.id, delivery.handler, delivery.attempt, text)
        return ended

    def _misfit(self, delivery: Delivery, error: InvalidArgument) -> Outcome:
        """The stored arguments are not what the handler takes: no attempt can make that good."""
        log.error("task %s (%s) is dead (arguments): %s", delivery.id, delivery.handler, error)
        return self._dead_unstarted(delivery, outcome.Dead("arguments", describe(error)))

    def _unknown(self, delivery: Delivery) -> Outcome:
        """No such handler here. A newer deployment may know it, so the task waits: longer each time, for a day in all.

        The store's now is the lease's start. Age alone is not enough to give up: a task that was published for next
        week would be dead at its first claim, so it must also have been claimed as often as a day of waiting takes.
        """
        age = delivery.lease_until - delivery.lease - delivery.created_at
        if age >= UNKNOWN_FOR and delivery.epoch >= UNKNOWN_CLAIMS:
            log.error("task %s is dead: for 24 h no worker knew its handler %r", delivery.id, delivery.handler)
            error = f"UnknownHandler: no worker knew the handler {delivery.handler!r} for 24 h"
            return self._dead_unstarted(delivery, outcome.Dead("handler_unknown", error))
        delay = min(max(age, UNKNOWN_FIRST), UNKNOWN_LONGEST)
        log.error(
            "task %s waits %d s: this worker does not know its handler %r; it knows %s",
            delivery.id,
            delay // SECOND,
            delivery.handler,
            ", ".join(sorted(self._handlers)) or "none",
        )
        return outcome.Defer(delay)

    def _decode(self, task: Task[..., Any], delivery: Delivery) -> Execution:
        envelope = codec.decode(delivery.body)
        args, kwargs = task.signature.decode(envelope.args, envelope.kwargs)
        return Execution(task, delivery, envelope, Context(delivery, envelope, self._report), args, kwargs)

    def _dead_unstarted(self, delivery: Delivery, dead: outcome.Dead) -> Outcome:
        if self._hooks.dead:
            self._hooks.fire("dead", Context(delivery, Envelope()), dead)
        return dead


def _again(delivery: Delivery, delay: int, error: str, traceback: str, *, partition: bool = False) -> Outcome:
    """A retry, if the budget has one left."""
    if delivery.attempt >= delivery.max_attempts:
        return outcome.Dead("max_attempts", error, traceback)
    return outcome.Retry(delay, error, traceback, partition=partition)


def _timeout(envelope: Envelope, task: Task[..., Any] | None) -> float | None:
    """Seconds that an attempt may take: as the enqueue has it, or else the handler."""
    timeout = envelope.timeout or (task and task.timeout)
    return timeout / SECOND if timeout else None


def _policy(attempt: Execution) -> Retry:
    """The handler's retry policy, with the numbers that were given at the enqueue."""
    wire = attempt.envelope.retry
    if wire is None:
        return attempt.task.retry
    numbers: dict[str, Any] = {"backoff": wire.backoff, "base": wire.base, "cap": wire.cap, "jitter": wire.jitter}
    try:
        return dataclasses.replace(attempt.task.retry, **numbers)
    except InvalidArgument as error:  # written by another version or another language
        log.warning("task %s has retry numbers that are none: %s", attempt.delivery.id, error)
        return attempt.task.retry
