"""``AsyncWorker``: a Worker whose handlers may be coroutines, with awaitable names. Nothing is decided here."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from taskmq.client.aio import AsyncClient
from taskmq.client.client import Client
from taskmq.client.execution import Execution
from taskmq.client.worker import H, Handler, Worker


class _LoopWorker(Worker):
    """A Worker whose handlers may be coroutines, run on this loop."""

    loop: asyncio.AbstractEventLoop

    def _call(self, function: Handler | None, execution: Execution) -> Any:
        result = super()._call(function, execution)
        if isinstance(result, Awaitable):
            value, error = asyncio.run_coroutine_threadsafe(_awaited(result), self.loop).result()
            if error is not None:
                raise error
            return value
        return result


class AsyncWorker:
    """``Worker`` for asyncio: the same arguments and names, awaitable. Handlers may be coroutines."""

    def __init__(
        self,
        client: Client | AsyncClient,
        queues: Sequence[str],
        capacity: int = 1,
        *,
        worker_id: str | None = None,
        handlers: Mapping[Any, Handler] | None = None,
    ) -> None:
        self._core = _LoopWorker(client, queues, capacity, worker_id=worker_id, handlers=handlers)
        self.worker_id = self._core.worker_id

    async def __aenter__(self) -> AsyncWorker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain(25.0)
        await self.stop()

    def handler(self, name: str, *, version: str = "v1") -> Callable[[H], H]:
        """Register a function or coroutine function for tasks of this handler."""
        return self._core.handler(name, version=version)

    async def start(self) -> None:
        """Connect and work, in the background."""
        self._core.loop = asyncio.get_running_loop()
        self._core.start()

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain. Raises what ended it otherwise."""
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.set)
        try:
            await self.start()
            while not asked.is_set() and not self._core.ended:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asked.wait(), 0.2)
            if not self._core.ended:
                await self.drain(25.0)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            await self.stop()
        self._core.raise_failure()

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the name that both workers have
        """Take nothing more, let what runs end; whether the server confirmed that nothing is held."""
        return await asyncio.to_thread(self._core.drain, timeout)

    async def stop(self) -> None:
        """End now."""
        await asyncio.to_thread(self._core.stop)


async def _awaited(value: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What it returns, or what would end the loop if it were raised in it."""
    try:
        return await value, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


__all__ = ["AsyncWorker"]
