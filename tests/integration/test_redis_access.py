"""Who may come in, and by which door: URLs, passwords, permissions, TLS, and servers that are not for us."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from taskmq import App
from taskmq.errors import ConfigError, TransportError, TransportUnavailable
from taskmq.message import Message
from taskmq.state import TaskState
from taskmq.testing.servers import Kind, RedisServer, free_port, missing, old_binary
from taskmq.transport.base import Find, Maintain, Publish, Store, Wait
from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.permission import WRITES
from taskmq.transport.redis.settings import Settings
from taskmq.transport.registry import open_store
from tests.integration.redis_help import admin, everything, message, own_server, publish, work_off

both_modes = pytest.mark.parametrize("lua", ["on", "off"])
SECRET = "p@ss:w/o#r%d?&"

# ── the doors ──


def _certificates(folder: Path) -> dict[str, Path]:
    """An authority, and a server's certificate for 127.0.0.1 that it has signed."""
    if shutil.which("openssl") is None:
        missing("openssl", "apt-get install openssl")
    paths = {name: folder / name for name in ("ca.key", "ca.crt", "server.key", "server.csr", "server.crt", "names")}
    paths["names"].write_text("subjectAltName=IP:127.0.0.1\n")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for words in (
        ("req", "-x509", *key, "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt"),
        ("req", *key, "-subj", "/CN=server", "-keyout", "server.key", "-out", "server.csr"),
        (
            *("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", "2", "-extfile", "names", "-out", "server.crt"),
        ),
    ):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    return paths


class Doors:
    """A server that can be reached by TCP, TLS and a socket, with a password and a user."""

    def __init__(self, folder: Path) -> None:
        paths = _certificates(folder)
        port, tls = free_port(), free_port()
        self.server = RedisServer(
            "redis",
            *("--port", str(port), "--tls-port", str(tls), "--tls-auth-clients", "no", "--requirepass", "default-pw"),
            *("--tls-cert-file", str(paths["server.crt"]), "--tls-key-file", str(paths["server.key"])),
            *("--tls-ca-cert-file", str(paths["ca.crt"])),
        )
        self.places = {
            "tcp": f"127.0.0.1:{port}",
            "tls": f"127.0.0.1:{tls}",
            "socket": self.server.socket,
            "ca": str(paths["ca.crt"]),
            "pw": quote(SECRET, safe=""),
        }
        self.admin("ACL", "SETUSER", "boss@home", "on", f">{SECRET}", "~*", "&*", "+@all")

    def admin(self, *command: str, db: int = 0) -> Any:
        connection = Server(Settings(f"unix://:default-pw@{self.server.socket}?db={db}"))
        try:
            return connection.command(*command)
        finally:
            connection.close()

    def url(self, pattern: str) -> str:
        return pattern.format(**self.places)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    doors = Doors(tmp_path_factory.mktemp("doors"))
    yield doors
    doors.server.stop()


@both_modes
@pytest.mark.parametrize(
    ("pattern", "db"),
    [
        ("redis://:default-pw@{tcp}?prefix=p:", 0),
        ("redis://:default-pw@{tcp}/2?prefix=p:", 2),
        ("redis://boss%40home:{pw}@{tcp}/?db=1&prefix=p:", 1),
        ("valkey://boss%40home:{pw}@{tcp}/3?prefix=p:", 3),
        ("rediss://boss%40home:{pw}@{tls}/1?prefix=p:&ssl_ca_certs={ca}", 1),
        ("rediss://:default-pw@{tls}/1?prefix=p:&ssl_cert_reqs=none", 1),
        ("unix://boss%40home:{pw}@{socket}?db=2&prefix=p:", 2),
        ("unix://:default-pw@{socket}?prefix=p:", 0),
    ],
)
def test_every_door_leads_to_the_database_and_prefix_of_the_url(doors: Doors, pattern: str, db: int, lua: str) -> None:
    """Tasks go round by TCP, TLS and socket, as the user of the URL, and every key is in its database and prefix."""
    doors.admin("FLUSHALL")
    store = open_store(f"{doors.url(pattern)}&lua={lua}")
    messages = publish(store, 3)
    keys = doors.admin("KEYS", "*", db=db)
    assert keys
    assert all(key.startswith(b"p:") for key in keys)
    assert [doors.admin("DBSIZE", db=other) for other in range(4) if other != db] == [0, 0, 0]
    assert work_off(store) == [m.id for m in messages]
    store.close()


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("redis://{tcp}", "write it into the URL"),
        ("redis://:wrong-pw@{tcp}", "refuses the user name or password"),
        ("redis://boss%40home:wrong-pw@{tcp}", "refuses the user name or password"),
        ("redis://nobody:wrong-pw@{tcp}", "refuses the user name or password"),
        ("redis://:default-pw@{tcp}/99", "no database of that number"),
        ("rediss://:default-pw@{tls}", r"not trusted.*\?ssl_ca_certs=FILE"),
    ],
)
def test_a_closed_door_says_what_to_write(doors: Doors, pattern: str, words: str) -> None:
    """What the server refuses is one ConfigError that names the server and the way out, and no password."""
    doors.admin("FLUSHALL")
    store = open_store(doors.url(pattern))
    with pytest.raises(ConfigError, match=words) as caught:
        publish(store)
    assert "127.0.0.1" in str(caught.value)
    assert "wrong-pw" not in str(caught.value)
    assert doors.admin("DBSIZE") == 0
    store.close()


@pytest.mark.parametrize("pattern", ["redis://:default-pw@{tls}", "rediss://:default-pw@{tcp}"])
def test_tls_on_one_side_only_is_unavailable(doors: Doors, pattern: str) -> None:
    """Plain talk to a TLS port, or TLS to a plain one, fails, at the latest when the URL's patience is over."""
    store = open_store(doors.url(pattern) + "?socket_timeout=0.2")
    with pytest.raises(TransportUnavailable, match=r"127\.0\.0\.1"):
        publish(store)
    store.close()


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


# ── permissions ──

SOCKET_URL = "unix://app:p@{socket}?lua={lua}"


@pytest.fixture(scope="module", params=["redis", "valkey"])
def guarded(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server whose user "app" each test gives what it wants."""
    kind: Kind = request.param
    with own_server(kind=kind) as server:
        yield server


def _as_app(server: RedisServer, lua: str, *rules: str) -> str:
    for command in (("FLUSHALL",), ("FUNCTION", "FLUSH"), ("SCRIPT", "FLUSH")):
        admin(server, *command)
    admin(server, "ACL", "SETUSER", "app", "reset", "on", ">p", "~*", "&*", "+@all", *rules)
    return SOCKET_URL.format(socket=server.socket, lua=lua)


@both_modes
@pytest.mark.parametrize("denied", [name.lower() for name in WRITES])
def test_a_command_that_is_denied_leaves_nothing_half_written(guarded: RedisServer, denied: str, lua: str) -> None:
    """Whichever writing command an ACL forbids, a publish stores all or nothing, and the error names the command."""
    store = open_store(_as_app(guarded, lua, f"-{denied}"))
    messages = [message(partition="!x", priority=3), message(key="k")]
    said = _said(store, messages)
    if lua == "on" or said:
        assert denied in said
        assert "see its ACL" in said
        assert admin(guarded, "KEYS", "*") == []
    else:  # without scripts, only what is used is asked for
        assert admin(guarded, "EXISTS", *(f"taskmq:t:{m.id}" for m in messages)) == 2
    store.close()


def _said(store: Store, messages: list[Message]) -> str:
    """What a publish's ConfigError says; nothing when there is none."""
    try:
        store.publish(Publish(messages=messages))
    except ConfigError as error:
        return str(error)
    return ""


@both_modes
@pytest.mark.parametrize("denied", ["mget", "time", "zrange"])
def test_a_reading_command_that_is_denied_is_named(guarded: RedisServer, denied: str, lua: str) -> None:
    """An ACL that forbids what is read makes a ConfigError, and nothing is written."""
    store = open_store(_as_app(guarded, lua, f"-{denied}"))
    with pytest.raises(ConfigError, match="ACL"):
        publish(store, partition="!x")
    assert admin(guarded, "KEYS", "*") == []
    store.close()


@both_modes
def test_who_may_not_block_is_told_instead_of_looking_without_pause(guarded: RedisServer, lua: str) -> None:
    """A wait without BLPOP would ask the server again and again, as fast as it answers."""
    store = open_store(_as_app(guarded, lua, "-blpop"))
    with pytest.raises(ConfigError, match="blpop"):
        store.wait(Wait(queues=("q",), timeout=5))
    store.close()


@both_modes
def test_keys_that_are_out_of_reach_are_a_config_error(guarded: RedisServer, lua: str) -> None:
    """A user of other keys is told, and nothing is written; with taskmq's prefix it works."""
    admin_rules = ("resetkeys", "~other:*")
    store = open_store(_as_app(guarded, lua, *admin_rules))
    with pytest.raises(ConfigError, match=r"see its ACL \(.*key"):
        publish(store)
    assert admin(guarded, "KEYS", "*") == []
    store.close()
    store = open_store(_as_app(guarded, lua, *admin_rules) + "&prefix=other:")
    messages = publish(store, 2)
    assert work_off(store) == [m.id for m in messages]
    store.close()


def test_without_transactions_lua_off_writes_nothing(guarded: RedisServer) -> None:
    """A server that forbids MULTI would do the commands behind it one by one; so none is sent."""
    store = open_store(_as_app(guarded, "off", "-multi"))
    with pytest.raises(ConfigError, match="multi"):
        publish(store)
    assert admin(guarded, "KEYS", "*") == []
    store.close()


def test_where_scripts_are_forbidden_the_error_names_lua_off(guarded: RedisServer) -> None:
    """A user who may run no script at all is told of ?lua=off, and with it the work goes on."""
    url = _as_app(guarded, "on", "-@scripting")
    store = open_store(url)
    with pytest.raises(ConfigError, match=r"add \?lua=off"):
        publish(store)
    store.close()
    store = open_store(url.replace("lua=on", "lua=off"))
    messages = publish(store, 3)
    assert work_off(store) == [m.id for m in messages]
    store.close()


@pytest.mark.parametrize("rules", [("-function", "-fcall"), ("-fcall",), ("-function",), ("-function", "-info")])
def test_who_may_not_use_functions_uses_plain_scripts(guarded: RedisServer, rules: tuple[str, ...]) -> None:
    """Without the right to load a library, or to call one, all verbs work by EVALSHA."""
    store = open_store(_as_app(guarded, "on", *rules))
    messages = publish(store, 3)
    assert work_off(store) == [m.id for m in messages]
    assert b"taskmq" not in b"".join(admin(guarded, "FUNCTION", "DUMP").split(b"\0"))
    store.close()


@both_modes
def test_the_rules_of_the_operators_page_are_enough(guarded: RedisServer, lua: str) -> None:
    """A user with exactly these rules can do everything: work, wait for results, look, and flush."""
    page = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
    (rules,) = (line.split()[5:] for line in page.splitlines() if line.strip().startswith("ACL SETUSER app"))
    url = _as_app(guarded, lua, "-@all", "resetkeys", "resetchannels", *rules)
    with App(url) as app:

        @app.task(name="h", queue="q")
        def h() -> str:
            return "done"

        everything(app.store)
        with app.worker(concurrency=1, pool="solo"):
            assert h.using(priority=9).enqueue().result(timeout=20) == "done"
        assert not app.store.watch(app.store.find(Find(queue="q", states=[TaskState.SCHEDULED])).tasks[0].id, 0.05)
        app.store.maintain(Maintain())
        assert app.store.checkup() is not None
        assert app.store.stats()
        app.store.flush()
    assert admin(guarded, "KEYS", "*") == []


# ── servers that are not for us ──


def test_a_server_that_drops_keys_is_refused() -> None:
    """An eviction policy would make tasks vanish; it can be accepted explicitly."""
    with own_server("--maxmemory-policy", "allkeys-lru") as server:
        with pytest.raises(ConfigError, match=r"noeviction.*\?allow_eviction=1"):
            publish(open_store(server.url()))
        store = open_store(server.url(allow_eviction="1"))
        publish(store)
        assert [finding.check for finding in store.checkup()] == ["eviction", "durability"]
        store.close()


@both_modes
def test_a_read_only_replica_is_named(lua: str) -> None:
    """Writing to a replica says to give the URL of its primary."""
    with own_server("--replicaof", "127.0.0.1 1") as server:
        store = open_store(server.url(lua=lua))
        with pytest.raises(TransportError, match="primary"):
            publish(store)
        assert "role" in [finding.check for finding in store.checkup()]
        store.close()


@both_modes
@pytest.mark.parametrize("rules", [(), ("-info",)])
def test_a_node_of_a_cluster_is_told_what_to_add(rules: tuple[str, ...], lua: str) -> None:
    """A server in cluster mode is no single server; the error names ?cluster=1, at once or at the first MOVED."""
    with own_server("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        admin(server, "ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all", *rules)
        store = open_store(SOCKET_URL.format(socket=server.socket, lua=lua))
        with pytest.raises((ConfigError, TransportUnavailable), match=r"node of a cluster.*add \?cluster=1"):
            publish(store)
        store.close()


# ── old servers ──


@both_modes
def test_redis_6_2_works(lua: str) -> None:
    """The oldest server that is promised does it all, though it knows no functions."""
    with own_server(program=old_binary()) as server:
        store = open_store(server.url(lua=lua))
        messages = publish(store, 3, partition="!x") + publish(store, 3)
        admin(server, "SCRIPT", "FLUSH")
        assert sorted(work_off(store)) == sorted(m.id for m in messages)
        publish(store, 20)
        admin(server, "CONFIG", "SET", "maxmemory", "1")
        if lua == "on":
            assert len(work_off(store)) == 20
        store.close()


@pytest.mark.parametrize(("version", "good"), [("6.0.16", False), ("5.0.7", False), ("6.2.0", True), ("10.0.0", True)])
def test_a_server_that_is_too_old_is_refused(version: str, good: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names its version and the oldest that will do."""
    with own_server() as server:
        monkeypatch.setattr(Server, "info", lambda *_: {"redis_version": version})
        store = open_store(server.url())
        if good:
            publish(store)
        else:
            with pytest.raises(ConfigError, match=rf"is Redis {version}; taskmq needs Redis 6.2 or newer"):
                publish(store)
        store.close()
