"""CSV and JSON Lines, read row by row from bytes, so that every fault has a line number.

CSV is what RFC 4180 says: comma, double quotes, one header line; a byte-order mark is skipped. JSON Lines is one object
a line. Blank lines are skipped in both.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

Format = Literal["csv", "jsonl"]

_MAX_CELL = 1 << 20  # above every limit on arguments: what is too large is refused by the app, which names its limit


class Row(NamedTuple):
    """One row: the line it starts on, counted from 1, and its values by column."""

    line: int
    values: dict[str, Any]


class RowFault(Exception):
    """A line that cannot be used. ``line`` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line:,}: {what}")
        self.line = line


def read_rows(lines: Iterable[bytes], form: Format) -> tuple[list[str] | None, Iterator[Row]]:
    """The columns (None where only the rows know: JSON Lines) and the rows.

    Raises RowFault: for the header at once, for a row when the iteration comes to it.
    """
    return _read_csv(lines) if form == "csv" else (None, _read_jsonl(lines))


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise RowFault(number, f"not UTF-8 (byte {error.start + 1}); convert the file, e.g. with iconv") from error


def _read_csv(lines: Iterable[bytes]) -> tuple[list[str], Iterator[Row]]:
    csv.field_size_limit(_MAX_CELL)
    reader = csv.reader(_decoded(lines), strict=True)
    header = next((cells for _, cells in _records(reader)), None)
    if header is None:
        raise RowFault(1, "no header: the first line must name the columns")
    for name in header:
        if not name.strip() or header.count(name) > 1:
            raise RowFault(reader.line_num, f"the header names a column {name!r}" + (" twice" if name.strip() else ""))
    return header, _csv_rows(reader, header)


def _csv_rows(reader: Any, header: list[str]) -> Iterator[Row]:
    for line, cells in _records(reader):
        if len(cells) != len(header):
            raise RowFault(line, f"{len(cells)} cells, but the header has {len(header)}")
        yield Row(line, dict(zip(header, cells, strict=True)))


def _records(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The records that are not blank, each with the line it starts on: a quoted cell may go over several."""
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise RowFault(line, f"not CSV: {error}") from error
        if cells is None:
            return
        if cells:
            yield line, cells


def _read_jsonl(lines: Iterable[bytes]) -> Iterator[Row]:
    decode = msgspec.json.Decoder().decode
    for number, line in enumerate(_decoded(lines), 1):
        if not line.strip():
            continue
        try:
            value = decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RowFault(number, f"not JSON: {error}") from error
        if not isinstance(value, dict):
            raise RowFault(number, f"not a JSON object but {_kind(value)}")
        yield Row(number, value)


def _kind(value: Any) -> str:
    kinds: dict[type, str] = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
