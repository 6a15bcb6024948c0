"""The report's charts, as SVG text. They know numbers and words, and nothing of queues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH = 960
INK, SOFT, GRID = "#1f2933", "#66727f", "#e3e8ee"
BLUE, RED = "#2f6fb3", "#c8372d"
PALETTE = (
    "#2f6fb3", "#e08a1e", "#3c9d5d", "#8e5bb5", "#c8564b", "#3aa0a8", "#b59a1d", "#d4679f", "#7a6a58", "#5c7cfa",
)  # fmt: skip
OTHER = "#9aa5b1"


@dataclass
class Drawing:
    """An SVG picture that is being drawn."""

    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", color: str = INK, size: int = 13) -> None:
        """Words whose baseline is at y."""
        style = f'text-anchor="{anchor}" fill="{color}" font-size="{size}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, color: str, hint: str = "") -> None:
        """A filled box; ``hint`` is shown when the mouse rests on it."""
        told = f"<title>{escape(hint)}</title>" if hint else ""
        shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" rx="2"'
        self.parts.append(f'<rect {shape} fill="{color}">{told}</rect>')

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str = GRID, extra: str = "") -> None:
        """A line; ``extra``: further attributes."""
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.parts.append(f'<line {ends} stroke="{color}" {extra}/>')

    def svg(self) -> str:
        """The whole picture."""
        head = f'<svg viewBox="0 0 {WIDTH} {self.height:.0f}" role="img" aria-label="{escape(self.title)}">'
        return "\n".join([head, *self.parts, "</svg>"])


def throughput(handled_at: Sequence[float], kills: Sequence[tuple[float, str]], seconds: float) -> str:
    """Events handled per second over time, with a mark for each kill."""
    left, right, top, bottom = 60, WIDTH - 20, 44, 250
    step = _nice(seconds / 60)
    counts = [0] * (math.ceil(seconds / step) + 1)
    for at in handled_at:
        counts[max(0, int(at / step))] += 1
    rates = [count / step for count in counts]
    highest = _ceiling(max(rates))
    drawing = Drawing(290, "events handled per second")
    span = len(counts) * step

    def across(at: float) -> float:
        return left + (right - left) * at / span

    for tick in _ticks(highest):
        y = bottom - (bottom - top) * tick / highest
        drawing.line(left, y, right, y)
        drawing.text(left - 8, y + 4, f"{tick:,.0f}", anchor="end", color=SOFT)
    for index, rate in enumerate(rates):
        height = (bottom - top) * rate / highest
        hint = f"{index * step:.2f} s: {rate:,.0f} events a second"
        drawing.box(across(index * step), bottom - height, (right - left) / len(counts) - 1, height, BLUE, hint)
    for tick in _ticks(span):
        drawing.text(across(tick), bottom + 18, f"{tick:g}", anchor="middle", color=SOFT)
    drawing.text((left + right) / 2, bottom + 36, "seconds since the workers were started", anchor="middle", color=SOFT)
    drawing.text(left, 14, "events per second", color=SOFT)
    for row, (at, words) in enumerate(kills):
        drawing.line(across(at), 22, across(at), bottom, RED, 'stroke-width="2" stroke-dasharray="5 3"')
        side = -6 if across(at) > WIDTH / 2 else 6
        drawing.text(across(at) + side, 32 + 15 * (row % 2), words, anchor="end" if side < 0 else "start", color=RED)
    return drawing.svg()


@dataclass(frozen=True, slots=True)
class Spread:
    """One line of ``spreads``: a label, and from the shortest to the longest."""

    label: str
    shortest: float
    median: float
    p95: float
    longest: float


def spreads(rows: Sequence[Spread]) -> str:
    """From the shortest to the longest of each row, a thick part up to 95 %, a dot at the median. Unit: seconds."""
    left, right, row_height = 300, WIDTH - 130, 42
    bottom = 16 + row_height * len(rows)
    longest = _ceiling(max(row.longest for row in rows))
    drawing = Drawing(bottom + 44, "waits by priority")

    def across(value: float) -> float:
        return left + (right - left) * value / longest

    for tick in _ticks(longest):
        drawing.line(across(tick), 6, across(tick), bottom)
        drawing.text(across(tick), bottom + 18, f"{tick:g}", anchor="middle", color=SOFT)
    drawing.text((left + right) / 2, bottom + 36, "seconds from publish to first start", anchor="middle", color=SOFT)
    for index, row in enumerate(rows):
        y = 16 + row_height * (index + 0.5)
        color = PALETTE[index % len(PALETTE)]
        drawing.text(left - 12, y + 4, row.label, anchor="end")
        drawing.line(across(row.shortest), y, across(row.longest), y, color, 'stroke-width="3"')
        drawing.box(across(row.shortest), y - 8, max(2, across(row.p95) - across(row.shortest)), 16, color)
        hint = f"<title>median {row.median:.2f} s</title>"
        dot = f'cx="{across(row.median):.1f}" cy="{y:.1f}" r="5" fill="white" stroke="{INK}" stroke-width="2"'
        drawing.parts.append(f"<circle {dot}>{hint}</circle>")
        drawing.text(across(row.longest) + 10, y + 4, f"median {row.median:.2f} s", color=SOFT)
    return drawing.svg()


def bars(values: Mapping[str, int]) -> str:
    """A bar for each name, with its number."""
    left, right, row_height = 170, WIDTH - 80, 21
    drawing = Drawing(row_height * len(values) + 8, "events by resource")
    highest = max(values.values())
    for index, (name, value) in enumerate(values.items()):
        y = 4 + row_height * index
        width = (right - left) * value / highest
        drawing.text(left - 10, y + 14, name, anchor="end")
        drawing.box(left, y + 2, width, row_height - 5, BLUE if not name.endswith("others") else OTHER)
        drawing.text(left + width + 8, y + 14, f"{value:,}", color=SOFT)
    return drawing.svg()


def strips(rows: Sequence[tuple[str, Sequence[str]]], colors: Mapping[str, str]) -> str:
    """A row of coloured fields for each label; a field shows its own code."""
    left, row_height = 130, 30
    longest = max(len(codes) for _, codes in rows)
    width = min(62.0, (WIDTH - left - 10) / longest)
    drawing = Drawing(row_height * len(rows) + 4, "the most frequent sequences")
    for index, (label, codes) in enumerate(rows):
        y = 2 + row_height * index
        drawing.text(left - 12, y + 18, label, anchor="end")
        for place, code in enumerate(codes):
            x = left + place * width
            drawing.box(x, y, width - 3, row_height - 5, colors.get(code, OTHER), code)
            drawing.text(x + (width - 3) / 2, y + 17, code, anchor="middle", color="white", size=12)
    return drawing.svg()


def _nice(value: float) -> float:
    """The next larger of 1, 2, 5, 10, 20, 50 …, and the same below 1."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-6)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))


def _ticks(highest: float) -> list[float]:
    step = _nice(highest / 6)
    return [step * number for number in range(int(highest / step + 1e-9) + 1)]


def _ceiling(highest: float) -> float:
    """A round number not below it, for the end of an axis."""
    step = _nice(max(highest, 1e-3) / 6)
    return step * math.ceil(highest / step - 1e-9)
