"""A cluster that changes under load: slots move, replicas take over, masters die or freeze.

Four claimers work through twelve queues, each with an ordered partition. They are held to what is promised: nothing
acknowledged is lost, nothing starts twice without a reason, every partition starts in order, nothing hangs.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

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


@pytest.fixture(scope="module")
def six() -> Iterator[RedisCluster]:
    """Three masters with a replica each."""
    cluster = RedisCluster("redis", 3, 1)
    yield cluster
    cluster.stop()


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


class Move:
    """A slot on its way from one master to another."""

    def __init__(self, cluster: RedisCluster, slot: int) -> None:
        self.slot = slot
        self.source = cluster.node_of(slot)
        masters = {cluster.node_of(number).port: cluster.node_of(number) for number in range(0, 16384, 500)}
        self.target = next(node for port, node in sorted(masters.items()) if port != self.source.port)
        self._source_id, self._target_id = self.source.id, self.target.id

    def begin(self) -> None:
        self.target.client.execute_command("CLUSTER SETSLOT", self.slot, "IMPORTING", self._source_id)
        self.source.client.execute_command("CLUSTER SETSLOT", self.slot, "MIGRATING", self._target_id)

    def keys(self) -> list[bytes]:
        found: list[bytes] = self.source.client.execute_command("CLUSTER GETKEYSINSLOT", self.slot, 10000)
        return found

    def migrate(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.source.client.execute_command("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000)

    def finish(self) -> None:
        while keys := self.keys():
            self.migrate(keys)
        for node in (self.target, self.source):
            node.client.execute_command("CLUSTER SETSLOT", self.slot, "NODE", self._target_id)


def _until_told(crew: Crew, words: Sequence[str]) -> None:
    """Until a node has sent somebody elsewhere with one of these words."""
    before = sum(crew.seen()[word] for word in words)
    wait_until(
        lambda: sum(crew.seen()[word] for word in words) > before or crew.errors, f"nobody is told {words}", PATIENCE
    )


@pytest.mark.parametrize("lua", ["on", "off"])
def test_slots_move_under_load(six: RedisCluster, tmp_path: Path, lua: str) -> None:
    """While four claimers work, the slots of all queues move: nothing is lost, doubled or out of order."""
    crew = Crew(six.url(f"{tmp_path.name}:", lua=lua))
    crew.goes_on()
    state = f"{tmp_path.name}:{{%s}}:state"
    for number, queue in enumerate(QUEUES[:6]):
        move = Move(six, key_slot(queue.encode()))
        move.begin()
        keys = move.keys()
        first = (state % queue).encode()
        # Half of the queue is gone, or all that a script asks for: somebody has to be sent elsewhere.
        moved = [key for key in keys if key != first][::2] if number % 2 else [first]
        move.migrate(moved)
        words = ["ASK", "TRYAGAIN"] if lua == "off" else ["TRYAGAIN"] if number % 2 else ["ASK"]
        _until_told(crew, words)
        move.finish()
        crew.goes_on(20)
    seen = crew.seen()
    nothing_is_wrong(crew.end())
    assert seen["MOVED"] > 0
    assert (seen["ASK"] > 0 and seen["TRYAGAIN"] > 0) or lua == "off"
    assert set(seen) <= {"MOVED", "ASK", "TRYAGAIN"}


def _replica_of(cluster: RedisCluster, master: Node) -> Node:
    for node in cluster.nodes:
        if node.process.poll() is None:
            replication = node.info("replication")
            if replication["role"] == "slave" and replication["master_port"] == master.port:
                return node
    raise LookupError(f"{master.port} has no replica")


def _is_master(node: Node) -> bool:
    return bool(node.info("replication")["role"] == "master")


def _rejoin(cluster: RedisCluster, node: Node) -> None:
    """A node that was killed comes back, as a replica."""
    node.start()
    wait_until(lambda: not _is_master(node) and cluster.ready(), "the node does not come back", PATIENCE)


def test_a_planned_failover_loses_nothing(six: RedisCluster, tmp_path: Path) -> None:
    """CLUSTER FAILOVER under load: the replica has everything, and the work goes on there."""
    crew = Crew(six.url(f"{tmp_path.name}:"))
    crew.goes_on()
    for queue in QUEUES[:3]:
        replica = _replica_of(six, six.node_of(key_slot(queue.encode())))
        replica.client.execute_command("CLUSTER FAILOVER")
        wait_until(lambda: _is_master(replica), "the replica is not promoted", PATIENCE)  # noqa: B023
        crew.goes_on()
        wait_until(six.ready, "the cluster does not get ready", PATIENCE)
    nothing_is_wrong(crew.end())


def test_a_killed_master_is_replaced_and_confirmed_publishes_survive(six: RedisCluster, tmp_path: Path) -> None:
    """Kill -9 of a master: work resumes by itself, and with min_replicas=1 no acknowledged publish is lost."""
    crew = Crew(six.url(f"{tmp_path.name}:", min_replicas=1))
    crew.goes_on()
    victim = six.node_of(key_slot(b"q0"))
    replica = _replica_of(six, victim)
    victim.kill()
    wait_until(lambda: _is_master(replica), "the replica is not promoted", PATIENCE)
    _rejoin(six, victim)  # min_replicas=1 needs one again
    crew.goes_on()
    log = crew.end()
    assert _is_master(replica)
    done = {task_id for queue in QUEUES for task_id in log.starts[queue]}
    assert [task_id for task_id in log.published if task_id not in done] == []
    assert [task_id for task_id, times in log.acked.items() if times > 1] == []


def test_a_killed_masters_work_resumes_without_confirmation(six: RedisCluster, tmp_path: Path) -> None:
    """Kill -9 of a master whose replica lags at most a moment: work resumes; only what the replica had not is lost."""
    crew = Crew(six.url(f"{tmp_path.name}:"))
    crew.goes_on()
    victim = six.node_of(key_slot(b"q1"))
    replica = _replica_of(six, victim)
    killed_at = len(crew.log.published)
    victim.kill()
    wait_until(lambda: _is_master(replica), "the replica is not promoted", PATIENCE)
    crew.goes_on()
    log = crew.end()
    _rejoin(six, victim)
    done = {task_id for queue in QUEUES for task_id in log.starts[queue]}
    lost = [at for at, task_id in enumerate(log.published) if task_id not in done]
    assert all(killed_at - 200 < at < killed_at + 200 for at in lost)  # what was on its way when it died
    assert len(lost) <= 100


def test_a_frozen_master_settles_nothing_twice(six: RedisCluster, tmp_path: Path) -> None:
    """A master that stands still for longer than a lease, and is replaced meanwhile, ends no task a second time."""
    crew = Crew(six.url(f"{tmp_path.name}:"))
    crew.goes_on()
    frozen = six.node_of(key_slot(b"q2"))
    replica = _replica_of(six, frozen)
    frozen.freeze()
    try:
        wait_until(lambda: _is_master(replica), "the replica is not promoted", PATIENCE)
        time.sleep(LEASE / 1e6)  # the clocks are the servers': nothing to be told to go faster
    finally:
        frozen.thaw()
    wait_until(lambda: not _is_master(frozen) and six.ready(), "the node does not follow", PATIENCE)
    crew.goes_on()
    log = crew.end()
    assert [task_id for task_id, times in log.acked.items() if times > 1] == []


def test_min_replicas_that_cannot_be_had_is_said(tmp_path: Path) -> None:
    """Without a replica, min_replicas=1 makes a publish OutcomeUnknown, with the number that confirmed it."""
    cluster = RedisCluster("redis", 1)
    try:
        store = open_store(cluster.url(min_replicas=1))
        message: Any = Message(id=new_id(), queue="q", handler="h", body=encode(Envelope()))
        with pytest.raises(OutcomeUnknown, match="only 0 confirmed it within 1 s"):
            store.publish(Publish(messages=[message]))
        store.close()
    finally:
        cluster.stop()
