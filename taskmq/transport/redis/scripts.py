"""The scripts: loaded from ``lua/``, each include spliced in once, comments left out."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from typing import NamedTuple

_INCLUDE = re.compile(r"^-- @include (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n|\s+-- .*$|^\s*\n", re.MULTILINE)


class Script(NamedTuple):
    """A script's name, its text, and the digest by which a server knows it."""

    name: str
    text: bytes
    sha: bytes


@cache
def script(name: str) -> Script:
    """The script ``lua/<name>.lua``."""
    text = _COMMENT.sub("", _spliced(name, set())).encode()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


def _spliced(path: str, seen: set[str]) -> str:
    """The file with its includes in place; one that stands there already is left out."""
    folder = resources.files(__package__) / "lua"
    text = (folder / f"{path}.lua").read_text(encoding="utf-8")

    def include(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        return _spliced(f"include/{name}", seen)

    return _INCLUDE.sub(include, text)
