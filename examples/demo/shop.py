"""A small shop, as a user of taskmq writes it.

    python -m examples.demo.shop photos      # publish: thumbnails of many photos
    python -m examples.demo.shop orders      # publish: the steps of two orders, and a card to be charged
    python -m examples.demo.shop freezer     # publish: an alert
    taskmq worker examples.demo.shop:app     # work

Each of them in a process of its own, as many as you like; ``TASKMQ_URL`` tells all of them where the tasks are.
"""

import sys
import time

from taskmq import App, Retry

app = App(lease=5.0)


@app.task(queue="shop")
def thumbnail(photo: int) -> None:
    time.sleep(0.08)


@app.task(queue="shop")
def process(order: str, step: str) -> None:
    time.sleep(0.25)


@app.task(queue="shop", priority=9)
def alert(text: str) -> str:
    time.sleep(0.3)
    return f"somebody was told: {text}"


@app.task(queue="shop", priority=1, retry=Retry(max_attempts=3, base=0.5, jitter=False))
def charge(card: str) -> None:
    time.sleep(0.12)
    raise ConnectionError("the bank does not answer")


def photos() -> None:
    """Many tasks at once, none of them urgent."""
    app.enqueue_many(thumbnail.message(photo) for photo in range(1, 201))


def orders() -> None:
    """Two orders whose steps must come one after the other, and a card that will not work."""
    for step in ("check", "pack", "label", "weigh", "send"):
        for order in ("A", "B"):
            process.using(ordered_by=order).enqueue(order, step)
    charge.enqueue("4000-0000")


def freezer() -> None:
    """One task that cannot wait."""
    alert.enqueue("the freezer is warm")


if __name__ == "__main__":
    {"photos": photos, "orders": orders, "freezer": freezer}[sys.argv[1]]()
    app.close()
