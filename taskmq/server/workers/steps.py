"""Start, finish, release and renew: from a worker's message to the store and back. Essay: authority and repetition.

A dispatch is an offer. What lets a handler run is ``started``, and ``started`` is given once for each epoch: to the
session that holds the reservation, on whichever connection it asks. An answer may be lost, so every step may be
repeated. A repeated start finds the task started in this epoch, by this session, and is told so with the same attempt.
A repeated finish finds the task gone from its hands; then its history is asked. The settle that ended this epoch left
a digest there: the same digest means that the answer was lost, another one that the worker has changed its mind, none
that the lease was over before. So the cost of a lost message is a message, and never a second run.

Whether a step is allowed is decided by the store, by session and epoch, in the transaction that does it. Nothing here
remembers anything that would be needed for that: a worker may go on on another node.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from taskmq.codec import RetryWire
from taskmq.outcome import Ack, Dead, Defer, Retry
from taskmq.server.digest import settle_digest
from taskmq.server.errors import ApiError, too_large
from taskmq.server.views import KEPT_COLON, MAX_MESSAGE, MAX_TRACEBACK, MAX_TYPE, cut, cut_front, extras_of
from taskmq.server.workers.messages import FinishItem, Item
from taskmq.server.workers.session import HeldTask, Session, policy_of, until_of
from taskmq.state import Progress, TaskInfo, TaskState
from taskmq.transport.serving import (
    Begin,
    Begun,
    End,
    Ended,
    Forfeit,
    HandBack,
    Keep,
    Kept,
    Refusal,
    ServingStore,
    StepResult,
)
from taskmq.wire import strict
from taskmq.wire.times import format_time, parse_time

if TYPE_CHECKING:
    from taskmq.server.node import Node

DEFAULT_LEASE = 30_000_000
LOST = Refusal("lost")
SUCCEEDED, FAILED = TaskState.SUCCEEDED, TaskState.FAILED
LONGEST_RESERVATION = 60_000_000
Step = Begin | End | HandBack | Forfeit
Reply = dict[str, Any]


def begin(session: Session, item: Item) -> Begin:
    """The store's step of a start."""
    held = session.held.get((item.task_id, item.epoch))
    return Begin(
        item.task_id, item.epoch, held.lease if held else DEFAULT_LEASE, held.timeout if held is not None else None
    )


def end(session: Session, item: FinishItem, max_result: int) -> End:
    """The store's step of a finish; raises ApiError where the result is too large or too deep."""
    result = strict.pack(item.result)
    if len(result) > max_result:
        raise too_large("result", max_result, "result")
    try:
        strict.check_depth(item.result, "result")
    except strict.NotStrict as error:
        raise ApiError("INVALID_ARGUMENT", str(error), field="result") from None
    fields = {
        "result": item.result,
        "error": None if item.error is UNSET else msgspec.structs.asdict(item.error),
        "delay_ms": None if item.delay_ms is UNSET else item.delay_ms,
        "reason": None if item.reason is UNSET or item.outcome == "success" else item.reason,  # it is not kept of one
        "block_partition": item.block_partition,
    }
    digest = settle_digest(item.outcome, fields)
    held = session.held.get((item.task_id, item.epoch))
    return End(item.task_id, item.epoch, _outcome(item, held, result), digest)


def _outcome(item: FinishItem, held: HeldTask | None, result: bytes) -> Ack | Retry | Defer | Dead:
    if item.outcome == "success":
        return Ack(None if item.result is None else result)
    error, traceback = _error(item)
    if item.outcome == "dead":
        return Dead("failed" if item.reason is UNSET or not item.reason else item.reason, error, traceback)
    delay = None if item.delay_ms is UNSET else item.delay_ms * 1000
    if item.outcome == "defer":
        return Defer(delay or 0, item.block_partition)
    if delay is None:
        policy = policy_of(held.retry if held is not None else None)
        delay = policy.delay(held.attempt if held is not None else 1, random.Random())
    return Retry(delay, error, traceback, item.block_partition)


def _error(item: FinishItem) -> tuple[str | None, str | None]:
    if item.error is UNSET:
        return None, None
    kind = cut(item.error.type, MAX_TYPE).replace(": ", KEPT_COLON) or "Error"
    text = f"{kind}: {cut(item.error.message, MAX_MESSAGE)}"
    return text, cut_front(item.error.traceback, MAX_TRACEBACK) or None


def retry_timeout(item: Keep, held: HeldTask | None) -> End:
    """What ends an execution whose timeout is over, as a retry would."""
    failure = {"type": "Timeout", "message": "the attempt took longer than its timeout"}
    policy = policy_of(held.retry if held is not None else None)
    delay = policy.delay(held.attempt if held is not None else 1, random.Random())
    outcome = Retry(delay, f"{failure['type']}: {failure['message']}")
    return End(item.task_id, item.epoch, outcome, settle_digest("timeout", failure))


# ── answers ──


def run(
    store: ServingStore, calls: Sequence[tuple[str, Sequence[Step]]]
) -> list[list[tuple[StepResult, TaskInfo | None]]]:
    """Do the steps of several sessions; beside a finish that lost its lease, the task as it is, to tell a repetition.

    Blocking.
    """
    results = store.steps_of_all(calls)
    pairs = [list(zip(steps, answers, strict=True)) for (_, steps), answers in zip(calls, results, strict=True)]
    late = [step.task_id for answers in pairs for step, result in answers if isinstance(step, End) and result == LOST]
    infos = dict(zip(late, store.get(late), strict=True)) if late else {}
    return [[(result, infos.get(step.task_id)) for step, result in answers] for answers in pairs]


def frees(node: Node, session: Session, step: Step, result: StepResult) -> bool:
    """Whether something may be claimable now that was not before. Asked before the answer is made.

    The end of a task that stood in no partition, had no key, and whose queue has no bound, makes room for nobody.
    """
    if isinstance(result, Begun):
        return False
    if not isinstance(step, End) or not isinstance(step.outcome, (Ack, Dead)) or not isinstance(result, Ended):
        return True
    held = session.held.get((step.task_id, step.epoch))
    if held is None or held.bound or result.released:
        return True
    queue = node.remembered(session.environment_id, held.queue_id)
    return queue is None or queue.settings.max_running is not None or result.state not in (SUCCEEDED, FAILED)


def answer(node: Node, session: Session, step: Step, result: StepResult, info: TaskInfo | None) -> Reply:
    """The fields of a step's reply; with an ``error`` in them, those of its error."""
    token = (step.task_id, step.epoch)
    shown: Reply = {"task_id": step.task_id, "epoch": step.epoch}
    if isinstance(result, Begun):
        return shown | _started(node, session, token, result)
    if isinstance(result, Ended):
        session.drop(token)
        for released in result.released:
            session.drop(released)
        return shown | _ended(node, step, result)
    if result.why == "lost":
        session.drop(token)
        repeated = None
        if isinstance(step, End) and info is not None:
            repeated = repeated_finish(info, session.session_id, step)
        if repeated is not None:
            return shown | repeated
    return _refused(node, step, result)


def _started(node: Node, session: Session, token: tuple[str, int], begun: Begun) -> Reply:
    left = max(0, begun.lease_until - begun.now)
    held = session.held.get(token)
    if held is None:
        held = session.held[token] = HeldTask("", DEFAULT_LEASE, 0.0)
    held.started, held.attempt, held.until = True, begun.attempt, until_of(left)
    shown: Reply = {"attempt": begun.attempt, "lease_ms": left // 1000, "lease_until": format_time(begun.lease_until)}
    if begun.repeated:
        shown["repeated"] = True
    else:
        held.begun(0, begun.now)
        node.metrics.started.inc()
    return shown


def _ended(node: Node, step: Step, ended: Ended) -> Reply:
    shown: Reply = {"state": ended.state.value}
    if ended.available_at is not None:
        shown["available_at"] = format_time(ended.available_at)
    if ended.released:
        shown["released"] = [{"task_id": task_id, "epoch": epoch} for task_id, epoch in ended.released]
    if isinstance(step, End):
        node.metrics.finished.labels(type(step.outcome).__name__.lower()).inc()
    return shown


def _refused(node: Node, step: Step, refusal: Refusal) -> Reply:
    if refusal.why == "lost":
        node.metrics.lost.inc()
        error = ApiError("LEASE_LOST", "this session and epoch do not hold the task")
    elif refusal.why == "not_started":
        error = ApiError("FAILED_PRECONDITION", "the task was not started", details={"state": "reserved"})
    else:
        error = ApiError("FAILED_PRECONDITION", "an earlier task of its run is not settled", details={"state": "run"})
    return {"task_id": step.task_id, "epoch": step.epoch, "error": error}


def repeated_finish(info: TaskInfo, session_id: str, step: End) -> Reply | None:
    """The answer to a finish of an epoch that is over: what it was then, or ALREADY_SETTLED; None: never settled."""
    for attempt in info.attempts:
        if attempt.epoch == step.epoch and attempt.worker == session_id and attempt.digest is not None:
            if attempt.digest != step.digest:
                return {"error": _other(attempt.outcome)}
            return {"state": _state_then(info, step.epoch, attempt.outcome), "repeated": True}
    if info.epoch == step.epoch and info.worker == session_id and info.state is TaskState.SUCCEEDED:
        stored = settle_digest("success", {"result": info.result})
        if stored != step.digest:
            return {"error": _other("success")}
        return {"state": info.state.value, "repeated": True}
    return None


def _other(outcome: str) -> ApiError:
    return ApiError("ALREADY_SETTLED", "this epoch was finished with another outcome", details={"outcome": outcome})


def _state_then(info: TaskInfo, epoch: int, outcome: str) -> str:
    if info.state.terminal and info.epoch == epoch:
        return info.state.value
    return (TaskState.SCHEDULED if outcome == "defer" else TaskState.RETRYING).value


# ── renewing ──


def wishes(session: Session, items: Sequence[Item], progress: dict[tuple[str, int], Progress]) -> list[Keep]:
    """What to renew, for the store."""
    wanted = []
    for item in items:
        held = session.held.get((item.task_id, item.epoch))
        lease = held.lease if held is not None else DEFAULT_LEASE
        timeout = held.timeout if held is not None else None
        wanted.append(Keep(item.task_id, item.epoch, lease, timeout, progress.get((item.task_id, item.epoch))))
    return wanted


def keep(store: ServingStore, session_id: str, wanted: Sequence[Keep], reserve: int) -> tuple[list[Kept], int]:
    """Renew; and the store's time. Blocking."""
    now = store.now()
    return store.keep(session_id, wanted, reserve=reserve, longest=LONGEST_RESERVATION), now


def renewed(session: Session, wanted: Sequence[Keep], kept: Sequence[Kept], now: int) -> tuple[Reply, list[Step]]:
    """The fields of ``renewed``, and the end of what its timeout or its task's deadline is over for."""
    lost: list[Reply] = []
    cancel: list[Reply] = []
    leases: list[int] = []
    ends: list[Step] = []
    for wish, result in zip(wanted, kept, strict=True):
        token = (wish.task_id, wish.epoch)
        named: Reply = {"task_id": wish.task_id, "epoch": wish.epoch}
        held = session.held.get(token)
        if result.lease_until is None or result.over is not None:
            lost.append(named)
            session.drop(token)
            if result.over is not None:
                cancel.append(named | {"reason": result.over})
                late = result.over == "deadline"
                ends.append(Forfeit(wish.task_id, wish.epoch) if late else retry_timeout(wish, held))
            continue
        if held is None:
            held = session.held[token] = HeldTask("", wish.lease, 0.0, started=result.started)
        held.until = until_of(max(0, result.lease_until - now))
        if result.cancel:
            cancel.append(named | {"reason": "user"})
        if result.started:
            leases.append(max(0, result.lease_until - now) // 1000)
    lease_ms = min(leases, default=DEFAULT_LEASE // 1000)
    return {"lease_ms": lease_ms, "lost": lost, "cancel": cancel}, ends


def merged_progress(held: HeldTask | None, done: float, total: Any, note: Any) -> Progress | None:
    """News worth a write: at most one a second for each task."""
    now = time.monotonic()
    if held is not None:
        if now - held.progressed < 1.0:
            return None
        held.progressed = now
    return Progress(done, None if total is UNSET else total, None if note is UNSET else note)


def remember_options(held: HeldTask, info: TaskInfo, now: int) -> None:
    """What a node that did not dispatch a task must know of it. ``now``: the store's time."""
    extras = extras_of(info)
    if isinstance(extras.get("deadline"), str):
        held.deadline = parse_time(extras["deadline"])
    if isinstance(extras.get("timeout_ms"), int):
        held.timeout = extras["timeout_ms"] * 1000
    retry = extras.get("retry")
    if isinstance(retry, dict):
        held.retry = RetryWire(
            retry.get("backoff", "exponential"),
            retry.get("base_ms", 1000) / 1000,
            retry.get("cap_ms", 300_000) / 1000,
            retry.get("jitter", True),
        )
    if info.started and info.started_at is not None:
        held.begun(now - info.started_at, now)
