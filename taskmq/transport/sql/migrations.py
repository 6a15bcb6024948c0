"""How a server's database gets from one schema to the next. Essay: steps that disturb nobody.

A database records its schema's version. A new one gets the newest schema at once; an older one goes up step by step.
Workers of the old version go on meanwhile, so a step only adds, and what it does must not hold a lock that others wait
for:

``statements``   quick changes of the catalogue, all of them and the new version number in one transaction. They wait
                 for their locks a second at most – whoever waits behind a waiting ALTER TABLE stands still, too – and
                 are tried again when they did not get them.
``fills``        what the change needs in rows that are there already, a bounded number of them at a time and a
                 transaction each, along the primary key.
``alone``        what must not be in a transaction: CREATE INDEX CONCURRENTLY. Each may be run again: it names what it
                 makes IF NOT EXISTS, and what is left of a failed one is dropped first.

So a step may be interrupted anywhere and run again. Its order is statements, fills, alone; the version is written at
the end, when all is there that the new version needs.

Alembic was weighed and left out: what is needed of it is a version number and a list of statements; batches and
indexes that are built alone would be handwork in it too, and its environment, configuration and import (0.3 s) would
be needed in every installation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from taskmq.errors import ConfigError, TransportError
from taskmq.transport.base import SchemaStatus

LOCK = 1.0
"""Seconds that a change waits for a table, and everybody else behind it."""
TRIES = 60
PAGE = 1000
"""Rows that are filled in by one transaction: those who want them wait for some hundredths of a second."""


@dataclass(frozen=True, kw_only=True)
class Fill:
    """``UPDATE table SET assignments WHERE missing``, along ``key``, whose values ascend from above ``start``.

    What old workers add meanwhile must get its value from a default, a trigger or the reader.
    """

    table: str
    assignments: str
    missing: str
    key: str = "seq"
    start: int | str = 0

    def pages(self, ask: Callable[[str], Any]) -> Iterator[str]:
        """Conditions, each of a page of rows that are to be filled in. ``ask``: the first value of a question.

        What comes into the table meanwhile is left out, else this would never end.
        """
        after: int | str = self.start
        end = ask(f"SELECT max({self.key}) FROM {self.table}")
        while end is not None:
            rows = f"{self.key}>{_literal(after)} AND {self.key}<={_literal(end)}"
            page = f"SELECT {self.key} AS k FROM {self.table} WHERE {rows} ORDER BY {self.key} LIMIT {PAGE}"
            last = ask(f"SELECT max(k) FROM ({page}) page")
            if last is None:
                return
            yield f"{self.key}>{_literal(after)} AND {self.key}<={_literal(last)} AND {self.missing}"
            after = last


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else f"'{value}'"  # ids and numbers, made by ourselves


@dataclass(frozen=True, kw_only=True)
class Step:
    """From the version before to ``version``. ``back`` undoes it; None: there is no way back."""

    version: int
    title: str
    statements: tuple[str, ...] = ()
    fills: tuple[Fill, ...] = ()
    alone: tuple[str, ...] = ()
    back: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that is known of an engine's schemas: the newest, whole, and the steps that lead there from older ones."""

    version: int
    create: tuple[str, ...]
    drop: tuple[str, ...]
    steps: tuple[Step, ...] = ()

    def above(self, version: int) -> list[Step]:
        """The steps from a version to the newest; raises ConfigError when they do not lead there."""
        steps = [step for step in self.steps if step.version > version]
        if [step.version for step in steps] != list(range(version + 1, self.version + 1)):
            raise ConfigError(
                f"there is no way from schema {version} to {self.version}: it is of a taskmq before its first release"
            )
        return steps


class Hands(Protocol):
    """What an engine does for the migrator."""

    def version(self) -> int | None:
        """The schema's version; None: there is none."""
        ...

    def together(self, statements: Sequence[str]) -> None:
        """Run these in one transaction, patiently."""
        ...

    def fill(self, fill: Fill) -> None:
        """Fill in page by page, a transaction each."""
        ...

    def alone(self, statement: str) -> None:
        """Run this outside of a transaction."""
        ...

    def unfinished(self) -> int:
        """How many unfinished tasks there are."""
        ...


class Migrator:
    """Brings a database to the newest schema of its plan, or back."""

    def __init__(self, hands: Hands, plan: Plan) -> None:
        self._hands = hands
        self._plan = plan

    def status(self) -> SchemaStatus:
        """Which schema the database has, and which this version needs."""
        found = self._hands.version()
        return SchemaStatus(found=found, needed=self._plan.version, steps=self._titles(found))

    def _titles(self, found: int | None) -> list[str]:
        if found is None:
            return [f"create schema {self._plan.version}"]
        if found >= self._plan.version:
            return []
        return [f"{step.version}: {step.title}" for step in self._plan.above(found)]

    def up(self) -> list[str]:
        """Do what ``status`` says is to be done; returns it. Nothing is done where nothing is to do."""
        found = self._hands.version()
        done = self._titles(found)
        if found is None:
            self._hands.together([*self._plan.create, _write_version(self._plan.version)])
            return done
        if found > self._plan.version:
            raise ConfigError(f"the database has schema {found}, made by a newer taskmq: upgrade taskmq")
        for step in self._plan.above(found):
            if step.statements:
                self._hands.together(step.statements)
            for fill in step.fills:
                self._hands.fill(fill)
            for statement in step.alone:
                self._hands.alone(statement)
            self._hands.together([_replace_version(step.version)])
        return done

    def down(self, force: bool = False) -> str:
        """Undo the last step; without one, remove the schema, with ``force`` even if there are unfinished tasks."""
        found = self._hands.version()
        if found is None:
            raise ConfigError("there is no taskmq schema in this database")
        step = next((step for step in self._plan.steps if step.version == found), None)
        if step is not None:
            if step.back is None:
                raise TransportError(f"there is no way back from schema {found} ({step.title})")
            self._hands.together([*step.back, _replace_version(found - 1)])
            return f"back to schema {found - 1}"
        left = self._hands.unfinished()
        if left and not force:
            raise TransportError(f"{left:,} unfinished tasks would be lost with the schema; --force removes it anyway")
        self._hands.together(self._plan.drop)
        return "the schema is removed"

    def sql(self, found: int | None = None) -> list[str]:
        """The statements of ``up`` from this version (None: an empty database), for who runs them by other means."""
        if found is None:
            return [*self._plan.create, _write_version(self._plan.version)]
        script: list[str] = []
        for step in self._plan.above(found):
            script += [f"-- {step.version}: {step.title}", *step.statements]
            for fill in step.fills:
                script.append(f"-- along {fill.key}, some thousand rows at a time:")
                script.append(f"UPDATE {fill.table} SET {fill.assignments} WHERE {fill.missing}")
            for statement in step.alone:
                script += ["-- outside of a transaction:", statement]
            script.append(_replace_version(step.version))
        return script


def _write_version(version: int) -> str:
    return f"INSERT INTO taskmq_schema(version) VALUES ({version})"


def _replace_version(version: int) -> str:
    return f"UPDATE taskmq_schema SET version={version}"
