"""The table of workers (base.py)."""

from __future__ import annotations

from dataclasses import replace

from taskmq.testing.conformance.kit import SECOND, Kit
from taskmq.transport.base import WorkerInfo

TTL = 60 * SECOND


def _worker(kit: Kit, worker_id: str) -> WorkerInfo:
    return WorkerInfo(
        id=worker_id,
        host="host-1",
        pid=42,
        queues=["a", "b"],
        pool="threads",
        concurrency=8,
        version="1.0",
        started_at=kit.now,
        handlers=["mail.send"],
        running=3,
        held=1,
    )


def _ids(kit: Kit) -> list[str]:
    return [worker.id for worker in kit.store.workers()]


def heartbeat_shows_a_worker(kit: Kit) -> None:
    """A worker's row shows what it said of itself (base.py)."""
    wanted = _worker(kit, "w1")
    kit.store.heartbeat(wanted, TTL)
    (shown,) = kit.store.workers()
    shown = replace(shown, queues=list(shown.queues), handlers=list(shown.handlers), seen_at=0)
    assert shown == wanted


def heartbeat_sets_the_time_it_was_seen(kit: Kit) -> None:
    """``seen_at`` is set by the store, by its clock (base.py, WorkerInfo; §9)."""
    kit.store.heartbeat(_worker(kit, "w1"), TTL)
    kit.advance(5)
    kit.store.heartbeat(_worker(kit, "w1"), TTL)
    assert kit.store.workers()[0].seen_at == kit.now


def heartbeat_renews_and_replaces_the_row(kit: Kit) -> None:
    """A later heartbeat replaces the row and keeps it alive (base.py)."""
    kit.store.heartbeat(_worker(kit, "w1"), TTL)
    kit.advance(50)
    kit.store.heartbeat(replace(_worker(kit, "w1"), running=7), TTL)
    kit.advance(50)
    assert [worker.running for worker in kit.store.workers()] == [7]


def heartbeat_is_forgotten_after_its_ttl(kit: Kit) -> None:
    """A worker that is silent for its ttl is no longer listed (base.py)."""
    kit.store.heartbeat(_worker(kit, "w1"), TTL)
    kit.advance(59)
    assert _ids(kit) == ["w1"]
    kit.advance(1)
    assert _ids(kit) == []


def forget_removes_a_worker(kit: Kit) -> None:
    """A worker that stops removes its row, and only its own (base.py)."""
    for worker_id in ("w2", "w1", "w3"):
        kit.store.heartbeat(_worker(kit, worker_id), TTL)
    assert _ids(kit) == ["w1", "w2", "w3"]
    kit.store.forget("w2")
    kit.store.forget("unknown")
    assert _ids(kit) == ["w1", "w3"]
