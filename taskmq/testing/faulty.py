"""A store around a real one that fails on command, and that tells what went through it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from taskmq.errors import OutcomeUnknown, TransportUnavailable
from taskmq.testing.signals import Record
from taskmq.transport.base import Store

Fault = Callable[[], BaseException]


@dataclass(frozen=True, slots=True)
class Call:
    """One call that got its answer; ``params`` is what the verb was given."""

    verb: str
    params: tuple[Any, ...]
    answer: Any


class Faulty:
    """Passes every verb on to ``inner``, unless told to fail it. Use ``.store`` where a Store is wanted.

    ``calls``   the calls that were answered       ``faults``  the names of the verbs that failed, in order
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.calls: Record[Call] = Record()
        self.faults: Record[str] = Record()
        self._lock = threading.Lock()
        self._before: dict[str, Fault] = {}
        self._after: dict[str, Fault] = {}
        self._hanging: set[str] = set()
        self._healed = threading.Event()

    @property
    def store(self) -> Store:
        """Itself, typed as what it stands for."""
        return cast(Store, self)

    def fail(self, *verbs: str, error: Fault = lambda: TransportUnavailable("told to fail")) -> None:
        """From now on these verbs do nothing and raise."""
        with self._lock:
            self._before.update(dict.fromkeys(verbs, error))

    def lose_answers(self, *verbs: str, error: Fault = lambda: OutcomeUnknown("the answer was lost")) -> None:
        """From now on these verbs do their work and raise."""
        with self._lock:
            self._after.update(dict.fromkeys(verbs, error))

    def hang(self, *verbs: str) -> None:
        """From now on these verbs do not return until ``heal``."""
        with self._lock:
            self._hanging.update(verbs)
            self._healed.clear()

    def heal(self) -> None:
        """From now on everything works, and what hangs goes on."""
        with self._lock:
            self._before.clear()
            self._after.clear()
            self._hanging.clear()
            self._healed.set()

    def answered(self, verb: str) -> list[Call]:
        """The calls of this verb so far."""
        return [call for call in self.calls.items if call.verb == verb]

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self.inner, verb)
        if not callable(method):
            return method

        def call(*params: Any, **named: Any) -> Any:
            self._hang(verb)
            self._raise(self._before, verb)
            answer = method(*params, **named)
            self._raise(self._after, verb)
            self.calls.add(Call(verb, params, answer))
            return answer

        return call

    def _hang(self, verb: str) -> None:
        with self._lock:
            hangs = verb in self._hanging
        if hangs:
            self.faults.add(verb)
            self._healed.wait()

    def _raise(self, faults: dict[str, Fault], verb: str) -> None:
        with self._lock:
            fault = faults.get(verb)
        if fault is not None:
            self.faults.add(verb)
            raise fault()


__all__ = ["Call", "Faulty"]
