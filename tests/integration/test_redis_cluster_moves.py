"""A cluster that changes under load: slots move, replicas take over, masters die or freeze.

Four claimers work through twelve queues, each with an ordered partition. They are held to what is promised: nothing
acknowledged is lost, nothing starts twice without a reason, every partition starts in order, nothing hangs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from taskmq.codec import Envelope, encode
from taskmq.errors import OutcomeUnknown, TransportUnavailable
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.testing.redis_cluster import Node, RedisCluster, wait_until
from taskmq.transport.base import Publish, Reserve
from taskmq.transport.registry import open_store
from tests.integration.cluster_crew import (
    LEASE,
    PATIENCE,
    QUEUES,
    Crew,
    is_master,
    nothing_is_wrong,
    rejoin,
    replica_of,
)


@pytest.fixture(scope="module")
def six() -> Iterator[RedisCluster]:
    """Three masters with a replica each."""
    cluster = RedisCluster("redis", 3, 1)
    yield cluster
    cluster.stop()


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


def _message() -> Message:
    return Message(id=new_id(), queue="q0", handler="h", body=encode(Envelope()))


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("lua", ["on", "off"])
def test_a_queue_waits_while_its_slot_moves(
    six: RedisCluster, tmp_path: Path, lua: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half or all of its keys are at the other node already: nothing is done before the slot is there, too."""
    monkeypatch.setattr("taskmq.transport.redis.nodes.PATIENCE", 1.0)
    store = open_store(six.url(f"{tmp_path.name}:", lua=lua))
    for _ in range(3):
        store.publish(Publish(messages=[_message()]))
    move = Move(six, key_slot(b"q0"))
    move.begin()
    keys = move.keys()
    move.migrate(keys[: int(len(keys) * share)])
    began = time.monotonic()
    with pytest.raises(TransportUnavailable, match=r"moving|do not agree"):
        store.publish(Publish(messages=[_message()]))
    assert time.monotonic() - began > 0.8
    move.finish()
    claimed = store.reserve(Reserve(queues=["q0", "q1"], limit=9, worker="w", lease=30_000_000)).deliveries
    assert len(claimed) == 3
    store.flush()
    store.close()


def promote(replica: Node) -> None:
    """CLUSTER FAILOVER; a server gives up after 5 s when the votes are late, and wants to be asked again."""

    def asked() -> bool:
        replica.client.execute_command("CLUSTER FAILOVER")
        deadline = time.monotonic() + 6
        while time.monotonic() < deadline and not is_master(replica):
            time.sleep(0.01)
        return is_master(replica)

    wait_until(asked, "the replica is not promoted", PATIENCE)


def test_a_planned_failover_loses_nothing(six: RedisCluster, tmp_path: Path) -> None:
    """CLUSTER FAILOVER under load: the replica has everything, and the work goes on there."""
    crew = Crew(six.url(f"{tmp_path.name}:"))
    crew.goes_on()
    for queue in QUEUES[:3]:
        replica = replica_of(six, six.node_of(key_slot(queue.encode())))
        promote(replica)
        crew.goes_on()
        wait_until(six.ready, "the cluster does not get ready", PATIENCE)
    nothing_is_wrong(crew.end())


def test_a_killed_master_is_replaced_and_confirmed_publishes_survive(six: RedisCluster, tmp_path: Path) -> None:
    """Kill -9 of a master: work resumes by itself, and with min_replicas=1 no acknowledged publish is lost."""
    crew = Crew(six.url(f"{tmp_path.name}:", min_replicas=1))
    crew.goes_on()
    victim = six.node_of(key_slot(b"q0"))
    replica = replica_of(six, victim)
    victim.kill()
    wait_until(lambda: is_master(replica), "the replica is not promoted", PATIENCE)
    rejoin(six, victim)  # min_replicas=1 needs one again
    crew.goes_on()
    log = crew.end()
    assert is_master(replica)
    done = {task_id for queue in QUEUES for task_id in log.starts[queue]}
    assert [task_id for task_id in log.published if task_id not in done] == []
    assert [task_id for task_id, times in log.acked.items() if times > 1] == []


def test_a_killed_masters_work_resumes_without_confirmation(six: RedisCluster, tmp_path: Path) -> None:
    """Kill -9 of a master whose replica lags at most a moment: work resumes; only what the replica had not is lost."""
    crew = Crew(six.url(f"{tmp_path.name}:"))
    crew.goes_on()
    victim = six.node_of(key_slot(b"q1"))
    replica = replica_of(six, victim)
    killed_at = len(crew.log.published)
    victim.kill()
    wait_until(lambda: is_master(replica), "the replica is not promoted", PATIENCE)
    crew.goes_on()
    log = crew.end()
    rejoin(six, victim)
    done = {task_id for queue in QUEUES for task_id in log.starts[queue]}
    lost = [at for at, task_id in enumerate(log.published) if task_id not in done]
    assert all(killed_at - 200 < at < killed_at + 200 for at in lost)  # what was on its way when it died
    assert len(lost) <= 100


def test_a_frozen_master_settles_nothing_twice(six: RedisCluster, tmp_path: Path) -> None:
    """A master that stands still for longer than a lease, and is replaced meanwhile, ends no task a second time.

    With min_replicas=1: else an outcome that it had acknowledged and not passed on is void, and the task runs again.
    """
    crew = Crew(six.url(f"{tmp_path.name}:", min_replicas=1))
    crew.goes_on()
    frozen = six.node_of(key_slot(b"q2"))
    replica = replica_of(six, frozen)
    frozen.freeze()
    try:
        wait_until(lambda: is_master(replica), "the replica is not promoted", PATIENCE)
        time.sleep(LEASE / 1e6)  # the clocks are the servers': nothing to be told to go faster
    finally:
        frozen.thaw()
    wait_until(lambda: not is_master(frozen) and six.ready(), "the node does not follow", PATIENCE)
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
