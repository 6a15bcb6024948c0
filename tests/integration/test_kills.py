"""SIGKILL at named points between claim and settle: nothing is lost, only the running task pays, once means once."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from taskmq import App, Retry
from taskmq.state import TaskState

WORKER = textwrap.dedent("""
    import os, signal, sys
    from taskmq import App
    from taskmq.outcome import Ack
    url, log, point = sys.argv[1:4]

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    class Killing:
        # Passes every verb on, and dies at the named point.
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            method = getattr(self._inner, name)
            return method if name not in ("reserve", "settle", "settle_and_reserve", "extend") else self.watched(method)

        def watched(self, method):
            def called(*params):
                items = getattr(params[0], "items", ())
                settles = any(isinstance(getattr(item, "outcome", None), Ack) for item in items)
                marks = method.__name__ == "extend" and bool(items)
                if (settles and point == "before settle") or (marks and point == "before mark"):
                    die()
                answer = method(*params)
                if (settles and point == "after settle") or (marks and point == "after mark"):
                    die()
                reserved = answer[1] if isinstance(answer, tuple) else answer
                if point == "after claim" and getattr(reserved, "deliveries", ()):
                    die()
                return answer
            return called

    app = App(url, lease=0.3)
    app._store = Killing(app.store)

    @app.task(name="h", queue="q")
    def h(n):
        with open(log, "a") as file:
            print(n, file=file, flush=True)
        if point == "in handler" and n == 0:
            die()

    sys.exit(app.run_worker(concurrency=1, prefetch=10))
""")
ANYTIME = ("after claim", "in handler", "before settle", "after settle")
LAST_ATTEMPT = ("before mark", "after mark")
"""A last attempt is marked started in the store before its handler runs."""


@pytest.mark.parametrize(
    ("point", "budget"),
    [(point, 1) for point in (*ANYTIME, *LAST_ATTEMPT)] + [(point, 3) for point in ANYTIME],
)
def test_a_worker_killed_at_a_named_point(tmp_path: Path, point: str, budget: int) -> None:
    """With ``max_attempts=1`` no handler starts twice; with more, all succeed and neighbours keep their attempts."""
    url, log = f"sqlite:///{tmp_path / 'q.db'}", tmp_path / "log"
    log.touch()
    app = App(url, lease=0.3)
    ref = app.ref("h", queue="q", retry=Retry(max_attempts=budget, base=0.0, jitter=False))
    ids = [ref.enqueue(n).id for n in range(5)]
    killed = subprocess.run([sys.executable, "-c", WORKER, url, str(log), point], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL

    @app.task(name="h", queue="q")
    def h(n: int) -> None:
        with log.open("a") as file:
            print(n, file=file, flush=True)

    with app.worker(concurrency=1, prefetch=10):
        for task_id in ids:
            assert app.store.watch(task_id, 30), f"killed {point}"
        states = [app.get(task_id) for task_id in ids]
    starts = [int(line) for line in log.read_text().split()]
    if budget == 1:
        assert max(starts.count(n) for n in range(5)) == 1, "never twice, not even after a crash"
        assert all(state.state.terminal for state in states)
        assert {state.reason for state in states if state.state is TaskState.FAILED} <= {"max_attempts"}
    else:
        assert [state.state for state in states] == [TaskState.SUCCEEDED] * 5
        assert sum(state.attempt - 1 for state in states) <= 1, "one task at most was running: only that one pays"
