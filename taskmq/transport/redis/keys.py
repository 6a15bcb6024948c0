"""Every key that this store uses begins here; ``lua/`` builds the rest of them from the prefix.

    {p}  the prefix, ``taskmq:`` unless the URL says otherwise; a namespace other than "default" adds its
    {p}t:<id>           a task                 {p}log:<id>         its failed attempts
    {p}state:<q>        a queue, and what else is named after it (lua/include/queue.lua)
    {p}part:<n>:<q>:<code>    n: the length of the queue's name in bytes, because both may have colons in them
    {p}key:<n>:<q>:<key>      the same
    {p}line:<spec>:<q>        a number first, so that nothing can be mistaken

No name that a user gives stands before a fixed word, so two different things never have one key.

In a cluster all keys of a queue, its tasks among them, are in one slot, so that one script can work on them: the braces
below are literal, and what stands in them decides the slot.

    {p}{<q>}:state  {p}{<q>}:line:<spec>  {p}{<q>}:part:<code>  {p}{<q>}:t:<id> …
    {p}{*workers}:workers     {p}{*lock:<name>}:lock:<name>     {p}{*wake}:<q>: no queue's name has a star
"""

from __future__ import annotations

import re

DEFAULT_PREFIX = "taskmq:"
WORKERS = "*workers"
WAKE = "*wake"

ALONE = ("queues", "live", "limits", "seq", "workers")
NAMED = (
    *("t", "log", "part", "key", "parked", "limit", "lock", "wake", "line", "turns"),
    *("conf", "state", "served", "specs", "flows", "counts", "delayed", "retries", "inplace", "blocks", "leases"),
    *("expiring", "done", "dead", "keys", "owing", "heads", "theirs", "tags", "waiting", "moved", "set"),
)
"""The fixed words behind the prefix: those that are all, and those behind which a name follows."""
_IDS = ("t", "log", "moved", "set")
_NUMBERED = ("part", "key", "parked", "line", "turns", "heads", "theirs", "tags")
"""Words behind which, on a single server, there is an id or a digest, and those with a number before the name."""
_OURS = re.compile(
    (
        rf"(?:{'|'.join(ALONE)})\Z|(?:{'|'.join(_IDS)}):[0-9a-f]{{32}}\Z|(?:{'|'.join(_NUMBERED)}):[0-9]+:"
        rf"|(?:{'|'.join(word for word in NAMED if word not in (*_IDS, *_NUMBERED))}):"
        rf"|\{{.*\}}:(?:{'|'.join((*ALONE, *NAMED))})(?:\Z|:)|\{{\*wake\}}:"
    ).encode(),
    re.DOTALL,
)


def lock_home(name: str) -> str:
    """What decides the slot of a named lease."""
    return f"*lock:{name}"


def namespaced(prefix: str, namespace: str) -> str:
    """The prefix of a namespace's keys."""
    return prefix if namespace == "default" else f"{prefix}@{namespace}:"


class Keys:
    """The keys that are read without a script: all of a server's, or in a cluster those of one ``home``, a queue."""

    def __init__(self, prefix: str, home: str = "") -> None:
        self.prefix = prefix.encode()
        self._home = home
        self._start = f"{prefix}{{{home}}}:".encode() if home else self.prefix
        self.queues = self.prefix + b"queues"
        self.limits = self._start + b"limits"
        self.declared: tuple[bytes, ...] = (self._start + b"state", self._start + b"nothing") if home else ()
        """What a script is called with: nothing, or in a cluster a key that says where, and one that never exists."""

    def is_own(self, key: bytes) -> bool:
        """Whether a key is of this prefix; not of a longer one, nor another program's that begins alike."""
        return key.startswith(self.prefix) and _OURS.match(key, len(self.prefix)) is not None

    def task(self, task_id: str | bytes) -> bytes:
        """A task's record."""
        return self._start + b"t:" + _bytes(task_id)

    def log(self, task_id: str | bytes) -> bytes:
        """A task's failed attempts."""
        return self._start + b"log:" + _bytes(task_id)

    def of_queue(self, what: str, queue: str) -> bytes:
        """A structure that a queue has one of: state, conf, flows, done …"""
        return self._start + (what if self._home else f"{what}:{queue}").encode()

    def of_spec(self, what: str, spec: int, queue: str) -> bytes:
        """A structure that a queue has for each spec: line, turns."""
        return self.of_queue(f"{what}:{spec}", queue)

    def partition(self, queue: str, code: bytes) -> bytes:
        """A partition's line."""
        return self._named("part", queue, code)

    def parked(self, queue: str, spec: int, n: int, key: bytes) -> bytes:
        """A queue's tasks of a spec that are parked at a limit of n."""
        return self._named("parked", queue, f"{spec}:{n}:".encode() + key)

    def _named(self, what: str, queue: str, name: bytes) -> bytes:
        owner = what if self._home else f"{what}:{len(queue.encode())}:{queue}"
        return self._start + owner.encode() + b":" + name

    def limit(self, key: str | bytes) -> bytes:
        """A concurrency limit."""
        return self._start + b"limit:" + _bytes(key)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
