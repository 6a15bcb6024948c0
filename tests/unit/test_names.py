from __future__ import annotations

from typing import Any

import pytest

from taskmq import InvalidArgument
from taskmq.names import check_code, check_int, check_key, check_name, check_priority


@pytest.mark.parametrize("name", ["a", "mail", "A.b:c/d-e_f{g}", "0", "x" * 128])
def test_names_of_the_allowed_characters_pass(name: str) -> None:
    """A name of 1 to 128 allowed characters comes back as it is."""
    assert check_name("queue", name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 129, "two words", "ä", "a\n", "a,b", "a*", "\x00", None, 3, b"a", ["a"]], ids=repr
)
def test_other_names_are_refused(name: Any) -> None:
    """Anything else is refused, and the message says which name it was."""
    with pytest.raises(InvalidArgument, match=r"^queue "):
        check_name("queue", name)


@pytest.mark.parametrize("priority", range(10))
def test_priorities_are_0_to_9(priority: int) -> None:
    """The ten priorities pass."""
    assert check_priority(priority) == priority


@pytest.mark.parametrize("priority", [-1, 10, 3.0, "3", True, False, None, 10**30, float("nan"), [3]], ids=repr)
def test_what_only_looks_like_a_priority_is_refused(priority: Any) -> None:
    """Floats, texts, booleans, None and numbers outside 0 to 9 are refused, also where Python finds them equal."""
    with pytest.raises(ValueError, match="not an integer from 0 to 9"):
        check_priority(priority)


@pytest.mark.parametrize("code", ["x", "!x", "acct 42", "żółć", "é" * 127, "日本", "a" * 255])
def test_partition_codes_are_any_text_up_to_255_bytes(code: str) -> None:
    """Spaces and letters of every script are allowed; bytes count, not characters."""
    assert check_code(code) == code


@pytest.mark.parametrize(
    "code", ["", "é" * 128, "a" * 256, "a\nb", "\x00", "\x7f", "\x85", "\ud800", None, 7, b"x"], ids=repr
)
def test_partition_codes_without_text_in_them_are_refused(code: Any) -> None:
    """Nothing, too much, control characters, lone surrogates and other types are refused."""
    with pytest.raises(InvalidArgument, match="partition code"):
        check_code(code)


def test_keys_may_have_512_bytes() -> None:
    """A key of 512 bytes passes, one of 513 does not, and the message has both numbers."""
    assert check_key("key", "k" * 512)
    with pytest.raises(InvalidArgument, match="513 bytes long; 1 to 512"):
        check_key("key", "k" * 513)


def test_messages_stay_short_for_huge_values() -> None:
    """A megabyte that is no name does not come back in the message."""
    with pytest.raises(InvalidArgument) as caught:
        check_name("queue", "x y" * 1_000_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("number", [0, 11, 5.0, "5", True, None], ids=repr)
def test_integers_are_checked_by_type_and_range(number: Any) -> None:
    """An int inside the range passes, nothing else does."""
    assert check_int("weight", 5, 1, 10) == 5
    with pytest.raises(InvalidArgument, match="weight"):
        check_int("weight", number, 1, 10)
