"""The settings of an app: frozen, checked when they are built, all faults reported at once."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypedDict
from urllib.parse import urlsplit

from taskmq.durations import Duration, seconds
from taskmq.errors import ConfigError, InvalidArgument
from taskmq.names import check_int, check_name, short
from taskmq.queue import QueueConfig
from taskmq.urls import without_secrets

KIB = 1024
DEFAULT_URL = "sqlite:///taskmq.db"
MAX_BODY = 900 * KIB
ENVIRONMENT = ("TASKMQ_URL", "TASKMQ_APP")


def _default_url() -> str:
    refuse_misspelled_environment()
    return os.environ.get("TASKMQ_URL") or DEFAULT_URL


def refuse_misspelled_environment() -> None:
    """Raise ConfigError for a variable that was surely meant to be one of ours, before another store is used instead.

    Only near misses of a variable that is not set: others may belong to programs around us.
    """
    missing = [name for name in ENVIRONMENT if not os.environ.get(name)]
    for name in os.environ:
        near = difflib.get_close_matches(name, missing, n=1, cutoff=0.85)
        if near and name not in ENVIRONMENT:
            raise ConfigError(f"the environment has {name}, which means nothing: did you mean {near[0]}?")


class ConfigSettings(TypedDict, total=False):
    """The fields of Config, for ``App(url, …)``."""

    url: str
    namespace: str
    lease: Duration
    queues: Mapping[str, QueueConfig]
    max_payload: int
    max_result: int
    grace: Duration


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config:
    """Settings of an app.

    ``url``          where the store is; default: the environment's ``TASKMQ_URL``, else ``sqlite:///taskmq.db``
    ``namespace``    apps of different namespaces in one store do not see each other; 1 to 64 characters
    ``lease``        how long a worker may be silent before its tasks go to others: 0.2 s to 1 h, default 30 s
    ``queues``       seeds of the queues' settings, by name
    ``max_payload``  bytes of a task's arguments, ``max_result`` of its result: at most 900 KiB, default 256 KiB
    ``grace``        how long running tasks may go on at shutdown: 0 to 24 h, default 25 s

    Raises ConfigError, which names every fault.
    """

    url: str = field(default_factory=_default_url)
    namespace: str = "default"
    lease: Duration = 30.0
    queues: Mapping[str, QueueConfig] = field(default_factory=dict)
    max_payload: int = 256 * KIB
    max_result: int = 256 * KIB
    grace: Duration = 25.0

    def __post_init__(self) -> None:
        checks: tuple[Callable[[], object], ...] = (
            lambda: _check_url(self.url),
            lambda: _check_namespace(self.namespace),
            lambda: self.lease_s,
            lambda: self.grace_s,
            lambda: check_int("max_payload", self.max_payload, 1, MAX_BODY),
            lambda: check_int("max_result", self.max_result, 1, MAX_BODY),
            lambda: _check_queues(self.queues),
        )
        faults = [fault for fault in map(_fault, checks) if fault is not None]
        if faults:
            raise ConfigError("; ".join(faults))
        object.__setattr__(self, "lease", self.lease_s)
        object.__setattr__(self, "grace", self.grace_s)
        object.__setattr__(self, "queues", MappingProxyType(dict(self.queues)))

    def __repr__(self) -> str:
        return f"<Config url={self.safe_url!r} namespace={self.namespace!r}>"

    @property
    def lease_s(self) -> float:
        """``lease`` in seconds."""
        return seconds("lease", self.lease, 0.2, 3600.0)

    @property
    def grace_s(self) -> float:
        """``grace`` in seconds."""
        return seconds("grace", self.grace, 0.0, 86400.0)

    @property
    def safe_url(self) -> str:
        """The URL without its secrets, for logs and messages."""
        return without_secrets(self.url)


def _fault(check: Callable[[], object]) -> str | None:
    try:
        check()
    except InvalidArgument as error:
        return str(error)
    return None


def _check_url(url: Any) -> None:
    if not isinstance(url, str) or "://" not in url:
        shown = repr(without_secrets(url)) if isinstance(url, str) else repr(url)
        raise InvalidArgument(f"url {shown} is not a store's URL, e.g. {DEFAULT_URL}")
    try:
        urlsplit(url)
    except ValueError as error:
        raise InvalidArgument(f"url {without_secrets(url)!r} cannot be read: {error}") from None
    if any(0xD800 <= ord(character) <= 0xDFFF for character in url):
        raise InvalidArgument(f"url {without_secrets(url)!r} is not text: it has bytes that are not UTF-8")


def _check_namespace(namespace: Any) -> None:
    if len(check_name("namespace", namespace)) > 64:
        raise InvalidArgument(f"namespace {namespace!r} is longer than 64 characters")


def _check_queues(queues: Any) -> None:
    if not isinstance(queues, Mapping):
        raise InvalidArgument(f"queues must map names to QueueConfig, not be {short(queues)}")
    for name, config in queues.items():
        check_name("queue", name)
        if not isinstance(config, QueueConfig):
            raise InvalidArgument(f"queue {name!r} has {short(config)} instead of a QueueConfig")
