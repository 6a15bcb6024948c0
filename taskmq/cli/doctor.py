"""``taskmq doctor``: what is wrong, and what to do about it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict

import click

from taskmq.cli.exits import FAILED, OK
from taskmq.cli.output import echo_json, echo_table, json_option
from taskmq.cli.target import Target, open_app, refuse_nothing, target_options
from taskmq.errors import ConfigError
from taskmq.transport.base import Finding

_COLUMNS = ("level", "check", "what is wrong", "what to do")


@click.command("doctor")
@click.argument("module_app", metavar="[MODULE:NAME]", required=False)
@target_options
@json_option
def command(target: Target, as_json: bool) -> int:
    """Say what is wrong with a store, its workers and an app's settings, and what to do about it.

    Looks at durability, disk and integrity of the store, at clocks, at queues without workers, unknown handlers,
    stuck partitions, dead letters, leases, and at what an app asks for that the store or the workers do not do.

    \b
    Exit codes: 0 nothing, or warnings only; 1 at least one error: tasks are lost or do not run.
    """  # noqa: D301 - click reads the \b
    refuse_nothing(target)
    findings = _examine(target)
    if as_json:
        for finding in findings:
            echo_json(asdict(finding))
    elif findings:
        echo_table(_COLUMNS, [(one.level, one.check, one.text, one.fix) for one in findings])
    else:
        click.echo("nothing is wrong, as far as can be seen from here")
    return FAILED if any(finding.level == "error" for finding in findings) else OK


def _examine(target: Target) -> list[Finding]:
    try:
        app = open_app(target)
    except ConfigError as error:  # a wrong URL, an app that cannot be imported: what doctor is there to find
        from taskmq.doctor import unusable

        return [unusable(error)]
    with closing(app):
        return app.doctor()
