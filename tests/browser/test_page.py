"""The report in a real browser: opened, read, clicked, by mouse and by keyboard, on a phone and on a desktop.

HOSTGUARD_TESTS_PICTURES names a folder for the pictures, to be looked at.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from browser import DESKTOP, PHONE, Browser
from served import TOKEN, Served, turn

from hostguard.core.clock import now_ms
from hostguard.telemetry.page import render
from hostguard.telemetry.summary import make

SIZES = {"phone": PHONE, "desktop": DESKTOP}
OPEN_MS = 2000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    assert shutil.which("chromium"), "tests/rig/need chromium"
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    chromium.complaints.clear()
    chromium.asked.clear()
    chromium.scheme("light")
    chromium.size(*DESKTOP)
    yield chromium
    chromium.open("about:blank")
    assert chromium.complaints == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path).running() as served:
        yield served


def picture(browser: Browser, name: str) -> None:
    folder = os.environ.get("HOSTGUARD_TESTS_PICTURES")
    if folder:
        browser.picture(Path(folder, f"{name}.png"))


def fits(browser: Browser) -> bool:
    """Nothing but what has its own scroll bar is wider than the screen."""
    wide = browser.js("document.documentElement.scrollWidth <= window.innerWidth")
    return bool(wide)


@pytest.mark.parametrize("turns", [0, 150, 10_000])
@pytest.mark.parametrize("size", SIZES)
def test_the_file_opens_at_once_and_fits_the_screen(
    browser: Browser, served: Served, tmp_path: Path, turns: int, size: str
) -> None:
    if turns:
        served.fill(turns)
    report = served.call(served.reports.report(86_400_000, 60))
    file = tmp_path / "report.html"
    file.write_text(render(report, "pi"))
    browser.size(*SIZES[size])
    for scheme in ("dark", "light"):
        browser.scheme(scheme)
        took = browser.open(file.as_uri())
        assert took < OPEN_MS, took
        assert fits(browser)
        picture(browser, f"{turns}-{size}-{scheme}")
    assert set(browser.asked) == {file.as_uri()}  # it is all in the one file
    assert browser.js("document.querySelectorAll('#minds tbody tr').length") == (10 if turns else 0)
    if turns:
        told = browser.js(
            "[...document.querySelectorAll('#minds tbody tr td:nth-child(2)')].map(e => +e.dataset.v)"
        )
        assert sum(told) == turns + 2  # and the live ones
    else:
        assert "Nothing has run in this time" in browser.js("document.body.innerText")


def test_a_mind_is_picked_and_let_go_by_mouse_and_by_keyboard(browser: Browser, served: Served) -> None:
    served.fill(150)
    browser.open(served.url)
    faint = "document.querySelectorAll('#turns path.off').length"
    browser.click("#key-1")
    assert browser.js(faint) == 7
    assert browser.js("document.querySelector('#key-1').getAttribute('aria-pressed')") == "true"
    browser.click("#key-1")
    assert browser.js(faint) == 0
    browser.js("document.querySelector('#key-0').focus()")
    browser.press("Tab")
    browser.press("Enter")
    assert browser.js("document.querySelector('#key-1').getAttribute('aria-pressed')") == "true"


def test_the_minds_are_sorted_by_any_column(browser: Browser, served: Served) -> None:
    served.fill(150)
    browser.open(served.url)
    names = "[...document.querySelectorAll('#minds tbody th')].map(e => e.innerText)"
    values = "[...document.querySelectorAll('#minds tbody tr td:nth-child(9)')].map(e => +e.dataset.v)"
    browser.click("#sort-0")
    assert browser.js(names) == sorted(browser.js(names))
    browser.click("#sort-8")
    assert browser.js(values) == sorted(browser.js(values), reverse=True)
    assert (
        browser.js("document.querySelector('#minds th:nth-child(9)').getAttribute('aria-sort')")
        == "descending"
    )
    browser.click("#sort-8")
    assert browser.js(values) == sorted(browser.js(values))
    browser.click("#sort-9")  # words
    assert browser.js("document.querySelectorAll('#minds [aria-sort]').length") == 1


def test_all_of_it_is_reached_by_keyboard_and_told_to_a_screen_reader(
    browser: Browser, served: Served
) -> None:
    served.fill(150)
    browser.open(served.url)
    browser.js("document.activeElement.blur()")
    reached = []
    for _ in range(60):
        browser.press("Tab")
        where = browser.js(
            "document.activeElement.id || document.activeElement.tagName + document.activeElement.className"
        )
        if where in reached[:1] or where == "BODY":
            break
        reached.append(where)
    assert reached[0] == "Askip"
    assert {"follow", "token", "stop-17", "stop-18", "key-0", "key-7", "sort-0", "sort-9"} <= {*reached}
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    told = [
        (node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]
    ]
    roles = [role for role, _ in told]
    assert {"main", "navigation", "table", "columnheader", "rowheader", "status"} <= {*roles}
    pictures = [name for role, name in told if role in ("image", "img")]
    assert len(pictures) == 4
    assert any(name.startswith("Turns at a time over the last 1d, of these minds: ada") for name in pictures)
    assert any("strained in" in name and "stalled in" in name for name in pictures)
    for role, name in told:
        assert name or role not in (
            "button",
            "link",
            "image",
            "img",
            "checkbox",
            "textbox",
            "table",
            "region",
        ), role
    assert not [name for role, name in told if role == "heading" and not name]


def test_the_table_of_the_charts_stays_open_while_the_page_refreshes(
    browser: Browser, served: Served
) -> None:
    served.fill(150)
    browser.open(served.url)
    browser.js("state.wait = 200")
    browser.click("#steps summary")
    browser.click("#key-1")
    browser.click("#sort-1")
    marked = "document.querySelector('#report').marked"
    browser.js(f"{marked} = true")
    served.status["live"].append(turn("19", "newcomer", 1, started_at=now_ms() - 1000))
    browser.wait_for(f"!{marked}")
    assert "newcomer" in browser.js("document.querySelector('#running').innerText")
    assert browser.js("document.querySelector('#steps').open")
    assert browser.js("document.querySelector('#key-1').getAttribute('aria-pressed')") == "true"
    assert (
        browser.js("document.querySelector('#minds th:nth-child(2)').getAttribute('aria-sort')")
        == "descending"
    )
    assert browser.js("document.activeElement.id") == "sort-1"


def test_it_asks_seldom_and_not_at_all_when_told_not_to(browser: Browser, served: Served) -> None:
    served.fill(150)
    browser.open(served.url)
    browser.asked.clear()
    begun = time.monotonic()
    while len(browser.asked) < 2:
        browser.js("0")
        assert time.monotonic() - begun < 60
        time.sleep(0.1)
    assert time.monotonic() - begun > 8
    assert set(browser.asked) == {served.url}
    browser.click("#follow")
    browser.js("state.wait = 100")
    browser.asked.clear()
    browser.js("new Promise(resolve => setTimeout(resolve, 7000))")
    assert browser.asked == []


def test_a_guard_that_is_away_is_told_of_and_asked_less_often(browser: Browser, served: Served) -> None:
    browser.open(served.url)
    served.stop()
    browser.js(
        "void (fetch = () => Promise.reject(new Error('away')))"
    )  # nobody answers; but no error of the console
    told = browser.wait_for("document.querySelector('#said').textContent")
    assert told == "Not refreshed: away. Trying again in 10 s."


def test_who_has_the_token_acts(browser: Browser, served: Served) -> None:
    did: list[Any] = []

    async def pause(mind: str | None, on: bool) -> None:
        did.append(("pause", mind, on))

    async def stop(name: str) -> Any:
        did.append(("stop", name))
        return turn_of(name)

    served.control.pause, served.control.stop = pause, stop
    served.fill(150)
    browser.open(served.url)
    browser.click("[data-post='/v1/pause']")
    assert browser.wait_for("document.querySelector('#said').textContent") == "this is not web.token"
    assert did == []
    assert "401" in browser.complaints.pop()  # Chromium tells its console so, and nothing else
    browser.js(f"document.querySelector('#token').value = {TOKEN!r}")
    for button in ("[data-post='/v1/pause']", "[data-post='/v1/resume']", "#stop-17"):
        browser.js("say('')")
        browser.click(button)
        browser.wait_for("document.querySelector('#said').textContent == 'Done.'")
    assert did == [("pause", None, True), ("pause", None, False), ("stop", "17")]


def turn_of(name: str) -> Any:

    return SimpleNamespace(live=SimpleNamespace(id=name))


def test_a_page_of_somebody_else_learns_nothing(browser: Browser, served: Served, tmp_path: Path) -> None:
    """As a page of another origin: a file is one."""
    file = tmp_path / "evil.html"
    file.write_text("<!DOCTYPE html><title>evil</title><link rel=icon href='data:,'>")
    browser.open(file.as_uri())
    tried = browser.js(
        f"Promise.allSettled([fetch('{served.url}'), fetch('{served.url}v1/pause', {{method: 'POST'}}),"
        f" fetch('{served.url}', {{mode: 'no-cors'}})]).then(all => all.map(one => one.status))"
    )
    assert tried[:2] == ["rejected", "rejected"]
    assert served.asked == []  # not even the one that it may not read did anything
    browser.open("about:blank")
    browser.complaints.clear()  # which say just that


def test_it_prints_in_dark_ink_without_what_can_be_clicked(browser: Browser, served: Served) -> None:
    served.fill(150)
    browser.open(served.url)
    browser.scheme("dark", "print")
    style = "getComputedStyle(document.{0}).{1}"
    assert browser.js(style.format("body", "backgroundColor")) == "rgb(255, 255, 255)"
    assert browser.js(style.format("querySelector('.steer')", "display")) == "none"
    picture(browser, "print")


def test_nothing_of_a_name_runs(browser: Browser, tmp_path: Path) -> None:
    bad = "</script><img src=x onerror=\"document.title='bad'\"><svg/onload=alert(1)>"
    status = {
        **Served(tmp_path).status,
        "live": [turn("9", bad, 60, session=bad, unit=bad)],
        "paused_minds": [bad],
    }
    file = tmp_path / "report.html"
    file.write_text(render(make(status, (), (), (), now_ms(), 3_600_000), "pi"))
    browser.open(file.as_uri())
    assert browser.js("document.title") == "hostguard on pi"
    assert bad in browser.js("document.querySelector('#running').innerText")
    assert browser.js("document.images.length") == 0
