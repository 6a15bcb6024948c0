"""``taskmq server``: serve the API and workers until told to stop."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from taskmq.cli.database import database_option, database_url, protocol_exits
from taskmq.cli.exits import FAILED, USAGE, CliError
from taskmq.errors import ConfigError
from taskmq.wire.codes import MAX_CONTENT


@click.command("server")
@database_option
@click.option("--http-addr", metavar="HOST:PORT", help="Where to listen. [TASKMQ_HTTP_ADDR, or 127.0.0.1:8080]")
@click.option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")
@click.option("--tls-key", metavar="FILE", help="Its key, PEM.")
@click.option("--insecure", is_flag=True, help="Without TLS although others can reach it: behind a proxy that has it.")
@click.option("--trusted-proxy", metavar="CIDR", multiple=True, help="Believe X-Forwarded-For of these.")
@click.option("--log-format", type=click.Choice(("json", "text")), default="text", show_default=True)
def command(
    database: str | None,
    http_addr: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    insecure: bool,
    trusted_proxy: tuple[str, ...],
    log_format: str,
) -> int:
    """Serve the API and workers until told to stop.

    Limits by environment: TASKMQ_MAX_BODY, TASKMQ_MAX_BATCH_BODY and TASKMQ_MAX_PAYLOAD in bytes; TASKMQ_REQUEST_RATE a
    second and TASKMQ_REQUEST_BURST for each token.

    SIGTERM or Ctrl-C: workers are told, what they have not started goes back, what runs has ten seconds to end. A
    second one: now. The database must be migrated: taskmq migrate up.
    """
    _log_to_stderr(log_format)
    with protocol_exits():
        from taskmq.server import run
        from taskmq.server.database import migrations
        from taskmq.server.database.engine import Database
        from taskmq.server.settings import Settings

        address = http_addr or os.environ.get("TASKMQ_HTTP_ADDR") or "127.0.0.1:8080"
        settings = Settings(
            database_url=database_url(database),
            http_addr=address,
            tls_cert=tls_cert,
            tls_key=tls_key,
            insecure=insecure,
            trusted_proxies=trusted_proxy,
            metrics_token=_metrics_token(),
            **limits(),
        )
        opened = Database(settings.database_url)
        try:
            pending = migrations.status(opened).pending
        finally:
            opened.close()
        if pending:
            raise CliError(f"{pending} migrations are missing: taskmq migrate up", USAGE)
        try:
            listening = run.bind(settings)
        except OSError as error:
            raise CliError(f"cannot listen on {address}: {error.strerror or error}", FAILED) from error
        run.serve(settings, listening)
    return 0


_LIMITS = {
    "max_body": (1024, 64 * 1_048_576),
    "max_batch_body": (1024, 64 * 1_048_576),
    "max_payload": (1, MAX_CONTENT),
    "request_rate": (1, 1_000_000),
    "request_burst": (1, 1_000_000),
}
"""Setting → its range."""


def limits() -> dict[str, Any]:
    """What the environment says of limits."""
    found = {}
    for name, (low, high) in _LIMITS.items():
        text = os.environ.get(f"TASKMQ_{name.upper()}")
        if text:
            if not text.isascii() or not text.isdigit() or not low <= int(text[:12]) <= high:
                raise ConfigError(f"TASKMQ_{name.upper()} is not a number from {low:,} to {high:,}")
            found[name] = int(text)
    return found


def _metrics_token() -> str | None:
    path = os.environ.get("TASKMQ_METRICS_TOKEN_FILE")
    if not path:
        return None
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"TASKMQ_METRICS_TOKEN_FILE {path} cannot be read: {error}") from None
    if len(token) < 16:
        raise ConfigError(f"the token in {path} is shorter than 16 characters")
    return token


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _log_to_stderr(log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if log_format == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
