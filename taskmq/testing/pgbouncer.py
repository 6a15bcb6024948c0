"""A real pgbouncer in transaction mode, for tests: between a store and a PostgreSQL server of this process."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from urllib.parse import quote

from taskmq.testing.guarded import GuardedProcess
from taskmq.testing.servers import missing
from taskmq.testing.sql_servers import PATIENCE, SCHEMAS, PostgresServer, postgres_server, unprivileged

POOL = 6
"""Sessions that the server sees, however many there are in front of the pooler."""
_SETTINGS = """
[databases]
{databases}
[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits{ignored}
"""


# Everybody who comes is the server's superuser: who may do what is tested without a pooler.
_DATABASE = "{schema} = host={server} dbname=postgres user=postgres connect_query='SET search_path={schema}'"


class Pgbouncer:
    """A pooler of this process, on a unix socket in a folder of its own. A place of the server is a database here.

    ``deaf``: it passes over the settings that a client asks for when it connects, instead of refusing it.
    """

    def __init__(self, server: PostgresServer, *, deaf: bool = False) -> None:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None:
            missing("pgbouncer", "apt-get install pgbouncer")
        self.server = server
        self._owner = os.getpid()
        self.folder = tempfile.mkdtemp(prefix="taskmq-pool-")
        settings = Path(self.folder, "pgbouncer.ini")
        places = [f"place{number}" for number in range(SCHEMAS)]
        databases = "\n".join(_DATABASE.format(schema=place, server=server.folder) for place in places)
        ignored = ",options" if deaf else ""
        settings.write_text(_SETTINGS.format(databases=databases, folder=self.folder, pool=POOL, ignored=ignored))
        user = unprivileged()
        if user:
            shutil.chown(self.folder, user["user"], user["group"])
            os.chmod(self.folder, 0o755)
        with Path(self.folder, "log").open("ab") as out:
            self._process = GuardedProcess(
                [program, str(settings)],
                self.folder,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd="/",
                **user,
            )
        atexit.register(self.stop)
        end = time.monotonic() + PATIENCE
        while not Path(self.folder, ".s.PGSQL.6432").exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"pgbouncer does not start: {Path(self.folder, 'log').read_text()[-1000:]}")
            time.sleep(0.01)

    def url(self, schema: str, **more: str) -> str:
        """A URL of a place on the server, by way of the pooler."""
        options = "".join(f"&{name}={quote(value)}" for name, value in more.items())
        return f"postgresql://postgres@/{schema}?host={quote(self.folder)}&port=6432{options}"

    def stop(self) -> None:
        """End it and remove its folder. Not in a forked child: it is not its pooler."""
        if os.getpid() == self._owner:
            self._process.kill()
            self._process.wait(PATIENCE)
            shutil.rmtree(self.folder, ignore_errors=True)


@cache
def pgbouncer() -> Pgbouncer:
    """The pooler that the tests of this process share."""
    return Pgbouncer(postgres_server("postgresql"))
