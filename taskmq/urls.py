"""URLs in logs and messages: never with their secrets."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(//[^/@:]*:)[^?]*@")  # greedy: a password may have an unquoted @ or / in it
_SECRET = re.compile(r"([?&][^=&]*(?:password|passwd|secret|token)[^=&]*=)[^&#]*", re.IGNORECASE)


def without_secrets(url: str) -> str:
    """The URL with ``***`` for its password and for query values that are named like one."""
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1***@", url))
