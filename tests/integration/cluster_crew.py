"""Publishers and claimers on a cluster that changes under them, and what they saw."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from taskmq.codec import Envelope, encode
from taskmq.errors import OutcomeUnknown, TransportUnavailable
from taskmq.ids import new_id
from taskmq.message import Delivery, Message
from taskmq.outcome import Ack
from taskmq.queue import Partition
from taskmq.testing.redis_cluster import Node, RedisCluster, wait_until
from taskmq.transport.base import Publish, Reserve, Settle, Settlement
from taskmq.transport.redis.cluster import RedisClusterTransport
from taskmq.transport.registry import open_store

QUEUES = tuple(f"q{number}" for number in range(12))
LEASE = 3_000_000
PATIENCE = 60.0


class Log:
    """What happened to every task."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.published: dict[str, str] = {}
        self.unsure: set[str] = set()
        self.starts: dict[str, list[str]] = {queue: [] for queue in QUEUES}
        self.acked: Counter[str] = Counter()
        self.excused: set[str] = set()
        """Tasks of which a verb did not say whether it happened: they may start a second time."""

    def first_starts(self, queue: str) -> list[str]:
        return list(dict.fromkeys(self.starts[queue]))


class Crew:
    """Publishers and claimers, each with a store of its own, until ``stop``."""

    def __init__(self, url: str, claimers: int = 4) -> None:
        self.log = Log()
        self.url = url
        self.stores: list[RedisClusterTransport] = []
        self.errors: list[BaseException] = []
        self._stopping = threading.Event()
        self._drained = threading.Event()
        work: list[Callable[[RedisClusterTransport], None]] = [self._publish, *[self._claim] * claimers]
        self._threads = [threading.Thread(target=self._run, args=(what,)) for what in work]
        for thread in self._threads:
            thread.start()

    def _run(self, what: Callable[[RedisClusterTransport], None]) -> None:
        store = open_store(self.url)
        assert isinstance(store, RedisClusterTransport)
        self.stores.append(store)
        try:
            what(store)
        except BaseException as error:
            self.errors.append(error)
        finally:
            store.close()

    def _publish(self, store: RedisClusterTransport) -> None:
        while not self._stopping.wait(0.002):
            for queue in QUEUES:
                message = Message(
                    id=new_id(), queue=queue, handler="h", body=encode(Envelope()), partition=Partition("!p")
                )
                with self.log.mutex:
                    self.log.unsure.add(message.id)
                try:
                    store.publish(Publish(messages=[message]))
                except (TransportUnavailable, OutcomeUnknown):
                    continue  # never sent on: the next one of this partition comes after it, if it is there
                with self.log.mutex:
                    self.log.unsure.discard(message.id)
                    self.log.published[message.id] = queue

    def _claim(self, store: RedisClusterTransport) -> None:
        while not self._drained.is_set():
            try:
                deliveries = store.reserve(Reserve(queues=QUEUES, limit=6, worker="w", lease=LEASE)).deliveries
            except (TransportUnavailable, OutcomeUnknown):
                continue
            with self.log.mutex:
                for delivery in deliveries:
                    self.log.starts[delivery.queue].append(delivery.id)
            for delivery in deliveries:
                self._settle(store, delivery)

    def _settle(self, store: RedisClusterTransport, delivery: Delivery) -> None:
        end = time.monotonic() + LEASE / 1e6
        while time.monotonic() < end:
            try:
                (settled,) = store.settle(Settle(items=[Settlement(delivery, Ack(), 0)]))
            except (TransportUnavailable, OutcomeUnknown):
                with self.log.mutex:
                    self.log.excused.add(delivery.id)
                continue
            with self.log.mutex:
                if settled:
                    self.log.acked[delivery.id] += 1
                else:
                    self.log.excused.add(delivery.id)
            return

    def seen(self) -> Counter[str]:
        """How often somebody was sent elsewhere, by the word."""
        return sum((store._cluster.redirections for store in self.stores), Counter())

    def progress(self) -> int:
        """How many tasks were settled so far."""
        return self.log.acked.total()

    def goes_on(self, count: int = 50) -> None:
        """Return when so many more tasks were settled."""
        wanted = self.progress() + count
        wait_until(lambda: self.progress() >= wanted or self.errors, "the work does not go on", PATIENCE)
        assert self.errors == []

    def end(self) -> Log:
        """Publish no more, wait until all is done, and stop."""
        self._stopping.set()
        self._threads[0].join(PATIENCE)
        store = open_store(self.url)

        def empty() -> bool:
            return bool(self.errors) or not any(stats.ready or stats.running for stats in store.stats())

        try:
            wait_until(empty, "the queues do not get empty", PATIENCE)
        finally:
            self._drained.set()
            for thread in self._threads:
                thread.join(PATIENCE)
            store.close()
        assert self.errors == []
        return self.log


def nothing_is_wrong(log: Log) -> None:
    """Each acknowledged publish was done, none was settled twice, none started twice without a reason, all in order."""
    assert [task_id for task_id in log.published if not log.acked[task_id] and task_id not in log.excused] == []
    assert [task_id for task_id, times in log.acked.items() if times > 1] == []
    for queue in QUEUES:
        twice = [task_id for task_id, times in Counter(log.starts[queue]).items() if times > 1]
        assert set(twice) <= log.excused
        published = [task_id for task_id, of in log.published.items() if of == queue]
        firsts = [task_id for task_id in log.first_starts(queue) if task_id in log.published]
        assert firsts == [task_id for task_id in published if task_id in set(firsts)]


def replica_of(cluster: RedisCluster, master: Node) -> Node:
    for node in cluster.nodes:
        if node.process.poll() is None:
            replication = node.info("replication")
            if replication["role"] == "slave" and replication["master_port"] == master.port:
                return node
    raise LookupError(f"{master.port} has no replica")


def is_master(node: Node) -> bool:
    return bool(node.info("replication")["role"] == "master")


def rejoin(cluster: RedisCluster, node: Node) -> None:
    """A node that was killed comes back, as a replica."""
    node.start()
    wait_until(lambda: not is_master(node) and cluster.ready(), "the node does not come back", PATIENCE)
