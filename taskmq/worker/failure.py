"""How an exception is written down: one line that says what, and a traceback that is not longer than it may be."""

from __future__ import annotations

import traceback
from types import TracebackType

from taskmq.outcome import storable

MAX_TEXT = 2000
"""Characters of the one line."""
MAX_TRACEBACK = 8192
"""Bytes of the traceback. Its end is kept: there the error was raised."""

_OURS = "taskmq.worker."


class Interrupted(Exception):
    """The worker ended this attempt: on request, or because its grace at shutdown is over."""


def timed_out(seconds: float, note: str = "") -> TimeoutError:
    """The error of an attempt that was ended because it took too long; ``note``: what else there is to say."""
    return TimeoutError(_with(note, f"the attempt took longer than its timeout of {seconds:g} s"))


def interrupted(note: str = "") -> Interrupted:
    """The error of an attempt that was ended because it was to stop."""
    return Interrupted(_with(note, "cancelled by the worker"))


def _with(note: str, text: str) -> str:
    return f"{text}; {note}" if note else text


def describe(error: BaseException) -> str:
    """``Type: message``; an exception whose text cannot be made is named all the same."""
    kind = type(error).__name__
    try:
        message = str(error)
    except BaseException as fault:  # whatever a handler's exception does when it is looked at
        message = f"(its text cannot be made: __str__ raised {type(fault).__name__})"
    text = f"{kind}: {message}" if message else kind
    return storable(text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "… (cut)")


def trace(error: BaseException) -> str:
    """The traceback from the handler on, causes included, cut to 8 KiB."""
    try:
        frames = _from_handler(error.__traceback__)
        data = storable("".join(traceback.format_exception(type(error), error, frames))).encode()
    except BaseException as fault:
        return f"(the traceback cannot be made: {type(fault).__name__})"
    if len(data) <= MAX_TRACEBACK:
        return data.decode()
    mark = f"… (cut: the last of {len(data):,} bytes)\n"
    return mark + data[-(MAX_TRACEBACK - len(mark.encode())) :].decode(errors="ignore")


def _from_handler(frames: TracebackType | None) -> TracebackType | None:
    """Without the frames of the worker, which say nothing about the fault."""
    while frames is not None and str(frames.tb_frame.f_globals.get("__name__")).startswith(_OURS):
        frames = frames.tb_next
    return frames
