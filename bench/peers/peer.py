"""What the programs of the peers share; each of them runs in its own environment, with TASKS, URL and MARKS set.

``publish()`` of each publishes in the way that the command line names and prints the tasks a second:

single   one after the other, one caller
sixteen  the same from sixteen threads, or from sixteen coroutines where that is the library's way
hundred  by a hundred, as its documentation says; where there is nothing of the kind, one by one, or a hundred
         coroutines at once
fill     what a worker is measured with: the numbers of the tasks as their arguments
"""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import os
import sys
import threading
import time

URL = os.environ["URL"]
TASKS = int(os.environ["TASKS"])
ARGUMENT = "x" * 96
WARM = 50


def mark(number):
    """Note when the tenth part of the tasks, and all of them, have been started."""
    if number in (TASKS // 10, TASKS - 1):
        with open(os.environ["MARKS"], "a") as file:
            file.write(f"{time.monotonic()}\n")


def threads(send, hundred=None):
    """Publish with ``send(value)``, and by a hundred with ``hundred(values)``."""

    def one_by_one(values):
        for value in values:
            send(value)

    def sixteen(values):
        callers = [threading.Thread(target=one_by_one, args=(values[i::16],)) for i in range(16)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()

    by_hundred = hundred or one_by_one

    def parts(values):
        for start in range(0, len(values), 100):
            by_hundred(values[start : start + 100])

    ways = {"single": one_by_one, "sixteen": sixteen, "hundred": parts, "fill": parts}
    way = ways[sys.argv[1]]
    if sys.argv[1] == "fill":
        return way(range(TASKS))
    way([ARGUMENT] * WARM)
    begun = time.perf_counter()
    way([ARGUMENT] * TASKS)
    return print(TASKS / (time.perf_counter() - begun))


def coroutines(send, start=None):
    """The same with a coroutine function; ``start()`` is awaited before."""

    async def one_by_one(values):
        for value in values:
            await send(value)

    async def sixteen(values):
        await asyncio.gather(*(one_by_one(values[i::16]) for i in range(16)))

    async def parts(values):
        for begin in range(0, len(values), 100):
            await asyncio.gather(*(send(value) for value in values[begin : begin + 100]))

    async def main():
        if start is not None:
            await start()
        ways = {"single": one_by_one, "sixteen": sixteen, "hundred": parts, "fill": one_by_one}
        way = ways[sys.argv[1]]
        if sys.argv[1] == "fill":
            await way(range(TASKS))
            return
        await way([ARGUMENT] * WARM)
        begun = time.perf_counter()
        await way([ARGUMENT] * TASKS)
        print(TASKS / (time.perf_counter() - begun))

    asyncio.run(main())
