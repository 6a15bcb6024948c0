from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskmq import Config, ConfigError, QueueConfig


def test_without_anything_it_is_a_file_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No URL and no TASKMQ_URL is SQLite in the working directory."""
    monkeypatch.delenv("TASKMQ_URL", raising=False)
    config = Config()
    assert (config.url, config.namespace) == ("sqlite:///taskmq.db", "default")
    assert (config.lease_s, config.grace_s) == (30.0, 25.0)
    assert (config.max_payload, config.max_result) == (262_144, 262_144)


@pytest.mark.parametrize(("value", "url"), [("redis://h/0", "redis://h/0"), ("", "sqlite:///taskmq.db")])
def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch, value: str, url: str) -> None:
    """TASKMQ_URL is the default; an empty one is none."""
    monkeypatch.setenv("TASKMQ_URL", value)
    assert Config().url == url
    assert Config(url="memory://").url == "memory://"


def test_durations_may_be_written_in_every_way() -> None:
    """Lease and grace take seconds, text and timedelta."""
    config = Config(lease="1m", grace=timedelta(minutes=2))
    assert (config.lease_s, config.grace_s) == (60.0, 120.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "nothing"},
        {"url": None},
        {"namespace": ""},
        {"namespace": "n" * 65},
        {"namespace": "a b"},
        {"lease": 0.1},
        {"lease": 3601},
        {"lease": None},
        {"grace": -1},
        {"grace": "soon"},
        {"max_payload": 0},
        {"max_payload": 900 * 1024 + 1},
        {"max_payload": 1.5},
        {"max_result": True},
        {"queues": ["mail"]},
        {"queues": {"mail": {"weight": 3}}},
        {"queues": {"two words": QueueConfig()}},
    ],
    ids=str,
)
def test_values_outside_their_range_are_refused(wrong: dict[str, Any]) -> None:
    """Every field is checked when the config is built, and the message names it."""
    with pytest.raises(ConfigError, match=next(iter(wrong)).removesuffix("s")):
        Config(**wrong)


def test_all_faults_are_told_at_once() -> None:
    """Nobody has to mend one fault to see the next."""
    with pytest.raises(ConfigError) as caught:
        Config(url="nothing", namespace="a b", lease=0, max_payload=0)
    assert all(name in str(caught.value) for name in ("url", "namespace", "lease", "max_payload"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:hunter2@h/0", "redis://:***@h/0"),
        ("postgresql://me:hunter2@h:5432/db?sslmode=require", "postgresql://me:***@h:5432/db?sslmode=require"),
        ("https://h/?token=hunter2&a=1", "https://h/?token=***&a=1"),
        ("unix:///path?db=0&password=hunter2", "unix:///path?db=0&password=***"),
        ("redis://me:hunter2@/hunter2@h", "redis://me:***@h"),
        ("sqlite:///taskmq.db", "sqlite:///taskmq.db"),
        ("memory://", "memory://"),
    ],
)
def test_secrets_are_in_no_text(url: str, shown: str) -> None:
    """Passwords and tokens of the URL are in neither the repr nor the URL for messages."""
    config = Config(url=url)
    assert config.safe_url == shown
    assert "hunter2" not in repr(config)


def test_a_url_that_is_none_is_shown_without_its_password() -> None:
    """Also the error for a URL that is none has no secret in it."""
    with pytest.raises(ConfigError) as caught:
        Config(url="//me:hunter2@h")
    assert "hunter2" not in str(caught.value)


def test_it_is_frozen() -> None:
    """Nothing of a config can change, and later changes of the mapping it was given do not reach it."""
    queues = {"mail": QueueConfig(weight=3)}
    config = Config(queues=queues)
    queues["other"] = QueueConfig()
    assert list(config.queues) == ["mail"]
    with pytest.raises(AttributeError):
        config.lease = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.queues["x"] = QueueConfig()  # type: ignore[index]
