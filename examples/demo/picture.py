"""The timeline of a run as an SVG picture: a lane for each slot of a worker, and below it how many photos wait."""

from __future__ import annotations

from html import escape
from itertools import pairwise

from examples.demo.story import Bar, Kind, Story

WIDTH, LEFT, RIGHT = 1280, 160, 1250
LANES_TOP, LANE = 150, 40
WAITING_HEIGHT = 90
FONT = "font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\""
INK, SOFT, GRID = "#1f2933", "#66727f", "#e3e8ee"
COLORS: dict[Kind, str] = {"photo": "#b8c4d0", "order": "#2f6fb3", "alert": "#e07b00", "charge": "#c8372d"}
ORDER_B = "#2b8f83"
LEGEND = (
    (COLORS["photo"], "photo: 200 at once, priority 0"),
    (COLORS["order"], "order A: ordered partition"),
    (ORDER_B, "order B: ordered partition"),
    (COLORS["charge"], "card: fails, is tried 3 times"),
    (COLORS["alert"], "alert: priority 9"),
)


def draw(story: Story) -> str:
    """The whole picture."""
    lanes_end = LANES_TOP + LANE * len(story.lanes)
    waiting_top = lanes_end + 50
    height = waiting_top + WAITING_HEIGHT + 60
    picture = Picture(story, lanes_end, waiting_top)
    picture.heading()
    picture.axis()
    picture.lanes()
    picture.waiting()
    picture.alert()
    for bar in story.of("photo"):
        picture.bar(bar)
    picture.retries()
    for bar in story.bars:
        if bar.kind != "photo":
            picture.bar(bar)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" {FONT}>'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *picture.parts, "</svg>\n"])


class Picture:
    """The parts of the picture, one method each."""

    def __init__(self, story: Story, lanes_end: int, waiting_top: int) -> None:
        self.parts: list[str] = []
        self._story = story
        self._span = story.end * 1.02
        self._lanes_end = lanes_end
        self._waiting_top = waiting_top
        self._bottom = waiting_top + WAITING_HEIGHT

    def heading(self) -> None:
        """Title and legend."""
        self._text(20, 36, "Two workers with three slots each share one queue", size=22)
        x = 20.0
        for color, words in LEGEND:
            self._box(x, 54, 16, 16, color)
            self._text(x + 23, 67, words, color=SOFT)
            x += 7.4 * len(words) + 50

    def axis(self) -> None:
        """The time in seconds, for the lanes and for what waits."""
        step = 0.5 if self._span < 8 else 1.0
        for number in range(int(self._span / step) + 1):
            x = self._across(number * step)
            self._line(x, LANES_TOP, x, self._bottom, GRID)
            self._text(x, self._bottom + 20, f"{number * step:g}", anchor="middle", color=SOFT)
        middle = (LEFT + RIGHT) / 2
        self._text(middle, self._bottom + 42, "seconds since the first task was published", anchor="middle", color=SOFT)

    def lanes(self) -> None:
        """A line between the lanes, and their names."""
        for place, name in enumerate(self._story.lanes):
            y = LANES_TOP + LANE * place
            self._line(20, y, RIGHT, y, GRID)
            self._text(LEFT - 12, y + LANE / 2 + 5, name, anchor="end")
        self._line(20, self._lanes_end, RIGHT, self._lanes_end, GRID)

    def bar(self, bar: Bar) -> None:
        """One execution, with its label if there is room."""
        x, y = self._across(bar.begin), LANES_TOP + LANE * bar.lane + 6
        width = self._across(bar.end) - x
        color = ORDER_B if bar.label.startswith("B ") else COLORS[bar.kind]
        self._box(
            x + 0.5, y, width - 1, LANE - 12, color, f"{bar.kind} {bar.label}: {bar.begin:.2f} to {bar.end:.2f} s"
        )
        if bar.label:
            self._text(x + width / 2, y + 19, bar.label.split()[-1], anchor="middle", color="white", size=12)

    def waiting(self) -> None:
        """How many photos wait, over time."""
        story = self._story
        highest = len(story.of("photo"))
        moments = [self._span * number / 300 for number in range(301)]
        points = [
            f"{self._across(at):.1f},{self._bottom - WAITING_HEIGHT * story.waiting(at) / highest:.1f}"
            for at in moments
        ]
        outline = " ".join([f"{LEFT},{self._bottom}", *points, f"{self._across(self._span):.1f},{self._bottom}"])
        self.parts.append(f'<polygon points="{outline}" fill="{COLORS["photo"]}" opacity="0.6"/>')
        self._text(LEFT - 12, self._waiting_top + 5, str(highest), anchor="end", color=SOFT)
        self._text(LEFT - 12, self._bottom + 4, "0", anchor="end", color=SOFT)
        self._text(LEFT - 12, (self._waiting_top + self._bottom) / 2 + 5, "photos waiting", anchor="end")
        self._line(LEFT, self._bottom, RIGHT, self._bottom, SOFT)

    def alert(self) -> None:
        """When the alert was published, how soon it started, and what it overtook."""
        story, color = self._story, COLORS["alert"]
        x = self._across(story.alert_published)
        self._line(x, 108, x, self._bottom, color, 'stroke-width="2" stroke-dasharray="6 4"')
        anchor, side = ("start", 8) if x < (LEFT + RIGHT) / 2 else ("end", -8)
        self._text(x + side, 104, "alert published", anchor=anchor, color=color)
        words = f"started {1000 * story.alert_wait:.0f} ms later, while {story.overtaken} photos were waiting"
        self._text(x + side, 122, words, anchor=anchor, color=color)

    def retries(self) -> None:
        """The pauses between the tries of the card, and its end as a dead letter."""
        tries = self._story.of("charge")
        for earlier, later in pairwise(tries):
            ends = (self._across(earlier.end), self._middle(earlier), self._across(later.begin), self._middle(later))
            self._line(*ends, COLORS["charge"], 'stroke-width="2" stroke-dasharray="2 4"')
        last = tries[-1]
        x, y = (self._across(last.begin) + self._across(last.end)) / 2, self._lanes_end + 24
        self._line(x, self._middle(last) + LANE / 2 - 6, x, y - 12, COLORS["charge"], 'stroke-width="2"')
        self._text(min(x, RIGHT - 110), y + 4, "✗ dead letter after 3 tries", anchor="middle", color=COLORS["charge"])

    def _middle(self, bar: Bar) -> float:
        return LANES_TOP + LANE * (bar.lane + 0.5)

    def _across(self, seconds: float) -> float:
        return LEFT + (RIGHT - LEFT) * seconds / self._span

    def _text(self, x: float, y: float, words: str, *, anchor: str = "start", color: str = INK, size: int = 13) -> None:
        style = f'text-anchor="{anchor}" fill="{color}" font-size="{size}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>')

    def _box(self, x: float, y: float, width: float, height: float, color: str, hint: str = "") -> None:
        shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}" rx="3"'
        told = f"<title>{escape(hint)}</title>" if hint else ""
        self.parts.append(f'<rect {shape} fill="{color}">{told}</rect>')

    def _line(self, x1: float, y1: float, x2: float, y2: float, color: str, extra: str = "") -> None:
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.parts.append(f'<line {ends} stroke="{color}" {extra}/>')
