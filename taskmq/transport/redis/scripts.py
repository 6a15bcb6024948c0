"""The scripts: ``lua/*.lua`` and what they include, put together to one library.

A function library (Redis 7, Valkey) is loaded once and keeps its closures. As plain scripts they would be made anew for
every call, about 130 of them: 35 µs where the work itself takes ten. A server without libraries, or a user who may not
load them, still gets each script by EVALSHA, with the whole library before it.

The library's name carries a digest of its text, so versions of taskmq live side by side on one server. Only ``publish``
is refused when the memory is full: everything else must go on, for it is what makes room. In a library a flag says so.
Plain scripts of Redis 6.2 have no flags; but who has written is not stopped again, so they first delete what never was.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

_INCLUDE = re.compile(r"^-- @include (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n|\s+-- .*$|^\s*\n", re.MULTILINE)
_BODY = "-- @body\n"
"""Above this line stands what a script needs but does not make anew for every call: its functions."""
_FOLDER = resources.files(__package__) / "lua"

_READING = frozenset(("has_work", "stats"))
_GROWING = frozenset(("publish",))


class Script(NamedTuple):
    """A script of the library.

    ``function``  what it is called in a server
    ``text``      itself as a plain script, and ``sha`` by which a server knows that
    ``writes``    whether it may
    """

    name: str
    function: bytes
    text: bytes
    sha: bytes
    writes: bool


class Call(NamedTuple):
    """A call of a script. ``keys``: in a cluster those that say in which slot it works (include/base.lua).

    ``home``  whose slot that is
    """

    script: Script
    args: Sequence[Any]
    keys: tuple[bytes, ...] = ()
    home: str = ""


class Library(NamedTuple):
    """All scripts. ``text`` is Lua to stand before a call of ``enter_script(name, KEYS, ARGV)``."""

    text: str
    digest: str
    scripts: tuple[str, ...]

    def source(self) -> bytes:
        """What a server is given to load."""
        registered = "\n".join(
            f"redis.register_function{{function_name='{self.function(name)}', flags={{{_flags(name)}}}, "
            f"callback=function(KEYS, ARGV) return enter_script('{name}', KEYS, ARGV) end}}"
            for name in self.scripts
        )
        return f"#!lua name=taskmq_{self.digest}\n{self.text}{registered}\n".encode()

    def function(self, name: str) -> str:
        """What a script is called in a server."""
        return f"taskmq_{self.digest}_{name}"


def _flags(name: str) -> str:
    if name in _READING:
        return "'no-writes'"
    return "" if name in _GROWING else "'allow-oom'"


@cache
def library() -> Library:
    """The library, put together from the files."""
    names = tuple(sorted(file.name.removesuffix(".lua") for file in _FOLDER.iterdir() if file.name.endswith(".lua")))
    included: dict[str, str] = {}
    bodies = []
    for name in names:
        text = (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
        _include(text, included)
        made_once, _, body = _INCLUDE.sub("", text).rpartition(_BODY)
        bodies.append(f"do\n{made_once}\nrun.{name} = function(ARGV)\n{body}\nend\nend\n")
    text = _COMMENT.sub("", "".join((*included.values(), *bodies)))
    return Library(text, hashlib.sha256(text.encode()).hexdigest()[:12], names)


def _include(text: str, included: dict[str, str]) -> None:
    """Add what a text includes, each file once and after all that it needs itself."""
    for name in _INCLUDE.findall(text):
        if name not in included:
            found = (_FOLDER / "include" / f"{name}.lua").read_text(encoding="utf-8")
            _include(found, included)
            included[name] = _INCLUDE.sub("", found)


@cache
def script(name: str) -> Script:
    """The script ``lua/<name>.lua``."""
    whole = library()
    opening = "" if name in _READING | _GROWING else "redis.call('DEL', KEYS[2] or ARGV[1] .. 'none')\n"
    text = f"{whole.text}{opening}return enter_script('{name}', KEYS, ARGV)\n".encode()
    sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
    return Script(name, whole.function(name).encode(), text, sha, name not in _READING)
