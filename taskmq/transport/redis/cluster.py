"""The store on a cluster: each queue in a slot of its own, and the verbs that touch several queues taken apart.

Inside a queue nothing differs from a single server: the same scripts, one slot each (keys.py). What one script cannot
do, since it sees one queue only:

Claiming from several queues
    Look at all of them (looks.py), choose with the one rule (peeked.py), claim: two round trips whatever the number of
    queues, because the nodes are asked together. What is due enters its line when it is looked at, so work is found
    with no maintenance running. Between the two steps a more urgent task may become due elsewhere: ``global_priority``.
Publishing to several queues
    All or none within a queue. A conflict or a full queue refuses its own tasks only, and the error says what was
    stored.
Limits by key
    Counted in each queue by itself: ``cross_queue_limits``.
Waking
    The lists on which idle workers wait are together in one slot, because BLPOP asks for that. A waiter leaves a mark
    in each queue for a while, and whatever makes work eligible there says so in its reply if it found the mark; then
    its caller pushes. So nobody pushes while all are busy, and a push that is lost costs a second at most.
Replay into another queue
    The record moves to another slot: it is marked with where it goes, then added there, then deleted here (depart.lua).
    It is claimable only there; a crash in between leaves it dead here, and the next replay goes on with the same move.
Finding a task by its id
    Its handle does not say which queue it is in. What this object published or claimed it remembers for a while;
    otherwise it asks all queues, one round trip.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from taskmq.clock import Clock
from taskmq.errors import ConfigError, OutcomeUnknown, TaskMQError, TransportUnavailable
from taskmq.message import Message
from taskmq.state import TaskState
from taskmq.transport.base import (
    Extend,
    Publish,
    Receipt,
    Renewed,
    Reserve,
    Reserved,
    Settle,
    Wait,
)
from taskmq.transport.group import Call as Wish
from taskmq.transport.redis import records
from taskmq.transport.redis.inspect import REPLAY
from taskmq.transport.redis.keys import Keys
from taskmq.transport.redis.looks import Look, Looks
from taskmq.transport.redis.nodes import Cluster, all_or_error
from taskmq.transport.redis.nodes import Wish as Asked
from taskmq.transport.redis.peeked import Peeked, choose_from, plans
from taskmq.transport.redis.scripts import Call, script
from taskmq.transport.redis.transport import (
    EXTEND,
    HAS_WORK,
    PUBLISH,
    RESERVE,
    SETTLE,
    RedisTransport,
    accepted,
    receipts,
    renewal,
    renewed,
    reserved,
)

T = TypeVar("T")

DEPART, ARRIVE = script("depart"), script("arrive")
ROUNDS = 3
"""How often one claim looks again because others were quicker."""
REMEMBERED = 50_000
"""Of so many tasks at least it is remembered which queue they are in, and of twice as many at most."""
WAITING_MS = 3000
"""How long a waiter's mark stays. It is renewed every second."""
TOKENS = 32
DEAD = records.LETTER_OF[TaskState.FAILED].encode()


class RedisClusterTransport(RedisTransport):
    """A store in Redis Cluster or a cluster of Valkey."""

    limitations: Mapping[str, str] = {
        "crowd_keeps_turns_between_queues": "global_priority: claimers that look at the same moment choose alike",
        **dict.fromkeys(
            (
                "limit_counts_over_all_queues",
                "limit_of_a_task_replayed_into_another_queue_holds",
                "crowd_keeps_limits",
                "parked_tasks_of_several_queues_share_a_free_slot",
                "slot_missed_in_one_queue_goes_to_another_queue",
            ),
            "cross_queue_limits: a limit's key counts in each queue by itself",
        ),
        **dict.fromkeys(
            ("publish_of_a_batch_is_atomic_over_queues", "publish_refuses_a_batch_for_one_full_queue_of_several"),
            "batches: all or none within a queue; the error says what was stored for the others",
        ),
        "publish_numbers_tasks_in_order_of_acceptance": "seq: each queue has its own",
        "publish_takes_braces_in_a_name": "names: a brace decides where a key lives, so it is refused with ConfigError",
    }

    def __init__(self, runner: Cluster, namespace: str = "default", clock: Clock | None = None) -> None:
        """``clock`` overrides the servers' clocks in tests."""
        super().__init__(runner, namespace, clock)
        self._cluster = runner
        self._keys_of: dict[str, Keys] = {}
        self._looks = Looks(self._at, clock)
        self._enlisted: set[str] = set()
        """Queues that this object has seen in the index of queues, or put there."""
        self._queue_of: dict[str, str] = {}
        self._before: dict[str, str] = {}
        """What was remembered before that. To forget one by one would be slow: a dict looks for its first key."""

    # ── homes ──

    def _home(self, queue: str) -> str:
        if "{" in queue or "}" in queue:
            raise ConfigError(f"queue {queue!r} has a brace, which in a cluster decides where a key lives")
        return queue

    def _other_home(self, name: str) -> str:
        return name

    def _at(self, home: str) -> Keys:
        keys = self._keys_of.get(home)
        if keys is None:
            keys = self._keys_of[home] = Keys(self._prefix, home)
        return keys

    def _homes(self) -> list[str]:
        return self._queues()

    def _homes_of(self, task_ids: Sequence[str]) -> list[str | None]:
        recent, before = self._queue_of, self._before
        remembered = {
            i: queue for i, task_id in enumerate(task_ids) if (queue := recent.get(task_id) or before.get(task_id))
        }
        found = self._look_for(task_ids, list(remembered.items()))
        left: set[tuple[int, str]] = set()  # copies of what moves, or has moved, to another queue: the last choice
        for _ in range(2):
            dead = [(i, queue) for i, (queue, state) in found.items() if state == DEAD]
            texts = self._commands([("GET", self._at(queue).task(task_ids[i])) for i, queue in dead])
            left |= {of for of, text in zip(dead, texts, strict=True) if text is None or records.moves(text)}
            unsure = [i for i in range(len(task_ids)) if i not in found or (i, found[i][0]) in left]
            if not unsure:
                break
            queues = self._queues()
            asked = [(i, queue) for i in unsure for queue in queues if (i, queue) not in left]
            found.update(self._look_for(task_ids, asked))
        return [found[i][0] if i in found else None for i in range(len(task_ids))]

    def _look_for(self, task_ids: Sequence[str], where: Sequence[tuple[int, str]]) -> dict[int, tuple[str, bytes]]:
        """Queue and state of the tasks that are there. One that is moving is in two queues, and dead in the first."""
        states = self._commands([("GETRANGE", self._at(queue).task(task_ids[i]), 0, 0) for i, queue in where])
        found: dict[int, tuple[str, bytes]] = {}
        for (i, queue), state in zip(where, states, strict=True):
            if state and (i not in found or state != DEAD):
                found[i] = (queue, state)
                self._remember(queue, (task_ids[i],))
        return found

    def _remember(self, queue: str, task_ids: Iterable[str]) -> None:
        recent = self._queue_of
        recent.update(dict.fromkeys(task_ids, queue))
        if len(recent) > REMEMBERED:
            self._before, self._queue_of = recent, {}

    # ── scripts ──

    def _replies(self, calls: Sequence[Call], *, again: bool = False) -> list[Any]:
        return list(all_or_error(self._each(calls, again=again)))

    def _each(self, wishes: Sequence[Asked], *, again: bool = False, hasty: int = 0) -> list[Any]:
        """Replies, and errors in the place of those that there are none of (nodes.py)."""
        self._enlist({wish.home for wish in wishes if isinstance(wish, Call) and wish.script.writes} - self._enlisted)
        answers = self._cluster.each(wishes, again=again, hasty=hasty)
        begun: set[str] = set()
        woken: dict[str, int] = {}
        for i, (wish, answer) in enumerate(zip(wishes, answers, strict=True)):
            if isinstance(wish, Call) and not isinstance(answer, Exception):
                answers[i], count, new = answer
                if count:
                    woken[wish.home] = count
                if new:
                    begun.add(wish.home)
        if begun:
            self._enlist(begun)
        if woken:
            self._push(woken)
        return answers

    def _enlist(self, queues: set[str]) -> None:
        """Add queues to the index: before they are used first, and again if somebody has deleted them meanwhile."""
        names = sorted(name for name in queues if not name.startswith("*"))
        if names:
            now = self.now()
            self._runner.command("ZADD", self._keys.queues, "NX", *(word for name in names for word in (now, name)))
            self._enlisted.update(names)

    def _push(self, woken: Mapping[str, int]) -> None:
        commands: list[Any] = []
        for queue, count in woken.items():
            tokens = self._wakeup.list_of(queue)
            commands += [("RPUSH", tokens, *["1"] * count), ("LTRIM", tokens, 0, TOKENS - 1)]
        try:
            self._runner.commands(commands)
        except (OutcomeUnknown, TransportUnavailable):
            pass  # who waits looks by himself every second

    # ── the hot path ──

    def _publish_together(self, calls: Sequence[Wish[Sequence[Message], list[Receipt]]]) -> None:
        parts = [(call, queue, part) for call in calls for queue, part in _by_queue(call.wish).items()]
        scripts = [
            self._call(PUBLISH, *records.batch([call.wish[i] for i in part]), home=self._home(queue))
            for call, queue, part in parts
        ]
        answers = iter(zip(parts, self._each(scripts, again=True), strict=True))
        for call in calls:
            found: dict[int, Receipt] = {}
            stored: list[str] = []
            errors: list[Exception] = []
            for (_, queue, part), answer in (next(answers) for _ in _by_queue(call.wish)):
                try:
                    all_or_error([answer])
                    mine = receipts([call.wish[i] for i in part], answer)
                except TaskMQError as refusal:
                    errors.append(refusal)
                    continue
                found.update(zip(part, mine, strict=True))
                stored.append(queue)
                self._remember(queue, (receipt.id for receipt in mine))
            if errors:
                call.error = _with_news(errors, stored)
            else:
                call.answer([found[i] for i in range(len(call.wish))])

    def publish(self, params: Publish) -> list[Receipt]:
        """Store the messages: of each queue all or none."""
        for message in params.messages:
            self._home(message.queue)
        return super().publish(params)

    def reserve(self, params: Reserve) -> Reserved:
        """Claim the next tasks by the claim rule."""
        return self.settle_and_reserve(Settle(items=[]), params)[1]

    def settle(self, params: Settle) -> list[bool]:
        """End deliveries, in order."""
        parts = _by_queue([item.delivery for item in params.items])
        return _spread(parts, map(accepted, self._replies(self._settle_calls(params, parts))))

    def settle_and_reserve(self, settle: Settle, reserve: Reserve) -> tuple[list[bool], Reserved]:
        """Both; the looks at the queues travel with what is settled."""
        parts = _by_queue([item.delivery for item in settle.items])
        calls = self._settle_calls(settle, parts)
        queues = list(dict.fromkeys(reserve.queues))
        looks = [self._look(reserve, queue, reserve.limit, alone=len(queues) == 1) for queue in queues]
        asked = _wishes(looks)
        replies = self._each([*calls, *asked], hasty=len(asked) if len(queues) > 1 else 0)
        answers = _spread(parts, map(accepted, all_or_error(replies[: len(calls)])))
        try:
            return answers, self._claimed(self._claim(reserve, looks, replies[len(calls) :]))
        except (OutcomeUnknown, TransportUnavailable):
            if not calls:
                raise
            return answers, Reserved(deliveries=[], more=True)  # what was settled must be told

    def _settle_calls(self, settle: Settle, parts: Mapping[str, Sequence[int]]) -> list[Call]:
        return [
            self._call(SETTLE, *records.settlements([settle.items[i] for i in part]), home=self._home(queue))
            for queue, part in parts.items()
        ]

    def _look(self, params: Reserve, queue: str, n: int, *, alone: bool = False, simple: bool = True) -> Look:
        """What a claim begins with: a look at the queue, or the claim itself when it is the only one."""
        if simple and not alone and params.handlers is None and params.keys:
            look = self._looks.simple(self._home(queue), n)
            if look is not None:
                return look
        return Look(queue, self._claim_call(params, queue, n, "" if alone else "peek"), 0)

    def _claim_call(self, params: Reserve, queue: str, n: int, plan: str, batch: str = "") -> Call:
        args = [*self._claim_args(params, n, plan=plan, batch=batch), queue]
        return self._call(RESERVE, *args, home=self._home(queue))

    def _claim(self, params: Reserve, looks: Sequence[Look], replies: Sequence[Any]) -> Reserved:
        if len(looks) == 1:
            return reserved(all_or_error(replies)[0])
        deliveries: list[Any] = []
        errors: list[Exception] = []
        batch = secrets.token_hex(6)  # one for all queues: who was claimed together is blamed together
        more, due, left, hasty = False, None, params.limit, True
        for _ in range(ROUNDS):
            peeked, more, due, errors = self._read(params, looks, replies, left, hasty=hasty)
            picks = choose_from(peeked, left)
            told = plans(peeked, picks, left)
            if not told and (any(look.lines for look in looks) or (errors and hasty)):
                hasty = False  # nothing is in line: what is due, and when? And what of those who did not answer?
                looks = [self._look(params, look.queue, left, simple=False) for look in looks]
                replies = self._each(_wishes(looks))
                continue
            if not told:
                break
            claims = self._each([self._claim_call(params, name, left, plan, batch) for name, plan in told.items()])
            errors += [claim for claim in claims if isinstance(claim, Exception)]
            answers = {name: reserved(claim) for name, claim in zip(told, claims, strict=True) if _is_answer(claim)}
            more = more or any(answer.more for answer in answers.values())
            given = {name: iter(answers[name].deliveries if name in answers else ()) for name in told}
            found = [delivery for pick in picks if (delivery := next(given[pick.name], None)) is not None]
            deliveries += found
            left -= len(found)
            if len(found) == len(picks) or errors:
                break
            looks = [self._look(params, look.queue, left) for look in looks]
            asked = _wishes(looks)
            replies = self._each(asked, hasty=len(asked) if hasty else 0)
        else:
            more = True
        if not deliveries:  # what was claimed elsewhere must not wait for the end of its leases
            all_or_error(errors)
        return Reserved(deliveries=deliveries, more=more, next_due=None if deliveries else due)

    def _read(
        self, params: Reserve, looks: Sequence[Look], replies: Sequence[Any], n: int, *, hasty: bool
    ) -> tuple[list[Peeked], bool, int | None, list[Exception]]:
        """What the queues would give; whether there is more to be done in them, when something falls due; errors."""
        peeked: list[Peeked] = []
        errors: list[Exception] = []
        again: list[Look] = []
        said: list[Sequence[bytes]] = []
        for look, answer in zip(looks, replies, strict=True):
            if isinstance(answer, Exception):
                errors.append(answer)
            elif not look.lines:
                said.append(answer)
                peeked += self._looks.of_script(look.queue, answer)
            elif (simple := self._looks.of_lines(look, answer, n)) is not None:
                peeked.append(simple)
            else:
                again.append(self._look(params, look.queue, n, simple=False))
        if again:
            asked = _wishes(again)
            for look, answer in zip(again, self._each(asked, hasty=len(asked) if hasty else 0), strict=True):
                if isinstance(answer, Exception):
                    errors.append(answer)
                else:
                    said.append(answer)
                    peeked += self._looks.of_script(look.queue, answer)
        dues = [int(answer[1]) for answer in said if answer[1]]
        more = any(answer[0] == b"1" for answer in said)
        return peeked, more, min(dues, default=None), errors

    def _claimed(self, found: Reserved) -> Reserved:
        for delivery in found.deliveries:
            self._remember(delivery.queue, (delivery.id,))
        return found

    def extend(self, params: Extend) -> list[Renewed]:
        """Renew leases and mark started tasks."""
        parts = _by_queue([item.delivery for item in params.items])
        calls = [
            self._call(EXTEND, *(arg for i in part for arg in renewal(params.items[i])), home=self._home(queue))
            for queue, part in parts.items()
        ]
        return _spread(parts, (map(renewed, reply) for reply in self._replies(calls, again=True)))

    # ── waiting ──

    def wait(self, params: Wait) -> bool:
        """Block until a task of these queues can be claimed."""
        queues = list(dict.fromkeys(params.queues))

        def look() -> tuple[bool, float | None]:
            self._runner.commands(
                [("SET", self._at(self._home(q)).of_queue("waiting", q), 1, "PX", WAITING_MS) for q in queues]
            )
            answers = self._replies([self._call(HAS_WORK, q, home=self._home(q)) for q in queues], again=True)
            dues = [int(due) for _, due in answers if due]
            return any(work for work, _ in answers), (min(dues) - self.now()) / 1e6 if dues else None

        return self._wakeup.wait(queues, params.timeout, look)

    # ── operators ──

    def replay(self, task_ids: Sequence[str], queue: str | None = None) -> list[bool]:
        """Queue dead letters again with a new budget and a new place."""
        answers: list[bool] = []
        homes = self._homes_of(task_ids)
        for home, group in groupby(zip(homes, task_ids, strict=True), key=itemgetter(0)):
            ids = [task_id for _, task_id in group]
            if home is None:
                answers += [False] * len(ids)
            elif queue and queue != home:
                answers += [self._move(task_id, home, queue) for task_id in ids]
            else:
                reply = self._run(REPLAY, "", *ids, home=home)
                answers += [
                    self._move(task_id, home, home) if answer == 50 else answer == 49
                    for task_id, answer in zip(ids, reply, strict=True)
                ]
        return answers

    def _move(self, task_id: str, home: str, queue: str) -> bool:
        """Replay a dead letter into another queue, or go on where an earlier try was interrupted."""
        answer = self._run(DEPART, home, task_id, self._home(queue), "", home=home, again=True)
        if not answer:
            return False
        target, record, log, life, end = answer
        to = target.decode()
        arrived = self._run(ARRIVE, to, task_id, record, log, life, end, home=to, again=True)
        self._run(DEPART, home, task_id, "", life, home=home, again=True)
        self._remember(to, (task_id,))
        return bool(arrived) or self.replay([task_id], queue)[0]  # what was there: an earlier move, ended just now

    def delete_queue(self, queue: str) -> bool:
        """Forget a queue that has no unfinished tasks."""
        gone = super().delete_queue(queue)
        if gone:
            self._enlisted.discard(queue)
            self._runner.command("ZREM", self._keys.queues, queue)
            if self._runner.command("GETRANGE", self._at(queue).of_queue("state", queue), 0, 0):
                self._enlist({queue})  # somebody began it anew before it was taken out of the index
        return gone

    def flush(self) -> None:
        """Delete everything of this namespace, on all masters, and nothing else."""
        self._enlisted.clear()
        self._queue_of, self._before = {}, {}
        for address in self._cluster.masters():
            cursor = b"0"
            while True:
                cursor, keys = self._cluster.server(address).command(*self._scan(cursor))
                self._commands([("UNLINK", key) for key in keys if self._keys.is_own(key)])
                if cursor == b"0":
                    break


def _by_queue(items: Sequence[Any]) -> dict[str, list[int]]:
    """Positions of messages or deliveries by their queues."""
    found: dict[str, list[int]] = {}
    for at, item in enumerate(items):
        found.setdefault(item.queue, []).append(at)
    return found


def _spread(parts: Mapping[str, Sequence[int]], replies: Iterable[Iterable[T]]) -> list[T]:
    """The queues' answers, one for each position, in the order of the positions."""
    found: dict[int, T] = {}
    for part, reply in zip(parts.values(), replies, strict=True):
        found.update(zip(part, reply, strict=True))
    return [found[i] for i in range(len(found))]


def _wishes(looks: Sequence[Look]) -> list[Asked]:
    return [look.wish for look in looks]


def _is_answer(reply: Any) -> bool:
    return not isinstance(reply, Exception)


def _with_news(errors: Sequence[Exception], stored: Sequence[str]) -> Exception:
    """The error of a batch, with what was stored all the same. ``TransportUnavailable`` says that nothing was."""
    error = next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
    if stored:
        text = f"{error.args[0]}; what this batch had for {', '.join(map(repr, stored))} was stored"
        if isinstance(error, TransportUnavailable):
            return OutcomeUnknown(text)
        error.args = (text,)
    return error
