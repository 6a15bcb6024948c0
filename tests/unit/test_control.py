"""What operators do with many tasks at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taskmq import App, TaskState
from taskmq.transport.base import Find, Found


def test_many_tasks_are_listed_in_growing_pages_and_changed_in_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page may cost a look at everything, and each call holds the store while it lasts."""
    with App("memory://") as app:
        app.enqueue_many([app.ref("h").message() for _ in range(700)])
        limits: list[int] = []
        calls: list[int] = []
        find, cancel = app.store.find, app.store.cancel

        def see(params: Find) -> Found:
            limits.append(params.limit)
            return find(params)

        def count(ids: Sequence[str]) -> list[TaskState | None]:
            calls.append(len(ids))
            return cancel(ids)

        monkeypatch.setattr(app.store, "find", see)
        monkeypatch.setattr(app.store, "cancel", count)
        assert app.tasks().cancel_all() == 700
        assert limits == [100, 200, 400]
        assert calls == [100] * 7
