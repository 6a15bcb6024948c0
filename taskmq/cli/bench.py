"""``taskmq bench``: how fast is this store, from here, with this worker?"""

from __future__ import annotations

import secrets
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from taskmq.cli.output import echo_json, echo_table, json_option
from taskmq.cli.target import Target, open_app, refuse_nothing, target_options

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.cli.measure import Measured


@click.command("bench")
@click.argument("module_app", metavar="[MODULE:NAME]", required=False)
@target_options
@click.option(
    "--tasks", metavar="N", type=click.IntRange(1, 1_000_000), default=2000, show_default=True, help="For each measure."
)
@click.option(
    "--payload",
    metavar="BYTES",
    type=click.IntRange(0, 900_000),
    default=100,
    show_default=True,
    help="Of each task's argument.",
)
@click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=8,
    show_default=True,
    help="Of the worker's threads.",
)
@json_option
def command(target: Target, tasks: int, payload: int, concurrency: int, as_json: bool) -> None:
    """Measure the store from here: publish, claim and settle, a worker's no-op tasks, and the time to a task's start.

    It works in a namespace of its own, which is removed at the end, also when it is interrupted; other tasks of the
    store are not touched, but they share its disk and its processor.
    """
    from taskmq.cli.measure import measure

    refuse_nothing(target)
    with closing(open_app(target)) as app:
        bench = _throw_away(app)
    with closing(bench):
        try:
            measured = measure(bench, tasks, payload, concurrency)
        finally:
            bench.store.flush()
    _show(measured, bench, tasks, payload, concurrency, as_json)


def _throw_away(app: App) -> App:
    """An app for a namespace that nobody else has."""
    from taskmq.app import App
    from taskmq.config import MAX_BODY

    namespace = f"bench-{secrets.token_hex(6)}"
    return App(replace(app.config, namespace=namespace, queues={}, max_payload=MAX_BODY))


def _show(measured: Measured, app: App, tasks: int, payload: int, concurrency: int, as_json: bool) -> None:
    if as_json:
        about = {"store": app.config.safe_url, "tasks": tasks, "payload": payload, "concurrency": concurrency}
        echo_json({**about, **measured._asdict()})
        return
    rows = [
        ("publish, one by one", f"{measured.publish_single:,.0f}", "tasks/s"),
        ("publish, in batches", f"{measured.publish_batch:,.0f}", "tasks/s"),
        ("claim and settle, in batches", f"{measured.claim_settle:,.0f}", "tasks/s"),
        (f"worker, no-op, {concurrency} threads", f"{measured.worker:,.0f}", "tasks/s"),
        ("publish to start, p50", f"{measured.latency_p50_ms:,.2f}", "ms"),
        ("publish to start, p99", f"{measured.latency_p99_ms:,.2f}", "ms"),
    ]
    echo_table(("measure", "figure", "unit"), rows, numbers=("figure",))
