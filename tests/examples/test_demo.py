"""The demo: it runs to its end, judges itself, and its picture shows what it tells."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from examples.demo.picture import draw
from examples.demo.story import Bar, Story

ROOT = Path(__file__).parents[2]


def story(**changes: object) -> Story:
    """A small run: two slots, three photos, an order of each kind, the alert and the card."""
    bars = [
        Bar("p1", "photo", 0, 0.0, 0.1, "", "ack"),
        *orders("A", 0, 0.1),
        *orders("B", 1, 0.1),
        Bar("al", "alert", 0, 0.7, 0.8, "alert", "ack"),
        *(Bar("c", "charge", 1, 0.7 + n, 0.8 + n, str(n + 1), "dead" if n == 2 else "retry") for n in range(3)),
        Bar("p2", "photo", 0, 0.9, 1.0, "", "ack"),
        Bar("p3", "photo", 0, 1.0, 1.1, "", "ack"),
    ]
    published = {bar.task: 0.0 for bar in bars} | {"al": 0.69}
    good = Story(["worker 1, slot 1", "worker 2, slot 1"], bars, published, ["c"], 14)
    return replace(good, **changes)  # type: ignore[arg-type]


def orders(order: str, lane: int, begin: float) -> list[Bar]:
    steps = ("check", "pack", "label", "weigh", "send")
    return [
        Bar(f"{order}{n}", "order", lane, begin + n / 10, begin + n / 10 + 0.09, f"{order} {step}", "ack")
        for n, step in enumerate(steps)
    ]


def test_the_demo_tells_and_draws(tmp_path: Path) -> None:
    """The demo ends well, and the commands that it recommends work on what it has left behind."""
    command = [sys.executable, "-m", "examples.demo.demo", "--out", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for told in (
        r"started \d+ ms after it was published",
        r"\d+ photos were waiting",
        "dead letter",
        "order A: check → ",
    ):
        assert re.search(told, ran.stdout)
    assert "FAULT" not in ran.stdout
    assert (tmp_path / "timeline.svg").resolve().as_uri() in ran.stdout
    check_picture((tmp_path / "timeline.svg").read_text(encoding="utf-8"), bars=200 + 10 + 1 + 3)
    tries = [line.split()[1:] for line in ran.stdout.splitlines() if " --url " in line]
    assert [words[:2] for words in tries] == [["status", "--url"], ["dead", "list"], ["task", "show"]]
    for words in tries:
        subprocess.run([sys.executable, "-m", "taskmq", *words], cwd=ROOT, check=True, capture_output=True, timeout=60)


def check_picture(picture: str, bars: int) -> None:
    """Well formed, a bar for each execution, and every word inside the frame."""
    root = ElementTree.fromstring(picture)
    svg = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{svg}rect/{svg}title")) == bars
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    for text in root.findall(f"{svg}text"):
        shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.attrib["text-anchor"]]
        length = 0.62 * float(text.attrib["font-size"]) * len(text.text or "")
        begin = float(text.attrib["x"]) - shift * length
        assert begin > -1, text.text
        assert begin + length < width + 1, text.text
        assert 0 < float(text.attrib["y"]) < height, text.text


def test_a_good_story_has_no_faults() -> None:
    """What went as promised is not blamed, and is drawn."""
    good = story()
    assert good.faults == []
    assert (good.overtaken, round(1000 * good.alert_wait)) == (2, 10)
    check_picture(draw(good), bars=len(good.bars))


def test_a_bad_story_says_what_is_wrong() -> None:
    """Steps out of order or at once, and a card that was not given up, are faults."""
    good = story()
    swapped = [
        replace(bar, label={"A pack": "A label", "A label": "A pack"}.get(bar.label, bar.label)) for bar in good.bars
    ]
    assert story(bars=swapped).faults == ["order A was not handled in order"]
    longer = [replace(bar, end=bar.end + 0.05) if bar.label == "B pack" else bar for bar in good.bars]
    assert story(bars=longer).faults == ["two steps of order B ran at once"]
    assert story(dead=[]).faults == ["the card was not tried three times and then given up"]
