"""One task for each row of a file: published in batches, and only once, however often the file is given.

**The key of a row.** A row without a key of its own gets one made from the source's name (the file's base name, or
``--source-id``), the handler, the row's content, and which occurrence of that content in the file it is. So:

* the same file again: every row is a duplicate; rows appended since: only these are new;
* the same row twice in one file: two tasks; a row that was inserted, moved or removed disturbs no other row;
* an edited row is a new row; the task of the old one is not taken back;
* a file of another name is another source, unless ``--source-id`` says it is the same.

Line numbers would do without the memory of what was seen (about 100 bytes a row), but then one inserted line would
publish everything below it again. The keys are kept for ``--key-ttl``, which must be longer than the time after which
the same file may come again.

**Faults.** A regular file is read twice: the first time every row is made into a task and checked, and nothing is
published if one of them is wrong. What cannot be read twice (a pipe) is published batch by batch, up to the fault.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec

from taskmq.cli.cells import Cells
from taskmq.cli.columns import Columns
from taskmq.cli.exits import INTERRUPTED, USAGE, CliError, explain
from taskmq.cli.rows import Format, Row, RowFault, read_rows
from taskmq.errors import IdempotencyConflict, InvalidArgument, TaskMQError
from taskmq.message import Message
from taskmq.transport.base import PUBLISH_BATCH

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.task import BoundTask

Item = tuple[int, Message]
"""A task to be, and the line it comes from."""


class Counts(NamedTuple):
    """What was published, and what had been before."""

    published: int
    duplicates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The rows' file: how to open it, its format, how it is called in messages, and whether it can be read twice."""

    open: Callable[[], AbstractContextManager[IO[bytes]]]
    form: Format
    name: str
    rereadable: bool


class RowKeys:
    """Keys for the rows of one reading of a source."""

    def __init__(self, source_id: str, handler: str) -> None:
        self._prefix = msgspec.json.encode([source_id, handler])
        self._seen: dict[bytes, int] = {}
        self._encode = msgspec.json.Encoder(order="sorted").encode

    def key(self, row: Row) -> str:
        """The key of this row, which must be the next one of the source."""
        content = hashlib.blake2b(self._prefix + self._encode(row.values), digest_size=16)
        digest = content.digest()
        occurrence = self._seen[digest] = self._seen.get(digest, 0) + 1
        content.update(b"#%d" % occurrence)
        return f"row:{content.hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How rows become tasks. ``cells``: the handler's parameters, where its code is at hand."""

    task: BoundTask[..., Any]
    columns: Columns
    source_id: str
    key_ttl: str
    cells: Cells | None = None

    def items(self, source: Source) -> Iterator[Item]:
        """The tasks of the source, row by row; raises ConfigError for a header and RowFault for a row that is wrong."""
        arguments_of = self.columns.pick(self.cells.accepts if self.cells else None)
        keys = RowKeys(self.source_id, self.task.name)
        with source.open() as lines:
            header, rows = read_rows(lines, source.form)
            if header is not None:
                self._check_header(header, arguments_of, source.name)
            for row in rows:
                yield row.line, self._message(row, arguments_of(row), keys)

    def _check_header(self, header: list[str], arguments_of: Callable[[Row], dict[str, Any]], where: str) -> None:
        self.columns.check(header, where)
        if self.cells is not None:
            self.cells.check(arguments_of(Row(1, dict.fromkeys(header))), where)

    def _message(self, row: Row, arguments: dict[str, Any], keys: RowKeys) -> Message:
        if self.cells is not None and self.columns.text:
            arguments = self.cells.convert(row.line, arguments)
        options = self.columns.options(row)
        if "key" not in options:
            options["key"] = keys.key(row)
        try:
            return self.task.using(key_ttl=self.key_ttl, **options).message(**arguments)
        except (InvalidArgument, TypeError, ValueError) as error:
            raise RowFault(row.line, str(error)) from error


@dataclass(slots=True)
class Publication:
    """The publishing of one source; ``published`` and ``duplicates`` grow as it goes.

    ``skip_conflicts``  a row whose key was published with other options counts as a duplicate; each costs a round trip
    """

    app: App
    source: Source
    recipe: Recipe
    skip_conflicts: bool = False
    published: int = field(default=0, init=False)
    duplicates: int = field(default=0, init=False)

    def check(self, progress: Callable[[int], None]) -> int:
        """Read everything once without publishing and count the rows; raises CliError for the first fault."""
        count = 0
        try:
            for _ in self.recipe.items(self.source):
                count += 1
                if count % PUBLISH_BATCH == 0:
                    progress(PUBLISH_BATCH)
        except RowFault as fault:
            raise CliError(f"{self.source.name}, {fault}; nothing was published", USAGE) from fault
        return count

    def run(self, progress: Callable[[int], None]) -> Counts:
        """Publish everything; raises CliError that says how far it came."""
        items = self.recipe.items(self.source)
        try:
            while batch := list(islice(items, PUBLISH_BATCH)):
                self._publish(batch)
                progress(len(batch))
        except RowFault as fault:
            raise CliError(f"{self.source.name}, {fault}; {self._so_far()}") from fault
        except KeyboardInterrupt as interrupt:
            raise CliError(f"interrupted; at least {self._so_far()}", INTERRUPTED) from interrupt
        return Counts(self.published, self.duplicates)

    def _publish(self, batch: list[Item]) -> None:
        while True:
            try:
                handles = self.app.enqueue_many([message for _, message in batch])
                break
            except IdempotencyConflict as conflict:  # nothing of the batch was stored
                if not self.skip_conflicts:
                    told = f"{self.source.name}, {self._describe(conflict, batch)}; {self._so_far()}"
                    raise CliError(told) from conflict
                batch = _without_last(batch, conflict.key)
                self.duplicates += 1
            except TaskMQError as error:
                told_by = explain(error)
                raise CliError(f"{told_by.message}; {self._so_far()}", told_by.exit_code) from error
        duplicates = sum(handle.duplicate for handle in handles)
        self.duplicates += duplicates
        self.published += len(handles) - duplicates

    def _so_far(self) -> str:
        before = f" (and {self.duplicates:,} were duplicates)" if self.duplicates else ""
        return f"{self.published:,} rows before were published{before}; running it again continues from there"

    def _describe(self, conflict: IdempotencyConflict, batch: Iterable[Item]) -> str:
        lines = [f"{line:,}" for line, message in batch if message.key == conflict.key]
        where = f"line {' and line '.join(lines)}: the key {conflict.key!r}"
        if self.recipe.columns.key is not None:
            return f"{where} belongs to a row or task with other content; a key of {self.recipe.columns.key} names one"
        return (
            f"{where} belongs to task {conflict.task_id}, published with other options; "
            "--skip-conflicts leaves such rows as they are, another --source-id publishes all rows once more"
        )


def _without_last(batch: list[Item], key: str) -> list[Item]:
    """The batch without its last row of this key, so that the first of several new ones is published."""
    last = max(index for index, (_, message) in enumerate(batch) if message.key == key)
    return batch[:last] + batch[last + 1 :]
