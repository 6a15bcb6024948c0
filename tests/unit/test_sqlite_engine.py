"""The SQLite engine: opening, its errors, group commit, forks, several processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from taskmq.codec import Envelope, encode
from taskmq.errors import ConfigError, StoreFull, TaskMQError, TransportError, TransportUnavailable
from taskmq.ids import new_id
from taskmq.message import Message
from taskmq.transport.base import Publish, Reserve, Store, Wait
from taskmq.transport.registry import open_store
from taskmq.transport.sql.sqlite.connection import Settings
from taskmq.transport.sql.sqlite.forks import ForkGate
from taskmq.transport.sql.sqlite.writer import Turnstile, Writer


def message(size: int = 10) -> Message:
    return Message(id=new_id(), queue="q", handler="h", body=encode(Envelope(headers={"x": "y" * size})))


def drain(store: Store) -> list[str]:
    return [d.id for d in store.reserve(Reserve(queues=["q"], limit=10_000, worker="w")).deliveries]


# ── opening ──


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://taskmq.db", "three or four slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///q.db?synchronous=maybe", "full, normal, off"),
        ("sqlite:///q.db?timeout=soon", "number of seconds"),
        ("sqlite:///q.db?wal=1", "unknown option 'wal'"),
        ("sqlite:////nowhere/at/all/q.db", "directory of /nowhere/at/all/q.db does not exist"),
    ],
)
def test_a_bad_url_is_refused_in_one_line(url: str, words: str) -> None:
    """A URL that cannot be used says what is wrong with it."""
    with pytest.raises(ConfigError, match=words) as caught:
        open_store(url)
    assert "\n" not in str(caught.value)


def test_three_slashes_are_relative_and_four_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """sqlite:///x.db is a file in the working directory."""
    monkeypatch.chdir(tmp_path)
    assert Settings("sqlite:///x.db").path == f"{tmp_path}/x.db"
    assert Settings("sqlite:////var/x.db").path == "/var/x.db"


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """Opening a text file names the file and leaves it alone."""
    path = tmp_path / "notes.db"
    path.write_text("dear diary, " * 100)
    with pytest.raises(ConfigError, match=r"notes\.db: .*not a SQLite database"):
        open_store(f"sqlite:///{path}")
    assert path.read_text().startswith("dear diary")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A database of a newer taskmq is not touched; the message says to upgrade."""
    path = tmp_path / "q.db"
    open_store(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE taskmq_schema SET version=99")
    connection.close()
    with pytest.raises(ConfigError, match=r"schema 99, made by a newer taskmq.*upgrade"):
        open_store(f"sqlite:///{path}")


_AS_NOBODY = """
import os, sys
from taskmq.transport.registry import open_store
from taskmq.errors import TaskMQError
from taskmq.codec import Envelope, encode
from taskmq.message import Message
from taskmq.transport.base import Publish
open_store(sys.argv[2]).close()  # everything is imported while it may be read
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    store = open_store(sys.argv[1])
    store.publish(Publish(messages=[Message(id="0" * 32, queue="q", handler="h", body=encode(Envelope()))]))
except TaskMQError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs root to drop its rights")
@pytest.mark.parametrize("exists", [False, True])
def test_an_unwritable_place_is_one_clear_error(tmp_path: Path, exists: bool) -> None:
    """A directory or file without write permission is named, with what to check."""
    for part in (tmp_path, *tmp_path.parents):
        if part.stat().st_uid == os.getuid() and part != Path("/"):
            part.chmod(0o755)
    path = tmp_path / "q.db"
    if exists:
        open_store(f"sqlite:///{path}").close()
        path.chmod(0o644)
    code = f"import sys; sys.path[:0] = {sys.path!r}\n{_AS_NOBODY}"
    urls = [f"sqlite:///{path}", f"sqlite:///{tmp_path}/other.db"]
    run = subprocess.run([sys.executable, "-c", code, *urls], capture_output=True, text=True, check=False)
    lines = run.stdout.strip().splitlines()
    assert run.stderr == ""
    assert len(lines) == 1
    assert str(path) in lines[0]
    assert "permission" in lines[0] or "may be written" in lines[0] or "Permission" in lines[0]


# ── bad days ──


def test_a_full_disk_is_store_full_and_stores_nothing(tmp_path: Path) -> None:
    """A publish that finds no room raises StoreFull, half of a batch is not there, and what was there stays."""
    store = open_store(f"sqlite:///{tmp_path}/q.db")
    first = message()
    store.publish(Publish(messages=[first]))
    pages = store._engine._connection.execute("PRAGMA page_count").fetchone()[0]  # type: ignore[attr-defined]
    store._engine._connection.execute(f"PRAGMA max_page_count={pages + 4}")  # type: ignore[attr-defined]
    with pytest.raises(StoreFull, match="nothing was stored"):
        store.publish(Publish(messages=[message(2000) for _ in range(50)]))
    assert [info.id for info in store.get([first.id]) if info] == [first.id]
    store._engine._connection.execute("PRAGMA max_page_count=1000000")  # type: ignore[attr-defined]
    store.publish(Publish(messages=[message(2000) for _ in range(50)]))
    assert len(drain(store)) == 51
    store.close()


def test_a_lock_held_by_another_program_ends_in_unavailable(tmp_path: Path) -> None:
    """When somebody else keeps the database locked, a verb waits its time and then says so."""
    store = open_store(f"sqlite:///{tmp_path}/q.db?timeout=0.05")
    other = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TransportUnavailable, match="locked by another program"):
        store.publish(Publish(messages=[message()]))
    other.execute("ROLLBACK")
    other.close()
    store.publish(Publish(messages=[message()]))
    store.close()


def test_a_stopped_writer_ends_in_unavailable(tmp_path: Path) -> None:
    """A process that is stopped while it writes does not hang the others."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from taskmq.transport.registry import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "def work(session):\n    print('in', flush=True)\n    sys.stdin.read()\n"
        "store._engine.write(work)\n"
    )
    url = f"sqlite:///{tmp_path}/q.db"
    child = subprocess.Popen([sys.executable, "-c", code, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"in\n"
    os.kill(child.pid, signal.SIGSTOP)
    try:
        with pytest.raises(TransportUnavailable, match="locked by another program"):
            open_store(f"{url}?timeout=0.1").publish(Publish(messages=[message()]))
    finally:
        os.kill(child.pid, signal.SIGCONT)
        child.communicate(b"")
    assert child.returncode == 0
    store = open_store(url)
    store.publish(Publish(messages=[message()]))
    store.close()


def test_a_killed_writer_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGKILL inside a transaction undoes it and frees the turnstile."""
    code = (
        f"import sys, os, signal; sys.path[:0] = {sys.path!r}\n"
        "from taskmq.transport.registry import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "def work(session):\n    session.pause('q', True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "store._engine.write(work)\n"
    )
    url = f"sqlite:///{tmp_path}/q.db"
    run = subprocess.run([sys.executable, "-c", code, url], check=False)
    assert run.returncode == -signal.SIGKILL
    store = open_store(url)
    store.publish(Publish(messages=[message()]))
    assert len(drain(store)) == 1
    store.close()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """After close every verb raises TransportError; closing again is harmless."""
    store = open_store(f"sqlite:///{tmp_path}/q.db")
    store.close()
    store.close()
    with pytest.raises(TransportError, match="closed"):
        store.publish(Publish(messages=[message()]))
    with pytest.raises(TransportError, match="closed"):
        store.get(["0" * 32])


def test_a_fork_opens_its_own_connections(tmp_path: Path) -> None:
    """A forked child can use the store object it inherited, and the parent goes on using it."""
    store = open_store(f"sqlite:///{tmp_path}/q.db")
    store.publish(Publish(messages=[message()]))
    child = os.fork()
    if child == 0:
        try:
            store.publish(Publish(messages=[message()]))
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    store.publish(Publish(messages=[message()]))
    assert len(drain(store)) == 3
    store.close()


# ── group commit ──


@pytest.fixture
def connection(tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(tmp_path / "w.db", isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE t (x INTEGER UNIQUE)")
    return connection


def test_callers_who_come_together_share_a_commit(connection: sqlite3.Connection) -> None:
    """While one transaction is under way the others gather, and all of them are committed by the next one."""
    writer = Writer(connection, Turnstile(None, 1.0), ForkGate())
    commits: list[str] = []
    connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        inside.set()
        go_on.wait(10)

    first = threading.Thread(target=writer.run, args=(slow,))
    first.start()
    inside.wait(10)
    threads = [
        threading.Thread(target=writer.run, args=(lambda i=i: connection.execute("INSERT INTO t VALUES (?)", (i,)),))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    while writer.group.waiting() < 8:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in [first, *threads]:
        thread.join(10)
    assert len(commits) == 2
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (8,)


def test_one_callers_error_is_its_own(connection: sqlite3.Connection) -> None:
    """In a shared transaction a failing caller is undone and told; the others are committed."""
    writer = Writer(connection, Turnstile(None, 1.0), ForkGate())
    inside, go_on = threading.Event(), threading.Event()
    results: dict[int, object] = {}

    def insert(i: int) -> int:
        connection.execute("INSERT INTO t VALUES (?)", (100 + i,))
        connection.execute("INSERT INTO t VALUES (?)", (i % 4,))
        return i

    def call(i: int) -> None:
        try:
            results[i] = writer.run(lambda: insert(i))
        except TaskMQError as error:
            results[i] = error

    first = threading.Thread(target=writer.run, args=(lambda: (inside.set(), go_on.wait(10)),))
    first.start()
    inside.wait(10)
    threads = [threading.Thread(target=call, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    while writer.group.waiting() < 5:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in [first, *threads]:
        thread.join(10)
    failed = [i for i, result in results.items() if isinstance(result, TaskMQError)]
    assert len(failed) == 1
    assert failed[0] % 4 == 0
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (8,)


def test_a_failed_commit_is_told_to_everybody(connection: sqlite3.Connection) -> None:
    """When the shared COMMIT fails nothing of the group stands, and every caller hears it."""
    connection.execute("PRAGMA foreign_keys=1")
    connection.execute("CREATE TABLE p (id INTEGER PRIMARY KEY)")
    connection.execute("CREATE TABLE c (id INTEGER REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
    writer = Writer(connection, Turnstile(None, 1.0), ForkGate())
    inside, go_on = threading.Event(), threading.Event()
    errors: list[TaskMQError] = []

    def call(statement: str) -> None:
        try:
            writer.run(lambda: connection.execute(statement))
        except TaskMQError as error:
            errors.append(error)

    first = threading.Thread(target=writer.run, args=(lambda: (inside.set(), go_on.wait(10)),))
    first.start()
    inside.wait(10)
    statements = ["INSERT INTO c VALUES (7)", "INSERT INTO t VALUES (1)"]
    threads = [threading.Thread(target=call, args=(statement,)) for statement in statements]
    for thread in threads:
        thread.start()
    while writer.group.waiting() < 2:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in [first, *threads]:
        thread.join(10)
    assert len(errors) == 2
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    writer.run(lambda: connection.execute("INSERT INTO t VALUES (1)"))


# ── waking ──


def test_a_publish_of_another_process_ends_the_wait(tmp_path: Path) -> None:
    """An idle waiter sees what another process commits, without being told."""
    url = f"sqlite:///{tmp_path}/q.db"
    store, other = open_store(url), open_store(url)
    got: list[bool] = []
    waiter = threading.Thread(target=lambda: got.append(store.wait(Wait(queues=["q"], timeout=20))))
    waiter.start()
    other.publish(Publish(messages=[message()]))
    waiter.join(10)
    assert got == [True]
    store.close()
    other.close()
