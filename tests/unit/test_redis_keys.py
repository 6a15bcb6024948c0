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

    The short ways (``short.lua``) write by themselves: each reads nothing after its first write.
    """
    include = Path(scripts.__file__).parent / "lua" / "include"
    short = (include / "short.lua").read_text(encoding="utf-8")
    bodies = [body.partition("\nend\n")[0] for body in short.split("function short.")[1:]]
    assert len(bodies) == 3
    for body in bodies:
        reads, _, writes = body.partition("redis.call(unpack(sets))")
        assert set(CALLED.findall(reads)) <= READING
        assert writes
        assert not set(CALLED.findall(writes)) & READING
    for file in (*include.glob("*.lua"), *include.parent.glob("*.lua")):
        if file.name != "short.lua":
            text = file.read_text(encoding="utf-8")
            assert set(CALLED.findall(text)) <= READING
            assert text.count("redis.call(unpack") == (file.name == "base.lua")


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
