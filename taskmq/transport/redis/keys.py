"""Every key that this store uses begins here; ``lua/`` builds the rest of them from the prefix.

    {p}  the prefix, ``taskmq:`` unless the URL says otherwise; a namespace other than "default" adds its
    {p}t:<id>           a task                 {p}log:<id>         its failed attempts
    {p}state:<q>        a queue, and what else is named after it (lua/include/queue.lua)
    {p}part:<n>:<q>:<code>    n: the length of the queue's name in bytes, because both may have colons in them
    {p}key:<n>:<q>:<key>      the same
    {p}line:<spec>:<q>        a number first, so that nothing can be mistaken

No name that a user gives stands before a fixed word, so two different things never have one key.
"""

from __future__ import annotations

import re

DEFAULT_PREFIX = "taskmq:"

ALONE = ("queues", "live", "limits", "seq", "workers")
NAMED = (
    *("t", "log", "part", "key", "parked", "limit", "lock", "waiter", "wake", "line", "turns"),
    *("conf", "state", "served", "specs", "flows", "counts", "delayed", "retries", "inplace", "blocks", "leases"),
    *("expiring", "done", "dead", "keys", "owing"),
)
"""The fixed words behind the prefix: those that are all, and those behind which a name follows."""
_OURS = re.compile(rf"(?:{'|'.join(ALONE)})\Z|(?:{'|'.join(NAMED)}):".encode())


def namespaced(prefix: str, namespace: str) -> str:
    """The prefix of a namespace's keys."""
    return prefix if namespace == "default" else f"{prefix}@{namespace}:"


class Keys:
    """The keys that are read without a script."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode()
        self.queues = self._of("queues")
        self.limits = self._of("limits")

    def _of(self, what: str, name: str | bytes = "") -> bytes:
        tail = name if isinstance(name, bytes) else name.encode()
        return self.prefix + what.encode() + tail

    def is_own(self, key: bytes) -> bool:
        """Whether a key is of this prefix; not of a longer one, nor another program's that begins alike."""
        return key.startswith(self.prefix) and _OURS.match(key, len(self.prefix)) is not None

    def task(self, task_id: str | bytes) -> bytes:
        """A task's record."""
        return self._of("t:", task_id)

    def log(self, task_id: str | bytes) -> bytes:
        """A task's failed attempts."""
        return self._of("log:", task_id)

    def of_queue(self, what: str, queue: str) -> bytes:
        """A structure that a queue has one of: state, conf, flows, done …"""
        return self._of(f"{what}:", queue)

    def of_spec(self, what: str, spec: int, queue: str) -> bytes:
        """A structure that a queue has for each spec: line, turns."""
        return self._of(f"{what}:{spec}:", queue)

    def partition(self, queue: str, code: bytes) -> bytes:
        """A partition's line."""
        return self._of(f"part:{len(queue.encode())}:{queue}:", code)

    def parked(self, queue: str, n: bytes, key: bytes) -> bytes:
        """The tasks of a queue that are parked at a limit."""
        return self._of(f"parked:{len(queue.encode())}:{queue}:", n + b":" + key)

    def limit(self, key: str | bytes) -> bytes:
        """A concurrency limit."""
        return self._of("limit:", key)

    def wake(self, queue: str) -> bytes:
        """The list that wakes those who wait for work of a queue."""
        return self._of("wake:", queue)

    def waiter(self, name: str) -> bytes:
        """The list that wakes the waits of one store object."""
        return self._of("waiter:", name)
