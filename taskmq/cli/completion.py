"""``taskmq completion``: the shell's own script, and what it is told about the store and the app."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

import click

from taskmq.cli.target import Target, find_target, open_app, refuse_nothing

if TYPE_CHECKING:
    from taskmq.app import App

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Print a shell's script for tab completion of commands, options, queues and handlers.

    \b
    bash:  eval "$(taskmq completion bash)"     in ~/.bashrc; bash 4.4 or newer
    zsh:   eval "$(taskmq completion zsh)"      in ~/.zshrc, after compinit
    fish:  taskmq completion fish > ~/.config/fish/completions/taskmq.fish
    """  # noqa: D301 - click reads the \b
    from click.shell_completion import get_completion_class

    from taskmq.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(cli, {}, "taskmq", "_TASKMQ_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())


def complete_queues(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of the store's queues."""
    return _names(ctx, incomplete, lambda app: [queue.name for queue in app.store.stats()])


def complete_handlers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of the app's handlers; without an app, those that its store's tasks have."""
    return _names(
        ctx,
        incomplete,
        lambda app: [*app.handlers] or [name for queue in app.store.stats() for name in queue.by_handler],
    )


def _names(ctx: click.Context, incomplete: str, read: Callable[[App], list[str]]) -> list[str]:
    """What ``read`` gives for the target of the line so far; nothing where that fails: a TAB must not print errors."""
    given = ctx.params
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            target = find_target(Target(given.get("app"), given.get("url"), given.get("namespace")))
            refuse_nothing(target)
            with closing(open_app(target)) as app:
                names = read(app)
    except Exception:  # no app, no store, a broken one: then there is nothing to propose
        return []
    return sorted({name for name in names if name.startswith(incomplete)})
