"""The page that is made of a summary, and the command that writes it. The browser's own tests are in tests/browser."""

from __future__ import annotations

import json
import random
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from reports import DAY, HOUR, MINUTE, ended, made
from standin import StandIn
from statuses import NOW, hold, mind, stalled, turn

from hostguard.telemetry import summary
from hostguard.telemetry.page import policy, render
from hostguard.telemetry.summary import SERIES, make
from hostguard.telemetry.timeline import Incident, Point, Seen

NASTY = "</script><img src=x onerror=alert(1)>\"'&\u202e\x1b[2J"


def page(shown: Any, **more: Any) -> str:
    return render(shown, "pi", **more)


def nasty() -> Any:
    """A report in which whatever others can write is meant to break out."""
    rows = [ended(f"{NASTY}{i}", 10 * MINUTE, 1000, held_for=NASTY) for i in range(9)]
    trouble = Incident(NOW - HOUR // 2, None, 2, NASTY, 1, 4, 1, 5)
    points = [Point(NOW - HOUR, Seen(2, 1, 1, 1, 900)), Point(NOW - MINUTE, Seen(0, 4))]
    return made(
        rows, points, [trouble], live=[turn("9", NASTY, 60, session=NASTY, state=NASTY, unit=NASTY)],
        minds=[mind(NASTY, state="paused", held=3, hold=hold(3, 9, NASTY, NASTY))],
        problems=[{"code": "x", "text": NASTY}], paused_minds=[NASTY], version=NASTY, held=1,
    )  # fmt: skip


class Tags(HTMLParser):
    """Every tag with its attributes; and text that stands in the page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("more", [{}, {"live_hours": 24, "steer": True}])
def test_nothing_that_others_wrote_is_html_or_moves_anything(more: Any) -> None:
    html = page(nasty(), **more)
    found = Tags(html)
    assert found.open == []
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert "img" not in [tag for tag, _ in found.tags]
    for _, attributes in found.tags:
        assert not {name for name in attributes if name.startswith("on") or name == "style"}
    assert "\u202e" not in html
    assert "\x1b" not in html
    assert html.count("onerror=alert") == html.count("&lt;img src=x onerror=alert")


def test_every_class_id_and_reference_is_there_once() -> None:
    html = page(nasty(), live_hours=24, steer=True)
    tags = Tags(html).tags
    ids = [found["id"] for _, found in tags if found.get("id")]
    assert len(ids) == len(set(ids))
    for _, found in tags:
        for name in ("aria-labelledby", "aria-describedby", "for"):
            for target in (found.get(name) or "").split():
                assert target in ids, target
    css = Path(summary.__file__).with_name("page").joinpath("report.css").read_text()
    styled = set(re.findall(r"\.([a-z][a-z0-9]*)\b", re.sub(r"[0-9.]+(rem|em|s)\b", "", css)))
    used = {word for _, found in tags for word in (found.get("class") or "").split()} | {"off"}
    assert used - {"levels", "all"} <= styled


def test_a_file_asks_for_nothing_and_a_live_page_only_for_itself() -> None:
    assert "connect-src" not in policy(live=False)
    assert "connect-src 'self'" in policy(live=True)
    for html in (page(nasty()), page(nasty(), live_hours=1, steer=True)):
        links = [
            (tag, f.get("src") or f.get("href"))
            for tag, f in Tags(html).tags
            if f.get("src") or f.get("href")
        ]
        assert all(target.startswith(("#", "/?hours=", "data:,")) for _, target in links if target), links
        assert not re.search(r"https?://", html)


def test_of_many_minds_that_wait_the_first_are_shown() -> None:
    waiting = [mind(f"m{i}", held=1, hold=hold(i + 1, 99 - i, "global_cap")) for i in range(50)]
    html = page(made([ended("ada", 1000, 1)], minds=waiting, held=50))
    assert "The first 8 of 50 minds" in html
    assert [name for name in re.findall(r'class="name">(m[0-9]+)<', html)] == [f"m{i}" for i in range(8)]


def test_an_empty_history_says_what_to_do() -> None:
    html = page(made())
    assert "Nothing has run in this time" in html
    assert "hostguard send @ada" in html
    assert "<svg" not in html


def test_a_report_without_the_disk_says_so() -> None:
    shown = make(stalled(), (), (), (), NOW, HOUR, complete=False)
    assert "The disk does not answer now" in page(shown)
    assert "Trouble: <b>Disk</b> stalled for 12s" in page(shown)


def test_an_incident_says_what_was_done() -> None:
    one = Incident(NOW - 90_000, NOW - 30_000, 2, "3 in flight", 1, None, 1, 2 << 20)
    html = page(made([ended("ada", 1000, 1)], (), [one]))
    assert "The disk was stalled for 1m: 3 in flight." in html
    assert "allowed 1 turn at a time, not all; froze 1 turn for a while; let all turns together write" in html


def test_the_page_of_10_000_turns_is_small() -> None:
    rnd = random.Random(1)
    names = [f"mind-{i}" for i in range(50)]
    rows = [
        ended(rnd.choice(names), rnd.randrange(DAY), rnd.randrange(600_000), held_ms=rnd.randrange(99_999))
        for _ in range(10_000)
    ]
    points = [Point(NOW - DAY + i * MINUTE, Seen(i % 3, i % 5, i % 4, i % 9, i)) for i in range(1440)]
    html = page(made(rows, points, span=DAY))
    assert len(html) < 300_000


# -- contrast: https://www.w3.org/TR/WCAG22/#contrast-minimum, #non-text-contrast


def palettes() -> dict[str, dict[str, str]]:
    css = Path(summary.__file__).with_name("page").joinpath("report.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    colours = [dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", block)) for block in blocks]
    assert len({frozenset(block) for block in colours}) == 1  # each has them all
    return dict(zip(("light", "dark", "print"), colours, strict=True))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_text_and_charts_stand_out_in_each_scheme(scheme: str) -> None:
    colours = palettes()[scheme]
    for back in ("back", "panel"):
        for name in ("text", "faint", "link"):
            assert contrast(colours[name], colours[back]) >= 4.5, (name, back)
        for name in (*(f"m{i}" for i in range(SERIES + 1)), "cap", "strained", "stalled", "fine", "line"):
            assert contrast(colours[name], colours[back]) >= 3, (name, back)


# -- the command


def asked(daemon: StandIn, tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    daemon.answer("GET /v1/report", nasty())
    return daemon.run("report", *args)


def test_it_is_printed_on_request(daemon: StandIn, tmp_path: Path) -> None:
    done = asked(daemon, tmp_path, "--since", "90m", "-o", "-")
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert done.stdout.endswith("</html>\n")
    assert daemon.asked == [("GET /v1/report?since_s=5400", None)]


def test_it_is_written_whole_or_not_at_all(daemon: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "a.html"
    file.write_text("before")
    done = asked(daemon, tmp_path, "-o", str(file))
    assert (done.stdout, done.returncode) == (f"{file}\n", 0)
    assert file.read_text().endswith("</html>\n")
    assert [*tmp_path.iterdir()] == [file]
    failed = asked(daemon, tmp_path, "-o", str(tmp_path / "no/such.html"))
    assert (failed.returncode, "cannot write" in failed.stderr) == (1, True)
    assert json.loads(json.dumps(failed.stderr)).count("\n") == 1


def test_a_span_that_is_none_is_refused(daemon: StandIn, tmp_path: Path) -> None:
    assert asked(daemon, tmp_path, "--since", "some days").returncode == 2
