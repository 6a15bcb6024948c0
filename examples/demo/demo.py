"""Run the shop for a few seconds: two producers, two workers. Then tell what happened, and draw it.

    make demo        or        python -m examples.demo.demo [--out DIR]

Exit code 0: everything went as promised.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from examples.demo.picture import draw
from examples.demo.story import Story, read_story
from taskmq import App

ROOT = Path(__file__).parents[2]
WORKERS = ("1", "2")
SLOTS = 3
ALERT_AFTER = 0.9
LONGEST = 25.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("build/demo"), help="[build/demo]")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("shop.db*"), out / "record.jsonl", out / "workers.log"):
        old.unlink(missing_ok=True)
    print(f"Two workers with {SLOTS} slots each, two producers, one SQLite file. This takes about five seconds …\n")
    with App(f"sqlite:///{(out / 'shop.db').resolve()}") as app:
        pids = run(app, out)
        story = read_story(app, out / "record.jsonl", pids, SLOTS)
    picture = out / "timeline.svg"
    picture.write_text(draw(story), encoding="utf-8")
    print("\n".join(story.lines()))
    print(f"\nThe picture of it: {picture}\n  {picture.resolve().as_uri()}\n")
    print_next(out, story)
    return 1 if story.faults else 0


def run(app: App, out: Path) -> dict[int, str]:
    """Let the shop work until everything has ended; returns the workers' process ids and names."""
    record = str((out / "record.jsonl").resolve())
    environment = {**os.environ, "TASKMQ_URL": app.config.url, "DEMO_RECORD": record}
    workers = start_workers(out, environment)
    try:
        wait_until(lambda: len(app.store.workers()) == len(workers), workers, out)
        publish(environment)
        wait_until(lambda: all(task.state.terminal for task in app.tasks(queue="shop")), workers, out)
    finally:
        for process in workers.values():
            process.terminate()
        for process in workers.values():
            process.wait()
    return {process.pid: name for name, process in workers.items()}


def start_workers(out: Path, environment: dict[str, str]) -> dict[str, subprocess.Popen[bytes]]:
    """Two ``taskmq worker`` processes, by name."""
    command = [sys.executable, "-m", "taskmq", "worker", "examples.demo.record:app", "--concurrency", str(SLOTS)]
    with (out / "workers.log").open("wb") as log:
        return {
            name: subprocess.Popen([*command, "--name", f"worker-{name}"], cwd=ROOT, env=environment, stderr=log)
            for name in WORKERS
        }


def publish(environment: dict[str, str]) -> None:
    """Two producers at once; and when the queue is full of photos, the alert."""
    command = [sys.executable, "-m", "examples.demo.shop"]
    producers = [subprocess.Popen([*command, what], cwd=ROOT, env=environment) for what in ("photos", "orders")]
    time.sleep(ALERT_AFTER)
    for producer in producers:
        if producer.wait():
            sys.exit("a producer failed")
    subprocess.run([*command, "freezer"], cwd=ROOT, env=environment, check=True)


def wait_until(condition: Callable[[], bool], workers: dict[str, subprocess.Popen[bytes]], out: Path) -> None:
    """Wait; leave with a word if a worker ends by itself or it takes too long."""
    deadline = time.monotonic() + LONGEST
    while not condition():
        for name, process in workers.items():
            if process.poll() is not None:
                sys.exit(f"worker {name} ended with code {process.returncode}: see {out / 'workers.log'}")
        if time.monotonic() > deadline:
            sys.exit(f"still not finished after {LONGEST:.0f} s: see {out / 'workers.log'}")
        time.sleep(0.05)


def print_next(out: Path, story: Story) -> None:
    """Commands to try on what the run has left behind."""
    command = Path(sys.executable).with_name("taskmq")
    taskmq = os.path.relpath(command) if command.is_relative_to(Path.cwd()) else str(command)
    url = f"--url sqlite:///{os.path.relpath(out / 'shop.db')}"
    print("What to try next:")
    for words in ("status", "dead list", f"task show {story.dead[0]}" if story.dead else "task list"):
        print(f"  {taskmq} {words} {url}")


if __name__ == "__main__":
    sys.exit(main())
