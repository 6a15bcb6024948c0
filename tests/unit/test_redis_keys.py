"""Keys and settings of the Redis store."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from taskmq.transport.redis import scripts
from taskmq.transport.redis.inprocess import READS
from taskmq.transport.redis.keys import ALONE, NAMED, Keys, namespaced
from taskmq.transport.redis.permission import WRITES
from taskmq.transport.redis.scripts import library, script

names = st.text(alphabet="a1:/{}.@-", min_size=1, max_size=8)
texts = st.text(alphabet="ab1: {}é!", min_size=1, max_size=8)
KEYS = Keys("taskmq:")


def _key(kind: str, queue: str, text: str) -> bytes:
    if kind == "part":
        return KEYS.partition(queue, text.encode())
    if kind == "parked":
        return KEYS.parked(queue, 1, 1, text.encode())
    if kind in ("line", "turns"):
        return KEYS.of_spec(kind, len(text), queue)
    if kind == "limit":
        return KEYS.limit(text)
    return KEYS.of_queue(kind, queue)


def _meant(kind: str, queue: str, text: str) -> tuple[object, ...]:
    if kind in ("part", "parked"):
        return kind, queue, text
    if kind in ("line", "turns"):
        return kind, len(text), queue
    return (kind, text) if kind == "limit" else (kind, queue)


kinds = st.sampled_from(["part", "parked", "line", "turns", "limit", "state", "conf", "flows", "wake"])


@given(kinds, names, texts, kinds, names, texts)
def test_keys_are_injective(a: str, queue_a: str, text_a: str, b: str, queue_b: str, text_b: str) -> None:
    """Two different things never have one key, whatever they are called."""
    same = _key(a, queue_a, text_a) == _key(b, queue_b, text_b)
    assert same == (_meant(a, queue_a, text_a) == _meant(b, queue_b, text_b))


@given(names, names)
def test_namespaces_are_apart(a: str, b: str) -> None:
    """No two namespaces have one prefix."""
    assert (namespaced("taskmq:", a) == namespaced("taskmq:", b)) == (a == b)


def test_the_library_knows_every_script() -> None:
    """Each script is registered under a name that carries the library's digest, and can be run as a plain script."""
    whole = library()
    source = whole.source().decode()
    assert source.startswith(f"#!lua name=taskmq_{whole.digest}\n")
    for name in whole.scripts:
        assert f"function_name='{whole.function(name)}'" in source
        assert script(name).text.endswith(f"return enter_script('{name}', KEYS, ARGV)\n".encode())


CALLED = re.compile(r"redis\.call\('(\w+)'")
READING = {word.decode() for word in READS}


def test_scripts_read_first_and_write_at_the_end() -> None:
    """No script calls a writing command in its body: all writes go through one place, and nobody sees their replies.

    The short ways write by themselves: what they call either reads or writes, and nothing reads after the first write.
    """
    include = Path(scripts.__file__).parent / "lua" / "include"
    own = ("rest.lua", "turns.lua", "short.lua")
    text = "".join((include / name).read_text(encoding="utf-8") for name in own)
    functions = dict(re.findall(r"^(?:local )?function ([\w.]+)\([^\n]*\)\n(.*?)^end$", text, re.MULTILINE | re.DOTALL))
    bodies = [functions.pop(f"short.{verb}") for verb in ("publish", "reserve", "settle")]
    parts = {name.rpartition(".")[2]: body for name, body in functions.items()}
    writing = {name for name, body in parts.items() if _writes(body)}
    reading = {name for name, body in parts.items() if _reads(body)}
    while more := {name for name, body in parts.items() if _calls(body) & reading} - reading:
        reading |= more
    assert writing
    assert not reading & writing
    for body in bodies:
        before, _, after = body.partition("redis.call(unpack(sets))")
        assert after
        assert not _writes(before)
        assert not _calls(before) & writing
        assert not _reads(after)
        assert not _calls(after) & reading
    for file in (*include.glob("*.lua"), *include.parent.glob("*.lua")):
        if file.name not in own:
            text = file.read_text(encoding="utf-8")
            assert set(CALLED.findall(text)) <= READING
            assert text.count("redis.call(unpack") == (file.name == "base.lua")


def _calls(body: str) -> set[str]:
    return set(re.findall(r"(\w+)\(", body))


def _reads(body: str) -> bool:
    return bool(set(CALLED.findall(body)) & READING) or "redis.call(unpack(keys))" in body


def _writes(body: str) -> bool:
    return bool(set(CALLED.findall(body)) - READING) or bool(re.search(r"redis\.call\(unpack\((?!keys|ids)", body))


def test_every_writing_command_is_rehearsed() -> None:
    """What a user needs to be permitted is known: exactly what the scripts write with."""
    text = library().text
    named = {*re.findall(r"(?:write\(|= \{|, \{)'([A-Z]{3,})'", text), *CALLED.findall(text)}
    assert named - READING == set(WRITES)


def test_every_key_of_the_scripts_is_known() -> None:
    """Whatever key a script builds begins with a word that ``flush`` knows as ours."""
    text = library().text
    named = set(re.findall(r"(?:K2?\(|of_partition\(line, |zq\((?:\w+), |of_specs\(q, |[HP] \.\. )'(\w+)[:']", text))
    named |= set(re.findall(r"'(\w+)'", re.search(r"local own = \{(.*?)\}", text, re.DOTALL)[1]))  # type: ignore[index]
    named |= set(re.findall(r"'(\w+)'", re.search(r"DUE = \{(.*?)\}", text)[1]))  # type: ignore[index]
    assert {"t", "turns", "queues", "owing", "leases"} < named
    assert named <= set(ALONE) | set(NAMED)


def test_a_flush_of_a_cluster_knows_its_own_keys() -> None:
    """What a cluster keeps in slots is taskmq's; a longer prefix and other programs' keys are not."""
    keys = Keys("taskmq:", "q:{")
    own = [keys.of_queue("state", "q"), keys.of_spec("line", 1, "q"), keys.task("01"), keys.partition("q", b"}:x")]
    assert all(KEYS.is_own(key) for key in (*own, b"taskmq:{*wake}:state", b"taskmq:{*lock:a}b}:lock:a}b"))
    assert not any(KEYS.is_own(key) for key in (b"taskmq:x:{q}:state", b"taskmq:{q}:other", b"{q}:state"))
