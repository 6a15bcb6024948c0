"""``?lua=off``: the very same scripts, run in this process, for servers and proxies that forbid scripts.

A script's body only reads and its writes come last (``lua/include/commit.lua``). So its reads are sent under WATCH,
each key before or together with its first read, and its writes as one MULTI/EXEC: if anything that was read has changed
meanwhile, EXEC refuses, and the script runs again on what is there then. One source of the rule, no twin of the twin.

What costs is the round trips. Most of what a script reads is the same every time it is called for the same queues; so
what it read the last time is read ahead, all in one exchange. A wrong guess costs a read, never the truth: whatever is
answered from what was read ahead is watched like everything else. Two things are read without WATCH: the clock, and how
many wake tokens a list has – a few too many or too few do no harm, but every waiter would spoil a transaction.

What it cannot do is go on when the server's memory is full. Scripts that make room may then still write
(scripts.py), but of a MULTI every SET is refused as it is queued, wherever it stands. So settles fail with
``StoreFull``, too, and what was claimed comes back when its lease ends, once there is room.

Rejected, measured: *a second wording of the rule in Python* – not faster at one task a call, 1.4 times at ten, and a
second copy to keep right; *a lock around the queue* – slower in every case, for it costs two more round trips and still
needs WATCH against publishers.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

from taskmq.errors import ConfigError, OutcomeUnknown, TaskMQError, TransportUnavailable
from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.exchange import exchange
from taskmq.transport.redis.nodes import CONFIRM_MS, REDIRECTIONS, Cluster, Step, unconfirmed
from taskmq.transport.redis.runner import OneServer
from taskmq.transport.redis.scripts import Call, library
from taskmq.transport.redis.settings import Settings

TRIES = 200
PATIENT = 3
"""After so many tries a claim asks for half: a long one loses against short publishes again and again."""
FIRST_PAUSE, LONGEST_PAUSE = 0.0005, 0.05
REMEMBERED = 64
"""Most reads that are made ahead, and most sets of queues for which they are remembered."""

Read = tuple[bytes, ...]

_OF_MANY_KEYS = frozenset((b"MGET", b"EXISTS", b"SINTER"))
READS = _OF_MANY_KEYS | frozenset(
    {
        *(b"GET", b"HGET", b"HMGET", b"HGETALL", b"LLEN", b"SMISMEMBER", b"TIME"),
        *(b"ZRANGE", b"ZRANGEBYSCORE", b"ZCARD", b"ZSCORE", b"ZCOUNT"),
    }
)
_STEADY = frozenset(
    {
        *(b"conf", b"state", b"served", b"specs", b"line", b"turns", b"leases", b"counts", b"wake", b"seq"),
        *(b"delayed", b"retries", b"blocks"),
    }
)
"""Structures that a script reads again the next time, unlike single tasks and partitions."""


class Engine:
    """Runs scripts here and their commands on a server."""

    def __init__(self) -> None:
        try:
            from lupa.lua51 import LuaRuntime  # type: ignore[import-untyped]
        except ModuleNotFoundError as error:
            raise ConfigError(
                "lua=off needs 'lupa', which is not installed: pip install taskmq[redis-nolua]"
            ) from error
        self._new_runtime = partial(LuaRuntime, encoding=None, register_eval=False, register_builtins=False)
        self._mutex = threading.Lock()
        self._idle: list[Interpreter] = []
        self._ahead: dict[tuple[str, bytes, Any], tuple[Read, ...]] = {}
        self._permitted: WeakSet[Server] = WeakSet()

    def run(self, server: Server, call: Call, again: bool) -> Any:
        """A script's reply. ``again``: it may be run a second time when the reply to its EXEC is lost."""
        if server not in self._permitted:
            self._ask_permission(server)
        with self._mutex:
            interpreter = self._idle.pop() if self._idle else None
        interpreter = interpreter or Interpreter(self._new_runtime())
        try:
            return self._run(server, interpreter, call._replace(args=[_bytes(arg) for arg in call.args]), again)
        finally:
            with self._mutex:
                self._idle.append(interpreter)

    def _ask_permission(self, server: Server) -> None:
        """Transactions must be there: where MULTI is refused, what stands behind it would be done piece by piece."""
        with server.connection() as connection:
            for reply in exchange(server.settings.shown, connection, [("MULTI",), ("EXEC",)]):
                if isinstance(reply, Exception):
                    raise server.error(reply)
        self._permitted.add(server)

    def _run(self, server: Server, interpreter: Interpreter, call: Call, again: bool) -> Any:
        name, args = call.script.name, call.args
        start = call.keys[0][: -len("state")] if call.keys else args[0]
        topic = (name, start, _topic(name, args))
        lost = 0
        doubt: OutcomeUnknown | None = None
        modest = False
        for attempt in range(TRIES):
            if name == "reserve" and not call.keys and attempt % PATIENT == PATIENT - 1 and args[2] != b"1":
                args, modest = [*args[:2], b"%d" % (int(args[2]) // 2), *args[3:]], True
            transaction = Transaction(server, call.script.writes)
            try:
                with server.connection() as connection:
                    transaction.begin(connection, [*self._ahead.get(topic, ()), *_given(name, args, start)])
                    try:
                        reply = interpreter.run(call._replace(args=args), transaction)
                        done = transaction.commit()
                    except (TaskMQError, Redirected):
                        raise
                    except Exception:  # an error of the script, but maybe only of what it was given
                        if transaction.stands():
                            raise
                        reply, done = None, False
            except OutcomeUnknown as error:
                lost += 1
                doubt = doubt if transaction.reading else error
                if lost > 1 or not (again or transaction.reading):
                    raise doubt or TransportUnavailable(str(error)) from error
                continue
            except TransportUnavailable as error:
                if doubt is not None:  # that nothing happened is true of this try only
                    raise OutcomeUnknown(f"{doubt}; and then: {error}") from error
                raise
            if len(self._ahead) > REMEMBERED:
                self._ahead.clear()
            self._ahead[topic] = transaction.steady(len(start))
            if done:
                return [b"1", *reply[1:]] if modest else reply  # there may be more: it was not asked for all
            time.sleep(random.random() * min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt))
        raise TransportUnavailable(
            f"{server.settings.shown}: others changed the same queues {TRIES} times in a row; nothing happened"
        )


class InProcess(OneServer):
    """A single server that runs no scripts."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._engine = Engine()

    def scripts(self, calls: Sequence[Call], *, again: bool = False) -> list[Any]:
        """The replies of several scripts, one after another."""
        return [self._engine.run(self.server, call, again) for call in calls]


class ClusterInProcess(Cluster):
    """A cluster that runs no scripts."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._engine = Engine()

    def _answer(self, steps: Sequence[Step], again: bool) -> None:
        """Run scripts one after another, each on its node; then the commands, which may come to see what they did."""
        for step in steps:
            if step.call is None:
                continue
            try:
                step.reply = self._engine.run(self.server_at(step.slot), step.call, again)
            except Redirected as redirected:
                step.reply = redirected.reply
            except TaskMQError as error:
                step.reply = error
        super()._answer([step for step in steps if step.call is None], again)

    def _redirected(self, step: Step) -> bool:
        """Go where a node said; but a script that reads here and there waits until its slot has moved."""
        patient = super()._redirected(step)
        if step.call is None or step.asked is None:
            return patient
        step.asked = None
        return True


class Interpreter:
    """A Lua state with the library in it. Used by one thread at a time."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._current: Transaction | None = None
        runtime.globals()[b"redis"] = runtime.table_from({b"call": self._call})
        self._enter = runtime.execute(library().text.encode() + b"return enter_script\n")

    def run(self, call: Call, transaction: Transaction) -> Any:
        """The script's reply; its writes are left with the transaction."""
        self._current = transaction
        try:
            tables = map(self._runtime.table_from, (call.keys, call.args))
            return _from_lua(self._enter(call.script.name.encode(), *tables))
        finally:
            self._current = None

    def _call(self, *command: Any) -> Any:
        assert self._current is not None
        reply = self._current.call(tuple([word if type(word) is bytes else _bytes(word) for word in command]))
        if isinstance(reply, list):
            return self._runtime.table_from([False if item is None else item for item in reply])
        return False if reply is None else reply


class Redirected(Exception):
    """The node has not the slot, or not now; nothing was written."""

    def __init__(self, reply: Exception) -> None:
        super().__init__(str(reply))
        self.reply = reply


class Transaction:
    """The reads and writes of one run. ``reading``: nothing has been written yet, so nothing can be lost."""

    def __init__(self, server: Server, confirmed: bool) -> None:
        """``confirmed``: replicas must confirm it, even a run that finds its writes there already."""
        self._server = server
        self._confirmed = confirmed
        self._connection: Any = None
        self.reading = True
        self._replies: dict[Read, Any] = {}
        self._strings: dict[bytes, Any] = {}
        self._used: dict[Read, None] = {}
        self._watched: set[bytes] = set()
        self._writes: list[Read] = []

    def call(self, command: Read) -> Any:
        """A read's reply; a write is kept for the end and has none."""
        if command[0] not in READS:
            self._writes.append(command)
            return None
        if command[0] in (b"GET", b"MGET"):
            strings = self._strings_of(command[1:])
            return strings if command[0] == b"MGET" else strings[0]
        if command not in self._replies:
            self._read([command])
        self._used[command] = None
        return self._replies[command]

    def _strings_of(self, keys: Read) -> list[Any]:
        """Strings, from whichever reads brought them."""
        missing = tuple(key for key in keys if key not in self._strings)
        if missing:
            self._read([(b"MGET", *missing)])
        self._used |= dict.fromkeys((b"GET", key) for key in keys)
        return [self._strings[key] for key in keys]

    def begin(self, connection: Any, ahead: list[Read]) -> None:
        """Read what will be asked for, in one exchange."""
        self._connection = connection
        if ahead:
            self._read(ahead)

    def _read(self, commands: list[Read]) -> None:
        keys = {key for command in commands for key in _watchable(command)} - self._watched
        self._watched |= keys
        sent: list[Read] = [(b"WATCH", *sorted(keys)), *commands] if keys else commands
        replies = self._exchange(sent)
        for command, reply in zip(commands, replies[-len(commands) :], strict=True):
            if command[0] == b"MGET":
                self._strings.update(zip(command[1:], reply, strict=True))
            else:
                self._replies[command] = reply

    def commit(self) -> bool:
        """Write, if nothing that was read has changed; False: it has, and nothing was written.

        Without writes, too: what was read at two moments may never have been true together.
        """
        if not self._watched and not self._writes:
            return True
        self.reading = not self._writes
        settings = self._server.settings
        if not (self._confirmed and settings.min_replicas):
            return self._exchange([(b"MULTI",), *self._writes, (b"EXEC",)])[-1] is not None
        wait = (b"WAIT", b"%d" % settings.min_replicas, b"%d" % CONFIRM_MS)
        *_, done, confirmed = self._exchange([(b"MULTI",), *self._writes, (b"EXEC",), wait])
        if done is not None and confirmed < settings.min_replicas:
            self.reading = False
            raise unconfirmed(settings, confirmed)
        return done is not None

    def stands(self) -> bool:
        """Whether all that was read was true together; nothing is written. A script may fail over what was not."""
        return self._exchange([(b"MULTI",), (b"EXEC",)])[-1] is not None

    def steady(self, prefix: int) -> tuple[Read, ...]:
        """The reads of this run that are likely to be made again by the next one."""
        known = (read for read in self._used if len(read) > 1 and read[1][prefix:].partition(b":")[0] in _STEADY)
        steady = tuple(read for read, _ in zip(known, range(REMEMBERED), strict=False))
        strings = tuple(key for what, key in (read[:2] for read in steady) if what == b"GET")
        others = tuple(read for read in steady if read[0] != b"GET")
        return ((b"MGET", *strings), *others) if strings else others

    def _exchange(self, commands: Sequence[Read]) -> list[Any]:
        replies = exchange(self._server.settings.shown, self._connection, commands)
        for reply in replies:
            if isinstance(reply, REDIRECTIONS) and self._server.settings.cluster:
                raise Redirected(reply)
            if isinstance(reply, Exception):
                raise self._server.error(reply)
        return replies


def _watchable(command: Read) -> Read:
    """The keys whose change spoils what was read."""
    if command[0] in (b"TIME", b"LLEN"):
        return ()
    return command[1:] if command[0] in _OF_MANY_KEYS else command[1:2]


def _topic(name: str, args: Sequence[bytes]) -> Any:
    """What a script's steady reads depend on: the queues it is called for, and how many tasks it asks for."""
    if name in ("publish", "settle"):
        return tuple(args[3 : 3 + int(args[2])])
    return (args[2], *args[7:9], *args[10:]) if name == "reserve" else None


def _given(name: str, args: Sequence[bytes], start: bytes) -> list[Read]:
    """Reads that follow from the arguments: the clock, and the records that a publish or a settle names."""
    clock: list[Read] = [(b"TIME",)] if args[1] == b"0" else []
    at = 3 + int(args[2]) if name in ("publish", "settle") else 0
    if not at:
        return clock
    ids: dict[bytes, None] = {}
    if name == "publish":
        at += 1 + 2 * int(args[at])
    while at < len(args):
        ids[args[at + 1]] = None
        if name == "publish":
            at += 8 if args[at].endswith(b"x") else 3
        else:
            at += 2 + {b"a": 1, b"r": 3, b"d": 1, b"x": 3}.get(args[at][:1], 0)
    return [*clock, (b"EXISTS" if name == "publish" else b"MGET", *(start + b"t:" + task_id for task_id in ids))]


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).encode()


def _from_lua(value: Any) -> Any:
    """A script's reply as a server would send it: a table up to its first hole, numbers cut to integers."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return int(value)
    if hasattr(value, "items"):
        items: list[Any] = []
        while (item := value[len(items) + 1]) is not None:
            items.append(item if type(item) is bytes else _from_lua(item))
        return items
    return None if value is False else value
