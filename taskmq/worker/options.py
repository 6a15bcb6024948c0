"""The options of a worker: checked when it is made, frozen afterwards."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from taskmq.durations import Duration, seconds
from taskmq.errors import InvalidArgument
from taskmq.names import check_int, check_name

POOLS = ("threads", "solo", "asyncio", "processes")
COROUTINES = 100
"""Concurrency of the pool asyncio unless told otherwise."""
MAX_CONCURRENCY = 1000
MAX_PREFETCH = 1000
MAX_GRACE = 86400.0
MAX_TASKS = 1_000_000_000
MIB = 1 << 20
MAX_MEMORY = 1 << 20
"""MiB."""
MAX_WEIGHT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a worker was asked to be.

    ``prefetch``  how many to hold beyond the running ones; None: about 20 ms of work
    ``grace``     seconds that running tasks get when the worker stops
    ``lease``     microseconds, for queues that have no lease of their own
    ``weights``   of queues that were named with one
    ``max_tasks`` and ``max_memory`` (bytes)  of a child process, before it is replaced; None: no limit
    """

    name: str
    queues: tuple[str, ...]
    concurrency: int
    pool: str
    prefetch: int | None
    grace: float
    lease: int
    weights: Mapping[str, int]
    max_tasks: int | None
    max_memory: int | None


def check_options(
    *,
    name: str | None,
    queues: str | Iterable[str] | None,
    default_queues: Iterable[str],
    concurrency: int | None,
    pool: str,
    prefetch: Any,
    grace: Duration,
    lease: int,
    max_tasks: int | None = None,
    max_memory: int | None = None,
) -> Options:
    """Options as given by the user; raises InvalidArgument, naming the one that is wrong."""
    if pool not in POOLS:
        raise InvalidArgument(f"pool {pool!r} is none of {', '.join(POOLS)}")
    if pool != "processes" and not (max_tasks is None and max_memory is None):
        raise InvalidArgument(f"max_tasks_per_child and max_memory_per_child go with pool processes, not {pool}")
    names, weights = _queues(queues, default_queues)
    return Options(
        name=_default_name() if name is None else check_name("worker name", name),
        queues=names,
        weights=weights,
        concurrency=_concurrency(concurrency, pool),
        pool=pool,
        prefetch=_prefetch(prefetch),
        grace=seconds("grace", grace, 0.0, MAX_GRACE),
        lease=lease,
        max_tasks=None if max_tasks is None else check_int("max_tasks_per_child", max_tasks, 1, MAX_TASKS),
        max_memory=None if max_memory is None else MIB * check_int("max_memory_per_child", max_memory, 1, MAX_MEMORY),
    )


def _queues(given: str | Iterable[str] | None, default: Iterable[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """The queues' names, and the weights of those written ``name=weight``."""
    if given is None:
        names = sorted(set(default))
        if not names:
            raise InvalidArgument("a worker without queues: no handler is registered, and no queues were named")
        return tuple(names), {}
    parts = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
    weights: dict[str, int | None] = {}
    for part in parts:
        name, equals, weight = part.partition("=") if isinstance(part, str) else (part, "", "")
        weights[check_name("queue", name)] = _weight(name, weight) if equals else None
    if not weights:
        raise InvalidArgument("queues is empty: name at least one, or leave it out to serve every handler's queue")
    return tuple(weights), {name: weight for name, weight in weights.items() if weight is not None}


def _weight(queue: str, text: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise InvalidArgument(f"the weight {text!r} of queue {queue} is not a number, as in {queue}=3")
    return check_int(f"the weight of queue {queue}", int(text), 1, MAX_WEIGHT)


def unenforced_timeouts(handlers: Iterable[tuple[str, bool, bool]], pool: str) -> list[str]:
    """The handlers whose timeout this pool can only tell them of, not enforce, sorted by name.

    ``handlers``: of each its name, whether it has a timeout, and whether it is a coroutine. A coroutine is cancelled,
    a process is killed; but nothing can stop a function that runs in a thread.
    """
    if pool == "processes":
        return []
    return sorted(name for name, has_timeout, is_coroutine in handlers if has_timeout and not is_coroutine)


def _concurrency(given: int | None, pool: str) -> int:
    if pool == "solo":
        if given not in (None, 1):
            raise InvalidArgument(f"pool solo runs one task at a time: concurrency cannot be {given!r}")
        return 1
    if given is None:
        cpus = os.cpu_count() or 1
        return {"asyncio": COROUTINES, "processes": cpus}.get(pool, min(32, cpus + 4))
    return check_int("concurrency", given, 1, MAX_CONCURRENCY)


def _prefetch(given: Any) -> int | None:
    if given == "auto" and isinstance(given, str):
        return None
    if type(given) is not int or not 0 <= given <= MAX_PREFETCH:
        raise InvalidArgument(f'prefetch {given!r} is neither "auto" nor an integer from 0 to {MAX_PREFETCH:,}')
    return given


def _default_name() -> str:
    host = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in socket.gethostname())
    return f"{host[:80]}-{os.getpid()}-{secrets.token_hex(3)}"


__all__ = ["Options", "check_options", "unenforced_timeouts"]
