"""A store object for each environment, opened when it is first asked for, over the one database."""

from __future__ import annotations

import threading
from typing import cast

from taskmq.errors import ConfigError
from taskmq.transport.registry import open_store
from taskmq.transport.serving import ServingStore


class Stores:
    """Environment → its store. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: dict[str, ServingStore] = {}
        self._lock = threading.Lock()

    def of(self, environment_id: str) -> ServingStore:
        """The environment's store."""
        store = self._open.get(environment_id)
        if store is None:
            with self._lock:
                store = self._open.get(environment_id)
                if store is None:
                    opened = open_store(self._url, namespace=environment_id)
                    if not hasattr(opened, "steps"):
                        opened.close()
                        raise ConfigError("a server needs a SQL store: sqlite://, postgresql://")
                    store = self._open[environment_id] = cast(ServingStore, opened)
        return store

    def opened(self) -> list[str]:
        """The environments that were asked for."""
        return list(self._open)

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()
