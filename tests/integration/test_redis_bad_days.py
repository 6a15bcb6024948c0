"""What goes wrong with a Redis or Valkey server: one clear error each, and nothing lost or doubled."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections import Counter
from typing import Any
from urllib.parse import quote

import pytest

from taskmq.errors import OutcomeUnknown, StoreFull, TransportError
from taskmq.outcome import Ack
from taskmq.queue import Limit
from taskmq.state import TaskState
from taskmq.testing.servers import Kind, redis_server
from taskmq.transport.base import Find, Maintain, Publish, Reserve, Settle, Settlement, Store
from taskmq.transport.redis import exchange
from taskmq.transport.redis.inprocess import Transaction
from taskmq.transport.registry import open_store
from tests.integration.redis_help import admin, everything, message, own_server, publish, work_off

KINDS: tuple[Kind, ...] = ("redis", "valkey")
both_modes = pytest.mark.parametrize("lua", ["on", "off"])


def fill_up(store: Store) -> int:
    """Publish until the store is full; returns how many tasks it took."""
    for stored in range(0, 20_000, 20):
        try:
            publish(store, 20, size=1000)
        except StoreFull:
            return stored
    raise AssertionError("the store is never full")


# ── full, cut, restarted ──


@both_modes
def test_a_full_memory_refuses_a_publish_whole(lua: str) -> None:
    """A batch that does not fit stores nothing, and says that the store is full."""
    with own_server() as server:
        store = open_store(server.url(lua=lua))
        publish(store)
        admin(server, "CONFIG", "SET", "maxmemory", "3mb")
        stored = 1 + fill_up(store)
        assert store.stats(["q"])[0].ready == stored
        admin(server, "CONFIG", "SET", "maxmemory", "0")
        assert len(work_off(store)) == stored
        store.close()


@both_modes
def test_a_lost_answer_stays_unknown_when_the_second_try_finds_nobody(
    lua: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish that the server may have done is never told as one that did not happen."""
    with own_server() as server:
        store = open_store(server.url(lua=lua))
        publish(store)
        receive = exchange.receive

        def lose(shown: str, used: Any, count: int) -> list[Any]:
            replies = receive(shown, used, count)
            if lua == "on" or b"QUEUED" in replies:  # in a transaction
                server.kill()
                raise OutcomeUnknown("the answer was lost")
            return replies

        monkeypatch.setattr(exchange, "receive", lose)
        with pytest.raises(OutcomeUnknown):
            publish(store)
        store.close()


@pytest.mark.parametrize("functions", ["known", "forgotten", "forbidden"])
def test_a_full_memory_lets_tasks_drain(functions: str) -> None:
    """What is stored can be claimed and settled, for that is what makes room; whether or not the scripts are known."""
    with own_server() as server:
        if functions == "forbidden":
            admin(server, "ACL", "SETUSER", "default", "-fcall")
        store = open_store(server.url())
        publish(store, 50)
        if functions == "forgotten":
            admin(server, "FUNCTION", "FLUSH")
        admin(server, "CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreFull):
            publish(store)
        assert len(work_off(store)) == 50
        store.close()


def test_a_full_memory_without_lua_keeps_what_runs() -> None:
    """Redis lets no transaction drain a full server; nothing is lost, and it goes on when there is room again."""
    with own_server() as server:
        store = open_store(server.url(lua="off"))
        publish(store, 5)
        (running,) = store.reserve(Reserve(queues=["q"], limit=1, worker="w")).deliveries
        admin(server, "CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreFull):
            store.settle(Settle(items=[Settlement(running, Ack())]))
        with pytest.raises(StoreFull):
            store.reserve(Reserve(queues=["q"], limit=1, worker="w"))
        admin(server, "CONFIG", "SET", "maxmemory", "0")
        assert store.settle(Settle(items=[Settlement(running, Ack())])) == [True]
        assert len(work_off(store)) == 4
        store.close()


@both_modes
def test_a_memory_that_fills_up_in_a_batch_splits_no_batch(lua: str) -> None:
    """A batch larger than the room that is left is stored whole or refused whole."""
    with own_server() as server:
        store = open_store(server.url(lua=lua))
        publish(store)
        admin(server, "CONFIG", "SET", "maxmemory", "6mb")
        stored = 1
        with contextlib.suppress(StoreFull):
            while stored < 20_000:
                publish(store, 500, size=1000, partition="!p")
                stored += 500
        assert 500 < stored < 20_000
        admin(server, "CONFIG", "SET", "maxmemory", "0")
        assert store.stats(["q"])[0].ready == stored
        assert len(store.find(Find(queue="q", limit=10_000)).tasks) == stored
        assert len(work_off(store)) == stored
        store.close()


@both_modes
@pytest.mark.parametrize("kind", KINDS)
def test_scripts_may_be_flushed_at_any_moment(kind: Kind, lua: str) -> None:
    """A server that has forgotten the scripts is told them again, in the middle of the work."""
    with own_server(kind=kind) as server:
        store = open_store(server.url(lua=lua))
        for _ in range(5):
            messages = publish(store, 4)
            admin(server, "FUNCTION", "FLUSH")
            admin(server, "SCRIPT", "FLUSH")
            assert work_off(store) == [m.id for m in messages]
            admin(server, "FUNCTION", "FLUSH")
            admin(server, "SCRIPT", "FLUSH")
        store.close()


@both_modes
def test_work_goes_on_after_restarts(lua: str) -> None:
    """Ten restarts in a row: what was stored is there, and the same store object goes on."""
    with own_server("--appendonly", "yes", "--appendfsync", "always") as server:
        store = open_store(server.url(lua=lua))
        wanted: list[str] = []
        for _ in range(10):
            wanted += [m.id for m in publish(store, 3)]
            server.kill()
            with pytest.raises(TransportError):
                store.maintain(Maintain())
            server.start()
            _until_it_answers(store)
        assert work_off(store) == wanted
        assert {info and info.state for info in store.get(wanted)} == {TaskState.SUCCEEDED}
        store.close()


def _until_it_answers(store: Store, tries: int = 200) -> None:
    for _ in range(tries):
        with contextlib.suppress(TransportError):
            store.maintain(Maintain())
            return
        threading.Event().wait(0.02)
    raise AssertionError("the server does not come back")


def test_a_record_that_was_deleted_by_hand_stops_nobody() -> None:
    """Without its record a task is gone; those beside and behind it go on."""
    server = redis_server("redis")
    store = open_store(server.url("hand:"))
    plain, ordered = publish(store, 3), publish(store, 3, partition="!x")
    for gone in (plain[1], ordered[0]):
        assert admin(server, "DEL", f"hand:t:{gone.id}") == 1
    left = {m.id for m in (plain[0], plain[2], ordered[1], ordered[2])}
    assert set(work_off(store) + work_off(store)) == left
    store.flush()
    store.close()


# ── names ──


TEXTS = (
    *("{x}", "{x", "x}", "x y", " x", "x ", "x'\"\\y", "%d*[a-z]", "$(x)", "]]", "--", "-1", "0", "1,2,3", ";,;"),
    *("!!", "!x", "x", "X", "Zażółć", "ZAŻÓŁĆ", "😀", "é", "e\u0301", "\ufb01", "fi", "@", "%0"),
)
ALIKE = [
    *(("a", "b:c"), ("a:b", "c"), ("a:1", "b"), ("1:a", "b"), ("1", "!x"), ("line:1", "!x"), ("@ns", "!x")),
    *(("EVALSHA", "publish"), ("state", "state"), ("FLUSHALL", "reserve"), ("t:0", "KEYS *"), ("redis.call", "return")),
    *(("q", text) for text in TEXTS),
]


@both_modes
@pytest.mark.parametrize("kind", KINDS)
def test_names_that_look_alike_are_apart(kind: Kind, lua: str) -> None:
    """Queue a with code b:c and queue a:b with code c are two partitions, and so are all other look-alikes."""
    store = open_store(redis_server(kind).url("alike:", lua=lua))
    for queue, code in ALIKE:
        publish(store, 2, queue=queue, partition=code)
    for queue, code in ALIKE:
        (info,) = store.partitions(queue, [code])
        assert (info.code, info.waiting) == (code, 2)
        assert [task.partition for task in store.find(Find(queue=queue, partition=code)).tasks] == [code, code]
    queues = sorted({queue for queue, _ in ALIKE})
    assert len(work_off(store, *queues)) == 2 * len(ALIKE)
    assert all(store.partitions(queue) == [] for queue in queues)
    store.flush()
    store.close()


@both_modes
def test_keys_that_look_alike_are_apart(lua: str) -> None:
    """Idempotency keys and concurrency limits are compared by their bytes, a key within its queue."""
    store = open_store(redis_server("redis").url("keys:", lua=lua))
    first = [message(queue, key=text, limit=Limit(text, 1)) for queue, text in ALIKE]
    assert not any(receipt.duplicate for receipt in store.publish(Publish(messages=first)))
    again = [message(queue, key=text, limit=Limit(text, 1)) for queue, text in ALIKE]
    assert [receipt.id for receipt in store.publish(Publish(messages=again))] == [m.id for m in first]
    queues = sorted({queue for queue, _ in ALIKE})
    claimed = store.reserve(Reserve(queues=queues, limit=99, worker="w")).deliveries
    assert len(claimed) == len({text for _, text in ALIKE})  # of each limit one, whatever its queue
    assert sorted(limit.key for limit in store.limits()) == sorted({text for _, text in ALIKE})
    store.flush()
    store.close()


PREFIXES = (
    *("p", "p:", "pa:", "p*", "p*:", "p*:x:", "p*:@", "p?:"),
    *("p[ab]:", "p[a:", "p\\:", "p\\*:", "p^:", "p-:"),
    *("pt:", "plog:", "pkey:", "p:line:", "p:set:"),
)


@pytest.mark.parametrize("own", PREFIXES)
def test_flush_removes_only_its_own(own: str) -> None:
    """Whatever the prefix: look-alikes, longer ones, other namespaces and other programs' keys stay."""
    server = redis_server("redis")
    servers = f"unix://{server.socket}?prefix="
    mine = open_store(servers + quote(own, safe=""))
    others = [open_store(servers + quote(other, safe="")) for other in PREFIXES if other != own]
    others.append(open_store(servers + quote(own, safe=""), namespace="n"))
    before = set(admin(server, "KEYS", "*"))
    admin(server, "MSET", own, "1", f"{own}foreign", "1", f"{own}foreign:t:1", "1", "foreign", "1")
    for store in others:
        publish(store, partition="!x")
    theirs = set(admin(server, "KEYS", "*"))
    everything(mine)
    mine.flush()
    assert set(admin(server, "KEYS", "*")) == theirs
    assert mine.stats() == []
    admin(server, "DEL", own, f"{own}foreign", f"{own}foreign:t:1", "foreign")
    for store in others:
        assert len(store.stats()) == 1
        store.flush()
    assert set(admin(server, "KEYS", "*")) == before
    for store in (mine, *others):
        store.close()


# ── many at once, without Lua ──

CLAIMERS, TASKS = 8, 400


def _claim_all(url: str, pipe: Any) -> None:
    store = open_store(url)
    done: list[str] = []
    pipe.send(store.now())
    pipe.recv()  # all begin together
    while got := store.reserve(Reserve(queues=["q"], limit=10, worker="w")).deliveries:
        answers = store.settle(Settle(items=[Settlement(delivery, Ack()) for delivery in got]))
        assert all(answers)
        done += [delivery.id for delivery in got]
    pipe.send(done)
    store.close()


@both_modes
@pytest.mark.parametrize("kind", KINDS)
def test_eight_processes_claim_each_task_once(kind: Kind, lua: str) -> None:
    """Eight claimers in as many processes: nothing twice, nothing lost."""
    url = redis_server(kind).url(f"eight-{lua}:", lua=lua)
    store = open_store(url)
    wanted = [m.id for m in publish(store, TASKS)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imports are slow; so they are made once
    children = []
    for _ in range(CLAIMERS):
        mine, theirs = context.Pipe()
        child = context.Process(target=_claim_all, args=(url, theirs), daemon=True)
        child.start()
        theirs.close()
        children.append((child, mine))
    for _, pipe in children:
        pipe.recv()
    for _, pipe in children:
        pipe.send("go")
    done = [task_id for _, pipe in children for task_id in pipe.recv()]
    for child, pipe in children:
        child.join(30)
        pipe.close()
    assert Counter(done) == Counter(wanted)
    store.flush()
    store.close()


def test_a_large_claim_is_not_starved_by_quick_publishers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody is quicker every time, a claim asks for less and less, and says that there is more."""
    url = redis_server("redis").url("starved:", lua="off")
    store, quick = open_store(url), open_store(redis_server("redis").url("starved:"))
    publish(store, 200)
    commit = Transaction.commit

    def overtaken(self: Transaction) -> bool:
        if any(len(write) > 40 for write in self._writes):
            publish(quick)
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", overtaken)
    reserved = store.reserve(Reserve(queues=["q"], limit=200, worker="w"))
    assert 1 <= len(reserved.deliveries) < 25
    assert reserved.more
    store.flush()
    store.close()
    quick.close()
