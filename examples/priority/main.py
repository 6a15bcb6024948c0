"""Three tasks of priorities 0, 9 and 4, and one worker: which runs first?

Needs a taskmq server and credentials with worker access: TASKMQ_URL, TASKMQ_CREDENTIALS_FILE. Prints two lines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import time
from typing import Any

from taskmq.client import Client, ConfigError, Execution, Queue, Task, TaskMQError, Worker

PRIORITIES = (0, 9, 4)
SECONDS = 25.0


class Wrong(Exception):
    """Something came out otherwise than it should."""


def payload(number: int) -> dict[str, Any]:
    return {
        "object_ref": "objects/example",
        "operation_ref": f"prepare-{number:03d}",
        "number": 9007199254740991 + 2 * number,
    }


def ended(client: Client, tasks: list[Task], worker: Worker, until: float) -> list[Task]:
    """The tasks when all have ended; raises Wrong when there is no time left, and what ended the worker."""
    done = []
    for task in tasks:
        while not task.terminal:
            left = until - time.monotonic()
            if left <= 0:
                raise Wrong(f"task {task.task_id} is {task.state} after {SECONDS:g} s")
            worker.raise_failure()
            task = client.get_task(task.task_id, wait=min(left, 1.0))
        done.append(task)
    return done


def scenario(client: Client, queue: Queue, tasks: list[Task], until: float) -> tuple[list[int], int, bool]:
    """Priorities in the order of execution, attempts a task, and whether the worker drained."""
    handler = f"priority.prepare.{secrets.token_hex(4)}"
    payloads = [payload(number) for number in range(1, len(PRIORITIES) + 1)]
    for priority, content in zip(PRIORITIES, payloads, strict=True):
        key = f"{queue.name}-{content['operation_ref']}"
        tasks.append(
            client.submit_task(
                key, queue_id=queue.queue_id, handler=handler, payload=content, priority=priority, deadline=20
            )
        )
    executed: list[int] = []
    worker = Worker(client, [queue.queue_id], capacity=1)

    @worker.handler(handler)
    def prepare(execution: Execution) -> Any:
        executed.append(execution.task.priority)
        return execution.payload

    worker.start()
    drained = False
    try:
        tasks[:] = ended(client, tasks, worker, until)
    finally:
        drained = worker.drain(3.0)
        worker.stop()
    for task, content in zip(tasks, payloads, strict=True):
        if task.state != "SUCCEEDED" or task.result != content:
            raise Wrong(f"task {task.task_id} ended {task.state} with {task.result!r}")
    attempts = {task.attempt for task in tasks}
    if executed != sorted(PRIORITIES, reverse=True) or attempts != {1} or not drained:
        raise Wrong(f"executed {executed}, attempts {sorted(attempts)}, drained {drained}")
    return executed, attempts.pop(), drained


def clean_up(client: Client, queue: Queue | None, tasks: list[Task]) -> None:
    with contextlib.suppress(TaskMQError):
        for task in tasks:
            if not task.terminal:
                client.cancel_task(task.task_id)
        if queue is not None:
            client.pause_queue(queue.queue_id)


def main() -> int:
    logging.disable()
    for name in ("TASKMQ_URL", "TASKMQ_CREDENTIALS_FILE"):
        if not os.environ.get(name):
            print(f"{name} is not set", file=sys.stderr)
            return 2
    until = time.monotonic() + SECONDS
    try:
        client = Client()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    queue: Queue | None = None
    tasks: list[Task] = []
    with client:
        try:
            queue = client.create_queue(f"priority-{secrets.token_hex(4)}")
            executed, attempts, drained = scenario(client, queue, tasks, until)
        except (TaskMQError, Wrong) as error:
            clean_up(client, queue, tasks)
            print(" ".join(str(error).split()), file=sys.stderr)
            return 1
    submitted = ",".join(str(priority) for priority in PRIORITIES)
    print(f"submitted_priorities={submitted} executed_priorities={','.join(map(str, executed))}")
    print(f"completed={len(tasks)} attempts_per_task={attempts} worker_drained={str(drained).lower()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
