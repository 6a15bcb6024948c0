from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, Protocol, TypedDict
from uuid import UUID

import msgspec
import pytest

from taskmq import InvalidArgument
from taskmq.signature import Signature

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]

NAIVE = datetime(2026, 3, 1, 12)  # noqa: DTZ001  # as an argument it is data, not a time for the queue
SOME_ID = UUID("018f3b1e-7c00-7000-8000-000000000001")
UserId = NewType("UserId", int)


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    at: datetime


class Options(TypedDict, total=False):
    at: datetime
    name: str


@dataclass
class Order:
    id: int
    price: float
    at: datetime | None = None


@dataclass
class Checked:
    age: int

    def __post_init__(self) -> None:
        if self.age < 0:
            raise KeyError("age")


class Item(msgspec.Struct):
    sku: str
    weight: float = 1.0


def kind(value: Any) -> str:
    return type(value).__name__


def there_and_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    signature = Signature("m.f", function)
    return signature.decode(*signature.encode(args, kwargs))


def refuse(match: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(InvalidArgument, match=match) as caught:
        Signature("m.f", function).encode(args, kwargs)
    message = str(caught.value)
    assert "m.f" in message
    assert "\n" not in message
    return message


def send(to: str, n: int = 1) -> str:
    return to * n


# ── binding ──


def test_the_wire_keeps_arguments_as_they_were_given() -> None:
    """Positional ones are an array, named ones an object, defaults are not sent."""
    args, kwargs = Signature("m.f", send).encode(("a",), {"n": 2})
    assert (bytes(args), bytes(kwargs)) == (b'["a"]', b'{"n":2}')


@pytest.mark.parametrize(
    ("args", "kwargs", "match"),
    [
        ((), {}, "missing a required argument: 'to'"),
        ((), {"n": 2}, "missing a required argument: 'to'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"to": "b"}, "multiple values for argument 'to'"),
        (("a",), {"m": 2}, "unexpected keyword argument 'm'"),
    ],
)
def test_what_python_would_refuse_is_refused(args: Any, kwargs: Any, match: str) -> None:
    """A call that Python could not make is refused in one line with the handler and the mismatch."""
    refuse(match, send, *args, **kwargs)


def test_keyword_only_and_positional_only_parameters() -> None:
    """The marks / and * mean what they mean in Python."""

    def handler(a: int, /, b: int, *, c: int, d: int = 4) -> None: ...

    assert there_and_back(handler, 1, 2, c=3) == ([1, 2], {"c": 3})
    assert there_and_back(handler, 1, c=3, b=2) == ([1], {"c": 3, "b": 2})
    refuse("a", handler, b=2, c=3, a=1)
    refuse("too many positional", handler, 1, 2, 3)
    refuse("missing a required", handler, 1, 2)


def test_variadic_handlers_check_every_argument() -> None:
    """Surplus arguments are of the type that *args and **kwargs are annotated with."""

    def handler(first: str, *rest: int, **named: datetime) -> None: ...

    assert there_and_back(handler, "a", 1, 2, 3, at=NAIVE) == (["a", 1, 2, 3], {"at": NAIVE})
    assert there_and_back(handler, "a") == (["a"], {})
    refuse("argument 'rest: int'", handler, "a", 1, "2")
    refuse("argument 'named: datetime", handler, "a", at=3)
    refuse("multiple values", handler, "a", first="b")
    refuse("is not text", handler, "a", **{"\ud800": NAIVE})


def test_a_keyword_may_be_named_like_a_positional_only_parameter() -> None:
    """What Python puts into **kwargs goes there here, too."""

    def handler(a: int, /, **named: str) -> None: ...

    assert there_and_back(handler, 1, a="x") == ([1], {"a": "x"})


def test_nothing_known_about_a_handler_means_any_json() -> None:
    """Without a function every name and number of arguments goes, but only JSON data."""
    signature = Signature("elsewhere", None)
    assert signature.decode(*signature.encode((1, "a"), {"x": [None]})) == ([1, "a"], {"x": [None]})
    with pytest.raises(InvalidArgument, match="elsewhere"):
        signature.encode((NAIVE,), {})


# ── types ──


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "ä"),
        (int, 10**30),
        (float, 3),
        (bool, True),
        (bytes, b"\x00\xff"),
        (datetime, NAIVE),
        (datetime, datetime(2026, 3, 1, tzinfo=UTC)),
        (date, date(2026, 3, 1)),
        (timedelta, timedelta(days=1, seconds=2)),
        (UUID, SOME_ID),
        (Decimal, Decimal("1.10")),
        (Color, Color.RED),
        (int, Level.HIGH),
        (UserId, 7),
        (Order, Order(1, 2.5, NAIVE)),
        (Item, Item("a")),
        (Point, Point(1, NAIVE)),
        (Options, {"at": NAIVE, "name": "n"}),
        (list[Order], [Order(1, 2.5)]),
        (dict[int, list[UUID]], {1: [SOME_ID]}),
        (dict[Color, int], {Color.RED: 1}),
        (set[int], {1, 2}),
        (tuple[int, datetime], (1, NAIVE)),
        (Sequence[datetime], [NAIVE]),
        (Mapping[str, datetime], {"a": NAIVE}),
        (datetime | None, None),
        (str | int | None, 3),
        (Literal["a", "b"], "b"),
        (Annotated[int, msgspec.Meta(gt=3)], 4),
        (dict[str, Any], {"a": [1, 2.5, None, {"b": True}]}),
        (object, {"a": 1}),
    ],
    ids=str,
)
def test_an_annotated_value_comes_back_as_it_was(annotation: Any, value: Any) -> None:
    """A value that fits its annotation arrives equal and of the annotated type."""

    def handler(x: Any) -> None: ...

    handler.__annotations__["x"] = annotation
    (arrived,), _ = there_and_back(handler, value)
    assert arrived == value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, 3),
        (str, b"bytes"),
        (str, SOME_ID),
        (str | None, NAIVE),
        (int, "3"),
        (int, 3.0),
        (int, True),
        (float, "1"),
        (float, math.nan),
        (float | None, math.inf),
        (bool, 1),
        (datetime, "yesterday"),
        (UUID, "x"),
        (Color, "blue"),
        (list[int], [1, "2"]),
        (list[str], [SOME_ID]),
        (list[int], {1, 2}),
        (dict[str, int], {"a": None}),
        (dict[str, Any], {"a": NAIVE}),
        (dict[str, Any], {1: "a"}),
        (dict[str, str], Order(1, 2)),
        (list[Any], [math.nan]),
        (Order, Order(1, math.nan)),
        (Order, Order("1", 1)),  # type: ignore[arg-type]
        (Order, 5),
        (list[Item], [Item("a", math.inf)]),
        (Literal["a"], "b"),
        (Annotated[int, msgspec.Meta(gt=3)], 3),
        (Options, {"at": 5}),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused_at_once(annotation: Any, value: Any) -> None:
    """It is refused with the parameter, the expected type and the handler in one line."""

    def handler(x: Any) -> None: ...

    handler.__annotations__["x"] = annotation
    assert "argument 'x: " in refuse("x", handler, value)


def test_the_message_says_what_was_expected() -> None:
    """Parameter, annotation, handler, and what came instead are all there."""
    assert refuse("n", send, "a", "2") == "argument 'n: int' of m.f: expected `int`, got `str`"


@pytest.mark.parametrize(
    "value",
    [NAIVE, SOME_ID, Decimal(1), b"x", {1, 2}, Order(1, 2), Color.RED, {1: 2}, [[{"a": NAIVE}]], math.nan, [math.inf]],
    ids=repr,
)
def test_without_an_annotation_only_json_data_goes(value: Any) -> None:
    """What would arrive as something else is refused, and the message says how to allow it."""

    def handler(x) -> None: ...  # type: ignore[no-untyped-def]

    refuse("annotate the parameter", handler, value)


def test_json_data_needs_no_annotation() -> None:
    """None, booleans, numbers, text, lists, tuples and dicts with text keys go; a tuple arrives as a list."""

    def handler(x) -> None: ...  # type: ignore[no-untyped-def]

    value = {"a": [None, True, 1, 2.5, "ä", (1, 2)]}
    assert there_and_back(handler, value)[0] == [{"a": [None, True, 1, 2.5, "ä", [1, 2]]}]


@pytest.mark.parametrize("value", ["\ud800", ["a\udfff"], {"\ud800": 1}, object(), send, {(1, 2): 3}], ids=kind)
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    """Lone surrogates and objects without a JSON form are refused with the parameter's name."""

    def handler(x: Any) -> None: ...

    assert "'x'" in refuse("cannot be sent as JSON", handler, value)


def test_data_nested_too_deeply_is_refused() -> None:
    """However deep the data, the error is the same as for any other misfit."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidArgument, match=r"m\.f"):
        Signature("m.f", lambda x: x).encode((deep,), {})


def test_a_list_that_contains_itself_is_refused() -> None:
    """Endless data is refused and does not end the process."""
    endless: list[Any] = []
    endless.append(endless)
    refuse("cannot be sent as JSON", lambda x: None, endless)


def test_an_annotation_that_cannot_be_resolved_is_none() -> None:
    """A name imported for type checkers only leaves that parameter unchecked, and the others checked."""

    def handler(x: Unknown, n: int) -> None: ...

    assert there_and_back(handler, {"a": 1}, 2) == ([{"a": 1}, 2], {})
    refuse("argument 'n: int'", handler, 1, "2")
    refuse("annotate", handler, NAIVE, 2)


def test_an_annotation_without_a_decoder_is_none() -> None:
    """A union that JSON cannot tell apart checks no more than that it is JSON data."""

    def handler(x: Order | Item | Checked) -> None: ...

    assert there_and_back(handler, {"sku": "a"}) == ([{"sku": "a"}], {})


class Speaks(Protocol):
    def speak(self) -> str: ...


def test_annotations_of_any_kind_compile() -> None:
    """An annotation that nothing can be asked about does no harm to the other parameters."""

    def handler(n: int, speaker: Speaks | None = None, m: Annotated[int, {"unhashable": 1}] = 1) -> None: ...

    assert there_and_back(handler, 1, m=2) == ([1], {"m": 2})
    refuse("argument 'n: int'", handler, "1")


def test_a_class_that_checks_itself_may_raise_what_it_likes() -> None:
    """An error of a dataclass's own check is reported as any other misfit."""

    def handler(x: Checked) -> None: ...

    value = Checked(3)
    value.age = -1
    refuse("argument 'x: .*Checked'", handler, value)


def test_builtins_without_a_signature_take_anything() -> None:
    """A callable in C that tells nothing about itself is treated as unknown."""
    assert there_and_back(max, 1, 2) == ([1, 2], {})


# ── what is stored ──


@pytest.mark.parametrize(
    ("args", "kwargs", "match"),
    [
        (b'["a", "2"]', b"{}", "argument 'n: int' of m.f: expected `int`, got `str`"),
        (b'["a"]', b'{"n": null}', "argument 'n: int' of m.f: expected `int`, got `null`"),
        (b"[]", b"{}", "missing a required argument: 'to'"),
        (b'["a", 1, 2]', b"{}", "too many positional"),
        (b'["a"]', b'{"gone": 1}', "unexpected keyword argument 'gone'"),
        (b'{"to": "a"}', b"{}", "damaged"),
        (b'["a"]', b"[1]", "damaged"),
    ],
)
def test_stored_arguments_that_no_longer_fit_are_reported(args: bytes, kwargs: bytes, match: str) -> None:
    """A task from before a change of the handler names what does not fit."""
    with pytest.raises(InvalidArgument, match=match):
        Signature("m.f", send).decode(msgspec.Raw(args), msgspec.Raw(kwargs))


# ── results ──


def result_of(annotation: Any) -> Signature:
    def handler() -> Any: ...

    handler.__annotations__["return"] = annotation
    return Signature("m.f", handler)


def test_a_result_comes_back_in_the_annotated_type() -> None:
    """A datetime is stored as text and read as a datetime."""
    signature = result_of(datetime)
    stored = signature.encode_result(NAIVE)
    assert stored == b'"2026-03-01T12:00:00"'
    assert signature.decode_result(msgspec.json.decode(stored)) == NAIVE


def test_no_result_is_none() -> None:
    """None is stored as no result at all."""
    assert result_of(int).encode_result(None) is None


def test_a_result_of_another_type_is_kept_as_it_is() -> None:
    """A wrong return annotation costs nobody a result."""
    signature = result_of(int)
    assert signature.encode_result("text") == b'"text"'
    assert signature.decode_result("text") == "text"


@pytest.mark.parametrize("value", [math.nan, {"a": [math.inf]}, Order(1, math.nan), object(), "\ud800"], ids=kind)
def test_a_result_that_json_cannot_say_is_refused(value: Any) -> None:
    """NaN, Infinity and objects without a JSON form are no results."""
    with pytest.raises(InvalidArgument, match=r"the result of m\.f cannot be sent as JSON"):
        result_of(Any).encode_result(value)
