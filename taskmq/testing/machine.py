"""Random programs over all verbs: any store against the memory model.

``machine(open_store)`` makes a Hypothesis state machine. Each rule runs one verb on both stores, at the same time by
one clock, and compares the answers; after each step every task, queue and partition must look the same. So a store
may word the rules in SQL or Lua as it likes, but not differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from taskmq.codec import Envelope, encode
from taskmq.durations import Moment
from taskmq.errors import IdempotencyConflict, QueueFull
from taskmq.ids import new_id
from taskmq.message import Delivery, Message
from taskmq.outcome import Ack, Dead, Defer, Outcome, Retry, Yield
from taskmq.queue import Limit, Partition, QueueConfig, Rate
from taskmq.state import Progress, TaskInfo, TaskState
from taskmq.testing.clock import FakeClock
from taskmq.transport.base import (
    Extend,
    Find,
    Maintain,
    Publish,
    Renewal,
    Reserve,
    Reserved,
    Settle,
    Settlement,
    Store,
    WorkerInfo,
)
from taskmq.transport.memory import MemoryTransport

SECOND = 1_000_000
QUEUES = ("a", "b", "c")
LEASE = 10 * SECOND

delays = st.sampled_from([0, 0, 1, 2, 5, 30]).map(lambda seconds: seconds * SECOND)
later = st.sampled_from([None, None, None, 1, 5, 40]).map(lambda s: None if s is None else Moment(s * SECOND, True))
codes = st.sampled_from([None, None, "!x", "!y", "!z", "p", "q"])
queue_sets = st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3, unique=True)
priorities = st.sampled_from([0, 0, 0, 1, 5, 9])

configs = st.builds(
    QueueConfig,
    weight=st.sampled_from([1, 1, 2, 3, 7]),
    order=st.sampled_from(["strict", "strict", "aging"]),
    max_running=st.sampled_from([None, None, 2, 5]),
    max_queued=st.sampled_from([None, None, None, 6]),
    rate=st.sampled_from([None, None, None, Rate(count=2, per=3.0), Rate(count=5, per=7.0, burst=2)]),
    on_dead=st.sampled_from(["continue", "hold"]),
)

limits = st.sampled_from([None, None, None, Limit("u:1", 1), Limit("u:1", 2), Limit("u:2", 1)])
handlers = st.sampled_from(["h", "h", "g"])
versions = st.sampled_from(["", "", "v2"])
capabilities = st.sampled_from([None, None, None, None, [("h", "")], [("g", ""), ("h", "v2")], [("h", ""), ("g", "")]])

contents = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(QUEUES),
        "priority": priorities,
        "code": codes,
        "weight": st.sampled_from([None, None, 1, 2, 5]),
        "max_running": st.sampled_from([None, None, None, 1, 2]),
        "handler": handlers,
        "version": versions,
        "limit": limits,
        "run_after": later,
        "key": st.sampled_from([None, None, None, "k1", "k2"]),
        "key_ttl": st.sampled_from([None, None, 3 * SECOND]),
        "key_until": st.sampled_from(["retention", "finished"]),
        "expires": st.sampled_from([None, None, None, Moment(3 * SECOND, True), Moment(20 * SECOND, True)]),
        "deadline": st.sampled_from([None, None, None, Moment(15 * SECOND, True)]),
        "max_attempts": st.sampled_from([1, 2, 3, 50]),
        "retention": st.sampled_from([None, None, 0, 5 * SECOND]),
        "tags": st.sampled_from([(), (), ("red",), ("red", "blue")]),
        "odd": st.sampled_from([False] * 9 + [True]),
    }
)
ODDITIES = ("code", "limit", "run_after", "key", "expires", "deadline")
"""What a plain task has none of."""

news = st.sampled_from([None, None, Progress(3, 10, "rows"), Progress(4)])
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.sampled_from([Ack(), Ack(b'{"n":1}'), Yield()]),
    st.builds(Retry, delays, st.sampled_from([None, "E: boom"]), st.none(), st.booleans()),
    st.builds(Defer, delays, st.booleans()),
    st.builds(Dead, st.just("failed"), st.just("E: gone"), st.sampled_from([None, "Traceback"])),
)


class StoreMachine(RuleBasedStateMachine):
    """Runs each verb on the memory model and on ``opened``, and compares."""

    open_store: Callable[[FakeClock], Store]

    apart: bool = False
    """Whether the store keeps each queue for itself: batches, limits' keys and ``seq`` are then of one queue."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.model = MemoryTransport(self.clock)
        self.store = type(self).open_store(self.clock)
        self.ids: list[str] = []
        self.held: list[tuple[Delivery, Delivery]] = []

    def both(self, verb: Callable[[Store], Any]) -> Any:
        """The model's answer, if the store gives the same."""
        want, got = verb(self.model), verb(self.store)
        assert got == want, f"\n got {got}\nwant {want}"
        return want

    @initialize(
        settings=st.fixed_dictionaries(dict.fromkeys(QUEUES, configs)), plain=st.sampled_from([False, False, True])
    )
    def configure(self, settings: dict[str, QueueConfig], plain: bool) -> None:
        """Give the queues settings. ``plain``: nearly all tasks are, as they are where stores take their short ways."""
        self.plain = plain
        self.both(lambda store: store.configure_queues(settings))

    @rule(batch=st.lists(contents, min_size=1, max_size=4))
    def publish(self, batch: list[dict[str, Any]]) -> None:
        """Publish a batch."""
        if self.apart:
            batch = [{**content, "queue": batch[0]["queue"]} for content in batch]
        messages = [self._message(content) for content in batch]

        def verb(store: Store) -> Any:
            try:
                return store.publish(Publish(messages=messages))
            except IdempotencyConflict as conflict:
                return (conflict.key, conflict.task_id)
            except QueueFull as full:
                return (full.queue, full.max_queued, full.queued)

        self.both(verb)
        self.ids += [message.id for message in messages]

    def _message(self, content: dict[str, Any]) -> Message:
        values = dict(content)
        odd = values.pop("odd")
        if self.plain and not odd:
            values |= dict.fromkeys(ODDITIES)
        if self.apart and values["limit"]:
            values["limit"] = Limit(f"{values['queue']}:{values['limit'].key}", values["limit"].n)
        code, weight, most = values.pop("code"), values.pop("weight"), values.pop("max_running")
        if values["key"] is None:
            values["key_ttl"] = None
        most = None if code and code.startswith("!") else most
        partition = Partition(code, weight=weight, max_running=most) if code else None
        return Message(id=new_id(), body=encode(Envelope()), partition=partition, **values)

    @rule(
        queues=queue_sets,
        n=st.integers(1, 8),
        worker=st.sampled_from(["w1", "w2"]),
        can=capabilities,
        keys=st.sampled_from([True, True, True, False]),
    )
    def reserve(self, queues: list[str], n: int, worker: str, can: list[tuple[str, str]] | None, keys: bool) -> None:
        """Claim, some of the time only what a worker can run."""
        if self.plain:
            can, keys = None, True
        params = Reserve(queues=queues, limit=n, worker=worker, lease=LEASE, handlers=can, keys=keys)
        self._claimed(self.model.reserve(params), self.store.reserve(params))

    def _claimed(self, want: Reserved, got: Reserved) -> None:
        answers = [[_plain(delivery) for delivery in side.deliveries] for side in (got, want)]
        assert answers[0] == answers[1], f"\n got {answers[0]}\nwant {answers[1]}"
        assert got.more == want.more
        if want.deliveries == []:
            assert got.next_due == want.next_due
        self.held += zip(want.deliveries, got.deliveries, strict=True)

    @rule(picks=st.lists(st.tuples(st.integers(0, 30), outcomes), min_size=1, max_size=5))
    def settle(self, picks: list[tuple[int, Outcome]]) -> None:
        """Settle some of what is held; stale deliveries stay among it."""
        want, got = self._settlements(picks)
        assert self.store.settle(got) == self.model.settle(want)

    @rule(
        picks=st.lists(st.tuples(st.integers(0, 30), outcomes), min_size=1, max_size=5),
        queues=queue_sets,
        n=st.integers(1, 5),
    )
    def settle_and_reserve(self, picks: list[tuple[int, Outcome]], queues: list[str], n: int) -> None:
        """Settle and claim in one exchange."""
        want, got = self._settlements(picks)
        params = Reserve(queues=queues, limit=n, worker="w1", lease=LEASE)
        wanted, want_claim = self.model.settle_and_reserve(want, params)
        results, claim = self.store.settle_and_reserve(got, params)
        assert results == wanted
        self._claimed(want_claim, claim)

    @rule()
    def ack_all(self) -> None:
        """Acknowledge everything in claim order."""
        want, got = self._settlements([(index, Ack()) for index in range(len(self.held))])
        assert self.store.settle(got) == self.model.settle(want)
        self.held.clear()

    def _settlements(self, picks: list[tuple[int, Outcome]]) -> tuple[Settle, Settle]:
        pairs = [(self.held[index % len(self.held)], outcome) for index, outcome in picks] if self.held else []
        sides = [
            [Settlement(pair[side], outcome, 1000 * number) for number, (pair, outcome) in enumerate(pairs)]
            for side in (0, 1)
        ]
        return Settle(items=sides[0]), Settle(items=sides[1])

    @rule(picks=st.lists(st.tuples(st.integers(0, 30), st.booleans(), news), min_size=1, max_size=5))
    def extend(self, picks: list[tuple[int, bool, Progress | None]]) -> None:
        """Renew leases of some of what is held."""
        if not self.held:
            return
        chosen = [(self.held[index % len(self.held)], started, said) for index, started, said in picks]
        sides = [[Renewal(pair[side], started, said) for pair, started, said in chosen] for side in (0, 1)]
        assert self.store.extend(Extend(items=sides[1])) == self.model.extend(Extend(items=sides[0]))

    @rule(seconds=st.sampled_from([0.5, 1, 4, 11, 60]))
    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)

    @rule(limit=st.sampled_from([None, None, 1, 2]))
    def maintain(self, limit: int | None) -> None:
        """Do housekeeping, round by round: which old records a store deletes in which round is its own affair."""
        self.both(lambda store: _housekeeping(store, limit))

    @rule(queue=st.sampled_from(QUEUES), paused=st.booleans())
    def pause(self, queue: str, paused: bool) -> None:
        """Pause or resume a queue."""
        self.both(lambda store: store.pause_queue(queue, paused))

    @rule(settings=st.dictionaries(st.sampled_from(QUEUES), configs, max_size=2), overwrite=st.booleans())
    def reconfigure(self, settings: dict[str, QueueConfig], overwrite: bool) -> None:
        """Change settings, or only learn of the drift. The order of a queue stays as it is."""
        orders = {stats.name: stats.config.order for stats in self.model.stats()}
        kept = {name: replace(config, order=orders.get(name, config.order)) for name, config in settings.items()}
        self.both(lambda store: store.configure_queues(kept, overwrite))

    @rule(queue=st.sampled_from(QUEUES))
    def delete_queue(self, queue: str) -> None:
        """Delete a queue, if it has no unfinished tasks."""
        self.both(lambda store: store.delete_queue(queue))

    @rule(name=st.sampled_from(["m", "n"]), owner=st.sampled_from(["w1", "w2"]), free=st.booleans())
    def lock(self, name: str, owner: str, free: bool) -> None:
        """Take or give back a named lease."""
        self.both(lambda store: store.unlock(name, owner) if free else store.lock(name, owner, 5 * SECOND))

    @rule(name=st.sampled_from(["w1", "w2"]), gone=st.booleans())
    def worker(self, name: str, gone: bool) -> None:
        """A worker's row comes or goes."""
        row = WorkerInfo(id=name, host="h", pid=1, queues=["a"], pool="solo", concurrency=1, version="1", started_at=0)
        self.both(lambda store: store.forget(name) if gone else store.heartbeat(row, 5 * SECOND))
        self.both(lambda store: [(worker.id, worker.seen_at) for worker in store.workers()])

    @rule(queue=st.sampled_from(QUEUES), code=st.sampled_from(["!x", "!y", "p"]), paused=st.booleans())
    def pause_partition(self, queue: str, code: str, paused: bool) -> None:
        """Pause or resume a partition."""
        self.both(lambda store: store.pause_partition(queue, code, paused))

    @rule(queue=st.sampled_from(QUEUES), code=st.sampled_from(["!x", "!y"]), skip=st.booleans())
    def free_partition(self, queue: str, code: str, skip: bool) -> None:
        """Release a held partition, or let it go on without its head."""
        self.both(lambda store: (store.skip_head if skip else store.release_partition)(queue, code))

    @rule(picks=st.lists(st.integers(0, 200), min_size=1, max_size=4))
    def cancel(self, picks: list[int]) -> None:
        """Cancel some tasks."""
        self.both(lambda store: store.cancel(self._ids(picks)))

    @rule(picks=st.lists(st.integers(0, 200), min_size=1, max_size=6), queue=st.sampled_from([None, *QUEUES]))
    def replay(self, picks: list[int], queue: str | None) -> None:
        """Replay some tasks, of which the dead ones come back."""
        dead = self.model.find(Find(states=[TaskState.FAILED], limit=2)).tasks
        ids = [*self._ids(picks), *(task.id for task in dead)]
        if self.apart and queue is not None:  # a key that comes into another queue counts there anew
            ids = [task.id for task in self.model.get(ids) if task and (task.limit is None or task.queue == queue)]
        self.both(lambda store: store.replay(list(dict.fromkeys(ids)), queue))

    @rule(picks=st.lists(st.integers(0, 200), min_size=1, max_size=2))
    def purge(self, picks: list[int]) -> None:
        """Delete some ended tasks."""
        self.both(lambda store: store.purge(self._ids(picks)))

    def _ids(self, picks: list[int]) -> list[str]:
        return list(dict.fromkeys(self.ids[pick % len(self.ids)] for pick in picks)) if self.ids else []

    @invariant()
    def tasks_agree(self) -> None:
        """Every task looks the same in both."""
        self.both(lambda store: [task and self._seen(task) for task in store.get(self.ids)])

    @invariant()
    def queues_agree(self) -> None:
        """Every queue and partition looks the same in both."""
        self.both(lambda store: store.stats())
        self.both(lambda store: store.limits())
        for queue in QUEUES:
            self.both(partial(self._partitions, queue=queue))

    @staticmethod
    def _partitions(store: Store, queue: str) -> Any:
        return store.partitions(queue)

    @rule(
        queue=st.sampled_from([None, *QUEUES]),
        states=st.lists(st.sampled_from(list(TaskState)), max_size=2, unique=True),
        code=codes,
        tag=st.sampled_from([None, "red"]),
        limit=st.integers(1, 5),
    )
    def find(self, queue: str | None, states: list[TaskState], code: str | None, tag: str | None, limit: int) -> None:
        """List tasks page by page."""
        after: str | None = None
        for _ in range(3):
            params = Find(queue=queue, states=states, partition=code, tag=tag, limit=limit, after=after)
            page = self.both(partial(self._page, params=params))
            after = page.cursor
            if after is None:
                break

    def _page(self, store: Store, params: Find) -> Any:
        page = store.find(params)
        return replace(page, tasks=[self._seen(task) for task in page.tasks])

    def _seen(self, task: TaskInfo) -> TaskInfo:
        return msgspec.structs.replace(task, seq=0) if self.apart else task

    def teardown(self) -> None:
        """Close both."""
        self.store.close()
        self.model.close()


def _housekeeping(store: Store, limit: int | None) -> tuple[int, int, int]:
    """All there is to do: how many were promoted, reaped and deleted."""
    promoted = reaped = deleted = 0
    while True:
        done = store.maintain(Maintain(limit=limit))
        promoted, reaped, deleted = promoted + done.promoted, reaped + done.reaped, deleted + done.deleted
        if not done.more:
            return promoted, reaped, deleted


def _plain(delivery: Delivery) -> Delivery:
    """Without the store's own handle."""
    return msgspec.structs.replace(delivery, token=None)


def machine(opener: Callable[[FakeClock], Store], *, apart: bool = False) -> type[StoreMachine]:
    """A state machine that compares the store that ``opener`` makes with the memory model."""
    return type("ComparedWithMemory", (StoreMachine,), {"open_store": staticmethod(opener), "apart": apart})
