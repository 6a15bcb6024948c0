"""Reading CSV and JSON Lines."""

from __future__ import annotations

import io

import pytest

from taskmq.cli.bulk import RowKeys
from taskmq.cli.rows import Format, Row, RowFault, read_rows


def rows(data: bytes, form: Format = "csv") -> list[Row]:
    return list(read_rows(io.BytesIO(data), form)[1])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a,b\n1,2\n3,4\n", [(2, {"a": "1", "b": "2"}), (3, {"a": "3", "b": "4"})]),
        (b"a,b\r\n1,2\r\n", [(2, {"a": "1", "b": "2"})]),
        (b"\xef\xbb\xbfa\n1", [(2, {"a": "1"})]),
        (b"a,b\n\n1,\n", [(3, {"a": "1", "b": ""})]),
        (b'a,b\n"x\ny",2\n3,"4 ""q"""\n', [(2, {"a": "x\ny", "b": "2"}), (4, {"a": "3", "b": '4 "q"'})]),
        ("a\nŻółć\n".encode(), [(2, {"a": "Żółć"})]),
        (b"a\n", []),
    ],
)
def test_csv_is_read_with_the_line_each_row_starts_on(data: bytes, expected: list[tuple[int, dict[str, str]]]) -> None:
    """A CSV row is known by the line it starts on, whatever the line ends, blank lines, quotes or byte-order mark."""
    assert rows(data) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}\n{"a": [2]}\n', [(1, {"a": 1}), (2, {"a": [2]})]),
        (b'\n{"a": null}', [(2, {"a": None})]),
        (b"", []),
    ],
)
def test_jsonl_is_read_line_by_line(data: bytes, expected: list[tuple[int, dict[str, object]]]) -> None:
    """Each line of JSON Lines that is not blank is one row, its values as JSON has them."""
    assert rows(data, "jsonl") == expected


@pytest.mark.parametrize(
    ("form", "data", "told"),
    [
        ("csv", b"", "line 1: no header"),
        ("csv", b"a,a\n", "line 1: the header names a column 'a' twice"),
        ("csv", b"a,\n", "line 1: the header names a column ''"),
        ("csv", b"a,b\n1,2\n3\n", "line 3: 1 cells, but the header has 2"),
        ("csv", b"a\n1,2\n", "line 2: 2 cells, but the header has 1"),
        ("csv", b'a\n"x\ny\n', "line 2: not CSV: unexpected end of data"),
        ("csv", b"a\n1\n\xff\n", "line 3: not UTF-8 (byte 1)"),
        ("csv", b'a\n"x\n\xff"\n', "line 3: not UTF-8"),
        ("csv", b"a\xff\n", "line 1: not UTF-8 (byte 2)"),
        ("jsonl", b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        ("jsonl", b"[1]\n", "line 1: not a JSON object but an array"),
        ("jsonl", b"1\n", "line 1: not a JSON object but a number"),
        ("jsonl", b'{"a": 1}\n\n{"a": "\xc3"}\n', "line 3: not UTF-8"),
    ],
)
def test_a_fault_names_its_line(form: Format, data: bytes, told: str) -> None:
    """What cannot be read is told with the line it is on."""
    with pytest.raises(RowFault) as fault:
        rows(data, form)
    assert str(fault.value).startswith(told)


def keys(data: bytes, source: str = "a.csv", handler: str = "h") -> list[str]:
    made = RowKeys(source, handler)
    return [made.key(row) for row in rows(data)]


def test_the_same_rows_have_the_same_keys() -> None:
    """A second reading gives the same keys, and what was appended only adds to them."""
    assert keys(b"a\n1\n2\n") == keys(b"a\n1\n2\n3\n")[:2]


def test_equal_rows_have_different_keys() -> None:
    """Each occurrence of the same row in one file has its own key."""
    assert len(set(keys(b"a\n1\n1\n2\n1\n"))) == 4


def test_an_inserted_row_leaves_the_keys_of_the_others() -> None:
    """A row put in the middle changes no other row's key, not even those of equal rows below it."""
    assert set(keys(b"a\n1\n2\n1\n")) < set(keys(b"a\n1\n9\n2\n1\n"))


@pytest.mark.parametrize(("source", "handler"), [("b.csv", "h"), ("a.csv", "i")])
def test_another_source_or_handler_has_other_keys(source: str, handler: str) -> None:
    """The same row from another source, or for another handler, has another key."""
    assert not set(keys(b"a\n1\n")) & set(keys(b"a\n1\n", source, handler))


def test_the_order_of_columns_does_not_change_a_key() -> None:
    """A row is its values by column, in whatever order the columns stand."""
    assert keys(b"a,b\n1,2\n") == keys(b"b,a\n2,1\n")
