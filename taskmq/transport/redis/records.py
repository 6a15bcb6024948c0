"""Messages, settlements and tasks as the scripts have them (layout: ``lua/include/task.lua``)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import timedelta
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import msgspec

from taskmq import codec
from taskmq.durations import Moment
from taskmq.message import DEFAULT_MAX_ATTEMPTS, Delivery, Message
from taskmq.outcome import Ack, Dead, Defer, Retry
from taskmq.queue import Limit, QueueConfig, Rate
from taskmq.state import Attempt, Progress, TaskInfo, TaskState
from taskmq.transport.base import Settlement

_COLD = re.compile(rb"([a-z])(\d+)")
_json = msgspec.json.Encoder().encode
_progress = msgspec.json.Decoder(Progress).decode
_log = msgspec.json.Decoder(list[Attempt]).decode
_str = msgspec.json.Decoder(str).decode

ENDED = {
    "S": TaskState.SUCCEEDED,
    "F": TaskState.FAILED,
    "C": TaskState.CANCELLED,
    "E": TaskState.EXPIRED,
}
LETTER_OF = {state: letter for letter, state in ENDED.items()}
PARKED, RUNNING = "P", "R"

Args = list[bytes | str | int]


# ── messages ──


def batch(messages: Sequence[Message]) -> Args:
    """A publish's messages as arguments of the script: each queue and each spec once, then the messages."""
    queues: dict[str, int] = {}
    specs: dict[tuple[str, str, str, bool], tuple[int, bytes]] = {}
    spec_args: Args = []
    args: Args = []
    for message in messages:
        limit = message.limit
        at = (message.queue, message.handler, message.version, limit is not None)
        known = specs.get(at)
        if known is None:
            name, texts = _spec(*at)
            spec_args += (queues.setdefault(message.queue, len(queues) + 1), name)
            known = specs[at] = (len(specs) + 1, texts)
        spec, texts = known
        cold = b"" if message.max_attempts == DEFAULT_MAX_ATTEMPTS else b"m%d" % message.max_attempts
        if message.retention is not None:
            cold += b"t%d" % message.retention
        tags = b"\tg" + _json(message.tags) if message.tags else b""
        plain = (
            limit is None
            and message.partition is None
            and message.key is None
            and message.run_after is None
            and message.expires is None
            and message.deadline is None
        )
        if plain:
            args += (f"{spec},{message.priority}", message.id, b"".join((cold, texts, tags, b"\n\n\n", message.body)))
        else:
            args += _special(message, spec, cold, texts, tags)
    return [len(queues), *queues, len(specs), *spec_args, *args]


@lru_cache(maxsize=1024)
def _spec(queue: str, handler: str, version: str, keyed: bool) -> tuple[str, bytes]:
    """A spec as the script knows it, and the texts of its tasks' records."""
    own = f"\tv{version}" if version else ""
    return f"{handler}\0{version}\0{int(keyed)}", f"\n\th{handler}{own}\tq{queue}".encode()


def _special(message: Message, spec: int, cold: bytes, texts: bytes, tags: bytes) -> Args:
    """A message with more to it than a handler and arguments."""
    partition, limit, digest = message.partition, message.limit, ""
    if partition is not None:
        cold += b"w%d" % partition.weight if partition.weight is not None else b""
        cold += b"n%d" % partition.max_running if partition.max_running is not None else b""
        texts += b"\tp" + partition.code.encode()
    if message.key is not None:
        mode = 2 if message.key_ttl is not None else 1 if message.key_until == "finished" else 0
        cold += b"k%d" % mode if mode else b""
        texts += b"\tk" + message.key.encode()
        digest = f"{message.digest()};{'' if message.key_ttl is None else message.key_ttl}"
    if limit is not None:
        cold += b"l%d" % limit.n
        texts += b"\tl" + limit.key.encode()
    return [
        f"{spec},{message.priority},x",
        message.id,
        b"".join((cold, texts, tags, b"\n\n\n", message.body)),
        ";".join(map(_moment, (message.run_after, message.expires, message.deadline))),
        partition.code if partition else "",
        message.key or "",
        digest,
        limit.key if limit else "",
    ]


def _moment(moment: Moment | None) -> str:
    return "" if moment is None else f"{'r' if moment.relative else 'a'}{moment.us}"


# ── settlements ──


def settlements(items: Sequence[Settlement]) -> Args:
    """Arguments of the script."""
    queues: dict[str, int] = {}
    args: Args = []
    for item in items:
        delivery, outcome = item.delivery, item.outcome
        queue = queues.setdefault(delivery.queue, len(queues) + 1)
        ago = "" if item.started_ago is None else item.started_ago
        kind, rest = _outcome(outcome)
        args += (f"{kind},{queue},{delivery.epoch},{ago}", delivery.id, *rest)
    return [len(queues), *queues, *args]


def _outcome(outcome: object) -> tuple[str, tuple[bytes | str, ...]]:
    if isinstance(outcome, Ack):
        return ("A", ()) if outcome.result is None else ("a", (_one_line(outcome.result),))
    if isinstance(outcome, Retry):
        return "r", (f"{outcome.delay},{int(outcome.partition)}", _text(outcome.error), _text(outcome.traceback))
    if isinstance(outcome, Defer):
        return "d", (f"{outcome.delay},{int(outcome.partition)}",)
    if isinstance(outcome, Dead):
        return "x", (_json(outcome.reason), _text(outcome.error), _text(outcome.traceback))
    return "y", ()


def _text(text: str | None) -> bytes:
    return b"" if text is None else _json(text)


def _one_line(result: bytes) -> bytes:
    """JSON without line ends between its tokens; inside of strings there are none."""
    return msgspec.json.format(result, indent=-1) if b"\n" in result else result


# ── tasks ──

_DIGITS = {digit: n for n, digit in enumerate(f"-{digits}{ascii_uppercase}_{ascii_lowercase}")}


def _number(letters: str) -> int:
    """A number in letters (``lua/include/task.lua``)."""
    number = 0
    for letter in letters:
        number = number * 64 + _DIGITS[letter]
    return number


def _letters(cold: bytes) -> dict[bytes, int]:
    """The numbers of a record's second line by their letters; most tasks have one, when they were created."""
    if cold[1:].isdigit():
        return {cold[:1]: int(cold[1:])}
    return {letter: int(number) for letter, number in _COLD.findall(cold)}


@lru_cache(maxsize=1024)
def _words(texts: bytes) -> Mapping[bytes, str]:
    """The texts of a record's third line by their letters: the same for all plain tasks of a queue and handler."""
    return {part[:1]: part[1:].decode() for part in texts.split(b"\t")[1:]}


class Record:
    """A task's record, taken apart."""

    __slots__ = ("body", "cold", "head", "outcome", "progress", "texts", "worker")

    def __init__(self, record: bytes) -> None:
        head, cold, texts, self.progress, self.outcome, self.body = record.split(b"\n", 5)
        *self.head, self.worker = head.decode().split(",", 6)
        self.cold = _letters(cold)
        self.texts = _words(texts)

    @property
    def state(self) -> str:
        """The letter of its state."""
        return self.head[0][0]

    @property
    def priority(self) -> int:
        """Its priority."""
        return int(self.head[0][1])

    @property
    def queue(self) -> str:
        """Its queue's name."""
        return self.texts[b"q"]

    def number(self, position: int) -> int | None:
        """A number of the head, None where it has none."""
        text = self.head[position]
        return int(text) if text else None

    def available_at(self) -> int:
        """The earliest start."""
        return self.cold.get(b"a") or self.cold[b"c"]

    def visible_state(self, now: int) -> TaskState:
        """The state that users see; a waiting task's depends only on the time, not on when a promoter ran."""
        letter = self.state
        if letter in ENDED:
            return ENDED[letter]
        if letter == RUNNING:
            return TaskState.RUNNING
        if self.cold.get(b"r", 0) > now:
            return TaskState.RETRYING
        return TaskState.SCHEDULED if self.available_at() > now else TaskState.QUEUED

    def info(self, task_id: str, log: bytes | None, aging_us: int, now: int) -> TaskInfo:
        """The task as users see it."""
        envelope = codec.decode(self.body)
        cold, texts = self.cold, self.texts
        started, worker = self.worker.split(",", 1)
        flags = int(self.head[5])
        running, ended = self.state == RUNNING, self.state in ENDED
        attempts = [] if not log else _log(b"[" + log.replace(b"\n", b",") + b"]")
        last = attempts[-1] if attempts else None
        end: dict[str, Any] = msgspec.json.decode(b"{" + self.outcome + b"}")
        retry_at = cold.get(b"r")
        available_at = self.available_at()
        return TaskInfo(
            id=task_id,
            queue=self.queue,
            handler=texts[b"h"],
            state=self.visible_state(now),
            priority=self.priority,
            seq=_number(self.head[0][2:10]),
            attempt=int(self.head[2]) + (running and flags & 1),
            max_attempts=cold.get(b"m", DEFAULT_MAX_ATTEMPTS),
            epoch=int(self.head[1]),
            version=texts.get(b"v", ""),
            partition=texts.get(b"p"),
            key=texts.get(b"k"),
            limit=Limit(texts[b"l"], cold[b"l"]) if b"l" in texts else None,
            parked=self.state == PARKED,
            args=msgspec.json.decode(envelope.args),
            kwargs=msgspec.json.decode(envelope.kwargs),
            headers=envelope.headers,
            tags=msgspec.json.decode(texts[b"g"]) if b"g" in texts else [],
            result=end.get("result"),
            reason=end.get("reason"),
            error=end.get("error") or (last.error if last else None),
            traceback=end.get("traceback") or (last.traceback if last else None),
            attempts=attempts,
            created_at=cold[b"c"],
            available_at=available_at if retry_at is None or ended else retry_at,
            dispatch_at=available_at - self.priority * aging_us,
            started_at=int(started) if started else None,
            finished_at=cold.get(b"f"),
            lease_until=self.number(3) if running else None,
            delete_at=cold.get(b"z"),
            worker=_str(worker) if worker else None,
            cancel_requested=running and bool(flags & 2),
            replays=cold.get(b"y", 0),
            progress=_progress(self.progress) if self.progress else None,
            started=not running or bool(flags & 1),
        )


def moves(record: bytes) -> bool:
    """Whether a task of a cluster is on its way to another queue (lua/depart.lua)."""
    return b"\tm" in record.split(b"\n", 3)[2]


def delivery(task_id: str, record: bytes, leases: Mapping[str, tuple[int, bool]]) -> Delivery:
    """A claimed task; ``leases``: of its queue the length of a lease, and whether it is an aging one."""
    head, cold, texts, _, _, body = record.split(b"\n", 5)
    state, epoch, attempts, until, _ = head.split(b",", 4)
    queue, handler, version, partition, limit_key = _names(texts)
    letters, (lease, aging) = _letters(cold), leases[queue]
    created_at = letters[b"c"]
    found = Delivery(  # not one name more: of 16 and more Python makes a dict first, and that costs as much as all else
        id=task_id,
        queue=queue,
        handler=handler,
        body=body,
        priority=state[1] - 48,
        attempt=int(attempts) + 1,
        max_attempts=letters.get(b"m", DEFAULT_MAX_ATTEMPTS),
        epoch=int(epoch),
        lease_until=int(until),
        lease=lease,
        partition=partition,
        aging=aging,
        created_at=created_at,
        available_at=letters.get(b"a") or created_at,
        version=version,
    )
    if len(letters) > 1:
        found.expires_at, found.deadline_at = letters.get(b"e"), letters.get(b"d")
    if limit_key is not None:
        found.limit_key = limit_key
    return found


@lru_cache(maxsize=1024)
def _names(texts: bytes) -> tuple[str, str, str, str | None, str | None]:
    """Queue, handler, version, partition and limit of a record's third line."""
    words = _words(texts)
    return words[b"q"], words[b"h"], words.get(b"v", ""), words.get(b"p"), words.get(b"l")


# ── settings ──


def conf(config: QueueConfig) -> bytes:
    """A queue's settings as the scripts read them, and whole behind that (``lua/include/queue.lua``)."""
    rate = config.rate if isinstance(config.rate, Rate) else None
    numbers = (
        int(config.paused),
        config.weight,
        config.aging_us,
        config.max_running or "",
        config.max_queued or "",
        int(config.on_dead == "hold"),
        config.lease_us or "",
        *(("", "", "") if rate is None else _bucket(rate)),
    )
    return ",".join(map(str, numbers)).encode() + b"\n" + _json(_plain(config))


def _bucket(rate: Rate) -> tuple[int, int, int]:
    """Units per microsecond, cost of a token, tokens: policy/rate.py in lowest terms, to stay exact in doubles."""
    cost = round(rate.per * 1e6)
    common = math.gcd(rate.count, cost)
    return rate.count // common, cost // common, rate.burst or rate.count


def config(stored: bytes) -> QueueConfig:
    """The settings that ``conf`` wrote, with an operator's pause."""
    numbers, _, text = stored.partition(b"\n")
    found = _config(msgspec.json.decode(text)) if text else QueueConfig()
    paused = numbers[:1] == b"1"
    return found if found.paused == paused else replace(found, paused=paused)


def _config(values: dict[str, Any]) -> QueueConfig:
    """Settings of a newer version that this one does not know are left out."""
    known = {field.name: values[field.name] for field in fields(QueueConfig) if field.name in values}
    if isinstance(known.get("rate"), dict):
        known["rate"] = Rate(**known["rate"])
    return QueueConfig(**known)


def _plain(config: QueueConfig) -> dict[str, Any]:
    """Settings as JSON has them: durations in seconds."""
    values = asdict(config)
    return {name: v.total_seconds() if isinstance(v, timedelta) else v for name, v in values.items()}
