"""A real MariaDB server for tests, as ``sql_servers`` does it for PostgreSQL: a place is a database of its own."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections import OrderedDict
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from taskmq.testing.guarded import GuardedProcess
from taskmq.testing.sql_servers import PATIENCE, SCHEMAS, missing

_LATIN = "latin1"
"""The server's character set, which must not matter."""


class MariadbServer:
    """A MariaDB server of this process, on a unix socket in a folder of its own; its commits wait for the disk."""

    def __init__(self) -> None:
        program, install = shutil.which("mariadbd"), shutil.which("mariadb-install-db")
        if program is None:
            program = next((path for path in ("/usr/sbin/mariadbd",) if os.access(path, os.X_OK)), None)
        if program is None or install is None:
            missing("mariadb")
        self._owner = os.getpid()
        self.folder = tempfile.mkdtemp(prefix="taskmq-my-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.socket = f"{self.folder}/my.sock"
        self._words = ["--no-defaults", f"--datadir={self.folder}/data", f"--tmpdir={self.folder}"]
        if os.getuid() == 0:
            entry = pwd.getpwnam("mysql")
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
            self._words.append("--user=mysql")
        done = subprocess.run(
            [install, *self._words, "--auth-root-authentication-method=normal", "--skip-test-db"],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
        )
        if done.returncode:
            raise RuntimeError(f"mariadb-install-db: {done.stdout[-500:]} {done.stderr[-500:]}")
        self._program = program
        self._places: OrderedDict[str, str] = OrderedDict()
        self.start()
        atexit.register(self.stop)

    # ── life ──

    def start(self, *options: str) -> None:
        """Start it with these options, too, and return when it answers."""
        log = Path(self.folder) / "log"
        settings = [f"--socket={self.socket}", f"--pid-file={self.folder}/pid", "--skip-networking"]
        settings += ["--innodb-flush-log-at-trx-commit=1", "--max-connections=300", "--innodb-buffer-pool-size=64M"]
        settings += [f"--character-set-server={_LATIN}", f"--collation-server={_LATIN}_swedish_ci"]
        with log.open("ab") as out:
            self._process = GuardedProcess(
                [self._program, *self._words, *settings, *options],
                self.folder,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"MariaDB does not start: {log.read_text()[-1000:]}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:  # the driver leaves its socket behind when it is refused
            if client.connect_ex(self.socket) != 0:
                return False
        self._connect().close()
        return True

    def _connect(self, database: str | None = None) -> Any:
        import pymysql

        return pymysql.connect(
            unix_socket=self.socket, user="root", charset="utf8mb4", database=database, autocommit=True
        )

    def restart(self, *, crash: bool = False) -> None:
        """Stop it, with or without a word to its sessions, and start it again."""
        self.halt(crash=crash)
        self.start()

    def halt(self, *, crash: bool = False) -> None:
        """Stop it. ``crash``: as if the power had gone."""
        self._process.send_signal(9 if crash else 15)
        self._process.wait(PATIENCE)
        Path(self.socket).unlink(missing_ok=True)

    def stop(self) -> None:
        """End it and remove its folder. Not in a forked child: it is not its server."""
        if os.getpid() != self._owner:
            return
        if self._process.poll() is None:
            self.halt(crash=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ── places ──

    def url(self, database: str, *, user: str = "root", scheme: str = "mariadb", **more: str) -> str:
        """A URL for it."""
        options = "".join(f"&{name}={quote(value)}" for name, value in more.items())
        return f"{scheme}://{user}@localhost/{database}?unix_socket={quote(self.socket)}{options}"

    def place(self, name: str) -> str:
        """The database of this place, which is empty when it is first asked for."""
        database = self._places.get(name)
        if database is not None:
            self._places.move_to_end(name)
            return database
        if len(self._places) < SCHEMAS:
            database = f"place{len(self._places)}"
            self._make(database)
        else:
            _, database = self._places.popitem(last=False)
            self._wipe(database)
        self._places[name] = database
        return database

    def _make(self, database: str) -> None:
        from taskmq.transport.registry import open_schema

        self.execute(f"CREATE DATABASE {database}")
        open_schema(self.url(database)).up()

    def _wipe(self, database: str) -> None:
        with closing(self._connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SHOW TABLES FROM {database}")
            connection.begin()
            for (table,) in cursor.fetchall():
                if table not in ("taskmq_schema", "taskmq_seqs"):
                    cursor.execute(f"DELETE FROM {database}.{table}")
            connection.commit()
            cursor.execute(f"ALTER TABLE {database}.taskmq_seqs AUTO_INCREMENT=1")

    def numbers(self, count: int) -> str:
        """A table ``s`` with the numbers ``n`` from 1."""
        return f"(SELECT seq AS n FROM seq_1_to_{count}) s"

    def execute(self, statement: str, place: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement as root; its rows, if it has any."""
        with closing(self._connect(place)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


@cache
def mariadb_server() -> MariadbServer:
    """The server that the tests of this process share."""
    return MariadbServer()
