"""Servers of tests do not outlive the tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from taskmq.testing.guarded import GuardedProcess
from taskmq.testing.redis_cluster import wait_until

STARTER = """
import subprocess, sys, threading
from taskmq.testing.guarded import GuardedProcess

def start():
    print(GuardedProcess(["sleep", "1000"], sys.argv[1], stdout=subprocess.DEVNULL).pid, flush=True)

thread = threading.Thread(target=start)
thread.start()
thread.join()
sys.stdin.read()
"""


def runs(pid: int) -> bool:
    """Whether it runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def test_a_process_ends_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    """Its folder goes, too; the end of the thread that started it is not the end."""
    folder = tmp_path / "data"
    folder.mkdir()
    words = [sys.executable, "-c", STARTER, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert runs(pid)
        assert folder.exists()
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: not runs(pid), "it is still there")
    wait_until(lambda: not folder.exists(), "its folder is still there")


def test_a_process_that_has_ended_is_watched_no_more(tmp_path: Path) -> None:
    """Whoever has its number next is left alone, and the folder stays for the next start."""
    process = GuardedProcess(["true"], str(tmp_path))
    watch = process._watch
    assert watch is not None
    assert process.wait(10) == 0
    assert watch.poll() == 0
    assert tmp_path.exists()
