"""A cluster: which master has which slot, and how commands get there.

redis-py's ``RedisCluster`` refuses scripts in its pipelines and needs 595 µs where connections of our own need 125 for
the same twelve looks. So this takes from it the connections, the errors and the arithmetic of slots, and does itself
what a queue needs: commands for several masters are all sent before the first reply is read, so that they cost one
round trip together.

What a node answers instead of a result, and what follows
    MOVED                the slot has another master for good: noted, sent there
    ASK                  the slot is moving, and this key is not here: sent to the other once, after ASKING
    TRYAGAIN             the slot is moving, and some of the keys are here: later
    CLUSTERDOWN, READONLY, LOADING, no connection    a master is gone or new: later, with a new table of slots

Scripts while a slot moves
    A script that ran on half of a queue would tear it apart: on the one node it finds an empty queue and begins a
    second one. So each is called with two keys, of which one never exists (keys.py): then a server that moves the slot
    answers TRYAGAIN or ASK, and after that the other one TRYAGAIN, before the script begins, and the queue stands still
    until its slot has moved. All this takes at most ``PATIENCE``; then TransportUnavailable, and nothing was done.
    In-process scripts (``?lua=off``) read first: a key that is not there answers ASK, and the run begins anew.

A lost connection means what it means on a single server: OutcomeUnknown once something was sent, unless the verb may
be sent again. Replicas confirm late: with ``?min_replicas=1`` every script is followed by WAIT, and what was not
confirmed in time is OutcomeUnknown, too.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    TryAgainError,
)

from taskmq.errors import OutcomeUnknown, TransportError, TransportUnavailable
from taskmq.transport.base import Finding
from taskmq.transport.redis.checkup import checkup_cluster
from taskmq.transport.redis.connection import Server, Way
from taskmq.transport.redis.exchange import Command, Piece, is_woken, receive, send
from taskmq.transport.redis.scripts import Call
from taskmq.transport.redis.settings import Settings

SLOTS = 16384
PATIENCE = 5.0
"""Seconds in which a command must find its way."""
TRIES = 16
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
FRESH = 1.0
"""Seconds for which a table of slots is believed when a node contradicts it in one slot."""
CONFIRM_MS = 1000
"""How long to wait for ``min_replicas``."""

REDIRECTIONS = (AskError, TryAgainError, ClusterDownError, ReadOnlyError)
"""Replies that say: not here, or not now. Nothing has happened."""

Address = tuple[str, int]


class Bundle(NamedTuple):
    """Commands about one slot that are sent again and again, and answered by a list. ``packed``: as they travel."""

    slot: int
    commands: Sequence[Command]
    packed: bytes | None


Wish = Call | Bundle

_OF_MANY_KEYS = frozenset(("MGET", "UNLINK"))
_OF_NO_KEY = frozenset(("PING", "TIME", "INFO"))


class Pauses:
    """The times between tries: growing, with jitter, until the patience is over."""

    def __init__(self) -> None:
        self._end = time.monotonic() + PATIENCE
        self._tries = 0
        self._sent_on = False

    def over(self) -> bool:
        """Whether it is time to give up."""
        return self._tries >= TRIES or time.monotonic() >= self._end

    def next(self, *, wait: bool) -> None:
        """Count a try, and wait for the next one. Who is sent on goes at once, but not a second time in a row."""
        self._sent_on = not wait and not self._sent_on
        if not self._sent_on:
            longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._tries)
            time.sleep(max(0.0, min(random.uniform(longest / 2, longest), self._end - time.monotonic())))
            self._tries += 1


class Step:
    """A command, a script or a bundle on its way, and at last its reply."""

    __slots__ = ("asked", "bundle", "call", "command", "lost", "reply", "slot", "way")

    def __init__(
        self, slot: int | None, command: Command = (), call: Call | None = None, bundle: Bundle | None = None
    ) -> None:
        """``slot``: where its keys are, None if it has none."""
        self.slot = slot
        self.command = command
        self.call = call
        self.bundle = bundle
        self.asked: Address | None = None
        self.way: Way = "library"
        self.reply: Any = None
        self.lost = False
        """A reply was lost, so it may have been done."""

    def send_into(self, pieces: list[Piece], server: Server) -> int:
        """Add what is sent to this server; returns how many replies follow."""
        if self.bundle is None:
            command = self.command if self.call is None else server.script_command(self.call, self.way)
            pieces += [command] if self.asked is None else [("ASKING",), command]
            return 1 + (self.asked is not None)
        _, commands, packed = self.bundle
        if self.asked is not None:
            pieces += [piece for command in commands for piece in (("ASKING",), command)]
            return 2 * len(commands)
        pieces += commands if packed is None else [packed]
        return len(commands)

    def hear(self, answers: Iterator[Any]) -> None:
        """Take one's own of the replies; of a bundle's an error is the reply to it all."""
        if self.asked is None and self.bundle is None:
            self.reply = next(answers)
            return
        step = 1 + (self.asked is not None)
        self.asked = None
        mine = list(islice(answers, step * (1 if self.bundle is None else len(self.bundle.commands))))[step - 1 :: step]
        if self.bundle is None:
            (self.reply,) = mine
        else:
            self.reply = next((reply for reply in mine if isinstance(reply, Exception)), mine)


class Cluster:
    """The masters of a cluster, and the slots each of them has. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.redirections: Counter[str] = Counter()
        """How often a node sent us elsewhere, by the word it said."""
        self.round_trips = 0
        """How often we waited for replies."""
        self._mutex = threading.Lock()
        self._servers: dict[Address, Server] = {}
        self._masters: list[Address | None] = []
        self._loaded_at = 0.0
        self._teller: Address | None = None
        self._doubted = False
        """Who told the table of slots, and whether it led nowhere: then somebody else is asked."""
        self._closed = False

    # ── as a runner ──

    def scripts(self, calls: Sequence[Call], *, again: bool = False) -> list[Any]:
        """The replies of several scripts, each in the slot of its keys; those of one slot run in this order."""
        return list(all_or_error(self.each(calls, again=again)))

    def each(self, wishes: Sequence[Wish], *, again: bool = False, hasty: int = 0) -> list[Any]:
        """The same, and commands between them; an error stands where the reply would be: what others did is done.

        For the last ``hasty`` of them nobody waits while another one has been answered.
        """
        steps = [
            Step(slot_of(wish.keys), call=wish) if isinstance(wish, Call) else Step(wish.slot, bundle=wish)
            for wish in wishes
        ]
        return self._run(steps, again, steps[len(steps) - hasty :])

    def command(self, *command: bytes | str | int | float) -> Any:
        """A command's reply."""
        return self.commands([command])[0]

    def commands(self, commands: Sequence[Command]) -> list[Any]:
        """The replies of several commands."""
        return list(all_or_error(self._run([Step(_slot_of_command(command), command) for command in commands], True)))

    def block(self, command: Command) -> None:
        """Send a command that waits, and wait. Returns early when its slot has another master now."""
        self._round([step := Step(_slot_of_command(command), command)])
        if isinstance(step.reply, (OutcomeUnknown, TransportUnavailable)):
            self._forget_table(doubted=True)
            raise step.reply
        if isinstance(step.reply, REDIRECTIONS):
            self._redirected(step)
        elif isinstance(step.reply, Exception) and not is_woken(step.reply):
            raise self._error(step)

    def server_of(self, key: bytes) -> Server:
        """The master that has a key."""
        return self.server_at(key_slot(key))

    def checkup(self) -> list[Finding]:
        """What is wrong with the cluster and the settings of its masters."""
        return checkup_cluster({address: self.server(address) for address in self.masters()}, self._table())

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for server in list(self._servers.values()):
            server.close()

    # ── the way of a command ──

    def _run(self, steps: Sequence[Step], again: bool, hasty: Sequence[Step] = ()) -> list[Any]:
        pauses, waiting = Pauses(), list(steps)
        while waiting:
            self._answer(waiting, again)
            wait, left = False, []
            for step in waiting:
                if isinstance(step.reply, Exception) and (patient := self._goes_on(step, again)) is not None:
                    left.append(step)
                    wait = wait or patient
            waiting = left
            enough = wait and len(waiting) < len(steps) and all(step in hasty for step in waiting)
            if waiting and (enough or pauses.over()):
                break
            if waiting:
                pauses.next(wait=wait)
        return [self._error(step) if isinstance(step.reply, Exception) else step.reply for step in steps]

    def _answer(self, steps: Sequence[Step], again: bool) -> None:
        """Give each step a reply."""
        self._round(steps)

    def _goes_on(self, step: Step, again: bool) -> bool | None:
        """Whether to try once more after this error, and (True) only after a pause; None: that was its last word."""
        reply = step.reply
        if isinstance(reply, REDIRECTIONS):
            return self._redirected(step)
        step.lost = step.lost or isinstance(reply, OutcomeUnknown)
        if isinstance(reply, TransportUnavailable) or (isinstance(reply, OutcomeUnknown) and again):
            self._forget_table(doubted=True)
            return True
        way = None if step.call is None else self._server_of(step).next_way(reply)
        if way is None:
            return None
        step.way = way
        return False

    def _redirected(self, step: Step) -> bool:
        """Go where a node said; returns whether to wait first."""
        reply, step.asked = step.reply, None
        self.redirections[type(reply).__name__.removesuffix("Error").upper()] += 1
        if isinstance(reply, AskError):
            address = (reply.host or self._asked_host(step), reply.port)
            if not isinstance(reply, MovedError):
                step.asked = address
                return False
            if time.monotonic() - self._loaded_at > FRESH:
                self._forget_table()
            elif step.slot is not None:
                with self._mutex:
                    if self._masters:  # else it has just been forgotten
                        self._masters[step.slot] = address
            return False
        if not isinstance(reply, TryAgainError):
            self._forget_table(doubted=True)
        return True

    def _asked_host(self, step: Step) -> str:
        """A node that names no host means its own."""
        return self._server_of(step).settings.kwargs["host"]  # type: ignore[no-any-return]

    def _round(self, steps: Sequence[Step]) -> None:
        """Send each command to its node, then read all replies."""
        if not steps:
            return
        groups: dict[Server, list[Step]] = {}
        masters, servers = [] if self._closed else self._masters, self._servers
        for step in steps:
            try:
                address = masters[step.slot] if masters and step.slot is not None and step.asked is None else None
                server = servers.get(address) if address else None
                groups.setdefault(server or self._server_of(step), []).append(step)
            except TransportUnavailable as error:
                step.reply = error
        open_: list[tuple[Server, Any, list[Step], int]] = []
        try:
            for server, group in groups.items():
                with _Replying(group):
                    connection, count = self._send(server, group)
                    open_.append((server, connection, group, count))
            while open_:
                server, connection, group, count = open_[-1]
                with _Replying(group):
                    self._receive(server, connection, group, count)
                open_.pop()
        finally:
            for _, connection, _, _ in open_:
                connection.disconnect()
        self.round_trips += 1

    def _send(self, server: Server, group: Sequence[Step]) -> tuple[Any, int]:
        if any(step.call and step.call.script.writes for step in group):
            server.ask_permission()
        pieces: list[Piece] = []
        count = sum([step.send_into(pieces, server) for step in group])
        if self._confirmed(group):
            pieces.append(("WAIT", self.settings.min_replicas, CONFIRM_MS))
            count += 1
        connection = server.take()
        try:
            send(server.settings.shown, connection, pieces)
        except BaseException:
            connection.disconnect()
            raise
        return connection, count

    def _receive(self, server: Server, connection: Any, group: Sequence[Step], count: int) -> None:
        try:
            replies = receive(server.settings.shown, connection, count)
        except BaseException:
            connection.disconnect()
            raise
        server.put(connection)
        confirmed = replies.pop() if self._confirmed(group) else None
        answers = iter(replies)
        for step in group:
            step.hear(answers)
            if confirmed is not None and not isinstance(step.reply, Exception):
                self._check_confirmed(server, step, confirmed)

    def _confirmed(self, group: Sequence[Step]) -> bool:
        return self.settings.min_replicas > 0 and any(step.call and step.call.script.writes for step in group)

    def _check_confirmed(self, server: Server, step: Step, confirmed: Any) -> None:
        if step.call is None or not step.call.script.writes:
            return
        if isinstance(confirmed, Exception) or confirmed < self.settings.min_replicas:
            step.reply = unconfirmed(server.settings, confirmed)

    def _error(self, step: Step) -> Exception:
        error = step.reply if isinstance(step.reply, TransportError) else self._error_of(step)
        if step.lost and isinstance(error, TransportUnavailable) and step.call and step.call.script.writes:
            return OutcomeUnknown(f"an answer was lost, and then: {error}")
        return error

    def _error_of(self, step: Step) -> Exception:
        if isinstance(step.reply, (AskError, ReadOnlyError)):
            return TransportUnavailable(
                f"{self.settings.shown}: the nodes do not agree yet on who has slot {step.slot}; nothing was done, "
                f"try again soon ({type(step.reply).__name__.removesuffix('Error').upper()} {step.reply})"
            )
        return self._server_of(step).error(step.reply)

    # ── who has what ──

    def _server_of(self, step: Step) -> Server:
        return self.server(step.asked) if step.asked is not None else self.server_at(step.slot)

    def server_at(self, slot: int | None) -> Server:
        """The master of a slot; raises TransportUnavailable if there is none."""
        table = self._table()
        address = table[slot] if slot is not None else next(filter(None, table), None)
        if address is None:
            raise TransportUnavailable(
                f"{self.settings.shown}: no master has slot {slot}; the cluster covers "
                f"{sum(map(bool, table))} of {SLOTS} slots"
            )
        return self.server(address)

    def masters(self) -> list[Address]:
        """All masters that have slots."""
        return sorted({address for address in self._table() if address})

    def server(self, address: Address) -> Server:
        """The node of an address; raises TransportError if the store is closed."""
        if self._closed:
            raise TransportError("this store is closed")
        server = self._servers.get(address)
        if server is None:
            with self._mutex:
                server = self._servers.setdefault(address, Server(self.settings.at(*address)))
        return server

    def _forget_table(self, *, doubted: bool = False) -> None:
        self._doubted = self._doubted or doubted
        self._masters = []

    def _table(self) -> list[Address | None]:
        """For each slot its master, asked of the first node that knows them all; else of the one that knows most.

        A node that was taken out of the cluster, or is cut off from it, still answers.
        """
        table = self._masters
        if table:
            return table
        errors: list[str] = []
        told: list[tuple[int, Address, list[Address | None]]] = []
        for address in self._tellers():
            try:
                shards = self.server(address).command("CLUSTER", "SLOTS")
            except (TransportUnavailable, OutcomeUnknown) as error:
                errors.append(str(error))
                continue
            table = _masters(shards, address[0])
            told.append((sum(map(bool, table)), address, table))
            if told[-1][0] == SLOTS:
                break
        if not told:
            raise TransportUnavailable(f"{self.settings.shown}: none of its nodes answers: {'; '.join(errors)}")
        _, self._teller, table = max(told, key=itemgetter(0))
        self._masters, self._loaded_at, self._doubted = table, time.monotonic(), False
        return table

    def _tellers(self) -> list[Address]:
        """Who may know the table: first who told it the last time, or the next one if that led nowhere."""
        known = list(dict.fromkeys((*self.settings.nodes, *list(self._servers))))
        first = known.index(self._teller) + self._doubted if self._teller in known else 0
        return known[first:] + known[:first]


class _Replying(suppress):
    """What goes wrong on the way is the reply of all these steps."""

    def __init__(self, group: Sequence[Step]) -> None:
        super().__init__(OutcomeUnknown, TransportUnavailable)
        self._group = group

    def __exit__(self, *what: Any) -> bool:
        if what[1] is not None:
            for step in self._group:
                step.reply = what[1]
        return super().__exit__(*what)


def unconfirmed(settings: Settings, count: Any) -> OutcomeUnknown:
    """What is said when too few replicas answered WAIT in time."""
    return OutcomeUnknown(
        f"{settings.shown} has stored it, but of the {settings.min_replicas} replicas that "
        f"min_replicas asks for only {count} confirmed it within {CONFIRM_MS / 1000:g} s"
    )


def all_or_error(replies: Sequence[Any]) -> Sequence[Any]:
    """The replies; raises the first error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


@lru_cache(maxsize=4096)
def slot_of(keys: tuple[bytes, ...]) -> int:
    """The one slot of these keys; raises TransportError if there are several."""
    slots = {key_slot(key) for key in keys}
    if len(slots) != 1:
        raise TransportError(f"keys of {len(slots)} slots in one command, which would tear a queue apart: {keys!r}")
    return slots.pop()


def _slot_of_command(command: Command) -> int | None:
    name = command[0]
    if name in _OF_NO_KEY:
        return None
    keys = command[1:-1] if name == "BLPOP" else command[1:] if name in _OF_MANY_KEYS else command[1:2]
    return slot_of(tuple(key if isinstance(key, bytes) else str(key).encode() for key in keys))


def _masters(shards: Sequence[Any], host: str) -> list[Address | None]:
    """What CLUSTER SLOTS says: first and last slot, then the nodes that have them, the master first."""
    table: list[Address | None] = [None] * SLOTS
    for first, last, master, *_ in shards:
        address = ((master[0] or b"").decode() or host, int(master[1]))
        table[first : last + 1] = [address] * (last - first + 1)
    return table
