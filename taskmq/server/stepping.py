"""Steps of many connections in few transactions. Essay: who comes together goes together.

A start or a finish of one task costs a hand-over to a thread, a transaction and a commit, and a hundred connections
send them at once. So an environment's steps are done by one task: while a transaction is under way, what comes is kept,
and the next one takes all of it. A lone step waits for nobody; the groups grow with the load. The steps of a
connection are in the order in which it sent them, because a connection has one call here at a time.

Tried: each connection for itself, on eight threads (a third of the rate: a commit and a hand-over each); the same with
the store's own grouping of threads (the commits are shared, the hand-overs and the looks at the lines are not).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from taskmq.errors import TransportError
from taskmq.server.workers import steps
from taskmq.state import TaskInfo
from taskmq.transport.serving import Step, StepResult

if TYPE_CHECKING:
    from taskmq.server.node import Node

MOST_STEPS = 200
"""In one transaction."""

Result = tuple[StepResult, TaskInfo | None]
Call = tuple[str, Sequence[Step]]


class Stepper:
    """The steps of one environment on this node. On the loop's thread."""

    def __init__(self, node: Node, environment_id: str) -> None:
        self._node = node
        self._environment = environment_id
        self._waiting: deque[tuple[Call, asyncio.Future[list[Result]]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def do(self, session_id: str, work: Sequence[Step]) -> list[Result]:
        """Do these steps of a session; raises what the store raised, or TimeoutError."""
        future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self._waiting.append(((session_id, work), future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._waiting:
            calls: list[Call] = []
            futures: list[asyncio.Future[list[Result]]] = []
            count = 0
            while self._waiting and (not calls or count + len(self._waiting[0][0][1]) <= MOST_STEPS):
                call, future = self._waiting.popleft()
                calls.append(call)
                futures.append(future)
                count += len(call[1])
            await self._together(calls, futures)

    async def _together(self, calls: list[Call], futures: list[asyncio.Future[list[Result]]]) -> None:
        store = self._node.stores.of(self._environment)
        try:
            results = await self._node.on_behalf(self._environment, "steps", steps.run, store, calls)
        except (TransportError, TimeoutError, RuntimeError) as error:
            for future in futures:
                _fail(future, error)
        except Exception as error:
            if len(calls) == 1:
                _fail(futures[0], error)
                return
            for call, future in zip(calls, futures, strict=True):  # whose fault it is must bear it alone
                await self._together([call], [future])
        else:
            for future, answer in zip(futures, results, strict=True):
                if not future.done():
                    future.set_result(answer)


def _fail(future: asyncio.Future[list[Result]], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
