"""One small function a check: from the facts to what is wrong in them, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from taskmq.doctor.facts import Facts
from taskmq.state import TaskInfo
from taskmq.transport.base import Finding, PartitionInfo
from taskmq.transport.settings import config_drift

SECOND = 1_000_000
SKEW = 5 * SECOND
"""Two clocks that differ by less are taken for equal."""
LONG_BLOCK = 600 * SECOND
LAG = 10 * SECOND
"""How much later than it should housekeeping may be done, while a worker lives that does it once a second."""
DEAD_LETTERS = 100
SHORTEST_LEASE = 5.0
"""Seconds; below it a pause of the process, or of the store, is enough to lose leases (defaults.md)."""
NAMED = 5
"""Most names in one finding."""

# ── checks of the store ──────────────────────────────────────────────────────────────────────────────────────────────


def durability(facts: Facts) -> Iterator[Finding]:
    """A store that ends with its process."""
    if not facts.durable or not facts.shared:
        what = "keeps tasks only as long as this process lives" if not facts.durable else "keeps tasks"
        alone = "" if facts.shared else ", and no other process sees them"
        yield _warning("durability", f"the store {what}{alone}", "for anything but tests use sqlite:///taskmq.db")


def clock(facts: Facts) -> Iterator[Finding]:
    """Clocks of this machine, of workers and of a publisher against the store's, which decides; and that over time."""
    fix = "set it by NTP: moments like run_after, computed by a wrong clock, are wrong by as much"
    here = facts.clock - facts.now
    if abs(here) > SKEW:
        yield _warning("clock", f"the clock of this machine is {_off(here)} the store's", fix)
    for worker in facts.workers:
        off = worker.clock - worker.seen_at
        if worker.clock and abs(off) > SKEW:
            yield _warning("clock", f"the clock of worker {worker.id} on {worker.host} is {_off(off)} the store's", fix)
    task = facts.newest
    if task is not None and _published_at(task) - task.created_at > SKEW:
        off = _published_at(task) - task.created_at
        yield _warning("clock", f"the clock of the publisher of task {task.id} was {_off(off)} the store's", fix)
    marks = {f"worker {worker.id} was seen": worker.seen_at for worker in facts.workers}
    if task is not None:
        marks[f"task {task.id} was published"] = task.created_at
    for what, when in marks.items():
        if when - facts.now > SKEW:
            yield _error(
                "clock",
                f"{what} {_seconds(when - facts.now)} in the future: the store's clock has been set back",
                "set the store's clock right; leases end, and delayed tasks run, that much later",
            )
            break


def _published_at(task: TaskInfo) -> int:
    """When the publisher made the task's id, by its own clock (UUIDv7); 0 when the id is none of ours."""
    try:
        return int(task.id[:12], 16) * 1000 if task.id[12] == "7" else 0
    except (ValueError, IndexError):
        return 0


# ── checks of queues and partitions ──────────────────────────────────────────────────────────────────────────────────


def without_workers(facts: Facts) -> Iterator[Finding]:
    """Queues with waiting tasks and no worker."""
    for queue in facts.queues:
        if facts.serving(queue.name):
            continue
        fix = f"start one: taskmq worker module:app --queues {queue.name}"
        if queue.ready or queue.retrying:
            what = f"{queue.ready + queue.retrying:,} tasks wait in queue {queue.name}"
            yield _error("workers", f"{what}, and no live worker subscribes to it", fix)
        elif queue.scheduled:
            what = f"{queue.scheduled:,} tasks of queue {queue.name} are due later"
            yield _warning("workers", f"{what}, and no live worker subscribes to it", fix)


def handlers(facts: Facts) -> Iterator[Finding]:
    """Unfinished tasks whose handler nobody knows."""
    for queue in facts.queues:
        workers = facts.serving(queue.name)
        if any(not worker.handlers for worker in workers):
            continue  # it does not say what it knows
        known = {name for worker in workers for name in worker.handlers}
        for name, count in queue.by_handler.items():
            if not count or name in known:
                continue
            what = f"{count:,} unfinished tasks of queue {queue.name} have the handler {name}"
            fix = f"deploy code that has it, or cancel them: taskmq task list --queue {queue.name} --handler {name}"
            if workers:
                nor = "" if not facts.handlers or name in facts.handlers else ", and neither does this app"
                yield _error("handlers", f"{what}, which no live worker of the queue knows{nor}", fix)
            elif facts.handlers and name not in facts.handlers:
                yield _warning("handlers", f"{what}, which this app does not know", fix)


def paused_queues(facts: Facts) -> Iterator[Finding]:
    """Paused queues in which tasks wait."""
    for queue in facts.queues:
        waiting = queue.ready + queue.scheduled + queue.retrying
        if queue.config.paused and waiting:
            text = f"queue {queue.name} is paused, and {waiting:,} tasks wait in it"
            yield _warning("paused", text, f"when the reason is gone: taskmq queue resume {queue.name}")


def partitions(facts: Facts) -> Iterator[Finding]:
    """Partitions that do not go on: held by a dead task, paused, blocked for long."""
    for queue, stopped in facts.stopped.items():
        held = [one for one in stopped if one.held_by is not None]
        if held:
            what = f"{_named(held, queue)} stopped at a dead task, with {_waiting(held)} tasks behind"
            fix = f"mend the cause, then taskmq partition release, or skip: taskmq partition list {queue} --stopped"
            yield _finding("error" if _waiting(held) else "warning", "partitions", what, fix)
        paused = [one for one in stopped if one.paused and one.waiting and one.held_by is None]
        if paused:
            what = f"{_named(paused, queue)} paused, with {_waiting(paused)} tasks waiting"
            yield _warning("partitions", what, f"taskmq partition resume {queue} CODE")
        blocked = [one for one in stopped if (one.blocked_until or 0) - facts.now > LONG_BLOCK and one.waiting]
        if blocked:
            longest = max(one.blocked_until or 0 for one in blocked) - facts.now
            what = f"{_named(blocked, queue)} blocked by a retry or defer for up to {_seconds(longest)} more"
            yield _warning("partitions", what, "if that is too long: taskmq partition skip, or a shorter retry cap")


def housekeeping(facts: Facts) -> Iterator[Finding]:
    """Leases and blocks that are over, and nobody has done anything about it."""
    late = [task for task in facts.running if task.lease_until is not None and task.lease_until < facts.now - LAG]
    if late:
        oldest = facts.now - min(task.lease_until or 0 for task in late)
        what = f"{len(late)} tasks count as running, e.g. {late[0].id}, {_seconds(oldest)} after their lease ended"
        yield _error("housekeeping", what, _upkeep(facts, late[0].queue))
    for queue, stopped in facts.stopped.items():
        over = [one for one in stopped if one.blocked_until is not None and one.blocked_until < facts.now - LAG]
        if over and facts.serving(queue):
            what = f"{_named(over, queue)} still blocked although the time is over"
            yield _error("housekeeping", what, _upkeep(facts, queue))


def _upkeep(facts: Facts, queue: str) -> str:
    if not facts.serving(queue):
        return f"start a worker: taskmq worker module:app --queues {queue}"
    return "look at the workers' logs for errors of maintenance; restart the one that holds it"


def dead_letters(facts: Facts) -> Iterator[Finding]:
    """Dead letters that pile up."""
    for queue in facts.queues:
        if queue.dead >= DEAD_LETTERS:
            text = f"{queue.dead:,} dead letters lie in queue {queue.name}"
            yield _warning("dead-letters", text, f"look, then replay or purge: taskmq dead list --queue {queue.name}")


# ── checks of settings and workers ───────────────────────────────────────────────────────────────────────────────────


def settings(facts: Facts) -> Iterator[Finding]:
    """Queues whose settings in the store are not the app's."""
    stored = {queue.name: queue.config for queue in facts.queues}
    for name, wanted in facts.config.queues.items():
        known = stored.get(name)
        for field in config_drift(wanted, known, known.paused) if known is not None else ():
            there, here = getattr(known, field), getattr(wanted, field)
            yield _warning(
                "settings",
                f"queue {name}: {field} is {there!r} in the store and {here!r} in the app",
                "change the app's Config, or the store: taskmq queue configure, or workers with apply_config",
            )


def leases(facts: Facts) -> Iterator[Finding]:
    """Leases so short that a pause loses them."""
    short = {f"of queue {queue.name}": queue.config.lease_us for queue in facts.queues}
    short["of the app"] = round(facts.config.lease_s * SECOND)
    for whose, lease in short.items():
        if lease is not None and lease < SHORTEST_LEASE * SECOND:
            yield _warning(
                "lease",
                f"the lease {whose} is {lease / SECOND:g} s: a worker that pauses as long loses its tasks",
                f"give at least {SHORTEST_LEASE:g} s; 30 s is the default",
            )


def timeouts(facts: Facts) -> Iterator[Finding]:
    """Timeouts of plain functions in pools that cannot stop one."""
    for handler in facts.handlers.values():
        if handler.timeout is None or handler.is_coroutine:
            continue
        pools = {worker.pool for worker in facts.workers if handler.name in worker.handlers} - {"processes"}
        if pools:
            yield _warning(
                "timeout",
                f"handler {handler.name} has a timeout and is a plain function, which pool {', '.join(sorted(pools))} "
                "can ask to stop but not stop",
                "look at current().cancelled in it, make it async def, or run it with --pool processes",
            )


def versions(facts: Facts) -> Iterator[Finding]:
    """Workers of different versions of taskmq."""
    found = sorted({worker.version for worker in facts.workers})
    if len(found) > 1:
        text = f"the live workers run different versions of taskmq: {', '.join(found)}"
        yield _warning("versions", text, "while a deployment goes on this is normal; else upgrade the older ones")


def heartbeats(facts: Facts) -> Iterator[Finding]:
    """Workers that have not been heard of for longer than they should be silent."""
    lease = facts.config.lease_s
    for worker in facts.workers:
        silent = facts.now - worker.seen_at
        if silent > lease * SECOND * 2 / 3:
            yield _warning(
                "heartbeat",
                f"worker {worker.id} on {worker.host} was last seen {_seconds(silent)} ago; with a lease of "
                f"{lease:g} s it should be seen every {lease / 3:g} s",
                "look whether it hangs, is out of processor time, or cannot reach the store",
            )


CHECKS: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    durability,
    clock,
    without_workers,
    handlers,
    paused_queues,
    partitions,
    housekeeping,
    dead_letters,
    settings,
    leases,
    timeouts,
    versions,
    heartbeats,
)

# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _finding(level: Literal["error", "warning"], check: str, text: str, fix: str) -> Finding:
    return Finding(check=check, level=level, text=text, fix=fix)


def _error(check: str, text: str, fix: str) -> Finding:
    return _finding("error", check, text, fix)


def _warning(check: str, text: str, fix: str) -> Finding:
    return _finding("warning", check, text, fix)


def _off(us: int) -> str:
    return f"{_seconds(abs(us))} {'ahead of' if us > 0 else 'behind'}"


def _seconds(us: int) -> str:
    return f"{us / SECOND:,.0f} s"


def _named(partitions: list[PartitionInfo], queue: str) -> str:
    """``partition !a of queue q is``, or ``7 partitions (!a, !b, …) of queue q are``."""
    if len(partitions) == 1:
        return f"partition {partitions[0].code} of queue {queue} is"
    codes = ", ".join(one.code for one in partitions[:NAMED])
    return f"{len(partitions):,} partitions ({codes}{', …' if len(partitions) > NAMED else ''}) of queue {queue} are"


def _waiting(partitions: list[PartitionInfo]) -> int:
    return sum(one.waiting for one in partitions)
