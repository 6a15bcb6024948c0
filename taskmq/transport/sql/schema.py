"""Whether a database has the schema that this version of taskmq works with."""

from __future__ import annotations

from taskmq.errors import ConfigError
from taskmq.transport.sql.codes import SCHEMA_VERSION


def check_version(place: str, found: int, way_up: str) -> None:
    """Raise ConfigError unless ``found`` is the version that is needed.

    ``place`` names the database, ``way_up`` says how an older one becomes a newer one.
    """
    if found > SCHEMA_VERSION:
        raise ConfigError(
            f"{place} has schema {found}, made by a newer taskmq; this one knows {SCHEMA_VERSION}: upgrade taskmq"
        )
    if found < SCHEMA_VERSION:
        raise ConfigError(f"{place} has schema {found}, {way_up}")
