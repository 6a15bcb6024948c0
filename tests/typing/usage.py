"""How taskmq is written, for the type checker: this file is checked, never run.

Each ``type: ignore`` is an assertion: mypy reports the ones that are not needed.
"""

from __future__ import annotations

from typing import assert_type

from taskmq import App, Dead, Defer, Handle, Limit, Partition, QueueConfig, Retry, RetryLater, Task, Worker, current
from taskmq.message import Message
from taskmq.task import AsyncTask, BoundTask

app = App("memory://", lease="30s", queues={"mail": QueueConfig(weight=3)})


@app.task
def send(to: str, n: int = 1) -> str:
    return to * n


@app.task(queue="mail", priority=3, retry=Retry(max_attempts=5, on=(OSError,)), timeout="30s", pool="threads")
def fetch(url: str) -> list[int]:
    return [len(url)]


@app.task
async def load(url: str) -> int:
    return len(url)


@app.task(queue="mail")
async def store(data: bytes) -> None:
    if not data:
        raise Dead("nothing to store")
    if current().cancelled:
        raise Defer("5s")
    raise RetryLater(5, partition=True)


# A handler is a Task of its parameters and result, with options and without.
annotated: Task[[str], list[int]] = fetch
also: AsyncTask[[str], int] = load

# A plain call is the function's own.
assert_type(send("a"), str)
send(3)  # type: ignore[arg-type]

# enqueue takes the handler's arguments, and its handle gives the handler's result.
handle = send.enqueue("a", n=2)
assert_type(handle, Handle[str])
assert_type(handle.result(timeout=5), str)
send.enqueue(3)  # type: ignore[arg-type]
send.enqueue("a", m=2)  # type: ignore[call-arg]
send.enqueue()  # type: ignore[call-arg]
assert_type(fetch.enqueue("x").result(), list[int])

# Options do not change that, and are checked themselves.
bound = send.using(priority=9, delay=10, ordered_by="acct-42", key="order-1", tags=["a"])
by_place: BoundTask[[str, int], str] = bound
assert_type(bound.enqueue("a").result(), str)
bound.enqueue(3)  # type: ignore[arg-type]
send.using(partition=Partition("tenant-7", weight=3), limit=Limit("user:7", 2)).enqueue("a")
send.using(priority="high")  # type: ignore[arg-type]
send.using(priorty=3)  # type: ignore[call-arg]
app.task(priorty=3)  # type: ignore[call-overload]

# Messages for a batch are checked as well.
assert_type(send.message("a"), Message)
send.message(3)  # type: ignore[arg-type]
app.enqueue_many([send.message("a"), send.using(priority=2).message("b")])

# By name anything goes.
app.ref("mail.send", queue="mail").enqueue("a", 1, x=None)

# Embedded, the worker is a context manager.
with app.worker(queues=["mail"], concurrency=8) as worker:
    assert_type(worker, Worker)


async def main() -> None:
    # Coroutine handlers: a call is awaited, and the handle's result is what the await gives.
    assert_type(await load("x"), int)
    assert_type(load.enqueue("x"), Handle[int])
    assert_type(await load.enqueue("x").aresult(), int)
    assert_type(await store.aenqueue(b"x"), Handle[None])
    load.enqueue(3)  # type: ignore[arg-type]
    await send.aenqueue(3)  # type: ignore[arg-type]
