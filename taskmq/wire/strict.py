r"""JSON as strangers send it: read strictly, or refused with the place of the fault.

A JSON library alone is too kind. It takes ``{"a": 1, "a": 2}`` (the last one wins, also when one of them is written
``"\u0061"``), ``NaN``, half a surrogate pair, and a thousand levels until its stack ends. Each of these is a way to
say one thing to one reader and another to the next. So: decoding, which compares keys after their escapes are gone and
ends by itself where levels have no end; then the depth that is allowed; then the values.

What has been read in this way, or was made here, is written by msgspec, ten times as fast as by ``json``.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

MAX_DEPTH = 64
"""Of a payload or result."""
OUTER_DEPTH = 6
"""Levels of a body or message around a payload."""
MAX_DIGITS = 4300
"""Of an integer: what Python turns into a number without being asked twice."""

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class NotStrict(ValueError):
    """What is wrong with a document. ``field``: where, as a dotted path, if that is known."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


def loads(data: bytes) -> Any:
    """The value of a document in UTF-8; raises NotStrict."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise NotStrict("the document starts with a byte order mark")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotStrict(f"not UTF-8: byte {error.start} cannot be read") from None
    try:
        value = (_decode_short if len(text) <= MAX_DIGITS else _decode)(text)
    except NotStrict:
        raise
    except json.JSONDecodeError as error:
        raise NotStrict(f"not JSON: {error.msg.lower()} at character {error.pos}") from None
    except RecursionError:
        raise NotStrict("nested too deeply") from None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH + OUTER_DEPTH:
        check_depth(value, None, MAX_DEPTH + OUTER_DEPTH)
    if _ESCAPED_SURROGATE.search(text):
        _check_surrogates(value, "")
    return value


def check_depth(value: Any, field: str | None, most: int = MAX_DEPTH) -> None:
    """Raise NotStrict if a decoded value has more levels than it may have."""
    level, values = 0, [value]
    while values := [v for v in values if isinstance(v, (dict, list))]:
        level += 1
        if level > most:
            raise NotStrict(f"nested more than {MAX_DEPTH} levels deep", field)
        values = [inner for v in values for inner in (v.values() if isinstance(v, dict) else v)]


def dumps(value: Any) -> bytes:
    """Compact JSON in the order of the keys, every digit as it is; raises ValueError for what JSON has not."""
    return _encode(value).encode()


pack = msgspec.json.Encoder().encode
"""The same for values that ``loads`` has read or this program has made: they are known to be JSON."""


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


_decode_short = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_number).decode
"""For texts in which no integer can be too long: without a call for each."""


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
