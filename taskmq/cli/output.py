"""What commands print: tables for people, tab-separated lines for pipes, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import msgspec

_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(command: _Command) -> _Command:
    """Add ``--json`` to a command, as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")(command)


def echo_json(value: Any) -> None:
    """Print one object on one line."""
    click.echo(msgspec.json.encode(value).decode())


def echo_fields(as_json: bool, **fields: str) -> None:
    """Print what a command has done, as ``name=value`` or as one JSON object."""
    if as_json:
        echo_json(fields)
    else:
        click.echo(" ".join(f"{name}={value}" for name, value in fields.items()))


def echo_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Container[str] = ()) -> None:
    """Print a table, the columns of ``numbers`` to the right.

    When the output is no terminal: tab-separated lines, the first one a header.
    """
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            click.echo("\t".join(" ".join(cell.split()) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def iso(us: int | None) -> str | None:
    """A stored time as RFC 3339 in UTC with six digits, as in the HTTP API."""
    if us is None:
        return None
    moment = datetime.fromtimestamp(us // 1_000_000, tz=UTC).replace(microsecond=us % 1_000_000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def short_time(us: int | None) -> str:
    """A stored time for people: UTC, to the second."""
    text = iso(us)
    return "" if text is None else f"{text[:10]} {text[11:19]}"


def duration(us: int | None) -> str:
    """A length of time for people, in its two largest units; empty for None."""
    if us is None:
        return ""
    if us < 1_000_000:
        return f"{us // 1000}ms"
    left = us // 1_000_000
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
