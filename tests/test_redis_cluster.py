"""The store on a real cluster of three masters, with and without scripts: what one server does not have."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import MovedError

from taskmq import App, ConfigError, IdempotencyConflict, Limit, QueueConfig, TransportError
from taskmq.codec import Envelope, encode
from taskmq.durations import Moment
from taskmq.errors import OutcomeUnknown, QueueFull, TransportUnavailable
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.outcome import Ack, Dead, Retry
from taskmq.queue import Partition
from taskmq.state import TaskState
from taskmq.testing.clock import FakeClock
from taskmq.testing.redis_cluster import RedisCluster, free_port, redis_cluster
from taskmq.testing.servers import RedisServer
from taskmq.transport.base import Find, Maintain, Publish, Reserve, Settle, Settlement, Store, Wait
from taskmq.transport.group import Call
from taskmq.transport.redis.cluster import RedisClusterTransport
from taskmq.transport.redis.keys import Keys
from taskmq.transport.redis.nodes import Cluster, Step, slot_of
from taskmq.transport.redis.scripts import script
from taskmq.transport.redis.settings import Settings
from taskmq.transport.registry import open_store

QUEUES = tuple(f"q{number}" for number in range(12))


@pytest.fixture(params=["redis", "redis-nolua"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place of its own on the cluster."""
    url = redis_cluster("redis").url(f"{tmp_path.name}:", lua="off" if request.param.endswith("nolua") else "on")
    yield url
    with App(url) as app:
        app.store.flush()


@pytest.fixture
def clock() -> FakeClock:
    """The time, which stands still."""
    return FakeClock()


@pytest.fixture
def store(url: str, clock: FakeClock) -> Iterator[RedisClusterTransport]:
    """The store there."""
    store = open_store(url, clock=clock)
    assert isinstance(store, RedisClusterTransport)
    yield store
    store.close()


def message(queue: str, **values: Any) -> Message:
    return Message(id=new_id(), queue=queue, handler="h", body=encode(Envelope()), **values)


def publish(store: Store, queue: str, count: int = 1, **values: Any) -> list[str]:
    batch = [message(queue, **values) for _ in range(count)]
    return [receipt.id for receipt in store.publish(Publish(messages=batch))]


def claim(store: Store, n: int, *queues: str, lease: int = 30_000_000) -> list[Any]:
    return list(store.reserve(Reserve(queues=queues, limit=n, worker="w", lease=lease)).deliveries)


def settle(store: Store, deliveries: list[Any], outcome: Any = None) -> list[bool]:
    return store.settle(Settle(items=[Settlement(delivery, outcome or Ack(), 0) for delivery in deliveries]))


# ── where keys live ──


def test_slots_are_what_the_server_says() -> None:
    """Our arithmetic of slots is CLUSTER KEYSLOT's, braces of all kinds included."""
    client = redis_cluster("redis").nodes[0].client
    for key in (b"a", b"{a}b", b"a{}b", b"{}", b"a{b", b"a}b{c}", b"{a}{b}", "é{ü}".encode(), b"x" * 500, b"{{a}}"):
        assert key_slot(key) == client.execute_command("CLUSTER KEYSLOT", key)


def test_all_keys_of_a_queue_share_a_slot() -> None:
    """Whatever a queue, a code, a key or an id is called, everything of the queue is where the queue is."""
    for queue in ("q", "a:b", "wake", "state", "t:1", "queues"):
        keys = Keys("p:", queue)
        found = [
            *(
                keys.of_queue("state", queue),
                keys.of_spec("line", 3, queue),
                keys.task("01"),
                keys.log("01"),
                keys.limits,
            ),
            *(keys.partition(queue, b"{x}"), keys.partition(queue, b"}{"), keys.limit("{k}"), *keys.declared),
        ]
        assert slot_of(tuple(found)) == key_slot(queue.encode())
        assert len(set(found)) == len(found) - 1  # state is among the declared ones


def test_queues_are_on_different_masters(store: RedisClusterTransport) -> None:
    """Twelve queues are spread over all three masters, and each master has just its own keys."""
    for queue in QUEUES:
        publish(store, queue)
    cluster = redis_cluster("redis")
    masters = {queue: cluster.node_of(key_slot(queue.encode())).port for queue in QUEUES}
    assert len(set(masters.values())) == 3
    for node in cluster.nodes:
        states = node.client.scan_iter(f"{store._prefix}*:state".translate({91: "\\[", 93: "\\]"}))
        found = {key.split(b"{")[1].split(b"}")[0].decode() for key in states}
        assert found == {queue for queue in QUEUES if masters[queue] == node.port}


def test_keys_of_two_slots_are_refused_before_they_are_sent(store: RedisClusterTransport) -> None:
    """A command over two slots never leaves this process: a node might write half of it."""
    before = store._cluster.round_trips
    with pytest.raises(TransportError, match="2 slots"):
        store._cluster.command("MGET", "a", "b")
    assert store._cluster.round_trips == before


# ── the verbs over several slots ──


def test_claims_and_settles_span_masters(store: RedisClusterTransport) -> None:
    """One claim takes from queues on all masters, one settle ends them all."""
    ids = [task_id for queue in QUEUES for task_id in publish(store, queue)]
    deliveries = claim(store, 12, *QUEUES)
    assert sorted(delivery.id for delivery in deliveries) == sorted(ids)
    assert settle(store, deliveries) == [True] * 12
    assert settle(store, deliveries) == [False] * 12
    assert {task.state for task in store.get(ids) if task} == {TaskState.SUCCEEDED}


def test_a_claim_takes_two_round_trips_whatever_the_number_of_queues(url: str, clock: FakeClock) -> None:
    """Look at all, claim where it was chosen: two exchanges for twelve queues; with a settle before it, two as well."""
    store = open_store(url.replace("lua=off", "lua=on"), clock=clock)
    assert isinstance(store, RedisClusterTransport)
    for queue in QUEUES:
        publish(store, queue, 3)
    claim(store, 1, *QUEUES)  # every master has the scripts
    settle(store, claim(store, 12, *QUEUES))
    before = store._cluster.round_trips
    first = claim(store, 6, *QUEUES)
    assert store._cluster.round_trips - before == 2
    reserve = Reserve(queues=QUEUES, limit=6, worker="w", lease=30_000_000)
    items = [Settlement(delivery, Ack(), 0) for delivery in first]
    before = store._cluster.round_trips
    settled, claimed = store.settle_and_reserve(Settle(items=items), reserve)
    assert store._cluster.round_trips - before == 2
    assert (settled, len(claimed.deliveries)) == ([True] * 6, 6)
    store.close()


def test_expired_leases_come_back_on_every_master(store: RedisClusterTransport, clock: FakeClock) -> None:
    """Tasks of a dead worker are claimed again with no maintenance running."""
    ids = [task_id for queue in QUEUES for task_id in publish(store, queue)]
    claim(store, 12, *QUEUES, lease=1_000_000)
    clock.advance(2)
    assert sorted(delivery.id for delivery in claim(store, 12, *QUEUES)) == sorted(ids)


def test_what_falls_due_is_found_without_maintenance(store: RedisClusterTransport, clock: FakeClock) -> None:
    """A delayed task and a blocked partition are claimed when they are due."""
    publish(store, "q1", partition=Partition("!x"))
    (delivery,) = claim(store, 1, "q0", "q1")
    settle(store, [delivery], Retry(5_000_000, None, None, False))
    (later,) = store.publish(Publish(messages=[message("q0", run_after=Moment(5_000_000, True))]))
    assert claim(store, 9, "q0", "q1") == []
    clock.advance(6)
    assert {found.id for found in claim(store, 9, "q0", "q1")} == {delivery.id, later.id}


def test_queues_share_by_weight(store: RedisClusterTransport) -> None:
    """Weights 3:1, a hundred tasks each: of forty taken, thirty and ten."""
    store.configure_queues({"heavy": QueueConfig(weight=3), "light": QueueConfig(weight=1)})
    for queue in ("heavy", "light"):
        publish(store, queue, 100)
    taken = [delivery.queue for _ in range(8) for delivery in claim(store, 5, "heavy", "light")]
    assert abs(taken.count("heavy") - 30) <= 2
    assert len(taken) == 40


def test_priority_still_beats_weights(store: RedisClusterTransport) -> None:
    """An urgent task in the light queue goes before everything in the heavy one."""
    store.configure_queues({"heavy": QueueConfig(weight=1000), "light": QueueConfig(weight=1)})
    publish(store, "heavy", 10)
    (urgent,) = publish(store, "light", priority=9)
    assert claim(store, 1, "heavy", "light")[0].id == urgent


def test_a_look_that_takes_tasks_back_sees_each_of_them_once(store: RedisClusterTransport, clock: FakeClock) -> None:
    """A task whose lease has ended stands before others of its partition again; what follows is not counted twice."""
    (first,) = publish(store, "q0", priority=9, partition=Partition("p"))
    assert [delivery.id for delivery in claim(store, 1, "q0")] == [first]
    (second,) = publish(store, "q0", priority=5, partition=Partition("p"))
    publish(store, "q0", partition=Partition("p"))
    (third,) = publish(store, "q1", priority=3)
    clock.advance(31)
    assert [delivery.id for delivery in claim(store, 3, "q0", "q1")] == [first, second, third]


def test_four_threads_take_every_task_once(url: str) -> None:
    """Four claimers, two hundred tasks over twelve queues: nothing twice, nothing left."""
    with App(url) as app:
        for queue in QUEUES:
            app.store.publish(Publish(messages=[message(queue) for _ in range(17)]))
        taken: list[list[str]] = [[] for _ in range(4)]

        def work(number: int) -> None:
            store = open_store(url)
            while deliveries := claim(store, 7, *QUEUES):
                taken[number] += [delivery.id for delivery in deliveries]
                assert all(settle(store, deliveries))
            store.close()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        everything = [task_id for mine in taken for task_id in mine]
        assert len(everything) == len(set(everything)) == 12 * 17


def test_a_batch_is_stored_queue_by_queue(store: RedisClusterTransport) -> None:
    """A conflict refuses its own queue's messages, and the error says what was stored."""
    publish(store, "q0", key="k")
    batch = [message("q1"), message("q0", key="k", priority=3), message("q0")]
    with pytest.raises(IdempotencyConflict, match="what this batch had for 'q1' was stored"):
        store.publish(Publish(messages=batch))
    assert [task is not None for task in store.get([m.id for m in batch])] == [True, False, False]
    store.configure_queues({"q2": QueueConfig(max_queued=1)})
    with pytest.raises(QueueFull, match="'q3' was stored"):
        store.publish(Publish(messages=[message("q2"), message("q2"), message("q3")]))


def test_a_key_is_one_task_in_its_queue(store: RedisClusterTransport) -> None:
    """The key's check and the insert are one step in the queue's slot; batches included."""
    same = [message("q0", key="k") for _ in range(3)]
    receipts = store.publish(Publish(messages=same))
    assert [receipt.duplicate for receipt in receipts] == [False, True, True]
    assert {receipt.id for receipt in receipts} == {same[0].id}


def test_limits_count_in_their_queue(store: RedisClusterTransport) -> None:
    """A limit by key is exact within a queue, and counts in each queue by itself: ``cross_queue_limits``."""
    for queue in ("q0", "q1"):
        publish(store, queue, 3, limit=Limit("k", 2))
    assert [delivery.queue for delivery in claim(store, 9, "q0", "q1")].count("q0") == 2
    (info,) = store.limits()
    assert (info.running, info.parked) == (4, 2)


# ── replay into another queue ──


def _dead(store: RedisClusterTransport, queue: str, **values: Any) -> str:
    (task_id,) = publish(store, queue, **values)
    (delivery,) = claim(store, 1, queue)
    assert store.settle(Settle(items=[Settlement(delivery, Dead("failed", "E: boom"), 0)])) == [True]
    return task_id


def test_a_dead_letter_moves_to_another_masters_queue(url: str, store: RedisClusterTransport, clock: FakeClock) -> None:
    """The whole record moves: history and id stay, and ack, get and cancel by the old id work after it."""
    task_id = _dead(store, "q0")
    other = open_store(url, clock=clock)  # does not know where the task is
    assert store.replay([task_id], "q1") == [True]
    for known in (store, other):
        (task,) = known.get([task_id])
        assert task is not None
        assert (task.queue, task.state, task.replays, len(task.attempts)) == ("q1", TaskState.QUEUED, 1, 1)
    assert [stats.dead for stats in store.stats(["q0", "q1"])] == [0, 0]
    (delivery,) = claim(store, 9, "q0", "q1")
    assert settle(store, [delivery]) == [True]
    assert other.watch(task_id, 1)
    second = _dead(store, "q0")
    assert store.replay([second], "q1") == [True]
    assert other.cancel([second]) == [TaskState.CANCELLED]
    other.close()


def _interrupted(store: RedisClusterTransport, task_id: str, queue: str, stop: str) -> None:
    """A replay into another queue that ends before this step: "arrive" there, or "leave" here."""
    run = store._run

    def crash(which: Any, *args: Any, **options: Any) -> Any:
        if which.name == stop or (stop == "leave" and which.name == "depart" and args[2] == ""):
            raise KeyboardInterrupt
        return run(which, *args, **options)

    store._run = crash  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        store.replay([task_id], queue)
    store._run = run  # type: ignore[method-assign]


@pytest.mark.parametrize("stop", ["arrive", "leave"])
def test_a_move_that_was_interrupted_leaves_one_deliverable_task(store: RedisClusterTransport, stop: str) -> None:
    """A crash between the steps of a move loses nothing and doubles nothing; the next replay ends it."""
    task_id = _dead(store, "q0")
    _interrupted(store, task_id, "q1", stop)
    (task,) = store.get([task_id])
    assert task is not None
    assert task.state is (TaskState.FAILED if stop == "arrive" else TaskState.QUEUED)
    store.replay([task_id])  # wherever it is asked to go, it goes where it was going
    deliveries = claim(store, 9, "q0", "q1")
    assert [(delivery.id, delivery.queue) for delivery in deliveries] == [(task_id, "q1")]
    assert store.stats(["q0"])[0].dead == (0 if stop == "arrive" else 1)
    assert settle(store, deliveries) == [True]
    assert store.replay([task_id]) == [False]


def test_what_a_move_left_behind_is_replayed_from_where_the_task_died_last(store: RedisClusterTransport) -> None:
    """After an interrupted move the task died again: the replay takes that life, with all its attempts."""
    task_id = _dead(store, "q0")
    _interrupted(store, task_id, "q1", "leave")
    assert store.settle(Settle(items=[Settlement(claim(store, 1, "q1")[0], Dead("failed", "E: again"), 0)])) == [True]
    assert store.replay([task_id], "q0") == [True]
    (task,) = store.get([task_id])
    assert task is not None
    assert (task.queue, task.state, task.replays, len(task.attempts)) == ("q0", TaskState.QUEUED, 2, 2)
    assert settle(store, claim(store, 9, "q0", "q1")) == [True]


def test_a_late_step_of_a_move_deletes_no_later_life(store: RedisClusterTransport) -> None:
    """One operator moves a dead letter there and is slow to clear up; another moves it back meanwhile: it stays."""
    task_id = _dead(store, "q0")
    _interrupted(store, task_id, "q1", "leave")
    assert store.settle(Settle(items=[Settlement(claim(store, 1, "q1")[0], Dead("failed", "E: again"), 0)])) == [True]
    assert store.replay([task_id], "q0") == [True]
    store._run(script("depart"), "q0", task_id, "", 0, home="q0")  # the first one's last step, at last
    assert [delivery.id for delivery in claim(store, 9, "q0", "q1")] == [task_id]


def test_a_moved_task_that_has_ended_does_not_run_again(store: RedisClusterTransport, clock: FakeClock) -> None:
    """What an interrupted move left behind outlives the record of the task's success, and is no dead letter."""
    task_id = _dead(store, "q0")
    _interrupted(store, task_id, "q1", "leave")
    assert settle(store, claim(store, 1, "q1")) == [True]
    clock.advance(2 * 86_400)
    store.maintain(Maintain())
    assert store.replay([task_id]) == [False]
    assert store.replay([task_id], "q1") == [False]
    assert claim(store, 9, "q0", "q1") == []


# ── the rest ──


def test_the_index_lists_queues_on_all_masters(store: RedisClusterTransport) -> None:
    """Queues, their tasks and statistics are found through the index, on whichever master they are."""
    ids = [task_id for queue in QUEUES for task_id in publish(store, queue)]
    assert [stats.name for stats in store.stats()] == sorted(QUEUES)
    assert {task.id for task in store.find(Find(limit=50)).tasks} == set(ids)
    assert store.delete_queue("q0") is False
    settle(store, claim(store, 1, "q0"))
    assert store.delete_queue("q0")
    assert "q0" not in [stats.name for stats in store.stats()]
    publish(store, "q0")
    assert "q0" in [stats.name for stats in store.stats()]


def test_a_queue_that_another_process_deleted_is_listed_again(
    url: str, store: RedisClusterTransport, clock: FakeClock
) -> None:
    """Publishing to a queue that somebody else has deleted puts it into the index again."""
    publish(store, "q0")
    settle(store, claim(store, 1, "q0"))
    other = open_store(url, clock=clock)
    assert other.delete_queue("q0")
    publish(store, "q0")
    assert [stats.name for stats in other.stats()] == ["q0"]
    other.close()


def test_flush_removes_only_its_own_prefix(url: str, store: RedisClusterTransport, clock: FakeClock) -> None:
    """Deleting a prefix goes over all masters, and leaves look-alike prefixes alone."""
    neighbour = open_store(url.replace("prefix=", "prefix=x"), clock=clock)
    for queue in QUEUES:
        publish(store, queue)
        publish(neighbour, queue)
    store.flush()
    assert store.stats() == []
    assert len(neighbour.stats()) == 12
    neighbour.flush()


def test_a_waiter_is_woken_by_another_process(url: str) -> None:
    """An idle worker's wait ends when something is published to one of its queues, on whichever master."""
    waiting, publisher = open_store(url), open_store(url)
    for queue in QUEUES[:3]:
        publish(publisher, queue)
        settle(waiting, claim(waiting, 1, queue))
    for queue in QUEUES[:3]:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(waiting.wait, Wait(queues=QUEUES[:3], timeout=30))
            publish(publisher, queue)
            assert answer.result(40)
        settle(waiting, claim(waiting, 1, queue))
    waiting.close()
    publisher.close()


def test_an_app_runs_twenty_tasks_and_one_that_jumps_the_line(url: str) -> None:
    """The whole way round, on a cluster."""
    ran: list[int] = []
    with App(url) as app:

        @app.task
        def note(number: int) -> int:
            ran.append(number)
            return number

        handles = app.enqueue_many([note.message(number) for number in range(20)])
        urgent = note.using(priority=9).enqueue(99)
        with app.worker(concurrency=1, pool="solo") as worker:
            worker.drain()
        assert [handle.result(timeout=10) for handle in handles] == list(range(20))
        assert urgent.result(timeout=10) == 99
        assert app.why(urgent.id)
    assert ran == [99, *range(20)]


# ── bad input ──


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("prefix=", "prefix={x}"), "the prefix .* has a brace"),
        (("/0?", "/3?"), "only database 0, not 3"),
        (("cluster=1&", ""), "several hosts are the nodes of a cluster: add cluster=1"),
        (("cluster=1", "cluster=1&min_replicas=x"), "min_replicas=x is not a number"),
    ],
)
def test_a_wrong_url_is_refused(change: tuple[str, str], says: str) -> None:
    """Each mistake in the URL of a cluster has its own error."""
    with pytest.raises(ConfigError, match=says):
        open_store(redis_cluster("redis").url().replace(*change))


def test_a_socket_is_no_cluster() -> None:
    """A unix socket leads to one node only."""
    with pytest.raises(ConfigError, match="by host and port"):
        open_store("unix:///run/redis.sock?cluster=1")


def test_a_queue_with_a_brace_is_refused(store: RedisClusterTransport) -> None:
    """A brace in a queue's name would decide where its keys live."""
    with pytest.raises(ConfigError, match=r"queue 'a\{b\}' has a brace"):
        publish(store, "a{b}")


def test_cluster_mode_is_never_guessed() -> None:
    """A node of a cluster without cluster=1, and a plain server with it, each say what to change."""
    port = redis_cluster("redis").nodes[0].port
    with pytest.raises(ConfigError, match=r"add \?cluster=1 to the URL"):
        open_store(f"redis://127.0.0.1:{port}").stats()
    plain = free_port()
    server = RedisServer("redis", "--port", str(plain), "--bind", "127.0.0.1")
    try:
        with pytest.raises(ConfigError, match="take cluster=1 out of the URL"):
            open_store(f"redis://127.0.0.1:{plain}?cluster=1").stats()
    finally:
        server.stop()


def test_one_dead_node_in_the_list_does_not_matter(tmp_path: Path) -> None:
    """Any node that answers knows all the others."""
    alive = redis_cluster("redis").nodes[2].port
    store = open_store(f"redis://127.0.0.1:1,127.0.0.1:{alive}/0?cluster=1&prefix={tmp_path.name}:")
    assert store.stats() == []
    store.maintain(Maintain())
    store.close()


def test_slots_without_a_master_are_named() -> None:
    """A cluster that does not cover all slots says so, and doctor names how many."""
    cluster = RedisCluster("redis", 1, 0, None, "--cluster-require-full-coverage", "no")
    try:
        slot = key_slot(b"q0")
        cluster.nodes[0].client.execute_command("CLUSTER DELSLOTS", slot)
        store = open_store(cluster.url())
        assert any(finding.check == "slots" and "1 of the 16384" in finding.text for finding in store.checkup())
        with pytest.raises(TransportError, match=f"no master has slot {slot}; the cluster covers 16383 of 16384"):
            store.publish(Publish(messages=[message("q0")]))
        store.close()
    finally:
        cluster.stop()


def test_doctor_looks_at_every_master() -> None:
    """Each master without a replica is named."""
    store = open_store(redis_cluster("redis").url())
    found = store.checkup()
    for node in redis_cluster("redis").nodes:
        assert any(f"127.0.0.1:{node.port} has no replica" in finding.text for finding in found)
    assert not [finding for finding in found if finding.check in ("slots", "clocks")]
    store.close()


# ── one master of several is in trouble ──


@pytest.fixture
def maimed(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """A cluster of three masters that works without one of them, and its URL."""
    cluster = RedisCluster("redis", 3, 0, None, "--cluster-require-full-coverage", "no")
    yield cluster.url(lua=request.param), cluster
    cluster.stop()


def _on(cluster: RedisCluster, port: int) -> list[str]:
    return [queue for queue in QUEUES if cluster.node_of(key_slot(queue.encode())).port == port]


@pytest.mark.parametrize("maimed", ["on", "off"], indirect=True)
def test_a_dead_master_stops_only_its_own_queues(
    maimed: tuple[str, RedisCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the others store is acknowledged or told, and their tasks can be claimed."""
    monkeypatch.setattr("taskmq.transport.redis.nodes.PATIENCE", 0.3)
    url, cluster = maimed
    store = open_store(url)
    for queue in QUEUES:
        publish(store, queue)
    index = cluster.node_of(key_slot(b"taskmq:queues"))
    broken = next(node for node in cluster.nodes if node is not index)
    (well, *_), (ill, *_) = _on(cluster, index.port), _on(cluster, broken.port)
    broken.kill()
    lonely, first, second = message(ill), message(well), message(ill)
    with pytest.raises(TransportError, match="node"):
        store.publish(Publish(messages=[lonely]))  # on a connection that it broke, so nobody knows
    with pytest.raises(OutcomeUnknown, match=f"what this batch had for '{well}' was stored"):
        store.publish(Publish(messages=[second, first]))
    calls = [Call([message(queue)]) for queue in (ill, well)]
    store._publish_together(calls)  # of two threads that came together
    assert isinstance(calls[0].error, TransportUnavailable)
    assert calls[1].result[0].id == calls[1].wish[0].id
    claimed = claim(store, 30, *QUEUES)
    assert {delivery.queue for delivery in claimed} == set(QUEUES) - set(_on(cluster, broken.port))
    assert first.id in {delivery.id for delivery in claimed}
    with pytest.raises(TransportError):
        claim(store, 30, *QUEUES)  # nothing else is there to be claimed, so it is told
    store.close()


def test_what_was_claimed_is_given_out_although_another_master_fails(store: RedisClusterTransport) -> None:
    """A claim that fails on one master between looking and claiming does not lose what the others gave."""
    for queue in QUEUES:
        publish(store, queue)
    each = store._cluster.each

    def fail(calls: Any, **options: Any) -> list[Any]:
        answers = each(calls, **options)
        if hasattr(calls[0], "script") and calls[0].args[9].count(","):  # a plan, so it is the claim
            answers[0] = TransportUnavailable("gone")
        return answers

    store._cluster.each = fail  # type: ignore[method-assign]
    assert len(claim(store, 12, *QUEUES)) == 11


@pytest.mark.parametrize("lua", ["on", "off"])
def test_min_replicas_is_asked_of_every_way(lua: str) -> None:
    """Without replicas nothing is confirmed, and no call says it was."""
    store = open_store(redis_cluster("redis").url(f"min-{lua}:", lua=lua, min_replicas=1))
    with pytest.raises(OutcomeUnknown, match="only 0 confirmed"):
        publish(store, "q0")
    store.flush()
    store.close()


def test_min_replicas_of_a_single_server_is_refused() -> None:
    """Nobody would wait for them."""
    with pytest.raises(ConfigError, match="min_replicas is for a cluster"):
        open_store("redis://127.0.0.1:1?min_replicas=1")


def test_a_node_that_was_taken_out_of_the_cluster_is_not_believed(tmp_path: Path) -> None:
    """It answers, but knows no slots; the next node of the URL is asked."""
    stray = RedisCluster("redis", 1)
    stray.nodes[0].client.execute_command("CLUSTER RESET")
    alive = redis_cluster("redis").nodes[0].port
    store = open_store(f"redis://127.0.0.1:{stray.nodes[0].port},127.0.0.1:{alive}/0?cluster=1&prefix={tmp_path.name}:")
    publish(store, "q0")
    assert len(claim(store, 1, "q0")) == 1
    store.flush()
    store.close()
    stray.stop()


def test_a_queue_that_begins_anew_while_it_is_deleted_stays_listed(
    url: str, store: RedisClusterTransport, clock: FakeClock
) -> None:
    """A publish between the deletion of a queue and that of its entry in the index."""
    other = open_store(url, clock=clock)
    publish(other, "q0")
    settle(other, claim(other, 1, "q0"))
    command = store._runner.command

    def late(*words: Any) -> Any:
        if words[0] == "ZREM":
            publish(other, "q0")
        return command(*words)

    store._runner.command = late  # type: ignore[method-assign]
    assert store.delete_queue("q0")
    assert [stats.name for stats in store.stats()] == ["q0"]
    other.close()


def test_dead_letters_are_found_without_a_look_into_every_queue(store: RedisClusterTransport) -> None:
    """Only a task that is moving may be in two queues."""
    for queue in QUEUES:
        publish(store, queue)
    ids = [_dead(store, "q0") for _ in range(5) if settle(store, claim(store, 1, "q0")) is not None]
    looked: list[int] = []
    look_for = store._look_for

    def count(task_ids: Any, where: Any) -> Any:
        looked.append(len(where))
        return look_for(task_ids, where)

    store._look_for = count  # type: ignore[method-assign]
    assert all(store.get(ids))
    assert looked == [5]


def test_remembering_does_not_get_slower(store: RedisClusterTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of tasks is bounded, and the latest are."""
    monkeypatch.setattr("taskmq.transport.redis.cluster.REMEMBERED", 10)
    for number in range(100):
        store._remember("q", [str(number)])
        assert len(store._queue_of) + len(store._before) <= 21
    assert {str(number) for number in range(90, 100)} <= {*store._queue_of, *store._before}


def test_a_slot_that_moved_is_noted_only_in_a_table_that_is_there() -> None:
    """Of two replies the first may have the table forgotten, and the second tells where a slot is now."""
    cluster = Cluster(Settings("redis://127.0.0.1:1?cluster=1"))
    cluster._loaded_at = time.monotonic()
    step = Step(1, ("GET", "a"))
    step.reply = MovedError("1 127.0.0.1:2")
    assert cluster._redirected(step) is False
    cluster.close()
