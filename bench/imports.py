"""How long does ``import taskmq`` take, and does it load a driver?

python -m bench.imports
"""

from __future__ import annotations

import subprocess
import sys

from bench.common import alternate, report, seconds

DRIVERS = ["sqlalchemy", "sqlite3", "redis", "psycopg", "pymysql", "pika", "asyncio", "click", "rich"]


def run(code: str) -> float:
    """Seconds of a fresh interpreter."""
    return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True))


def main() -> None:
    """Print the time over an empty interpreter."""
    ours, empty = alternate([lambda: run("import taskmq"), lambda: run("pass")], 21)
    report(
        "import taskmq / an empty interpreter",
        f"{(ours - empty) * 1e3:.0f} ms more",
        f"{empty * 1e3:.0f} ms",
        ours / empty,
        "< 120 ms",
    )
    loaded = f"import sys, taskmq; print(*[m for m in {DRIVERS!r} if m in sys.modules])"
    print("drivers loaded:", subprocess.check_output([sys.executable, "-c", loaded], text=True).strip() or "none")


if __name__ == "__main__":
    main()
