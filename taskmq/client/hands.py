"""What a worker holds: offered, running, or finished and not confirmed; and what each message makes of it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from taskmq.client.execution import Dispatched, Execution, Token, unkept

log = logging.getLogger("taskmq.client")

AGAIN = 0.5
"""Seconds before a message whose outcome is unknown is sent again."""
NOT_TAKEN = ("PAYLOAD_TOO_LARGE", "INVALID_ARGUMENT")
"""Codes that refuse what a finish says, not that it is said."""

Message = dict[str, Any]


class Held:
    """A delivery."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.running = False
        self.lease = float("inf")
        """Seconds of the lease, or reservation, that was granted last."""
        self.result: Message | None = None
        self.ref: int | None = None
        """Of the request about it that was sent last."""


class Hands:
    """The deliveries of one worker. ``send`` may return without having sent: resuming sees to it.

    Callers hold the worker's lock.
    """

    def __init__(self, send: Callable[[Message], int | None]) -> None:
        self.desk: queue.SimpleQueue[Held | None] = queue.SimpleQueue()
        self.shorter = threading.Event()
        """Set when a lease is granted that is shorter than the one that ``shortest`` told last."""
        self._told = float("inf")
        self._stray: set[Held] = set()
        """Lost, but their handlers still run."""
        self._send = send
        self._held: dict[Token, Held] = {}

    def __len__(self) -> int:
        return len(self._held) + len(self._stray)

    def named(self) -> list[Message]:
        """All of them, as messages name them."""
        return [named(token) for token in self._held]

    def shortest(self) -> float:
        """Seconds of the shortest lease that is held; infinite for none."""
        self.shorter.clear()
        self._told = min((held.lease for held in self._held.values()), default=float("inf"))
        return self._told

    def cancel(self) -> None:
        """Tell every handler to stop."""
        for held in self._held.values():
            held.execution.cancel()

    def stands(self, held: Held) -> bool:
        """Whether it was not lost meanwhile."""
        task = held.execution.task
        return self._held.get((task.task_id, task.epoch)) is held

    def ended(self, held: Held, result: Message) -> None:
        """A handler has ended: its result is said until it is confirmed, or lost."""
        self._stray.discard(held)
        if self.stands(held):
            held.result = result
            self._ask(held, result)

    # ── what the server says ──

    def resume(self, welcome: Message, sent: float) -> None:
        """What of all that is held still stands; ``sent``: when it was asked."""
        for held in self._held.values():
            held.ref = None  # refs count anew
        for lost in welcome["lost"]:
            self.lose((lost["task_id"], lost["epoch"]))
        for item in welcome["resumed"]:
            token = (item["task_id"], item["epoch"])
            still = self._held.get(token)
            if still is None:
                continue
            if still.result is not None:
                self._ask(still, still.result)
            elif item["phase"] == "reserved":
                self._ask(still, {"type": "start", **named(token)})
            else:
                self._begin(still, item["lease_ms"], sent)

    def hear(self, message: Message, sent: float) -> None:
        """One message. A lease lasts from when it was asked for, not from when it was heard of."""
        kind = message["type"]
        if kind == "dispatch":
            for fields in message["tasks"]:
                self._offered(msgspec.convert(fields, Dispatched))
        elif kind == "started":
            held = self._held.get((message["task_id"], message["epoch"]))
            if held is not None:
                self._begin(held, message["lease_ms"], sent)
        elif kind == "finished":
            self._confirmed((message["task_id"], message["epoch"]))
            for released in message.get("released", ()):
                self.lose((released["task_id"], released["epoch"]))
        elif kind == "renewed":
            self._renewed(message, sent)
        elif kind == "cancel":
            self._cancel(message)
        elif kind == "error":
            self._refused(message)

    def _offered(self, task: Dispatched) -> None:
        held = self._held[task.task_id, task.epoch] = Held(Execution(task, self._send))
        if task.run is None or task.run.pos == 0:
            self._ask(held, {"type": "start", **named((task.task_id, task.epoch))})
        else:  # it waits for the one before it, for as long as that runs
            self._lasts(held, task.reserve_ms / 1000)

    def _lasts(self, held: Held, seconds: float) -> None:
        held.lease = seconds
        if seconds < self._told:
            self.shorter.set()

    def _ask(self, held: Held, message: Message) -> None:
        held.ref = self._send(message)

    def _begin(self, held: Held, lease_ms: int, sent: float) -> None:
        """Authority to run; a repeated one changes the lease only."""
        self._lasts(held, lease_ms / 1000)
        held.execution.until = sent + held.lease
        if not held.running:
            held.running = True
            self.desk.put(held)

    def _confirmed(self, token: Token) -> None:
        held = self._held.pop(token, None)
        run = held.execution.task.run if held is not None else None
        if run is not None:
            self._start_next(run.id, run.pos + 1)

    def _start_next(self, run_id: str, pos: int) -> None:
        for token, held in self._held.items():
            run = held.execution.task.run
            if run is not None and (run.id, run.pos) == (run_id, pos) and not held.running:
                self._ask(held, {"type": "start", **named(token)})

    def lose(self, token: Token) -> None:
        """Somebody else may have it now."""
        held = self._held.pop(token, None)
        if held is None:
            return
        held.execution.cancel(lost=True)
        if held.running and held.result is None:
            self._stray.add(held)
        if held.running:
            log.warning("the lease of task %s is lost; its result is dropped", token[0])

    def _renewed(self, message: Message, sent: float) -> None:
        until = sent + message["lease_ms"] / 1000
        for held in self._held.values():
            if held.running:
                held.execution.until = max(held.execution.until, until)
        for item in message["cancel"]:
            self._cancel(item)
        for item in message["lost"]:
            self.lose((item["task_id"], item["epoch"]))

    def _cancel(self, item: Message) -> None:
        held = self._held.get((item["task_id"], item["epoch"]))
        if held is not None:
            held.execution.cancel()

    def _refused(self, message: Message) -> None:
        """What was asked for a delivery is refused: it is asked again, changed, or given up, but never left lying."""
        token = self._token_of(message)
        held = None if token is None else self._held.get(token)
        if token is None or held is None:
            return
        if message.get("retryable") or message["code"] == "TIMEOUT":
            self._again(token, held)
        elif message["code"] in NOT_TAKEN and held.result is not None and held.result["outcome"] == "success":
            held.result = {"type": "finish", **named(token), **unkept(message["message"])}
            self._ask(held, held.result)
        else:
            self.lose(token)

    def _token_of(self, message: Message) -> Token | None:
        if "task_id" in message:
            return message["task_id"], message["epoch"]
        ref = message.get("ref")
        return next((token for token, held in self._held.items() if ref is not None and held.ref == ref), None)

    def _again(self, token: Token, held: Held) -> None:
        """The outcome is unknown: the same message again, a little later."""
        repeat = held.result or {**named(token), "type": "start"}
        timer = threading.Timer(AGAIN, self._ask, [held, repeat])
        timer.daemon = True
        timer.start()


def named(token: Token) -> Message:
    """A delivery, as messages name it."""
    return {"task_id": token[0], "epoch": token[1]}
