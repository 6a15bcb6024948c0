"""From rows to a handler's arguments: whether they fit its signature, and text cells as what its annotations say.

A cell that is right as text stays text. Another one is read as the parameter's type (``3`` for int, ``true`` for bool,
ISO 8601 for datetime); an empty one then counts as not given.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from taskmq.cli.rows import RowFault
from taskmq.errors import ConfigError


class Cells:
    """The parameters of one handler, as rows meet them."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        self._types = _annotations(function)
        self._open = any(p.kind is p.VAR_KEYWORD for p in self._signature.parameters.values())

    def accepts(self, name: str) -> bool:
        """Whether the handler has a parameter of this name."""
        return self._open or name in self._signature.parameters

    def check(self, names: Collection[str], where: str) -> None:
        """Raise ConfigError, before anything is published, when the columns of ``where`` do not fit the handler."""
        try:
            self._signature.bind(**dict.fromkeys(names))
        except TypeError as error:
            raise ConfigError(
                f"the columns of {where} do not fit {self._name}{self._signature}: {error}; "
                "choose columns with --column-arg COLUMN or COLUMN=PARAMETER"
            ) from error

    def convert(self, line: int, cells: dict[str, str]) -> dict[str, Any]:
        """The cells as their parameters' types; raises RowFault."""
        arguments: dict[str, Any] = {}
        for name, cell in cells.items():
            annotation = self._types.get(name, str)
            try:
                value = _typed(cell, annotation)
            except msgspec.ValidationError as error:
                if cell != "":
                    raise RowFault(line, f"{name} is {cell!r}: {_lower_first(error)}") from error
                value = self._empty(line, name, annotation)
            if value is not inspect.Parameter.empty:
                arguments[name] = value
        return arguments

    def _empty(self, line: int, name: str, annotation: Any) -> Any:
        parameter = self._signature.parameters.get(name)
        if parameter is not None and parameter.default is not parameter.empty:
            return inspect.Parameter.empty
        try:
            return msgspec.convert(None, annotation)
        except msgspec.ValidationError as error:
            raise RowFault(line, f"{name} is empty, and {self._name} needs it") from error


def _typed(cell: str, annotation: Any) -> Any:
    try:
        try:
            return msgspec.convert(cell, annotation)
        except msgspec.ValidationError:
            return msgspec.convert(cell, annotation, strict=False)
    except TypeError:  # a type that msgspec does not know: the publish says what it thinks of text
        return cell


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except Exception:  # an annotation that cannot be resolved here: everything stays text, as in the file
        return {}


def _lower_first(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]
