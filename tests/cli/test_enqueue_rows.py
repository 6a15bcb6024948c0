"""``taskmq enqueue --from``: one task a row, and only once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.project import URL, Taskmq, tasks

PEOPLE = "to,n\na,1\nb,2\n"
EVENTS = "case,activity,urgency\nc1,open,9\nc2,open,\nc1,close,0\n"


def write(name: str, text: str | bytes) -> str:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def kwargs() -> list[dict[str, Any]]:
    return [task.kwargs for task in tasks()]


def test_each_row_is_a_task_in_the_files_order(taskmq: Taskmq, shop: Path) -> None:
    """A row's columns are the task's named arguments, read as the handler's annotations say, in the file's order."""
    ran = taskmq("enqueue", "shop.send", "--app", "shop", "--from", write("p.csv", PEOPLE))
    assert (ran.code, ran.out, ran.err) == (0, "published 2, duplicates 0\n", "")
    assert kwargs() == [{"to": "a", "n": 1}, {"to": "b", "n": 2}]


def test_cells_become_what_the_annotations_say(taskmq: Taskmq, shop: Path) -> None:
    """Text stays text; other types are read from their usual spelling, and an empty cell counts as not given."""
    table = "case,activity,at,cost\n007,x,2026-03-01,1.5\n8,y,,\n"
    assert taskmq("enqueue", "shop.record", "--app", "shop", "--from", write("c.csv", table)).code == 0
    assert kwargs() == [
        {"case": "007", "activity": "x", "at": "2026-03-01", "cost": 1.5},
        {"case": "8", "activity": "y"},
    ]


def test_without_an_app_cells_are_text(taskmq: Taskmq, project: Path) -> None:
    """By name alone nobody knows the types, so every cell is text."""
    assert taskmq("enqueue", "h", "--url", URL, "--from", write("p.csv", PEOPLE)).code == 0
    assert kwargs() == [{"to": "a", "n": "1"}, {"to": "b", "n": "2"}]


def test_a_json_line_is_passed_as_it_is(taskmq: Taskmq, shop: Path) -> None:
    """The values of a JSON object are the arguments, with the types that JSON gave them."""
    write("p.jsonl", '{"to": "a"}\n\n{"to": "b", "n": 3}\n')
    assert taskmq("enqueue", "shop.send", "--app", "shop", "--from", "p.jsonl").code == 0
    assert kwargs() == [{"to": "a"}, {"to": "b", "n": 3}]


def test_standard_input_is_a_source(taskmq: Taskmq, shop: Path) -> None:
    """``--from -`` reads standard input, whose format has to be said."""
    ran = taskmq("enqueue", "shop.send", "--app", "shop", "--from", "-", "--format", "csv", stdin=PEOPLE)
    assert ran.out == "published 2, duplicates 0\n"
    assert len(tasks()) == 2


@pytest.mark.parametrize(
    ("option", "codes"), [("--partition-column", ["c1", "c2"]), ("--ordered-by-column", ["!c1", "!c2"])]
)
def test_a_column_says_the_partition(taskmq: Taskmq, shop: Path, option: str, codes: list[str]) -> None:
    """--partition-column takes the code as it is, --ordered-by-column makes it ordered; both remain arguments."""
    write("e.csv", "case,activity\nc1,x\nc2,y\n")
    taskmq("enqueue", "shop.record", "--app", "shop", "--from", "e.csv", option, "case")
    assert [(task.partition, task.kwargs["case"]) for task in tasks()] == list(zip(codes, ["c1", "c2"], strict=True))


def test_a_code_with_an_exclamation_mark_is_ordered(taskmq: Taskmq, shop: Path) -> None:
    """A value of the partition column that starts with ``!`` is an ordered partition."""
    taskmq(
        "enqueue", "shop.note", "--app", "shop", "--from", write("n.csv", "text,p\nx,!c\n"), "--partition-column", "p"
    )
    assert [task.partition for task in tasks()] == ["!c"]


def test_a_column_says_the_priority_and_is_no_argument(taskmq: Taskmq, shop: Path) -> None:
    """The priority column only steers; an empty cell leaves the handler's own priority."""
    write("e.csv", EVENTS)
    taskmq("enqueue", "shop.record", "--app", "shop", "--from", "e.csv", "--priority-column", "urgency")
    assert [task.priority for task in tasks()] == [9, 2, 0]
    assert all(set(task.kwargs) == {"case", "activity"} for task in tasks())


def test_a_key_column_is_the_key(taskmq: Taskmq, shop: Path) -> None:
    """With --key-column two rows of the same key and content are one task."""
    write("n.csv", "text,id\nx,1\nx,1\ny,2\n")
    ran = taskmq("enqueue", "shop.note", "--app", "shop", "--from", "n.csv", "--key-column", "id")
    assert ran.out == "published 2, duplicates 1\n"
    assert [task.key for task in tasks()] == ["1", "2"]


def test_column_args_choose_and_rename(taskmq: Taskmq, shop: Path) -> None:
    """--column-arg passes exactly the named columns, under the parameter's name if one is given."""
    write("n.csv", "body,a,b\nx,1,2\n")
    taskmq("enqueue", "shop.note", "--app", "shop", "--from", "n.csv", "--column-arg", "body=text")
    assert kwargs() == [{"text": "x"}]


def test_options_hold_for_every_row(taskmq: Taskmq, shop: Path) -> None:
    """Queue and priority given as options are those of all rows."""
    words = ("enqueue", "shop.send", "--app", "shop", "--from", write("p.csv", PEOPLE))
    taskmq(*words, "--queue", "bulk", "--priority", "1")
    assert {(task.queue, task.priority) for task in tasks()} == {("bulk", 1)}


# ── only once ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_file_again_publishes_nothing(taskmq: Taskmq, shop: Path) -> None:
    """A second run finds every row published, equal rows included."""
    words = ("enqueue", "shop.send", "--app", "shop", "--from", write("p.csv", PEOPLE + "a,1\n"))
    assert taskmq(*words).out == "published 3, duplicates 0\n"
    assert taskmq(*words).out == "published 0, duplicates 3\n"
    assert len(tasks()) == 3


def test_an_appended_file_continues(taskmq: Taskmq, shop: Path) -> None:
    """Of a file that has grown only the new rows are published, even if they equal old ones."""
    words = ("enqueue", "shop.send", "--app", "shop", "--from", write("p.csv", PEOPLE))
    taskmq(*words)
    write("p.csv", PEOPLE + "c,3\na,1\n")
    assert taskmq(*words).out == "published 2, duplicates 2\n"
    assert [task.kwargs["to"] for task in tasks()] == ["a", "b", "c", "a"]


def test_an_edited_row_is_a_new_row(taskmq: Taskmq, shop: Path) -> None:
    """Editing one row and putting another above it publishes these two, and nothing of the rest."""
    words = ("enqueue", "shop.send", "--app", "shop", "--from", write("p.csv", PEOPLE))
    taskmq(*words)
    write("p.csv", "to,n\nnew,0\na,1\nb,7\n")
    assert taskmq(*words).out == "published 2, duplicates 1\n"


@pytest.mark.parametrize(
    ("extra", "out"), [((), "published 2, duplicates 0"), (("--source-id", "p.csv"), "published 0, duplicates 2")]
)
def test_a_renamed_file_is_another_source(taskmq: Taskmq, shop: Path, extra: tuple[str, ...], out: str) -> None:
    """A file of another name is published again, unless --source-id names the old one."""
    taskmq("enqueue", "shop.send", "--app", "shop", "--from", write("p.csv", PEOPLE))
    ran = taskmq("enqueue", "shop.send", "--app", "shop", "--from", write("q.csv", PEOPLE), *extra)
    assert ran.out.strip() == out


def test_more_than_a_batch_is_published_once(taskmq: Taskmq, shop: Path) -> None:
    """A file of several batches is published as a whole, and again not at all."""
    words = ("enqueue", "shop.note", "--app", "shop", "--json", "--from")
    write("n.csv", "text\n" + "".join(f"{n % 700}\n" for n in range(2500)))
    assert taskmq(*words, "n.csv").json == [{"published": 2500, "duplicates": 0}]
    assert taskmq(*words, "n.csv").json == [{"published": 0, "duplicates": 2500}]


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────

P = "--priority-column=p"


@pytest.mark.parametrize(
    ("name", "text", "words", "told"),
    [
        ("p.csv", PEOPLE, (P,), "p.csv has no column 'p'; its columns are to, n"),
        ("p.csv", PEOPLE, ("--partition-column=q",), "no column 'q'"),
        ("p.csv", PEOPLE, ("--key-column=q",), "no column 'q'"),
        ("p.csv", PEOPLE, ("--column-arg=q",), "no column 'q'"),
        ("p.csv", "to,x\na,1\n", (), "got an unexpected keyword argument 'x'"),
        ("p.csv", "n\n1\n", (), "missing a required argument: 'to'"),
        ("p.csv", "", (), "line 1: no header"),
        ("p.csv", PEOPLE + "c,x\n", (), "line 4: n is 'x': expected `int`"),
        ("p.csv", "to,p\na,1\nb,10\n", (P,), "line 3: priority 10"),
        ("p.csv", "to,p\na,high\n", (P,), "line 2: priority 'high'"),
        ("p.csv", "to,p\na,\n", ("--partition-column=p",), "line 2: p is ''"),
        ("p.csv", b"to,n\na,1\n\xff\xfe,2\n", (), "line 3: not UTF-8"),
        ("p.csv", PEOPLE + "c\n", (), "line 4: 1 cells"),
        ("p.jsonl", '{"to": "a"}\n{"to": \n', (), "line 2: not JSON"),
        ("p.jsonl", '{"to": "a"}\n{"n": 1}\n', (), "line 2: shop.send"),
        ("p.jsonl", '{"to": "a", "p": "3"}\n', (P,), "line 1: priority '3'"),
        ("p.jsonl", '{"to": "a", "p": 3.0}\n', (P,), "line 1: priority 3.0"),
        ("p.jsonl", '{"to": "a"}\n', ("--key-column=id",), "line 1: there is no 'id'"),
        ("p.txt", PEOPLE, (), "say --format csv or --format jsonl"),
        ("p.csv", PEOPLE, ("--partition-column=to", "--ordered-by-column=to"), "not both"),
        ("p.csv", PEOPLE, ("--args=[1]",), "--args does not go with --from"),
        ("p.csv", PEOPLE, ("--key=k",), "--key does not go with --from"),
        ("p.csv", PEOPLE, ("--key-ttl=soon",), "taskmq: key_ttl 'soon'"),
    ],
)
def test_a_faulty_file_publishes_nothing(
    taskmq: Taskmq, shop: Path, name: str, text: str | bytes, words: tuple[str, ...], told: str
) -> None:
    """A fault anywhere in a file is found before anything is published, and told in one line that names the place."""
    ran = taskmq("enqueue", "shop.send", "--app", "shop", "--from", write(name, text), *words)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
    assert ran.err.count("\n") == 1
    assert not tasks()


def test_a_missing_file_is_a_usage_error(taskmq: Taskmq, shop: Path) -> None:
    """A file that is not there is one line and exit code 2."""
    ran = taskmq("enqueue", "shop.send", "--app", "shop", "--from", "nothing.csv")
    assert ran.code == 2
    assert "'nothing.csv' does not exist" in ran.err


def test_a_faulty_stream_says_how_far_it_came_and_continues(taskmq: Taskmq, shop: Path) -> None:
    """A pipe is published batch by batch; at a fault the count is told, and the corrected stream continues there."""
    words = ("enqueue", "shop.note", "--app", "shop", "--from", "-", "--format", "jsonl", "--source-id", "night")
    good = "".join(json.dumps({"text": str(n)}) + "\n" for n in range(1500))
    ran = taskmq(*words, stdin=good + "{oops\n")
    assert (ran.code, ran.out) == (1, "")
    assert "line 1,501: not JSON" in ran.err
    assert "1,000 rows before were published" in ran.err
    assert taskmq(*words, stdin=good).out == "published 500, duplicates 1,000\n"


def test_a_file_with_other_options_is_a_conflict(taskmq: Taskmq, shop: Path) -> None:
    """Rows published before are not published again with another priority; the error says how that is done."""
    words = ("enqueue", "shop.send", "--app", "shop", "--from", write("p.csv", PEOPLE))
    taskmq(*words)
    ran = taskmq(*words, "--priority", "9")
    assert ran.code == 1
    assert "p.csv, line 2" in ran.err
    assert "--skip-conflicts" in ran.err
    assert len(tasks()) == 2


def test_skip_conflicts_leaves_published_rows_as_they_are(taskmq: Taskmq, shop: Path) -> None:
    """--skip-conflicts publishes the new rows of a file whose old ones went out with other options."""
    words = ("enqueue", "shop.send", "--app", "shop", "--from", "p.csv")
    write("p.csv", PEOPLE)
    taskmq(*words)
    write("p.csv", PEOPLE + "c,3\n")
    assert taskmq(*words, "--priority", "9", "--skip-conflicts").out == "published 1, duplicates 2\n"
    assert [(task.kwargs["to"], task.priority) for task in tasks()] == [("a", 0), ("b", 0), ("c", 9)]


def test_a_key_used_for_two_rows_is_told_with_its_line(taskmq: Taskmq, shop: Path) -> None:
    """Two different rows with one key are refused, and both lines are named."""
    write("n.csv", "text,id\nx,1\ny,1\n")
    ran = taskmq("enqueue", "shop.note", "--app", "shop", "--from", "n.csv", "--key-column", "id")
    assert ran.code == 1
    assert "n.csv, line 2 and line 3: the key '1'" in ran.err
    assert not tasks()
