"""The libraries we are compared with, each in an environment of its own.

Environments are made at their first use, in ``.peers`` of the working tree (TASKMQ_BENCH_PEERS names another place),
from the registries that pip and npm know; Sidekiq is Debian's (apt-get install ruby-sidekiq). ``hiredis`` is in every
Python environment, because redis-py is quicker with it. To measure newer versions, remove the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.place import Place

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOME = Path(os.environ.get("TASKMQ_BENCH_PEERS", ROOT / ".peers"))
PATIENCE = 180.0


@dataclass(frozen=True)
class Peer:
    """A library: the packages of its environment, and its worker's command, one process of it."""

    name: str
    packages: Sequence[str]
    worker: Sequence[str]

    def python(self) -> str:
        """The Python of its environment; for ours, this one."""
        if not self.packages:
            return sys.executable
        home = HOME / self.name
        if not (home / "ready").exists():
            print(f"making {home}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
            pip = [f"{home}/bin/pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *self.packages, "hiredis"], check=True)
            (home / "ready").touch()
        return str(home / "bin/python")

    @cache  # noqa: B019  # there are ten of them
    def version(self) -> str:
        """What is installed."""
        code = f"from importlib.metadata import version; print(version({self.name!r}))"
        return self._run([self.python(), "-c", code]).strip()

    def publishing(self, way: str, place: Place, tasks: int) -> float:
        """Tasks a second of publishing in one of the ways of ``peer.py``."""
        place.empty()
        return float(self._run(self._publish(way), URL=place.tcp, TASKS=str(tasks)).split()[-1])

    def working(self, place: Place, tasks: int) -> float:
        """Tasks a second of its worker, between the starts of the tenth part and of the last."""
        place.empty()
        with tempfile.NamedTemporaryFile() as marks:
            environment = _environment(URL=place.tcp, TASKS=str(tasks), MARKS=marks.name, **self._more())
            self.fill(environment)
            with subprocess.Popen(
                self.command(place.tcp),
                cwd=HERE,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as worker:
                try:
                    first, last = _wait_for(marks.name, worker, self.name)
                finally:
                    _end(worker)
        return 0.9 * tasks / (last - first)

    def fill(self, environment: dict[str, str]) -> None:
        """Publish what the worker is measured with."""
        subprocess.run(self._publish("fill"), cwd=HERE, env=environment, check=True, stdout=subprocess.DEVNULL)

    def command(self, url: str) -> list[str]:
        """The worker."""
        program, *words = self.worker
        return [str(Path(self.python()).parent / program), *(url if word == "URL" else word for word in words)]

    def _publish(self, way: str) -> list[str]:
        # Not as a program: some libraries name a handler by its module, which the worker imports.
        return [self.python(), "-c", f"from with_{self.name} import publish; publish()", way]

    def _more(self) -> dict[str, str]:
        return {}

    def _run(self, words: Sequence[str], **variables: str) -> str:
        return subprocess.run(
            words, cwd=HERE, env=_environment(**variables), check=True, stdout=subprocess.PIPE, text=True
        ).stdout


class BullMQ(Peer):
    """BullMQ, for Node."""

    def _more(self) -> dict[str, str]:
        return {"NODE_PATH": str(self._modules())}

    def _modules(self) -> Path:
        home = HOME / "bullmq"
        if not (home / "ready").exists():
            home.mkdir(parents=True, exist_ok=True)
            print(f"making {home}", flush=True)
            npm = ["npm", "install", "--silent", "--no-fund", "--no-audit"]
            subprocess.run([*npm, "bullmq", "ioredis"], cwd=home, check=True)
            (home / "ready").touch()
        return home / "node_modules"

    def version(self) -> str:  # type: ignore[override]
        return str(json.loads((self._modules() / "bullmq/package.json").read_text())["version"])

    def fill(self, environment: dict[str, str]) -> None:
        subprocess.run(["node", f"{HERE}/with_bullmq.js", "fill"], env=environment, check=True)

    def command(self, url: str) -> list[str]:
        return ["node", f"{HERE}/with_bullmq.js", "work"]


class Sidekiq(Peer):
    """Sidekiq, for Ruby."""

    def version(self) -> str:  # type: ignore[override]
        return self._run(["ruby", "-e", "require 'sidekiq'; print Sidekiq::VERSION"])

    def fill(self, environment: dict[str, str]) -> None:
        # Debian's Sidekiq has its Redis client complain of it, hundreds of lines.
        subprocess.run(["ruby", f"{HERE}/with_sidekiq.rb"], env=environment, check=True, stderr=subprocess.DEVNULL)

    def command(self, url: str) -> list[str]:
        return ["sidekiq", "-r", f"{HERE}/with_sidekiq.rb"]


OURS = Peer("taskmq", (), ("python", "-m", "taskmq", "worker", "with_taskmq:app", "--log-level", "error"))
PYTHON = (
    Peer(
        "celery",
        ("celery[redis]",),
        (
            *("celery", "-A", "with_celery", "worker", "-P", "threads", "-c", "8", "-l", "critical"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ),
    ),
    Peer("dramatiq", ("dramatiq[redis]",), ("dramatiq", "with_dramatiq", "-p", "1", "-t", "8")),
    Peer("rq", ("rq",), ("rq", "worker", "--worker-class", "rq.SimpleWorker", "--url", "URL", "--quiet")),
    Peer("huey", ("huey", "redis"), ("huey_consumer", "with_huey.huey", "-w", "8", "-k", "thread")),
    Peer("arq", ("arq",), ("arq", "with_arq.WorkerSettings")),
    Peer("saq", ("saq[redis]", "typing-extensions"), ("saq", "with_saq.settings", "--quiet")),
    Peer("taskiq", ("taskiq", "taskiq-redis"), ("taskiq", "worker", "with_taskiq:broker", "-w", "1")),
)
OTHERS = (BullMQ("bullmq", (), ()), Sidekiq("sidekiq", (), ()))


def missing(peer: Peer) -> str | None:
    """What this machine lacks to run a peer."""
    if isinstance(peer, BullMQ) and not shutil.which("npm"):
        return "no npm on PATH"
    if isinstance(peer, Sidekiq) and not shutil.which("sidekiq"):
        return "no sidekiq on PATH (apt-get install ruby-sidekiq)"
    return None


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)]), **more}


def _wait_for(marks: str, worker: subprocess.Popen[bytes], name: str) -> tuple[float, float]:
    end = time.monotonic() + PATIENCE
    while len(lines := Path(marks).read_text().splitlines()) < 2:
        if worker.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{name} did not get through")
        time.sleep(0.01)
    first, last = sorted(map(float, lines))
    return first, last


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.terminate()
    try:
        worker.wait(20)
    except subprocess.TimeoutExpired:
        worker.kill()
