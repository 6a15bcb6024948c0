"""``taskmq enqueue``: publish one task, or one for each row of a file."""

from __future__ import annotations

import difflib
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from taskmq.cli.completion import complete_handlers, complete_queues
from taskmq.cli.output import echo_json, json_option
from taskmq.cli.rows import Format
from taskmq.cli.target import Target, open_app, target_options
from taskmq.errors import UnknownHandler
from taskmq.names import short

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.cli.bulk import Source
    from taskmq.cli.cells import Cells
    from taskmq.cli.columns import Columns
    from taskmq.task import BoundTask

_FORMATS: dict[str, Format] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_STDIN = "-"
_FILE = click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True)
_KEY_TTL = "30d"
_USING = ("queue", "priority", "partition", "delay")
_ONE_ONLY = {"args_json": "--args", "kwargs_json": "--kwargs", "key": "--key"}
_ROWS_ONLY = {
    "form": "--format",
    "partition_column": "--partition-column",
    "ordered_by_column": "--ordered-by-column",
    "priority_column": "--priority-column",
    "key_column": "--key-column",
    "column_args": "--column-arg",
    "source_id": "--source-id",
    "skip_conflicts": "--skip-conflicts",
}


@click.command("enqueue")
@click.argument("handler", shell_complete=complete_handlers)
@target_options
@click.option("--args", "args_json", metavar="JSON", help="Positional arguments, a JSON array.")
@click.option("--kwargs", "kwargs_json", metavar="JSON", help="Named arguments, a JSON object.")
@click.option("--queue", metavar="NAME", shell_complete=complete_queues, help="Instead of the handler's.")
@click.option("--priority", metavar="0-9", type=int, help="Larger is more urgent; instead of the handler's.")
@click.option("--partition", metavar="CODE", help='"!x" is an ordered partition, "x" a parallel one.')
@click.option("--delay", metavar="DURATION", help="Not before so long from now: 30, 5m, 2h.")
@click.option("--key", metavar="KEY", help="Idempotency key: published again, it is the same task.")
@click.option("--key-ttl", metavar="DURATION", help="How long keys are kept. [rows: 30d; one task: as its record]")
@click.option(
    "--from",
    "path",
    metavar="FILE",
    type=_FILE,
    help="One task for each row of a CSV or JSON Lines file, or of - for standard input.",
)
@click.option("--format", "form", type=click.Choice(get_args(Format)), help="[by the file's name]")
@click.option("--partition-column", metavar="COLUMN", help="The row's partition.")
@click.option("--ordered-by-column", metavar="COLUMN", help="The same, every partition an ordered one.")
@click.option("--priority-column", metavar="COLUMN", help="The row's priority; empty: as without.")
@click.option("--key-column", metavar="COLUMN", help="The row's idempotency key, instead of one made from the row.")
@click.option(
    "--column-arg",
    "column_args",
    metavar="COLUMN[=PARAMETER]",
    multiple=True,
    help="Only these columns become arguments.",
)
@click.option("--source-id", metavar="NAME", help="What the rows' keys are made with. [the file's base name]")
@click.option("--skip-conflicts", is_flag=True, help="Leave rows alone that were published with other options.")
@json_option
def command(target: Target, handler: str, as_json: bool, **options: Any) -> None:
    """Publish one task, or one for each row of a file.

    With an app, HANDLER is one of its handlers and the arguments are checked against its signature. With --url, or
    where no app is named, the task is published by HANDLER's name alone.

    One task: prints its id.

    \b
    Rows (--from): each becomes a task whose named arguments are its columns, read as the handler's annotations say
    (without an app: as text). The first line of CSV names the columns; a line of JSON Lines is one object.
      --priority-column is not passed as an argument, the other columns are. With an app, a column that only
      steers is passed if the handler has a parameter of that name. --column-arg says exactly which are passed.
      A regular file is checked as a whole before anything is published; it goes out in batches of 1,000.
      The same file again publishes nothing twice, and a file that was appended to only its new rows: each row has
      a key made from the file's base name, the handler, its content, and which occurrence of that content it is.
      An edited row is a new one. A renamed file is a new source, unless --source-id names the old one.
    """  # noqa: D301 - click reads the \b, which keeps the lines as they are
    rows = options["path"] is not None
    _refuse(options, _ONE_ONLY if rows else _ROWS_ONLY, "does not go with --from" if rows else "goes with --from")
    using = {name: options[name] for name in _USING if options[name] is not None}
    with closing(open_app(target)) as app:
        task = _task(app, handler, target).using(**using)
        if rows:
            _enqueue_rows(app, task, options, as_json)
        else:
            _enqueue_one(task, options, as_json)


def _refuse(options: dict[str, Any], names: Mapping[str, str], why: str) -> None:
    for name, spelled in names.items():
        if options[name]:
            raise click.UsageError(f"{spelled} {why}")


def _task(app: App, handler: str, target: Target) -> BoundTask[..., Any]:
    """The app's handler of this name; raises UnknownHandler. Without an app: the name alone."""
    if target.app is None:
        return app.ref(handler)
    found = app.handlers.get(handler)
    if found is None:
        near = difflib.get_close_matches(handler, app.handlers, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(app.handlers)) or 'none at all'}"
        raise UnknownHandler(f"the app {target.app} has no handler {handler!r}; {hint} (--url URL publishes by name)")
    return found


# ── one task ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _enqueue_one(task: BoundTask[..., Any], options: dict[str, Any], as_json: bool) -> None:
    args = _parse(options["args_json"], "args", list, "an array, e.g. '[1, \"two\"]'")
    kwargs = _parse(options["kwargs_json"], "kwargs", dict, "an object, e.g. '{\"n\": 1}'")
    keyed = {name: options[name] for name in ("key", "key_ttl") if options[name] is not None}
    handle = task.using(**keyed).enqueue(*(args or []), **(kwargs or {}))
    if as_json:
        echo_json({"id": handle.id, "queue": handle.queue, "duplicate": handle.duplicate})
        return
    click.echo(handle.id)
    if handle.duplicate:
        click.echo("taskmq: the key was published before: this is the id of that task", err=True)


def _parse(text: str | None, name: str, kind: type, what: str) -> Any:
    if text is None:
        return None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise click.UsageError(f"--{name} is not JSON: {error}; give {what}") from error
    if not isinstance(value, kind):
        raise click.UsageError(f"--{name} {short(text)} is JSON, but not {what}")
    return value


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _enqueue_rows(app: App, task: BoundTask[..., Any], options: dict[str, Any], as_json: bool) -> None:
    from taskmq.cli.bulk import Publication, Recipe

    source = _source(options["path"], options["form"])
    key_ttl = options["key_ttl"] or _KEY_TTL
    task.using(key="any", key_ttl=key_ttl)  # raises: a wrong option is no fault of the first row
    recipe = Recipe(
        task=task,
        columns=_columns(options, source.form),
        source_id=options["source_id"] or source.name,
        key_ttl=key_ttl,
        cells=_cells(app, task),
    )
    publication = Publication(app, source, recipe, options["skip_conflicts"])
    total = None
    if source.rereadable:
        with _progress("checking", None) as advance:
            total = publication.check(advance)
    with _progress("publishing", total) as advance:
        counts = publication.run(advance)
    if as_json:
        echo_json(counts._asdict())
    else:
        click.echo(f"published {counts.published:,}, duplicates {counts.duplicates:,}")


def _source(path: str, form: Format | None) -> Source:
    from taskmq.cli.bulk import Source

    found = form or _FORMATS.get(Path(path).suffix.lower())
    if found is None:
        name = "standard input" if path == _STDIN else path
        raise click.UsageError(f"the name does not tell the format of {name}: say --format csv or --format jsonl")
    if path == _STDIN:
        return Source(open=lambda: nullcontext(sys.stdin.buffer), form=found, name=_STDIN, rereadable=False)
    regular = stat.S_ISREG(Path(path).stat().st_mode)
    return Source(open=lambda: Path(path).open("rb"), form=found, name=Path(path).name, rereadable=regular)


def _columns(options: dict[str, Any], form: Format) -> Columns:
    from taskmq.cli.columns import Columns

    parallel, ordered = options["partition_column"], options["ordered_by_column"]
    if parallel and ordered:
        raise click.UsageError("give --partition-column or --ordered-by-column, not both")
    arguments = dict(_column_arg(text) for text in options["column_args"])
    return Columns(
        partition=ordered or parallel,
        ordered=bool(ordered),
        priority=options["priority_column"],
        key=options["key_column"],
        arguments=arguments or None,
        text=form == "csv",
    )


def _column_arg(text: str) -> tuple[str, str]:
    column, _, parameter = text.partition("=")
    return column, parameter or column


def _cells(app: App, task: BoundTask[..., Any]) -> Cells | None:
    from taskmq.cli.cells import Cells

    registered = app.handlers.get(task.name)
    return None if registered is None else Cells(registered.name, registered.function)


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block runs, if that is a terminal; yields what moves it on."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda count: progress.advance(bar, count)
