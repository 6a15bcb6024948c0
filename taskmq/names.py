"""What names, keys and small integers may be (model.md §3, §8)."""

from __future__ import annotations

import re
from typing import Any

from taskmq.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9_.:/{}-]{1,128}\Z")
_ID = re.compile(r"[0-9a-f]{32}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
MAX_PRIORITY = 9
MAX_CODE_BYTES = 255
MAX_KEY_BYTES = 512


def check_name(what: str, value: Any) -> str:
    """A queue's or handler's name; raises InvalidArgument."""
    if not isinstance(value, str) or not _NAME.match(value):
        raise InvalidArgument(f"{what} {short(value)} is not 1 to 128 characters of A-Za-z0-9_.:/{{}}-")
    return value


def check_code(value: Any) -> str:
    """A partition's code; raises InvalidArgument."""
    return _check_text("partition code", value, MAX_CODE_BYTES)


def check_key(what: str, value: Any) -> str:
    """An idempotency or limit key; raises InvalidArgument."""
    return _check_text(what, value, MAX_KEY_BYTES)


def check_id(value: Any) -> str:
    """A task's id: 32 lower-case hex digits; raises InvalidArgument."""
    if not isinstance(value, str) or not _ID.match(value):
        raise InvalidArgument(f"{short(value)} is no task id: 32 hex digits, as taskmq task list shows them")
    return value


def check_priority(value: Any) -> int:
    """A priority: an int from 0 to 9, nothing that merely looks like one; raises InvalidArgument."""
    if type(value) is not int or not 0 <= value <= MAX_PRIORITY:
        raise InvalidArgument(f"priority {short(value)} is not an integer from 0 to 9 (larger is more urgent)")
    return value


def check_int(what: str, value: Any, low: int, high: int) -> int:
    """A plain int within a range; raises InvalidArgument."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidArgument(f"{what} {short(value)} is not an integer from {low:,} to {high:,}")
    return value


def _check_text(what: str, value: Any, max_bytes: int) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} {short(value)} is not text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {short(value)} has a lone surrogate, which is not text") from None
    if not 1 <= size <= max_bytes:
        raise InvalidArgument(f"{what} {short(value)} is {size} bytes long; 1 to {max_bytes} are allowed")
    if has_control(value):
        raise InvalidArgument(f"{what} {short(value)} has a control character")
    return value


def has_control(text: str) -> bool:
    """Whether text has a control character in it: NUL, line ends, terminal escapes."""
    return _CONTROL.search(text) is not None


def short(value: Any) -> str:
    """A wrong value for a message: at most 60 characters of its repr, which may be huge or fail itself."""
    try:
        text = repr(value)
    except Exception:  # an int of more digits than Python turns into text; a class whose repr raises
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."
