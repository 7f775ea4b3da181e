"""What a report says of rows, notes and live turns, and the page that is made of it. The browser's own tests are in tests/browser."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from standin import StandIn
from statuses import NOW, hold, mind, stalled, status, turn

from hostguard import api_report, report
from hostguard.clock import now_ms
from hostguard.history import History, Incident, Point, Seen
from hostguard.history_db import Ended
from hostguard.page import policy, render
from hostguard.queue import Unavailable
from hostguard.report import SERIES, STEPS_MAX, WIDTHS, begin_of, make, quantile, width_of

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
LONG = 2 * HOUR  # in steps of a minute
NASTY = "</script><img src=x onerror=alert(1)>\"'&\u202e\x1b[2J"


def ended(name: str, ago: int, ran: int, **more: Any) -> Ended:
    """A turn that began `ago` ms before now and ran for `ran` ms."""
    row = Ended(name, True, NOW - ago, NOW - ago + ran, 0, 0, None, None, None, None)
    return row._replace(**more)


def made(rows: Any = (), points: Any = (), incidents: Any = (), span: int = LONG, **more: Any) -> Any:
    return make(status(**more), rows, points, incidents, NOW, span)


# -- what it says


@pytest.mark.parametrize("span", [MINUTE, HOUR, HOUR + 1, DAY, 7 * DAY, 35 * DAY])
def test_the_steps_cover_the_span_and_are_few(span: int) -> None:
    begin, width = begin_of(NOW + 12_345, span), width_of(span)
    shown = make(status(), (), (), (), NOW + 12_345, span)
    assert begin <= NOW + 12_345 - span < begin + width
    assert len(shown["level"]) <= STEPS_MAX + 1
    assert (shown["from"] + len(shown["level"]) * width) > NOW + 12_345 >= shown["from"]
    assert width in WIDTHS


def test_a_turn_is_counted_in_each_step_in_which_it_ran() -> None:
    shown = made([ended("ada", 5 * MINUTE, 90_000), ended("ada", 5 * MINUTE, 60_000)])
    busy = shown["turns"][0]["busy"]
    at = (NOW - 5 * MINUTE - shown["from"]) // shown["step_ms"]
    assert busy[at : at + 3] == [2.0, 0.5, 0.0]
    assert sum(busy) == 2.5
    assert shown["minds"][0]["run_ms"] == 150_000


def test_only_the_part_of_a_turn_within_the_span_counts() -> None:
    shown = made([ended("ada", 3 * HOUR, 2 * HOUR + 30_000 + DAY)])
    assert sum(shown["turns"][0]["busy"]) == pytest.approx(121, abs=1.01)
    assert made([ended("ada", 3 * HOUR, HOUR)])["turns"][0]["busy"] == [0.0] * 121


def test_live_turns_count_up_to_now_with_what_they_used_so_far() -> None:
    shown = made(
        [ended("ada", 20 * MINUTE, MINUTE, write_bytes=10)], live=[turn("9", "ada", 120, write_bytes=5)]
    )
    assert shown["turns"][0]["busy"][-3:] == [1.0, 1.0, 0.0]
    assert (shown["minds"][0]["turns"], shown["minds"][0]["write_bytes"]) == (2, 15)


def test_a_turn_is_one_however_many_messages_went_into_it() -> None:
    first = ended("ada", HOUR // 2, 1000, write_bytes=7, cpu_ms=3, failed=2, held_ms=5)
    shown = made([first, first._replace(starts=False, held_ms=95)])["minds"][0]
    assert (shown["turns"], shown["failed"], shown["write_bytes"], shown["cpu_ms"]) == (1, 2, 7, 3)
    assert (shown["held_p50_ms"], shown["held_p95_ms"]) == (5, 95)


def test_what_is_not_known_is_not_nothing() -> None:
    shown = made([ended("ada", 1000, 10)])["minds"][0]
    assert (shown["cpu_ms"], shown["read_bytes"], shown["write_bytes"]) == (None, None, None)


def test_minds_beyond_the_colours_are_put_together_and_still_in_the_table() -> None:
    rows = [ended(f"m{i}", 10 * MINUTE, (i + 1) * 1000) for i in range(SERIES + 3)]
    shown = made(rows)
    assert [series["mind"] for series in shown["turns"]] == [f"m{i}" for i in range(SERIES + 2, 2, -1)] + [
        None
    ]
    assert sum(shown["turns"][-1]["busy"]) == pytest.approx(6000 / MINUTE)
    assert len(shown["minds"]) == SERIES + 3


def test_quantiles_are_values_that_were_there() -> None:
    assert quantile([], 0.5) is None
    assert (quantile([4], 0.5), quantile([4], 0.95)) == (4, 4)
    assert (quantile([1, 2, 3, 4], 0.5), quantile([1, 2, 3, 4], 0.95)) == (2, 4)
    assert quantile(list(range(1, 101)), 0.95) == 95


def test_the_commonest_reason_is_told() -> None:
    rows = [
        ended("ada", 1000, 1, held_for=reason) for reason in ("pressure", "global_cap", "global_cap", None)
    ]
    assert made(rows)["minds"][0]["held_for"] == "global_cap"


# -- the page


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
    css = Path(report.__file__).with_name("page").joinpath("report.css").read_text()
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
    css = Path(report.__file__).with_name("page").joinpath("report.css").read_text()
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
    assert asked(daemon, tmp_path, "--since", "yesterday").returncode == 2


# -- what is read of the database for it


class Hanging:
    """A database whose reads last as long as the test wants."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[Any]] = []

    def read(self, op: Any) -> asyncio.Future[Any]:
        self.reads.append(asyncio.get_running_loop().create_future())
        return self.reads[-1]


def on_reporter(work: Any) -> None:
    async def main() -> None:
        queue = Hanging()
        recorder = SimpleNamespace(history=History())
        manager = SimpleNamespace(queue=queue, watcher=SimpleNamespace(recorder=recorder))
        daemon: Any = SimpleNamespace(manager=manager, status=status)
        await work(api_report.Reporter(daemon), queue)

    asyncio.run(main())


def stored(*rows: Ended) -> Any:
    return api_report._Stored(time.monotonic(), list(rows), [], [])


def late(name: str) -> Ended:
    return ended(name, 0, 0)._replace(started_at=now_ms() - 2000, ended_at=now_ms() - 1000)


def test_while_the_disk_does_not_answer_what_was_read_before_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(reporter: api_report.Reporter, queue: Hanging) -> None:
        first = await reporter.report(HOUR, 0.01)
        assert (first["complete"], first["minds"]) == (False, [])
        queue.reads[0].set_result(stored(late("ada")))
        second = await reporter.report(HOUR, 60)
        assert (second["complete"], [one["name"] for one in second["minds"]]) == (True, ["ada"])
        assert len(queue.reads) == 1  # it is fresh
        monkeypatch.setattr(api_report, "FRESH_S", 0)
        for _ in range(5):
            third = await reporter.report(HOUR, 0.01)
            assert (third["complete"], [one["name"] for one in third["minds"]]) == (False, ["ada"])
        assert len(queue.reads) == 2  # one at a time, however many ask

    on_reporter(work)


def test_a_disk_that_refuses_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(reporter: api_report.Reporter, queue: Hanging) -> None:
        await reporter.report(HOUR, 0.01)
        queue.reads[0].set_exception(Unavailable("no"))
        assert not (await reporter.report(HOUR, 0.01))["complete"]
        await reporter.report(HOUR, 0.01)
        assert len(queue.reads) == 2

    on_reporter(work)


def test_what_was_read_is_let_go_when_nobody_asks_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_report, "KEPT_S", 0.01)

    async def work(reporter: api_report.Reporter, queue: Hanging) -> None:
        await reporter.report(HOUR, 0.01)
        queue.reads[0].set_result(stored(late("ada")))
        await asyncio.sleep(0.1)
        assert not reporter._stored

    on_reporter(work)
