"""The root of the command line. It knows the commands' names and first lines; their code is imported when called."""

from __future__ import annotations

import importlib
from typing import Any

import click

from taskmq.cli.exits import EPILOG, one_line, set_debug

_COMMANDS = {
    "worker": "Run an app's tasks until told to stop.",
    "dev": "The same, started anew whenever the code changes.",
    "enqueue": "Publish one task, or one for each row of a CSV or JSON Lines file.",
    "status": "Show queues and workers.",
    "task": "List, show, cancel and retry tasks.",
    "why": "Say why a task does not run now.",
    "queue": "Pause, resume, configure, purge and delete queues.",
    "partition": "Look at partitions; pause, resume, release, skip and purge them.",
    "dead": "List, show, replay and purge dead letters.",
    "doctor": "Say what is wrong, and what to do about it.",
    "server": "Serve the API and workers over a SQL database.",
    "migrate": "Bring a SQL database to this program's schema.",
    "admin": "Make a server's first credentials, and tokens.",
    "bench": "Measure a store.",
    "completion": "Print a shell's script for tab completion.",
}
"""Name → first line of help. The command is ``command`` in ``taskmq.cli.<name>``."""


class Root(click.Group):
    """A group that imports a command when it is called, and lets every error out as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which a user meets them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, or None for an unknown name."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"taskmq.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the root's own options; a wrong one is told in one line too."""
        with one_line():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it returns is the exit code."""
        with one_line(ctx):
            code = super().invoke(ctx)
        ctx.exit(code or 0)


@click.group(
    cls=Root,
    epilog=EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="taskmq", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A task queue with priority, fairness and order, the same on every store.

    \b
    The app comes from the command's argument, --app, TASKMQ_APP, or [tool.taskmq] app in ./pyproject.toml.
    All but worker and dev also work with a store's URL alone, from --url, or without an app from TASKMQ_URL,
    [tool.taskmq] url, or sqlite:///taskmq.db.
    Listings are tables, or with --json one JSON object a line; times in them are UTC.
    """  # noqa: D301 - click reads the \b, which keeps the lines as they are
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """Entry point of the ``taskmq`` command."""
    cli(prog_name="taskmq")
