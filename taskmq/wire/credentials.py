"""The credentials file: one JSON object, mode 0600, that only its user can read."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from typing import Any

import msgspec

from taskmq.errors import ConfigError

TOKEN = re.compile(r"tmq_([0-9a-f]{16})_([A-Za-z0-9_-]{43})\Z")
FORMAT = 1


class QueueRef(msgspec.Struct, frozen=True):
    """A queue by id and name."""

    queue_id: str
    name: str


class _File(msgspec.Struct):
    format: int
    token: str
    url: str | None = None
    application: str | None = None
    namespace: str | None = None
    environment: str | None = None
    token_id: str | None = None
    scopes: list[Any] = []
    queue: QueueRef | None = None
    created_at: str | None = None
    expires_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token, and what its file says of it. ``repr`` hides the token."""

    token: str = field(repr=False)
    url: str | None = None
    application: str | None = None
    namespace: str | None = None
    environment: str | None = None
    queue: QueueRef | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.token, str) or not TOKEN.match(self.token):
            raise ConfigError("the token is not of the form tmq_<16 hex digits>_<43 characters>")

    @classmethod
    def read(cls, path: str) -> Credentials:
        """Read a file; raises ConfigError with the way out."""
        data = _read_private(path)
        try:
            found = msgspec.json.decode(data, type=_File)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no credentials file: {error}") from None
        if found.format != FORMAT:
            raise ConfigError(f"{path} has format {found.format}; this version of taskmq reads format {FORMAT}")
        return cls(
            token=found.token,
            url=found.url,
            application=found.application,
            namespace=found.namespace,
            environment=found.environment,
            queue=found.queue,
        )


def _read_private(path: str) -> bytes:
    """The bytes of a regular file of ours that nobody else can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        why = "a link" if os.path.islink(path) else error.strerror or str(error)
        raise ConfigError(f"the credentials file {path} cannot be read: {why}") from None
    except ValueError as error:
        raise ConfigError(f"the credentials file {path!r} cannot be read: {error}") from None
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"the credentials file {path} is not a regular file")
        if status.st_uid != os.geteuid():
            raise ConfigError(f"the credentials file {path} belongs to another user")
        if status.st_mode & 0o077:
            raise ConfigError(f"the credentials file {path} can be read by others: chmod 600 {path}")
        return file.read(1_000_000)


def create_private(path: str) -> int:
    """A new file of mode 0600, opened for writing; raises FileExistsError, OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
