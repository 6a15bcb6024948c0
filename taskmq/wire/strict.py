r"""JSON as strangers send it: read strictly, or refused with the place of the fault.

A JSON library alone is too kind. It takes ``{"a": 1, "a": 2}`` (the last one wins, also when one of them is written
``"\u0061"``), ``NaN``, half a surrogate pair, and a thousand levels until its stack ends. Each of these is a way to
say one thing to one reader and another to the next. So: first the depth, which protects what follows; then decoding,
which compares keys after their escapes are gone; then the values.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_DEPTH = 64
"""Of a payload or result."""
OUTER_DEPTH = 6
"""Levels of a body or message around a payload."""
MAX_DIGITS = 4300
"""Of an integer: what Python turns into a number without being asked twice."""

_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_OPENING, _CLOSING = (b"[", b"{"), (b"]", b"}")


class NotStrict(ValueError):
    """What is wrong with a document. ``field``: where, as a dotted path, if that is known."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


def loads(data: bytes) -> Any:
    """The value of a document in UTF-8; raises NotStrict."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise NotStrict("the document starts with a byte order mark")
    _check_depth(data, MAX_DEPTH + OUTER_DEPTH)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotStrict(f"not UTF-8: byte {error.start} cannot be read") from None
    try:
        value = _decode(text)
    except NotStrict:
        raise
    except json.JSONDecodeError as error:
        raise NotStrict(f"not JSON: {error.msg.lower()} at character {error.pos}") from None
    except RecursionError:  # pragma: no cover - the depth was looked at before
        raise NotStrict("nested too deeply") from None
    if _ESCAPED_SURROGATE.search(text):
        _check_surrogates(value, "")
    return value


def check_depth(value: Any, field: str) -> None:
    """Raise NotStrict if a decoded value has more levels than a payload may have."""
    level, values = 0, [value]
    while values := [v for v in values if isinstance(v, (dict, list))]:
        level += 1
        if level > MAX_DEPTH:
            raise NotStrict(f"nested more than {MAX_DEPTH} levels deep", field)
        values = [inner for v in values for inner in (v.values() if isinstance(v, dict) else v)]


def dumps(value: Any) -> bytes:
    """Compact JSON in the order of the keys, every digit as it is."""
    return _encode(value).encode()


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise NotStrict(f"the key {key[:60]!r} stands twice in one object", key[:60])
            seen.add(key)
    return value


def _constant(name: str) -> Any:
    raise NotStrict(f"{name} is no JSON number")


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS and len(text.lstrip("-")) > MAX_DIGITS:
        raise NotStrict(f"an integer has more than {MAX_DIGITS} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise NotStrict(f"the number {text[:40]} is out of the range of a double")
    return value


_decode = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_constant=_constant, parse_int=_integer, parse_float=_number
).decode


def _check_depth(data: bytes, most: int) -> None:
    if data.count(b"[") + data.count(b"{") <= most:
        return
    depth = 0
    for token in _BRACKETS.findall(data):
        if token in _OPENING:
            depth += 1
            if depth > most:
                raise NotStrict(f"nested more than {MAX_DEPTH} levels deep")
        elif token in _CLOSING:
            depth -= 1


def _check_surrogates(value: Any, field: str) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotStrict("text has half a surrogate pair", field or None) from None
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_surrogates(key, field)
            _check_surrogates(inner, f"{field}.{key}" if field else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check_surrogates(inner, f"{field}[{index}]")
