"""The report of a run: ``report.json`` for programs, ``report.html`` for people. The page needs nothing but itself."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

from examples.permits import charts
from examples.permits.figures import Figures

SHOWN_RESOURCES = 20
SHOWN_SEQUENCES = 12
SHOWN_FAULTS = 100

STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1f2933; background: #f4f6f8; margin: 0 }
main { max-width: 1020px; margin: 0 auto; padding: 28px 20px 60px }
h1 { font-size: 27px; margin: 0 0 4px } h2 { font-size: 19px; margin: 0 0 4px }
p { margin: 4px 0 12px; color: #52606d; max-width: 75ch }
section { background: white; border: 1px solid #e3e8ee; border-radius: 8px; padding: 18px 24px; margin: 18px 0 }
.verdict { font-size: 17px; font-weight: 600; border-radius: 8px; padding: 12px 18px; color: white; margin: 18px 0 }
.ok { background: #2e7d4f } .bad { background: #c8372d }
.cards { display: flex; flex-wrap: wrap; gap: 12px }
.card { flex: 1 1 150px; background: white; border: 1px solid #e3e8ee; border-radius: 8px; padding: 12px 16px }
.card b { display: block; font-size: 20px; white-space: nowrap } .card span { color: #66727f; font-size: 13px }
table { border-collapse: collapse; width: 100%; font-size: 14px }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid #e3e8ee; vertical-align: top }
th { color: #66727f; font-weight: 600 } td.n, th.n { text-align: right }
svg { width: 100%; height: auto; font-family: inherit }
code { font-size: 13px } summary { cursor: pointer; font-weight: 600 }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px }
.legend span { margin-right: 18px; white-space: nowrap; font-size: 13px }
"""


def write_report(found: Figures, folder: Path) -> Path:
    """Write both files into the folder; returns the page's path."""
    (folder / "report.json").write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")
    page = folder / "report.html"
    page.write_text(_page(found), encoding="utf-8")
    return page


def _page(found: Figures) -> str:
    parts = [
        "<h1>Permits: every case in order, whoever is killed</h1>",
        _introduction(found),
        _verdict(found),
        _cards(found),
        _throughput(found),
        _kills(found),
        _waits(found),
        _resources(found),
        _sequences(found),
    ]
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>Permits: report of a run</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main>\n{body}\n</main></body></html>\n'


def _introduction(found: Figures) -> str:
    return (
        f"<p>{found.events:,} events of {found.cases:,} cases went through the queue, each case as an ordered "
        "partition, with two worker processes of 8 threads. One of the workers was killed with SIGKILL "
        f"{_times(len(found.kills))} while its handlers were at work, and was started anew each time.</p>"
    )


def _verdict(found: Figures) -> str:
    if not found.faults:
        return '<div class="verdict ok">✓ Every event was handled, and every case in the order of the file.</div>'
    faults = "".join(f"<li>{escape(fault)}</li>" for fault in found.faults[:SHOWN_FAULTS])
    return f'<div class="verdict bad">✗ {len(found.faults):,} faults</div><section><ul>{faults}</ul></section>'


def _cards(found: Figures) -> str:
    cards = {
        "events handled": f"{found.handled:,} of {found.events:,}",
        "cases in the file's order": f"{found.equal_sequences:,} of {found.cases:,}",
        "duration": f"{found.seconds:.1f} s",
        "events per second": f"{found.events_per_second:,.0f}",
        "deliveries repeated by the kills": f"{found.repeated_by_kills:,}",
    }
    return f'<div class="cards">{"".join(_card(label, value) for label, value in cards.items())}</div>'


def _card(label: str, value: str) -> str:
    return f'<div class="card"><b>{value}</b><span>{label}</span></div>'


def _throughput(found: Figures) -> str:
    marks = [(kill.at, f"{kill.worker} killed") for kill in found.kills]
    return _section(
        "Throughput",
        "Events handled per second. A kill takes half of the hands away until the next worker has started; the cases "
        "that the dead one held wait until its lease of 2 s is over, all others go on.",
        charts.throughput(found.handled_at, marks, found.seconds),
    )


def _kills(found: Figures) -> str:
    rows = [
        (kill.worker, f"{kill.at:.2f} s", str(kill.held), str(kill.cut), str(kill.repeated)) for kill in found.kills
    ]
    header = ("worker", "killed at", "deliveries in its hands", "handlers cut off", "deliveries repeated")
    other = f" {found.repeated_otherwise} more were repeated for another reason (a lease ran out on a busy machine)."
    return _section(
        "The kills",
        "A delivery is repeated when its handler had been started and the store did not know yet that it was done: it "
        "was cut off, or its outcome was on the way. What the worker held and had not started runs once, elsewhere."
        + (other if found.repeated_otherwise else ""),
        _table(header, rows, numbers=range(1, 5)),
    )


def _waits(found: Figures) -> str:
    spreads = [
        charts.Spread(
            f"priority {row.priority}: {', '.join(row.channels)} ({row.count:,})",
            row.shortest,
            row.median,
            row.p95,
            row.longest,
        )
        for row in found.waits_by_priority
    ]
    return _section(
        "Waits by priority",
        "From publish to the first start of the handler. All events were published before the workers started, so a "
        "wait is the work of the more urgent ones. Thin line: from the shortest to the longest; thick: 95 % of them; "
        "dot: the median. Within a case events also wait for one another, and for the lease of a killed worker.",
        charts.spreads(spreads) if spreads else "",
    )


def _resources(found: Figures) -> str:
    values = list(found.events_by_resource.items())
    shown, rest = dict(values[:SHOWN_RESOURCES]), values[SHOWN_RESOURCES:]
    if rest:
        shown[f"{len(rest)} others"] = sum(count for _, count in rest)
    return _section(
        "Events by resource",
        "How many of the handled events each person had recorded.",
        charts.bars(shown) if shown else "",
    )


def _sequences(found: Figures) -> str:
    activities = Counter(name for names in found.sequence_of_case.values() for name in names)
    codes = short_codes(activities)
    variants = Counter(tuple(codes[name] for name in names) for names in found.sequence_of_case.values())
    common = variants.most_common(SHOWN_SEQUENCES)
    colors = _colors(codes, activities, common)
    chart = charts.strips([(_cases(count), sequence) for sequence, count in common], colors) if common else ""
    legend = "".join(_key(code, name, colors) for name, code in codes.items() if code in colors)
    rows = [
        (case, str(len(names)), " → ".join(codes[name] for name in names))
        for case, names in found.sequence_of_case.items()
    ]
    words = "".join(f"<tr><td><b>{escape(code)}</b></td><td>{escape(name)}</td></tr>" for name, code in codes.items())
    header = ("case", "events", "activities in the order in which they were handled")
    return _section(
        "The sequence of each case",
        f"As it was handled. {len(variants):,} different sequences occur; these are the most frequent ones.",
        f'{chart}<p class="legend">{legend}</p>'
        f"<p>Fingerprint of all sequences: file <code>{found.fingerprint_of_file}</code>, "
        f"handled <code>{found.fingerprint_of_handled}</code></p>"
        f"<details><summary>What the codes mean</summary><table>{words}</table></details>"
        f"<details><summary>All {len(rows):,} cases</summary>"
        f"{_table(header, rows, numbers=[1])}</details>",
    )


def short_codes(activities: Iterable[str]) -> dict[str, str]:
    """A short code for each activity: its own, such as T07-2, else its initials; no two are equal."""
    codes: dict[str, str] = {}
    for name in sorted(activities):
        own = re.match(r"[A-Z]+\d[\d-]*\b", name)
        code = own.group() if own else "".join(word[0] for word in name.split()).upper()
        while code in codes.values():
            code += "’"
        codes[name] = code
    return codes


def _colors(
    codes: Mapping[str, str], activities: Mapping[str, int], common: Sequence[tuple[tuple[str, ...], int]]
) -> dict[str, str]:
    """A colour for each of the most frequent codes that are shown."""
    shown = {code for sequence, _ in common for code in sequence}
    ranked = sorted((name for name in activities if codes[name] in shown), key=lambda name: -activities[name])
    return {codes[name]: color for name, color in zip(ranked, charts.PALETTE, strict=False)}


def _key(code: str, name: str, colors: Mapping[str, str]) -> str:
    words = name if name.startswith(code) else f"{code} {name}"
    return f'<span><i class="key" style="background:{colors[code]}"></i>{escape(words)}</span> '


def _section(title: str, words: str, content: str) -> str:
    return f"<section><h2>{title}</h2><p>{words}</p>{content}</section>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int]) -> str:
    right = set(numbers)

    def line(tag: str, cells: Sequence[str]) -> str:
        marked = (f'{tag} class="n"' if place in right else tag for place in range(len(cells)))
        return "".join(f"<{open_}>{escape(cell)}</{tag}>" for open_, cell in zip(marked, cells, strict=True))

    lines = [line("th", header), *(line("td", row) for row in rows)]
    return f"<table>{''.join(f'<tr>{cells}</tr>' for cells in lines)}</table>"


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count:,} cases"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
