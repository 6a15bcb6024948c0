"""A real cluster for tests: masters with all slots between them, and replicas if wanted, on 127.0.0.1.

python -m taskmq.testing.redis_cluster up|down    three masters on ports 7380 to 7382 that stay, to try things by hand
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

from redis import Redis

from taskmq.testing.guarded import GuardedProcess
from taskmq.testing.servers import Kind, binary, missing

SLOTS = 16384
PATIENCE = 30.0
NODE_TIMEOUT_MS = 1500
"""After so long without an answer a node is held for dead, and its replica takes over."""


class Node:
    """One server of a cluster. ``stays``: also when this process ends."""

    def __init__(self, program: str, port: int, *options: str, stays: bool = False) -> None:
        self.port = port
        self._stays = stays
        self.folder = tempfile.mkdtemp(prefix="taskmq-node-")
        self._command = [
            *(program, "--port", str(port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", ""),
            *("--appendonly", "no", "--daemonize", "no", "--loglevel", "warning", "--cluster-enabled", "yes"),
            *("--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--cluster-config-file", "nodes.conf"),
            *("--cluster-announce-ip", "127.0.0.1", "--cluster-port", str(free_port()), *options),
        ]
        self.client: Any = Redis(host="127.0.0.1", port=port, socket_timeout=10)
        self.start()

    def start(self) -> None:
        """Start it, and return when it answers."""
        with (Path(self.folder) / "log").open("ab") as out:
            words: dict[str, Any] = {"stdout": out, "stderr": out, "stdin": subprocess.DEVNULL}
            self.process: subprocess.Popen[bytes] = (
                subprocess.Popen(self._command, start_new_session=True, **words)
                if self._stays
                else GuardedProcess(self._command, self.folder, **words)
            )
        wait_until(self._answers, f"{self._command[0]} does not start: {self.folder}/log")

    def _answers(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def id(self) -> str:
        """What the cluster calls it."""
        return str(self.client.execute_command("CLUSTER MYID").decode())

    def info(self, section: str) -> dict[str, Any]:
        """What it says of itself."""
        found: dict[str, Any] = self.client.info(section)
        return found

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stop it in the middle of what it does, until ``thaw``."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)


class RedisCluster:
    """A cluster of this process, gone with it; one on given ports stays. The first nodes begin as masters."""

    def __init__(
        self, kind: Kind, masters: int = 3, replicas: int = 0, ports: list[int] | None = None, *options: str
    ) -> None:
        program = binary(kind)
        if program is None:
            missing(kind)
        self._owner = os.getpid()
        count = masters * (1 + replicas)
        places = ports or [free_port() for _ in range(count)]
        self.nodes = [Node(program, port, *options, stays=ports is not None) for port in places]
        if ports is None:
            atexit.register(self.stop)
        self._join(masters)

    def _join(self, masters: int) -> None:
        first, *others = self.nodes
        for node in others:
            port, bus = node.port, int(node.client.config_get("cluster-port")["cluster-port"])
            first.client.execute_command("CLUSTER MEET", "127.0.0.1", port, bus)
        for i, node in enumerate(self.nodes[:masters]):
            low, high = i * SLOTS // masters, (i + 1) * SLOTS // masters - 1
            node.client.execute_command("CLUSTER ADDSLOTSRANGE", low, high)
        wait_until(lambda: all(self.known_by(node) == len(self.nodes) for node in self.nodes), "the nodes do not meet")
        for i, node in enumerate(self.nodes[masters:]):
            node.client.execute_command("CLUSTER REPLICATE", self.nodes[i % masters].id)
        wait_until(self.ready, "the cluster does not get ready")

    @staticmethod
    def known_by(node: Node) -> int:
        """How many nodes it knows."""
        return len(node.client.execute_command("CLUSTER NODES"))

    def ready(self) -> bool:
        """Whether all nodes agree that the cluster works, and all replicas follow."""
        for node in self.nodes:
            if node.process.poll() is None:
                state = node.client.execute_command("CLUSTER INFO")
                text = state.decode() if isinstance(state, bytes) else str(state)
                replication = node.info("replication")
                if "cluster_state" not in text or "ok" not in text.split("cluster_state", 1)[1][:8]:
                    return False
                if replication["role"] == "slave" and replication["master_link_status"] != "up":
                    return False
        return True

    def url(self, prefix: str = "taskmq:", **options: Any) -> str:
        """A URL for it."""
        more = "".join(f"&{name}={value}" for name, value in options.items())
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis://{hosts}/0?cluster=1&prefix={prefix}{more}"

    def node_of(self, slot: int) -> Node:
        """The master of a slot."""
        for low, high, master, *_ in self.alive().client.execute_command("CLUSTER SLOTS"):
            if low <= slot <= high:
                return next(node for node in self.nodes if node.port == master[1])
        raise LookupError(f"nobody has slot {slot}")

    def alive(self) -> Node:
        """A node that runs."""
        return next(node for node in self.nodes if node.process.poll() is None)

    def stop(self) -> None:
        """End all nodes and remove their folders."""
        if os.getpid() == self._owner:
            for node in self.nodes:
                node.kill()
                shutil.rmtree(node.folder, ignore_errors=True)


@cache
def redis_cluster(kind: Kind) -> RedisCluster:
    """The cluster of this process."""
    return RedisCluster(kind)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(done: Any, complaint: str, patience: float = PATIENCE) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + patience
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(complaint)
        time.sleep(0.01)


PORTS = [7380, 7381, 7382]
PIDS = Path(tempfile.gettempdir()) / "taskmq-redis-cluster.pids"


def up() -> None:
    """Start a cluster that stays until ``down``."""
    if PIDS.exists():
        down()
    cluster = RedisCluster("redis" if binary("redis") else "valkey", len(PORTS), 0, PORTS)
    PIDS.write_text("".join(f"{node.process.pid} {node.folder}\n" for node in cluster.nodes))
    sys.stdout.write(f"redis://127.0.0.1:{PORTS[0]}/0?cluster=1\n")


def down() -> None:
    """End the cluster that ``up`` started."""
    for line in PIDS.read_text().splitlines() if PIDS.exists() else []:
        pid, folder = line.split(" ", 1)
        if _works_in(pid, folder):  # the number may be another program's by now
            os.kill(int(pid), signal.SIGKILL)  # it keeps nothing
            wait_until(partial(_is_gone, pid, folder), f"process {pid} does not end")
        shutil.rmtree(folder, ignore_errors=True)
    PIDS.unlink(missing_ok=True)


def _works_in(pid: str, folder: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == Path(folder)
    except OSError:
        return False


def _is_gone(pid: str, folder: str) -> bool:
    return not _works_in(pid, folder)


if __name__ == "__main__":
    {"up": up, "down": down}[sys.argv[1]]()
