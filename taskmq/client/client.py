"""``Client``: the API for programs that block. ``aio.py`` has the same names, awaitable; ``calls.py`` what is sent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import httpx2

from taskmq.client import calls
from taskmq.client.calls import Call, Duration
from taskmq.client.objects import Hold, Partition, Queue, Task
from taskmq.client.retries import FAILURES, Configured
from taskmq.errors import TaskMQError

T = TypeVar("T")


class Client(Configured):
    """A server, seen with one token. Use it as a context manager, or call ``close``.

    ``url``          else ``TASKMQ_URL``, else the credentials file's
    ``credentials``  ``Credentials``, the path of a file, or None: ``TASKMQ_CREDENTIALS_FILE``
    ``timeout``      seconds for a call with all its retries
    ``max_retries``  further tries of what is safe to send again
    ``transport``    an httpx2 transport, for tests
    ``insecure``     send the token unencrypted to another machine
    ``verify``       an ``ssl.SSLContext`` for servers whose certificate needs one

    Raises ConfigError before anything is sent. Safe to use from several threads.
    """

    def _open(self, options: dict[str, Any]) -> None:
        self._http = httpx2.Client(**options)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def _run(self, call: Call[T]) -> T:
        attempts = self._attempts(call)
        while True:
            try:
                return attempts.answer(self._http.request(**attempts.request()))
            except FAILURES as failure:
                time.sleep(attempts.pause_after(failure))

    def _pages(self, path: str, kind: type[T], filters: Mapping[str, Any]) -> Iterator[T]:
        cursor: str | None = None
        while True:
            items, cursor = self._run(calls.list_page(path, kind, {**filters, "cursor": cursor}))
            yield from items
            if cursor is None:
                return

    # ── tasks ──

    def submit_task(self, key: str, *, handler: str, **options: Any) -> Task:
        """Accept a task; the same key and content again gives the first one, ``duplicate``."""
        return self._run(calls.submit_task(key, handler, options))

    def submit_tasks(self, items: Sequence[Mapping[str, Any]]) -> list[Task | TaskMQError]:
        """Accept many, in as few requests as the limits allow; an item's refusal stands in its place."""
        return [answer for call in calls.batches(items) for answer in self._run(call)]

    def get_task(self, task_id: str, *, wait: Duration = 0) -> Task:
        """A task, now, or when it has ended or ``wait`` (up to 30 s) is over."""
        return self._run(calls.get_task(task_id, wait))

    def list_tasks(self, **filters: Any) -> Iterator[Task]:
        """Every task that the filters let through, page by page."""
        return self._pages("/v1/tasks", Task, filters)

    def cancel_task(self, task_id: str, *, reason: str | None = None) -> Task:
        """Cancel what waits, ask what runs to stop."""
        return self._run(calls.cancel_task(task_id, reason))

    def replay_task(
        self, task_id: str, *, expected_replay_count: int | None = None, available_at: datetime | None = None
    ) -> Task:
        """Queue an ended task again, with a new budget."""
        return self._run(calls.replay_task(task_id, expected_replay_count, available_at))

    def replay_tasks(self, **options: Any) -> dict[str, Any]:
        """Queue failed tasks of one queue again."""
        return self._run(calls.replay_tasks(options))

    def why_task(self, task_id: str) -> list[Hold]:
        """What holds a task back; nothing: it is eligible."""
        return self._run(calls.why_task(task_id))

    # ── queues ──

    def create_queue(self, name: str, **options: Any) -> Queue:
        """Make a queue, or find the same one."""
        return self._run(calls.create_queue(name, options))

    def get_queue(self, queue_id: str) -> Queue:
        """A queue with its counts."""
        return self._run(calls.get_queue(queue_id))

    def list_queues(self, **filters: Any) -> Iterator[Queue]:
        """Every queue."""
        return self._pages("/v1/queues", Queue, filters)

    def update_queue(self, queue_id: str, *, if_match: int | None = None, **options: Any) -> Queue:
        """Change settings; None brings a default back."""
        return self._run(calls.update_queue(queue_id, if_match, options))

    def pause_queue(self, queue_id: str) -> Queue:
        """No claim that begins afterwards takes from it."""
        return calls.as_queue(self._run(calls.queue_action(queue_id, "pause")), {})

    def resume_queue(self, queue_id: str) -> Queue:
        """The other way round."""
        return calls.as_queue(self._run(calls.queue_action(queue_id, "resume")), {})

    def purge_queue(self, queue_id: str, states: Sequence[str] = ("QUEUED", "SCHEDULED", "RETRYING")) -> int:
        """Cancel what waits; how many there were."""
        return int(self._run(calls.queue_action(queue_id, "purge", {"states": list(states)}))["cancelled"])

    def delete_queue(self, queue_id: str, *, if_match: int | None = None) -> bool:
        """Delete a queue that has nothing unfinished."""
        return bool(self._run(calls.delete_queue(queue_id, if_match))["deleted"])

    def list_partitions(self, queue_id: str, **filters: Any) -> Iterator[Partition]:
        """Every live partition."""
        return self._pages(f"/v1/queues/{queue_id}/partitions", Partition, filters)

    def partition_action(self, queue_id: str, partition: str, action: str) -> dict[str, Any]:
        """pause, resume, release, skip_head or purge."""
        return self._run(calls.partition_action(queue_id, partition, action))
