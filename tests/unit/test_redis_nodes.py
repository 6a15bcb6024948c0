"""Commands on their way to a cluster's nodes: what is sent for each, and which replies are its own."""

from __future__ import annotations

from typing import Any, cast

from redis.exceptions import TryAgainError

from taskmq.transport.redis.connection import Server
from taskmq.transport.redis.exchange import Piece, packed_ahead
from taskmq.transport.redis.nodes import Bundle, Step

COMMANDS = (("GET", "a"), ("ZRANGE", "b", 0, 9))
BUNDLE = Bundle(7, COMMANDS, packed_ahead(COMMANDS))
NOBODY = cast(Server, None)


def sent(step: Step) -> tuple[list[Piece], int]:
    pieces: list[Piece] = []
    return pieces, step.send_into(pieces, NOBODY)


def heard(step: Step, *answers: Any) -> Any:
    left = iter(answers)
    step.hear(left)
    assert list(left) == ["another's"]
    return step.reply


def test_a_bundle_travels_as_it_was_packed_and_is_answered_by_a_list() -> None:
    step = Step(7, bundle=BUNDLE)
    assert sent(step) == ([BUNDLE.packed], 2)
    assert heard(step, b"A", [], "another's") == [b"A", []]


def test_each_command_of_a_bundle_that_was_sent_on_asks_first() -> None:
    step = Step(7, bundle=BUNDLE)
    step.asked = ("host", 1)
    assert sent(step) == ([("ASKING",), COMMANDS[0], ("ASKING",), COMMANDS[1]], 4)
    assert heard(step, b"OK", b"A", b"OK", [b"B"], "another's") == [b"A", [b"B"]]
    assert step.asked is None


def test_an_error_to_one_command_is_the_reply_to_the_bundle() -> None:
    error = TryAgainError("later")
    assert heard(Step(7, bundle=BUNDLE), b"A", error, "another's") is error


def test_a_lone_command_that_was_sent_on_asks_first() -> None:
    step = Step(7, ("GET", "a"))
    step.asked = ("host", 1)
    assert sent(step) == ([("ASKING",), ("GET", "a")], 2)
    assert heard(step, b"OK", b"A", "another's") == b"A"


def test_without_hiredis_a_bundle_is_packed_by_the_driver() -> None:
    assert sent(Step(7, bundle=BUNDLE._replace(packed=None))) == ([*COMMANDS], 2)
