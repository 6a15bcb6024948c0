"""Options of a worker that reach beyond it: weights, settings in the store, timeouts it must tell of."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from taskmq import App, InvalidArgument, QueueConfig
from taskmq.worker.options import unenforced_timeouts

MakeSite = Callable[..., Any]


def weights(app: App) -> dict[str, int]:
    return {stats.name: stats.config.weight for stats in app.store.stats()}


def ready(app: App) -> App:
    @app.task(queue="a")
    def work() -> None: ...

    return app


def test_a_weight_by_name_seeds_a_queue(site: MakeSite) -> None:
    """``queues="a,b=3"``: b gets its weight if nobody has configured it before."""
    app = ready(site().app)
    worker = app.worker(queues="a, b=3")
    assert worker.options.queues == ("a", "b")
    with worker:
        pass
    assert weights(app)["b"] == 3


def test_a_weight_by_name_that_differs_is_reported(site: MakeSite, caplog: pytest.LogCaptureFixture) -> None:
    """An operator's weight survives the next start of a worker that was given another."""
    app = ready(site().app)
    app.store.configure_queues({"b": QueueConfig(weight=7, max_running=5)}, overwrite=True)
    with caplog.at_level(logging.WARNING), app.worker(queues="a,b=3"):
        pass
    assert weights(app)["b"] == 7
    assert "queue b: the store's weight differ" in caplog.text


def test_apply_config_overwrites(site: MakeSite) -> None:
    """With apply_config the app's settings and the given weights are set; all else of a queue stays."""
    app = ready(site(queues={"a": QueueConfig(weight=2)}).app)
    app.store.configure_queues({"a": QueueConfig(weight=9), "b": QueueConfig(max_running=5)}, overwrite=True)
    with app.worker(queues="a,b=3", apply_config=True):
        pass
    stats = {one.name: one.config for one in app.store.stats()}
    assert (stats["a"].weight, stats["b"].weight, stats["b"].max_running) == (2, 3, 5)


@pytest.mark.parametrize("queues", ["a=", "a=x", "a=0", "a=-1", "a=1.5", "a=1000001", "=3", "a=²"])
def test_a_weight_that_is_none_is_refused(site: MakeSite, queues: str) -> None:
    """Weights are integers from 1 to a million."""
    with pytest.raises(InvalidArgument):
        site().app.worker(queues=queues)


@pytest.mark.parametrize(
    ("pool", "told"), [("threads", ["b", "c"]), ("solo", ["b", "c"]), ("asyncio", ["b", "c"]), ("processes", [])]
)
def test_unenforced_timeouts_names_functions_with_a_timeout(pool: str, told: list[str]) -> None:
    """Nothing but a process of its own can end a function; a coroutine can be ended anywhere."""
    handlers = [("c", True, False), ("b", True, False), ("async", True, True), ("free", False, False)]
    assert unenforced_timeouts(handlers, pool) == told


def test_a_worker_says_once_which_timeouts_it_cannot_enforce(site: MakeSite, caplog: pytest.LogCaptureFixture) -> None:
    """At its start, all handlers in one line."""
    app: App = site().app

    @app.task(name="slow", timeout=5)
    def slow() -> None: ...

    @app.task(name="slower", timeout=5)
    def slower() -> None: ...

    @app.task(name="fine", timeout=5)
    async def fine() -> None: ...

    with caplog.at_level(logging.WARNING), app.worker(pool="threads"):
        pass
    (record,) = [one for one in caplog.records if "cannot end a function" in one.getMessage()]
    assert "slow, slower" in record.getMessage()
    assert "fine" not in record.getMessage()
