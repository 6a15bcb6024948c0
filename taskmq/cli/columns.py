"""What the columns of a row mean: which ones steer the task, and which ones are its arguments.

By default every column is an argument, named as the column. Of the columns that steer, the priority's is not (it is
rarely data), and the partition's and the key's are (an account, an order number). With an app at hand its handler
decides: a steering column is an argument if the handler has a parameter of that name. ``--column-arg`` overrides all of
this: exactly the columns that it names are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from taskmq.cli.rows import Row, RowFault
from taskmq.errors import ConfigError

_DIGITS = re.compile(r"[+-]?[0-9]{1,9}\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns by role.

    ``arguments``  column → parameter; None for the default above
    ``text``       values are cells of text (CSV), so that a priority has to be read from its digits
    """

    partition: str | None = None
    ordered: bool = False
    priority: str | None = None
    key: str | None = None
    arguments: Mapping[str, str] | None = None
    text: bool = True

    def check(self, header: Collection[str], where: str) -> None:
        """Raise ConfigError, before anything is published, when the header lacks a column that is named here."""
        for name in (self.partition, self.priority, self.key, *(self.arguments or ())):
            if name is not None and name not in header:
                raise ConfigError(f"{where} has no column {name!r}; its columns are {', '.join(header)}")

    def options(self, row: Row) -> dict[str, Any]:
        """The row's part of ``using``; raises RowFault."""
        options: dict[str, Any] = {}
        if self.partition is not None:
            options["ordered_by" if self.ordered else "partition"] = _text(row, self.partition)
        if self.key is not None:
            options["key"] = _text(row, self.key)
        if self.priority is not None:
            options.update(self._priority(row.values.get(self.priority)))
        return options

    def pick(self, accepts: Callable[[str], bool] | None) -> Callable[[Row], dict[str, Any]]:
        """How a row becomes keyword arguments. ``accepts``: whether the handler has a parameter, if that is known."""
        if self.arguments is not None:
            return self._pick_named(self.arguments)
        if accepts is None:
            hidden = {self.priority}
        else:
            hidden = {name for name in (self.partition, self.priority, self.key) if name and not accepts(name)}
        return lambda row: {name: value for name, value in row.values.items() if name not in hidden}

    def _priority(self, value: Any) -> dict[str, Any]:
        """Nothing, so that the handler's own counts, where the cell is empty or the object has none."""
        if value is None or (self.text and value == ""):
            return {}
        return {"priority": int(value) if self.text and _DIGITS.match(value) else value}

    @staticmethod
    def _pick_named(arguments: Mapping[str, str]) -> Callable[[Row], dict[str, Any]]:
        def pick(row: Row) -> dict[str, Any]:
            return {parameter: _value(row, column) for column, parameter in arguments.items()}

        return pick


def _value(row: Row, column: str) -> Any:
    """A JSON object may lack what a CSV header promises for every row."""
    try:
        return row.values[column]
    except KeyError:
        raise RowFault(row.line, f"there is no {column!r}") from None


def _text(row: Row, column: str) -> str:
    value = _value(row, column)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise RowFault(row.line, f"{column} is {value!r}, which is no text to go by")
    return value
