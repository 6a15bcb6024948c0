"""Many threads on one store (§8, §10). Schedules are left to chance; the promises hold for all of them."""

from __future__ import annotations

import threading
from collections import Counter

from taskmq.errors import IdempotencyConflict
from taskmq.outcome import Ack, Retry
from taskmq.state import TaskState
from taskmq.testing.conformance.crowd import at_once
from taskmq.testing.conformance.kit import Kit, names
from taskmq.transport.base import Maintain, Publish, Reserve, Settle, Settlement


def _reserve(kit: Kit, worker: int, limit: int) -> list[str]:
    """Claim without the kit's memory, which is not for threads; the names."""
    got = kit.store.reserve(Reserve(queues=["q"], limit=limit, worker=f"w{worker}"))
    return [kit.name(delivery.id) for delivery in got.deliveries]


def reserve_gives_each_task_to_one_worker(kit: Kit) -> None:
    """However many claim at once, each task is claimed once and none is lost (§10.1, §10.2)."""
    wanted = names("T", 240)
    kit.publish(*wanted)

    def claim(worker: int) -> list[str]:
        mine: list[str] = []
        for _ in wanted:
            mine += _reserve(kit, worker, 1 + worker % 5)
        return mine

    claimed = [name for mine in at_once(8, claim) for name in mine]
    assert Counter(claimed) == Counter(wanted)


def publish_of_one_key_makes_one_task(kit: Kit) -> None:
    """One key, one task, from however many publishers at once (§10.7)."""
    messages = [kit.message(f"T{number}", key="k", args=[1]) for number in range(16)]
    receipts = at_once(16, lambda number: kit.store.publish(Publish(messages=[messages[number]]))[0])
    assert len({receipt.id for receipt in receipts}) == 1
    assert [receipt.duplicate for receipt in receipts].count(False) == 1
    assert len(kit.claim(99)) == 1


def publish_of_conflicting_keys_accepts_one(kit: Kit) -> None:
    """Of different contents for one key at once one is stored, the others conflict with it (§7)."""
    messages = [kit.message(f"T{number}", key="k", args=[number]) for number in range(8)]

    def publish(number: int) -> str | None:
        try:
            return kit.store.publish(Publish(messages=[messages[number]]))[0].id
        except IdempotencyConflict:
            return None

    accepted = [task_id for task_id in at_once(8, publish) if task_id is not None]
    assert [kit.id(name) for name in kit.claim(99)] == accepted
    assert len(accepted) == 1


def publish_from_many_threads_loses_nothing(kit: Kit) -> None:
    """Batches published at once are all stored, each in its own order (§10.1, §4)."""
    batches = [[kit.message(f"{number} {item}") for item in range(20)] for number in range(8)]
    at_once(8, lambda number: kit.store.publish(Publish(messages=batches[number])))
    claimed = kit.claim(200)
    assert len(claimed) == 160
    for number in range(8):
        mine = [int(name.split()[1]) for name in claimed if name.startswith(f"{number} ")]
        assert mine == list(range(20))


def settle_from_two_threads_is_accepted_once(kit: Kit) -> None:
    """Of several settles of one delivery at once exactly one is accepted (§10.2)."""
    for round_number in range(10):
        name = f"T{round_number}"
        kit.publish(name)
        kit.claim()
        item = Settlement(kit.delivery(name), Ack())
        answers = at_once(4, lambda _, item=item: kit.store.settle(Settle(items=[item]))[0])  # type: ignore[misc]
        assert answers.count(True) == 1
        assert kit.state(name) is TaskState.SUCCEEDED


def ordered_partitions_stay_ordered_under_load(kit: Kit) -> None:
    """Under eight workers that retry and batch each partition succeeds in publish order, one at a time (§10.3)."""
    codes = [f"!p{number}" for number in range(6)]
    for code in codes:
        kit.publish(*names(f"{code} ", 12), partition=code, max_attempts=9)
    log: list[str] = []
    holders: dict[str, int] = {}
    lock = threading.Lock()

    def work(worker: int) -> None:
        for step in range(2000):
            got = kit.store.reserve(Reserve(queues=["q"], limit=1 + worker % 4, worker=f"w{worker}")).deliveries
            if not got and all(kit.store.stats(["q"])[0].__getattribute__(f) == 0 for f in ("ready", "running")):
                return
            runs: dict[str, list[Settlement]] = {}
            for position, delivery in enumerate(got):
                fails = (step + position + worker) % 7 == 6 and delivery.attempt < 4
                runs.setdefault(delivery.partition or "", []).append(Settlement(delivery, Retry(0) if fails else Ack()))
            with lock:
                for code in runs:
                    assert holders.setdefault(code, worker) == worker, f"two workers hold {code}"
            for code, items in runs.items():
                for item in items:
                    with lock:
                        if isinstance(item.outcome, Retry) or item is items[-1]:
                            holders.pop(code)
                        if isinstance(item.outcome, Ack):
                            log.append(kit.name(item.delivery.id))
                    assert kit.store.settle(Settle(items=[item])) == [True]
                    if isinstance(item.outcome, Retry):
                        break

    at_once(8, work)
    for code in codes:
        assert [name for name in log if name.startswith(f"{code} ")] == names(f"{code} ", 12)


def maintain_from_many_threads_counts_each_loss_once(kit: Kit) -> None:
    """Any worker may do maintenance at any time: a lost task is reaped once, and blamed once (base.py, §2)."""
    kit.publish(*names("T", 20), max_attempts=9)
    kit.claim_one_by_one(20)
    kit.advance(31)
    done = at_once(8, lambda _: kit.store.maintain(Maintain()).reaped)
    assert sum(done) == 20
    assert [kit.info(name).attempt for name in names("T", 20)] == [1] * 20


def lock_is_taken_by_one_of_many(kit: Kit) -> None:
    """Of many owners that want a named lease at once exactly one gets it (base.py)."""
    assert sum(at_once(16, lambda number: kit.store.lock("leader", f"o{number}", 10_000_000))) == 1


def changes_of_two_settings_at_once_both_stand(kit: Kit) -> None:
    """Operators who change different settings at one moment do not undo each other's work (base.py, change_queue)."""
    wanted = [("weight", 1), ("max_running", 1), ("max_queued", 1)]

    def change(number: int) -> None:
        kit.store.change_queue("q", dict([wanted[number]]))

    for value in range(2, 12):
        wanted = [(name, value) for name, _ in wanted]
        at_once(len(wanted), change)
        config = kit.stats("q").config
        assert [(name, getattr(config, name)) for name, _ in wanted] == wanted
