"""Functions of the user that are called when something happens. A hook watches: its exceptions are logged, no more."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Literal, get_args

from taskmq.errors import InvalidArgument

Event = Literal["worker_start", "worker_stop", "before_enqueue", "before_run", "after_run", "failed", "dead"]
Hook = Callable[..., Any]

_log = logging.getLogger("taskmq.hooks")


class Hooks:
    """The registered hooks, one tuple an event. Code on the hot path asks for the tuple before it builds anything."""

    __slots__ = get_args(Event)

    worker_start: tuple[Hook, ...]
    worker_stop: tuple[Hook, ...]
    before_enqueue: tuple[Hook, ...]
    before_run: tuple[Hook, ...]
    after_run: tuple[Hook, ...]
    failed: tuple[Hook, ...]
    dead: tuple[Hook, ...]

    def __init__(self) -> None:
        for event in get_args(Event):
            setattr(self, event, ())

    def add(self, event: str, hook: Hook) -> None:
        """Call ``hook`` at ``event``, after the ones added before; raises InvalidArgument for an unknown event."""
        if event not in get_args(Event):
            raise InvalidArgument(f"there is no event {event!r}; there are {', '.join(get_args(Event))}")
        setattr(self, event, (*getattr(self, event), hook))

    def fire(self, event: Event, *args: Any) -> None:
        """Call the hooks of an event, in order. What they raise is logged, a SystemExit too; only Ctrl-C goes on."""
        for hook in getattr(self, event):
            try:
                hook(*args)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise
                _log.exception("a hook of %s failed: %r", event, hook)
