"""``AsyncClient``: the names of ``Client``, awaitable. Nothing is decided here: calls, retries, errors are shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import httpx2

from taskmq.client import calls
from taskmq.client.calls import Call, Duration
from taskmq.client.objects import Hold, Partition, Queue, Task
from taskmq.client.retries import FAILURES, Configured
from taskmq.errors import TaskMQError

T = TypeVar("T")


class AsyncClient(Configured):
    """``Client`` for asyncio: the same arguments, names and errors."""

    def _open(self, options: dict[str, Any]) -> None:
        self._http = httpx2.AsyncClient(**options)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def _run(self, call: Call[T]) -> T:
        attempts = self._attempts(call)
        while True:
            try:
                return attempts.answer(await self._http.request(**attempts.request()))
            except FAILURES as failure:
                await asyncio.sleep(attempts.pause_after(failure))

    async def _pages(self, path: str, kind: type[T], filters: Mapping[str, Any]) -> AsyncIterator[T]:
        cursor: str | None = None
        while True:
            items, cursor = await self._run(calls.list_page(path, kind, {**filters, "cursor": cursor}))
            for item in items:
                yield item
            if cursor is None:
                return

    # ── tasks ──

    async def submit_task(self, key: str, *, handler: str, **options: Any) -> Task:
        """Accept a task; the same key and content again gives the first one, ``duplicate``."""
        return await self._run(calls.submit_task(key, handler, options))

    async def submit_tasks(self, items: Sequence[Mapping[str, Any]]) -> list[Task | TaskMQError]:
        """Accept many, in as few requests as the limits allow; an item's refusal stands in its place."""
        return [answer for call in calls.batches(items) for answer in await self._run(call)]

    async def get_task(self, task_id: str, *, wait: Duration = 0) -> Task:
        """A task, now, or when it has ended or ``wait`` (up to 30 s) is over."""
        return await self._run(calls.get_task(task_id, wait))

    def list_tasks(self, **filters: Any) -> AsyncIterator[Task]:
        """Every task that the filters let through, page by page."""
        return self._pages("/v1/tasks", Task, filters)

    async def cancel_task(self, task_id: str, *, reason: str | None = None) -> Task:
        """Cancel what waits, ask what runs to stop."""
        return await self._run(calls.cancel_task(task_id, reason))

    async def replay_task(
        self, task_id: str, *, expected_replay_count: int | None = None, available_at: datetime | None = None
    ) -> Task:
        """Queue an ended task again, with a new budget."""
        return await self._run(calls.replay_task(task_id, expected_replay_count, available_at))

    async def replay_tasks(self, **options: Any) -> dict[str, Any]:
        """Queue failed tasks of one queue again."""
        return await self._run(calls.replay_tasks(options))

    async def why_task(self, task_id: str) -> list[Hold]:
        """What holds a task back; nothing: it is eligible."""
        return await self._run(calls.why_task(task_id))

    # ── queues ──

    async def create_queue(self, name: str, **options: Any) -> Queue:
        """Make a queue, or find the same one."""
        return await self._run(calls.create_queue(name, options))

    async def get_queue(self, queue_id: str) -> Queue:
        """A queue with its counts."""
        return await self._run(calls.get_queue(queue_id))

    def list_queues(self, **filters: Any) -> AsyncIterator[Queue]:
        """Every queue."""
        return self._pages("/v1/queues", Queue, filters)

    async def update_queue(self, queue_id: str, *, if_match: int | None = None, **options: Any) -> Queue:
        """Change settings; None brings a default back."""
        return await self._run(calls.update_queue(queue_id, if_match, options))

    async def pause_queue(self, queue_id: str) -> Queue:
        """No claim that begins afterwards takes from it."""
        return calls.as_queue(await self._run(calls.queue_action(queue_id, "pause")), {})

    async def resume_queue(self, queue_id: str) -> Queue:
        """The other way round."""
        return calls.as_queue(await self._run(calls.queue_action(queue_id, "resume")), {})

    async def purge_queue(self, queue_id: str, states: Sequence[str] = ("QUEUED", "SCHEDULED", "RETRYING")) -> int:
        """Cancel what waits; how many there were."""
        return int((await self._run(calls.queue_action(queue_id, "purge", {"states": list(states)})))["cancelled"])

    async def delete_queue(self, queue_id: str, *, if_match: int | None = None) -> bool:
        """Delete a queue that has nothing unfinished."""
        return bool((await self._run(calls.delete_queue(queue_id, if_match)))["deleted"])

    def list_partitions(self, queue_id: str, **filters: Any) -> AsyncIterator[Partition]:
        """Every live partition."""
        return self._pages(f"/v1/queues/{queue_id}/partitions", Partition, filters)

    async def partition_action(self, queue_id: str, partition: str, action: str) -> dict[str, Any]:
        """pause, resume, release, skip_head or purge."""
        return await self._run(calls.partition_action(queue_id, partition, action))
