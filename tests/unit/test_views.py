"""How the command line shows a task."""

from __future__ import annotations

from typing import Any

import pytest

from taskmq import Limit, TaskInfo, TaskState
from taskmq.cli.views import echo_task, progress_text, task_json
from taskmq.state import Progress


def info(**fields: Any) -> TaskInfo:
    base = {"id": "0" * 32, "queue": "q", "handler": "h", "state": TaskState.QUEUED, "priority": 0, "seq": 1}
    return TaskInfo(**{**base, "attempt": 1, "max_attempts": 3, "epoch": 1, **fields})


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(30), "30"),
        (Progress(30, 120), "30 of 120 (25%)"),
        (Progress(0.5, 2.0, "reading"), "0.5 of 2 (25%): reading"),
        (Progress(1, 0), "1 of 0"),
        (Progress(2000, note="rows"), "2000: rows"),
    ],
)
def test_progress_is_told_in_words(progress: Progress, text: str) -> None:
    """What is known of done, total and note is shown, with the share where there is one."""
    assert progress_text(progress) == text


def test_task_show_has_progress_limit_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    """``task show`` prints progress, limit, parked and version where a task has them, and as JSON as they are."""
    task = info(progress=Progress(3, 4, "rows"), limit=Limit("user:7", 2), parked=True, version="v2")
    echo_task(task)
    shown = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert (shown["progress"], shown["limit"]) == ("3 of 4 (75%): rows", "user:7: 2 at once")
    assert (shown["parked"], shown["version"]) == ("true", "v2")
    fields = task_json(task)
    assert fields["progress"] == {"done": 3, "total": 4, "note": "rows"}
    assert fields["limit"] == {"key": "user:7", "n": 2}
    echo_task(info())
    assert not {"progress", "limit", "parked", "version"} & {
        line.split()[0] for line in capsys.readouterr().out.splitlines()
    }
