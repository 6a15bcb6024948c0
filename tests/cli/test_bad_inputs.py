"""One row a bad input: what the command line answers. A row's name begins with its number in reliability.md §4."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.project import URL, Taskmq, opened, tasks

AT = ("--url", URL)
LONGEST = 1100
"""Characters of an error's line, whatever was given."""


class Refused(NamedTuple):
    name: str
    words: tuple[str, ...]
    told: str
    code: int = 2


def sent(*words: str) -> tuple[str, ...]:
    return ("enqueue", "h", *AT, *words)


def to_shop(*words: str) -> tuple[str, ...]:
    return ("enqueue", "shop.send", "--app", "shop", *words)


def configured(*words: str) -> tuple[str, ...]:
    return ("queue", "configure", "q", *AT, *words)


ROWS = [
    Refused("B3 nested without end", sent("--args", "[" * 100_000), "--args is not JSON: maximum recursion depth"),
    Refused("B4 NaN", sent("--args", "[NaN]"), "--args is not JSON"),
    Refused("B4 1e999", sent("--args", "[1e999]"), "--args is not JSON: Number out of range"),
    Refused("B5 5,000 digits", sent("--args", f"[{'9' * 5000}]"), "--args is not JSON: Integer value out of range"),
    Refused("B5 priority of 5,000 digits", sent("--priority", "9" * 5000), "Invalid value for '--priority'"),
    Refused("B5 delay of 5,000 digits", sent("--delay", "9" * 5000), "is not within 0s to 3653d"),
    Refused("B5 limit of 5,000 digits", ("task", "list", *AT, "--limit", "9" * 5000), "Invalid value for '--limit'"),
    Refused("B6 argument", sent("--args", '["\\ud800"]'), "--args is not JSON"),
    Refused("B6 bytes in an argument", sent("--args", '["\udcff"]'), "--args is not JSON: 'utf-8' codec"),
    Refused("B6 bytes in a named one", sent("--kwargs", '{"\udcff": 1}'), "--kwargs is not JSON"),
    Refused("B6 bytes in a handler", ("enqueue", "\udcff", *AT), r"handler '\udcff' is not 1 to 128"),
    Refused("B6 bytes in a key", sent("--key", "\udcff"), r"key '\udcff' has a lone surrogate"),
    Refused("B6 bytes in an id", ("task", "show", "\udcff", *AT), r"'\udcff' is no task id"),
    Refused("B6 bytes in a tag", ("task", "list", *AT, "--tag", "\udcff"), "lone surrogate"),
    Refused("B6 bytes in a path", ("status", "--url", "sqlite:///\udcff.db"), "bytes that are not UTF-8"),
    Refused("B6 bytes in an app", ("status", "--app", "\udcff"), r"'\udcff' does not name an app"),
    Refused("B7 line end in a queue", ("queue", "pause", "a\n", *AT), r"queue 'a\n' is not 1 to 128"),
    Refused("B7 escape in a partition", sent("--partition", "\x1b[31m"), r"partition code '\x1b[31m' has a control"),
    Refused("B7 NUL in a namespace", ("status", *AT, "--namespace", "a\0"), r"namespace 'a\x00' is not"),
    Refused("B7 escape in an option", ("status", "--\x1b[31m"), r"\x1b[31m"),
    Refused("B9 % as a handler", ("task", "list", *AT, "--handler", "%"), "handler '%' is not"),
    Refused("B9 * as a queue", ("task", "list", *AT, "--queue", "*"), "queue '*' is not"),
    Refused("B9 queue to replay to", ("dead", "replay", "0" * 32, "--to", "a*", *AT), "queue 'a*' is not"),
    Refused("B11 priority -1", sent("--priority", "-1"), "priority -1 is not an integer from 0 to 9"),
    Refused("B11 priority 10", sent("--priority", "10"), "priority 10 is not"),
    Refused("B11 priority 1.0", sent("--priority", "1.0"), "'1.0' is not a valid integer"),
    Refused("B12 weight 0", configured("--weight", "0"), "queue weight 0 is not an integer from 1"),
    Refused("B12 weight 1e3", configured("--weight", "1e3"), "'1e3' is not a valid integer"),
    Refused("B12 weight nan", configured("--weight", "nan"), "'nan' is not a valid integer"),
    Refused("B13 negative delay", sent("--delay", "-1"), "delay '-1' is not a duration"),
    Refused("B13 eleven years", sent("--delay", "4018d"), "delay '4018d' is not within"),
    Refused("B15 delay NaN", sent("--delay", "nan"), "delay 'nan' is not a duration"),
    Refused("B31 a name of Python's", ("enqueue", "os.system", "--app", "shop"), "no handler 'os.system'", 3),
    Refused("B32 missing", to_shop(), "missing a required argument: 'to'"),
    Refused("B32 wrong type", to_shop("--args", '["a", "b"]'), "argument 'n: int' of shop.send: expected `int`"),
    Refused("B32 unknown name", to_shop("--kwargs", '{"too": 1}'), "cannot be called so"),
    Refused("B32 no array", sent("--args", '{"a": 1}'), "is JSON, but not an array"),
    Refused("B35 empty key", sent("--key", ""), "key '' is 0 bytes long; 1 to 512"),
    Refused("B35 key of 10 kB", sent("--key", "k" * 10_000), "10000 bytes long; 1 to 512"),
    Refused("B35 key_ttl 400 days", sent("--key", "k", "--key-ttl", "400d"), "key_ttl '400d' is not within"),
    Refused("B36 arguments of 300 kB", sent("--args", f'["{"x" * 300_000}"]'), "300,013 bytes; 262,144 are allowed"),
    Refused("B37 lease 0", configured("--lease", "0"), "queue lease '0' is not within 0.2s to 1h"),
    Refused("B37 lease ten days", configured("--lease", "10d"), "queue lease '10d' is not within"),
    Refused("B37 max_running -1", configured("--max-running", "-1"), "queue max_running -1 is not"),
    Refused("B37 rate 0/s", configured("--rate", "0/s"), "rate count 0 is not"),
    Refused("B37 rate often", configured("--rate", "often"), "rate 'often' is not of the form"),
    Refused("B40 no URL", ("status", "--url", "nonsense"), "'nonsense' is not a store's URL"),
    Refused("B40 unknown scheme", ("status", "--url", "ftp://me:hunter2@h"), "'ftp://me:***@h': the scheme must be"),
    Refused("B40 half an address", ("status", "--url", "redis://[::1/0"), "cannot be read: Invalid IPv6 URL"),
    Refused("B40 unknown option", ("status", "--url", f"{URL}?synchronus=1"), "unknown option 'synchronus'"),
    Refused("B40 no such file", sent("--from", "nowhere.csv"), "File 'nowhere.csv' does not exist"),
    Refused("B40 no such app", ("status", "--app", "shop:nope"), "has no App named 'nope'; it has shop:app"),
    Refused("B40 no option", ("status", "--watsh"), "No such option"),
    Refused("B40 no command", ("statsu",), "No such command 'statsu'"),
    *[
        Refused(f"an id that is none, {' '.join(words)}", (*words, "x", *AT), "'x' is no task id: 32 hex digits")
        for words in (
            ("task", "show"),
            ("task", "cancel"),
            ("task", "retry"),
            ("dead", "show"),
            ("dead", "replay"),
            ("dead", "purge"),
            ("why",),
        )
    ],
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_bad_input_is_one_line(taskmq: Taskmq, shop: Path, row: Refused) -> None:
    """A bad input is one line that a terminal can take, with the right exit code; nothing is stored or shown."""
    ran = taskmq(*row.words)
    assert (ran.code, ran.out) == (row.code, "")
    assert row.told in ran.err
    assert ran.err.startswith("taskmq: ")
    assert ran.err.removesuffix("\n").isprintable()
    assert len(ran.err) < LONGEST
    assert "hunter2" not in ran.err
    assert not Path("shop.db").exists() or tasks() == []


def test_a_file_with_a_line_nested_without_end_is_told(taskmq: Taskmq, shop: Path) -> None:
    """B3: a line of JSON Lines that is nested too deeply is named, and nothing is published."""
    Path("rows.jsonl").write_text('{"text": "a"}\n{"text": ' + "[" * 100_000 + "\n")
    ran = taskmq("enqueue", "shop.note", "--app", "shop", "--from", "rows.jsonl")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "line 2: not JSON" in ran.err
    assert tasks() == []


@pytest.mark.parametrize("number", [str(2**53 + 1), str(-(2**63) - 1), "9" * 100])
def test_a_large_number_stays_exact(taskmq: Taskmq, shop: Path, number: str) -> None:
    """B5: a number beyond what other languages count to is kept and shown digit by digit."""
    task_id = taskmq(*sent("--args", f"[{number}]")).out.strip()
    assert f"[{number}]" in taskmq("task", "show", task_id, *AT).out


@pytest.mark.parametrize(("one", "other"), [("A", "a"), ("a", "a "), ("é", "e\u0301"), ("a%", "ab"), ("*", "a")])
def test_keys_and_codes_are_compared_as_bytes(taskmq: Taskmq, shop: Path, one: str, other: str) -> None:
    """B9, B10: what only looks alike, or would be a pattern, is another task, and is found alone."""
    ids = [taskmq(*sent("--key", text, "--partition", text)).out.strip() for text in (one, other)]
    assert len(set(ids)) == 2
    found = taskmq("task", "list", *AT, "--partition", one, "--json").json
    assert [task["id"] for task in found] == ids[:1]


def test_the_same_key_with_other_content_is_a_conflict(taskmq: Taskmq, shop: Path) -> None:
    """B35: a key that is taken by another task is told, with that task's id, as a failure."""
    first = taskmq(*sent("--key", "k", "--args", "[1]")).out.strip()
    ran = taskmq(*sent("--key", "k", "--args", "[2]"))
    assert (ran.code, ran.out) == (1, "")
    assert f"key 'k' of queue 'default' is taken by task {first}" in ran.err


def newer_schema() -> None:
    with opened() as store:
        store.pause_queue("q", False)
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect("shop.db")) as connection:
        connection.execute("UPDATE taskmq_schema SET version=99")
        connection.commit()


def no_database() -> None:
    Path("shop.db").write_text("Dear diary, " * 100)


@pytest.mark.parametrize(
    ("make", "told"), [(newer_schema, "made by a newer taskmq"), (no_database, "not a SQLite database")]
)
def test_a_store_of_another_kind_is_left_alone(taskmq: Taskmq, shop: Path, make: Callable[[], None], told: str) -> None:
    """B39: a database of a newer version, or a file that is none, is refused in one line and not changed."""
    make()
    before = Path("shop.db").read_bytes()
    for words in (sent(), ("status", *AT), ("worker", "shop:app")):
        ran = taskmq(*words)
        assert (ran.code, ran.out) == (2, "")
        assert told in ran.err.splitlines()[-1]
    assert Path("shop.db").read_bytes() == before


@pytest.mark.parametrize("name", ["TASKMQ_URI", "TASKMQ_ULR", "TASKMQ_APPS"])
def test_a_misspelled_variable_is_told(
    taskmq: Taskmq, project: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """B40: a misspelled variable is told before another store is used, or made, instead."""
    monkeypatch.setenv(name, "sqlite:///secret-hunter2.db")
    ran = taskmq("enqueue", "h")
    assert (ran.code, ran.out) == (2, "")
    assert f"{name}, which means nothing: did you mean TASKMQ_" in ran.err
    assert "hunter2" not in ran.err
    assert os.listdir() == []


def test_a_misspelled_setting_is_told(taskmq: Taskmq, project: Path) -> None:
    """B40: an unknown name in [tool.taskmq] is told, not passed over."""
    (project / "pyproject.toml").write_text('[tool.taskmq]\nulr = "sqlite:///x.db"\n')
    ran = taskmq("enqueue", "h")
    assert (ran.code, ran.out) == (2, "")
    assert "has 'ulr', which means nothing; known: app, url" in ran.err
