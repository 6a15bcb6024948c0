"""Work off a file of events with two worker processes, kill one of them again and again, and judge what came of it.

    python -m examples.permits PATH [--out DIR] [--kills 3] [--url sqlite:///…]

Exit code 0: every event was handled, every case in the order of the file. 1: not so, and the faults are printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from examples.permits.figures import Figures, figures
from examples.permits.report import write_report
from examples.permits.rig import Rig, RunFailed, Settings
from examples.permits.verify import read_events

SAMPLE = Path(__file__).with_name("sample.csv")
SHOWN_FAULTS = 20


def main(words: list[str] | None = None) -> int:
    asked = _parser().parse_args(words)
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("permits.db*"), out / "handled.jsonl", out / "workers.log"):
        old.unlink(missing_ok=True)
    try:
        events = read_events(asked.path)
    except (OSError, KeyError, ValueError) as error:
        print(f"{asked.path} is no file of events: {error!r}", file=sys.stderr)
        return 2
    settings = Settings(
        path=asked.path.resolve(),
        events=len(events),
        out=out,
        url=asked.url or f"sqlite:///{out / 'permits.db'}",
        run=f"permits-{time.time_ns() // 1000}",  # a namespace of its own: runs in one store do not meet
        kills=asked.kills,
        work=asked.work / 1000,
        timeout=asked.timeout,
    )
    try:
        found = figures(events, Rig(settings, tell=print).run(), asked.kills)
    except RunFailed as error:
        print(f"the run failed: {error}", file=sys.stderr)
        return 1
    _tell(found)
    print(f"report      {write_report(found, out)}")
    return 1 if found.faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.permits", description=__doc__.split("\n")[0])
    parser.add_argument("path", metavar="PATH", type=Path, nargs="?", default=SAMPLE, help="CSV [the sample]")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("build/permits"), help="[build/permits]")
    parser.add_argument("--kills", metavar="N", type=int, default=3, help="how often to kill one of the workers [3]")
    parser.add_argument("--url", metavar="URL", help="the store [a new SQLite file in DIR]")
    parser.add_argument("--work", metavar="MS", type=float, default=1.0, help="how long a handler takes [1 ms]")
    parser.add_argument("--timeout", metavar="S", type=float, default=300.0, help="give up after so long [300 s]")
    return parser


def _tell(found: Figures) -> None:
    rate = f"{found.events_per_second:,.0f} a second"
    print(f"events      {found.handled:,} of {found.events:,} handled in {found.seconds:.1f} s, {rate}")
    print(f"cases       {found.equal_sequences:,} of {found.cases:,} in the order of the file")
    print(f"repeated    {found.repeated_by_kills} by the kills, {found.repeated_otherwise} otherwise")
    print(f"file        md5 {found.fingerprint_of_file}")
    print(f"handled     md5 {found.fingerprint_of_handled}")
    for fault in found.faults[:SHOWN_FAULTS]:
        print(f"FAULT       {fault}")
    if found.faults:
        print(f"verdict     NOT OK: {len(found.faults)} faults")
    else:
        print("verdict     ok: every event handled, every case in order")


if __name__ == "__main__":
    sys.exit(main())
