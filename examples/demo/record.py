"""The shop's workers with a recorder: hooks that note when each handler started and ended, and in which slot."""

import json
import os
import threading
import time

from examples.demo.shop import app
from taskmq import Context
from taskmq.outcome import Outcome

_file = os.open(os.environ["DEMO_RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


@app.on("before_run")
def started(context: Context) -> None:
    _note(context, "start")


@app.on("after_run")
def ended(context: Context, outcome: Outcome) -> None:
    _note(context, type(outcome).__name__.lower())


def _note(context: Context, what: str) -> None:
    line = {
        "what": what,
        "task": context.task_id,
        "attempt": context.attempt,
        "pid": os.getpid(),
        "thread": threading.get_ident(),
        "at": time.time_ns() // 1000,
    }
    os.write(_file, json.dumps(line).encode() + b"\n")
