"""What goes wrong with a Redis or Valkey server: one clear error each, and nothing lost or doubled."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskmq.codec import Envelope, encode
from taskmq.errors import ConfigError, StoreFull, TransportError, TransportUnavailable
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.outcome import Ack
from taskmq.queue import Partition
from taskmq.state import TaskState
from taskmq.testing.servers import Kind, RedisServer, redis_server
from taskmq.transport.base import Maintain, Publish, Reserve, Settle, Settlement, Store
from taskmq.transport.redis.connection import Server, Settings
from taskmq.transport.registry import open_store

KINDS: tuple[Kind, ...] = ("redis", "valkey")
both_modes = pytest.mark.parametrize("lua", ["on", "off"])


def message(queue: str = "q", partition: str | None = None, size: int = 0) -> Message:
    body = encode(Envelope(headers={"x": "x" * size}))
    return Message(
        id=new_id(), queue=queue, handler="h", body=body, partition=Partition(partition) if partition else None
    )


def publish(store: Store, count: int = 1, **options: Any) -> list[Message]:
    messages = [message(**options) for _ in range(count)]
    store.publish(Publish(messages=messages))
    return messages


def work_off(store: Store, *queues: str) -> list[str]:
    done: list[str] = []
    while got := store.reserve(Reserve(queues=queues or ("q",), limit=10, worker="w")).deliveries:
        assert all(store.settle(Settle(items=[Settlement(delivery, Ack()) for delivery in got])))
        done += [delivery.id for delivery in got]
    return done


@contextlib.contextmanager
def own_server(*options: str, kind: Kind = "redis") -> Iterator[RedisServer]:
    """A server for one test, with settings of its own."""
    server = RedisServer(kind, *options)
    try:
        yield server
    finally:
        server.stop()


def admin(server: RedisServer, *command: str) -> Any:
    connection = Server(Settings(server.url(allow_eviction="1")))
    try:
        return connection.command(*command)
    finally:
        connection.close()


def fill_up(store: Store) -> int:
    """Publish until the store is full; returns how many tasks it took."""
    for stored in range(0, 20_000, 20):
        try:
            publish(store, 20, size=1000)
        except StoreFull:
            return stored
    raise AssertionError("the store is never full")


# ── who may come in ──


def test_a_wrong_password_is_a_config_error() -> None:
    """The message says what is refused and never shows the password."""
    with own_server() as server:
        admin(server, "ACL", "SETUSER", "boss", "on", ">right", "~*", "&*", "+@all")
        store = open_store(f"unix://boss:wrong-one@{server.socket}")
        with pytest.raises(ConfigError, match="refuses the user name or password") as caught:
            publish(store)
        assert "wrong-one" not in str(caught.value)
        good = open_store(f"unix://boss:right@{server.socket}")
        publish(good)
        good.close()


def test_a_missing_password_is_a_config_error() -> None:
    """The message says where to write it."""
    with own_server("--requirepass", "secret") as server, pytest.raises(ConfigError, match="write it into the URL"):
        publish(open_store(server.url()))


def test_a_missing_permission_is_a_config_error() -> None:
    """An ACL that forbids a command that is needed is named as such."""
    with own_server() as server:
        admin(server, "ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all", "-mset")
        with pytest.raises(ConfigError, match=r"ACL"):
            publish(open_store(f"unix://app:p@{server.socket}"))


def test_who_may_not_load_functions_uses_plain_scripts() -> None:
    """Without the right to load a library all verbs work by EVALSHA."""
    with own_server() as server:
        admin(server, "ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all", "-function", "-fcall")
        store = open_store(f"unix://app:p@{server.socket}")
        messages = publish(store, 3)
        assert work_off(store) == [m.id for m in messages]
        store.close()


def test_a_server_that_drops_keys_is_refused() -> None:
    """An eviction policy would make tasks vanish; it can be accepted explicitly."""
    with own_server("--maxmemory-policy", "allkeys-lru") as server:
        with pytest.raises(ConfigError, match="noeviction"):
            publish(open_store(server.url()))
        store = open_store(server.url(allow_eviction="1"))
        publish(store)
        assert [finding.check for finding in store.checkup()] == ["eviction", "durability"]
        store.close()


def test_a_read_only_replica_is_named() -> None:
    """Writing to a replica says to give the URL of its primary."""
    with own_server("--replicaof", "127.0.0.1 1") as server, pytest.raises(TransportError, match="primary"):
        publish(open_store(server.url()))


def test_a_node_of_a_cluster_is_refused() -> None:
    """A server in cluster mode is no single server."""
    with own_server("--cluster-enabled", "yes") as server, pytest.raises(ConfigError, match="cluster"):
        publish(open_store(server.url()))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://h/?lua=perhaps", "lua=perhaps"),
        ("redis://h/?colour=red", "unknown option 'colour'"),
        ("redis://h/tasks", "number of a database"),
        ("redis://h/?prefix=", "prefix is empty"),
        ("unix://?db=0", "path of a socket"),
        ("redis://h:port/", "h:port"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str, words: str) -> None:
    """The message names the URL and what is wrong with it."""
    with pytest.raises(ConfigError, match=words):
        open_store(url)


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    """Nothing has happened then, and the same call may succeed later."""
    store = open_store(f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(TransportUnavailable, match="cannot be reached") as caught:
        publish(store)
    assert caught.value.retryable


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


def test_a_full_memory_lets_tasks_drain() -> None:
    """What is stored can be claimed and settled, for that is what makes room."""
    with own_server() as server:
        store = open_store(server.url())
        publish(store, 50)
        admin(server, "CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreFull):
            publish(store)
        assert len(work_off(store)) == 50
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


class Cutter:
    """Stands before a server's socket; cuts the connection after it has forwarded a command, before its reply."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.path = f"{folder}/cut.sock"
        self.armed = threading.Event()
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(self._server.socket)
            while data := client.recv(1 << 20):
                server.sendall(data)
                reply = server.recv(1 << 20)
                if self.armed.is_set():
                    self.armed.clear()
                    return
                client.sendall(reply)

    def close(self) -> None:
        self._listener.close()


@both_modes
def test_a_lost_reply_does_not_double_a_publish(lua: str, tmp_path: Path) -> None:
    """A publish whose reply was lost is sent again by the client and stored once."""
    with own_server() as server:
        direct = open_store(server.url(lua=lua))
        cutter = Cutter(server, tmp_path)
        store = open_store(f"unix://{cutter.path}?lua={lua}")
        publish(store)
        for _ in range(3):
            messages = [message() for _ in range(5)]
            cutter.armed.set()
            _until(lambda again=messages: store.publish(Publish(messages=again)))
        ready = direct.stats(["q"])[0].ready
        done = work_off(direct)
        assert ready == len(done) == len(set(done)) == 16
        cutter.close()
        store.close()
        direct.close()


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
            _until(lambda: store.maintain(Maintain()))
        assert work_off(store) == wanted
        assert {info and info.state for info in store.get(wanted)} == {TaskState.SUCCEEDED}
        store.close()


def _until(call: Callable[[], object], tries: int = 200) -> None:
    for _ in range(tries):
        with contextlib.suppress(TransportError):
            call()
            return
        threading.Event().wait(0.02)
    call()


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


@pytest.mark.parametrize("kind", KINDS)
def test_names_that_look_alike_are_apart(kind: Kind) -> None:
    """Queue a with code b:c and queue a:b with code c are two partitions, and so are all other look-alikes."""
    store = open_store(redis_server(kind).url("alike:"))
    pairs = [
        *(("a", "b:c"), ("a:b", "c"), ("a:1", "b"), ("1:a", "b"), ("q", "{x}"), ("q", "x y"), ("q", "x'\"\\y")),
        *(("q", "Zażółć"), ("q", "ZAŻÓŁĆ"), ("q", "😀"), ("EVALSHA", "publish"), ("state", "state"), ("q", ";,;")),
        *(
            ("q", "1,2,3"),
            ("q", "%d*[a-z]"),
            ("line:1", "!x"),
            ("1", "!x"),
            ("@ns", "!x"),
            ("q", "é"),
            ("q", "e\u0301"),
        ),
    ]
    for queue, code in pairs:
        publish(store, 2, queue=queue, partition=code)
    for queue, code in pairs:
        (info,) = store.partitions(queue, [code])
        assert (info.code, info.waiting) == (code, 2)
    queues = sorted({queue for queue, _ in pairs})
    assert len(work_off(store, *queues)) == 2 * len(pairs)
    assert all(store.partitions(queue) == [] for queue in queues)
    store.flush()
    store.close()


def test_flush_removes_only_its_own() -> None:
    """Other prefixes, other namespaces and other programs' keys stay."""
    server = redis_server("redis")
    mine = open_store(server.url("p*:"))
    others = [
        open_store(server.url("px:")),
        open_store(server.url("p*:"), namespace="n"),
        open_store(server.url("p*:x:")),
    ]
    for store in (mine, *others[:2]):
        publish(store)
    admin(server, "SET", "foreign", "1")
    mine.flush()
    assert mine.stats() == []
    assert [len(store.stats()) for store in others[:2]] == [1, 1]
    assert admin(server, "GET", "foreign") == b"1"
    for store in others[:2]:
        store.flush()
    assert admin(server, "DEL", "foreign") == 1
    for store in (mine, *others):
        store.close()


# ── many at once, without Lua ──

CLAIMERS, TASKS = 8, 400


def _claim_all(url: str, pipe: Any) -> None:
    store = open_store(url)
    done: list[str] = []
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
    context = multiprocessing.get_context("spawn")
    children = []
    for _ in range(CLAIMERS):
        mine, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_claim_all, args=(url, theirs), daemon=True)
        child.start()
        theirs.close()
        children.append((child, mine))
    done = [task_id for _, pipe in children for task_id in pipe.recv()]
    for child, pipe in children:
        child.join(30)
        pipe.close()
    assert Counter(done) == Counter(wanted)
    store.flush()
    store.close()
