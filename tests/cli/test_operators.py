"""``taskmq why``, ``queue`` and ``partition``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from taskmq import App
from taskmq.cli.main import cli
from taskmq.outcome import Dead
from taskmq.transport.base import Reserve, Settle, Settlement


class Shell:
    def __init__(self, url: str) -> None:
        self.url = url
        self.app = App(url)

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(cli, [*words, "--url", self.url], catch_exceptions=False)

    def put(self, **options: object) -> str:
        return self.app.ref("h", queue="q").using(**options).enqueue().id  # type: ignore[arg-type]

    def die(self) -> None:
        (delivery,) = self.app.store.reserve(Reserve(queues=["q"], limit=1, worker="w")).deliveries
        self.app.store.settle(Settle(items=[Settlement(delivery, Dead("failed"))]))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(f"sqlite:///{tmp_path}/q.db")


def test_why_says_what_holds_a_task_back(shell: Shell) -> None:
    """``why`` prints the reason, with --json as an object; an unknown id is exit code 3."""
    task = shell.put()
    shell("queue", "pause", "q")
    assert "queue q is paused" in shell("why", task).output
    assert json.loads(shell("why", task, "--json").output)["state"] == "QUEUED"
    assert shell("why", "0" * 32).exit_code == 3


def test_queue_settings_change_and_stay(shell: Shell) -> None:
    """``queue configure`` changes what is named, nothing else; wrong values and nothing to change are exit code 2."""
    assert shell("queue", "configure", "q", "--weight", "5", "--max-running", "2").exit_code == 0
    shell("queue", "configure", "q", "--max-running", "0")
    config = shell.app.queue("q").stats().config
    assert (config.weight, config.max_running) == (5, None)
    assert shell("queue", "configure", "q").exit_code == 2
    assert shell("queue", "configure", "q", "--weight", "0").exit_code == 2
    assert shell("queue", "configure", "q", "--order", "sideways").exit_code == 2


@pytest.mark.parametrize(("option", "value"), [("--rate", "100/s"), ("--max-queued", "5")])
def test_a_setting_is_taken_or_refused(shell: Shell, option: str, value: str) -> None:
    """A store that does not enforce a setting refuses it in one line; lifting one that is not there changes nothing."""
    ran = shell("queue", "configure", "q", option, value)
    setting = option.removeprefix("--").replace("-", "_")
    assert ran.exit_code == 0 or f"{setting} is not enforced by the sqlite store yet" in ran.output
    assert shell("queue", "configure", "q", option, "0").exit_code == 0
    assert getattr(shell.app.queue("q").stats().config, setting) is None
    assert shell("queue", "configure", "q", "--rate", "often").exit_code == 2


def test_only_stopped_partitions_are_listed(shell: Shell) -> None:
    """--stopped leaves out the partitions that go on."""
    shell.put(partition="a")
    shell.put(partition="b")
    shell("partition", "pause", "q", "b")
    listed = shell("partition", "list", "q", "--stopped", "--json").output.splitlines()
    assert [json.loads(line)["code"] for line in listed] == ["b"]


def test_queue_purge_and_delete(shell: Shell) -> None:
    """A queue with tasks is not deleted; purged, it is."""
    shell.put()
    assert shell("queue", "delete", "q", "--yes").exit_code == 2
    assert "cancelled 1 tasks" in shell("queue", "purge", "q", "--yes").output
    assert shell("queue", "delete", "q", "--yes").exit_code == 0
    assert shell.app.store.stats(["q"]) == []


def test_partition_is_held_shown_and_released(shell: Shell) -> None:
    """A held partition is listed as held; released it is open; nothing held is exit code 1, nothing there 3."""
    shell("queue", "configure", "q", "--on-dead", "hold")
    shell.put(partition="!x")
    shell.put(partition="!x")
    shell.die()
    assert "held by" in shell("partition", "list", "q").output
    assert shell("partition", "release", "q", "!x").exit_code == 0
    assert json.loads(shell("partition", "info", "q", "!x", "--json").output)["waiting"] == 2
    assert shell("partition", "release", "q", "!x").exit_code == 1
    assert shell("partition", "skip", "q", "!x").exit_code == 0
    assert "cancelled 1 tasks" in shell("partition", "purge", "q", "!x", "--yes").output
    assert shell("partition", "info", "q", "!x").exit_code == 3


def test_partition_pause_and_resume(shell: Shell) -> None:
    """A paused partition says so; resumed and empty it is gone."""
    shell("partition", "pause", "q", "p")
    assert "paused" in shell("partition", "info", "q", "p").output
    shell("partition", "resume", "q", "p")
    assert shell("partition", "info", "q", "p").exit_code == 3
