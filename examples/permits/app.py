"""Events of permit applications: one task an event, one ordered partition a case, urgent where somebody waits.

    python -m examples.permits.app permits.csv                    # publish the file; again is harmless
    taskmq worker examples.permits.app:app --concurrency 8        # as many of these as you like

``TASKMQ_URL`` says where the tasks are, ``PERMITS_RUN`` keeps one run apart from another in the same store.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from typing import TypedDict

from examples.permits.journal import Journal
from taskmq import App, Retry, current

URGENCY = {"Desk": 6, "Intern": 6, "e-mail": 3, "Internet": 3, "Post": 0}
"""Priority by channel: at the desk somebody is waiting, a letter has time."""

app = App(namespace=os.environ.get("PERMITS_RUN", "permits"), lease=2.0)
journal = Journal(os.environ.get("PERMITS_JOURNAL", "handled.log"))
work = float(os.environ.get("PERMITS_WORK", "0.001"))


class Receipt(TypedDict):
    """What the store keeps as the result: which event was handled, and by which of its deliveries."""

    event: int
    epoch: int


@app.task(queue="permits", retry=Retry(max_attempts=10))  # a killed worker costs what it ran an attempt
def handle(event: int, case: str, activity: str, resource: str) -> Receipt:
    task = current()
    journal.write("start", event, task.task_id, task.epoch)
    time.sleep(work)  # here the letter would be printed
    journal.write("done", event, task.task_id, task.epoch)
    return {"event": event, "epoch": task.epoch}


def publish(path: str) -> int:
    """Every event of the file, in file order; returns how many are new."""
    with open(path, newline="", encoding="utf-8") as file:
        messages = [
            handle.using(ordered_by=row["case"], priority=URGENCY[row["channel"]], key=row["event"]).message(
                int(row["event"]), row["case"], row["activity"], row["resource"]
            )
            for row in csv.DictReader(file)
        ]
    return sum(not published.duplicate for published in app.enqueue_many(messages))


if __name__ == "__main__":
    with app:
        print(f"{publish(sys.argv[1]):,} events published")
