"""SQLite: enqueue_many by a hundred against huey's SQLite, which enqueues one by one.

Needs huey (pip install huey). huey's own default does not wait for the disk; the second row gives both the same.

    python -m bench.enqueue_huey
"""

from __future__ import annotations

from time import perf_counter

from huey import SqliteHuey

from bench.common import alternate, folder, report
from taskmq import App

TASKS = 3000
ARGUMENT = "x" * 96


def ours(app: App) -> float:
    """Tasks a second."""
    send = app.ref("send", queue="q")
    start = perf_counter()
    for _ in range(TASKS // 100):
        app.enqueue_many([send.message(ARGUMENT) for _ in range(100)])
    return TASKS / (perf_counter() - start)


def theirs(task: object) -> float:
    """Tasks a second."""
    start = perf_counter()
    for _ in range(TASKS):
        task(ARGUMENT)  # type: ignore[operator]
    return TASKS / (perf_counter() - start)


def main() -> None:
    """Print both settings."""
    with folder() as place:
        for setting, fsync in (("full", False), ("full", True), ("off", False)):
            huey = SqliteHuey("bench", filename=f"{place}/huey-{setting}-{fsync}.db", fsync=fsync)
            task = huey.task()(lambda text: None)
            with App(f"sqlite:///{place}/ours-{setting}-{fsync}.db?synchronous={setting}") as app:
                sides = [lambda: ours(app), lambda: theirs(task)]
                alternate(sides, 1)
                fast, slow = alternate(sides, 5)
            name = f"enqueue: by 100 at {setting.upper()} / huey {'fsync' if fsync else 'default'}"
            report(name, f"{fast:,.0f}/s", f"{slow:,.0f}/s", fast / slow, ">= 10")


if __name__ == "__main__":
    main()
