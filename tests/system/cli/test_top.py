"""`hostguard top` on a real terminal: turns that write on the card, keys, a guard that goes, a terminal given back."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from card import Card
from guard import Guard, run, wait_for
from guarded import LONG_S
from screen import OnScreen

CONFIG = """
[limits]
global_concurrent_turns = 2
[device]
path = "{device}"
[minds.ada]
command = ["/bin/sh", "-c", "while dd if=/dev/zero of={file} bs=64K count=1 conv=fsync status=none; do sleep 0.1; done"]
user = "root"
[minds.bob]
command = ["/bin/sleep", "1000"]
user = "root"
[minds.carol]
command = ["/bin/sleep", "1000"]
user = "root"
[minds.dora]
command = ["/bin/true"]
user = "root"
"""
UP = r"^hostguard +(\d\d:\d\d:\d\d) +2 turns, cap 2$"


@pytest.fixture(scope="module")
def card() -> Iterator[Card]:
    with Card() as made:
        yield made


@pytest.fixture(scope="module")
def started(card: Card, shared_guard: Guard) -> Iterator[Guard]:
    shared_guard.start(CONFIG.format(device=card.device, file=card.mount / "file"))
    try:
        yield shared_guard
    finally:
        card.go()
        shared_guard.cli("pause")
        shared_guard.end_turns()


@pytest.fixture
def host(started: Guard, card: Card) -> Iterator[Guard]:
    """ada writes, bob sleeps, carol waits for the cap of 2."""
    with started.client() as api:
        page = api.get("/v1/status").json()
        if (sorted(turn["mind"] for turn in page["live"]), page["queued"]) != (["ada", "bob"], 1):
            api.post("/v1/pause")
            started.end_turns()
            wait_for(lambda: not api.get("/v1/turns").json()["turns"], LONG_S)
            for row in api.get("/v1/deliveries").json()["deliveries"]:
                api.post(f"/v1/deliveries/{row['id']}/cancel")
            api.post("/v1/resume")
            for mind in ("ada", "bob", "carol"):
                api.post("/v1/deliveries", json={"to": mind, "content": "go"})
            wait_for(lambda: len(started.scopes()) == 2)
    yield started
    card.go()


def turn(text: str, mind: str) -> list[str]:
    """The cells of a mind's turn on the screen: id, mind, session, state, age, CPU%, CPU, two rates, two totals."""
    [line] = [line for line in text.splitlines() if re.match(rf"[> ] \d+ +{mind} ", line)]
    return line[2:].split()


def test_who_runs_who_writes_what_waits_and_why(host: Guard) -> None:
    with OnScreen("hostguard", "top", TERM="vt100") as top:
        text = top.wait(r"^> +\d+ +ada .*K +\S+ +[\d.]+[KM]$")
        assert re.search(r"^hostguard +\d\d:\d\d:\d\d +2 turns, cap 2$", text, re.M)
        assert re.search(
            r"^ +waiting +1; the longest carol for \d.*: no slot free, behind turn \d+$", text, re.M
        )
        assert re.search(r"^ +written +most by ada [\d.]+ [KM]iB", text, re.M)
        assert re.search(
            r"^ +device +/dev/\S+, calm: \d+ ms a request, \d+ % busy, \d+ in flight", text, re.M
        )
        assert re.search(r"^ +level +\S*\.+ +2 min$", text, re.M), "ASCII on a vt100"
        assert re.search(r"^  carol +idle +0/1 +1 +\S+ +no slot free, behind turn \d+$", text, re.M)
        bob = turn(text, "bob")
        assert bob[3] == "running"
        assert bob[-2:] == ["0B", "0B"]
        assert max(map(len, text.splitlines())) < 80
        assert not top.screen.unknown
        assert not any("3" in code.split(";") or "31" in code or "33" in code for code in top.screen.styles)


@pytest.mark.parametrize(("how", "code"), [("\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_terminal_is_given_back(host: Guard, how: Any, code: int) -> None:
    with OnScreen("hostguard", "top") as top:
        top.wait(r"^> +\d+ +ada ")
        assert not top.is_as_before
        if isinstance(how, str):
            top.press(how)
        else:
            top.signal(how)
        assert top.ended() == code
        assert top.is_as_before
        assert "25" in top.screen.modes
        assert not top.screen.modes & {"1049"}
        assert "Traceback" not in top.raw


def test_it_stops_for_ctrl_z_and_goes_on(host: Guard) -> None:
    # A shell with job control stands between, as at a login.
    with OnScreen("bash", "--norc", "-i", PS1="prompt> ") as shell:
        shell.press("hostguard top\n")
        shell.wait(r"^> +\d+ +ada ")
        shell.press("\x1a")
        shell.wait("Stopped")
        assert "25" in shell.screen.modes
        shell.press("fg\n")
        shell.wait(lambda text: "1049" in shell.screen.modes)  # earlier keys are lost
        shell.press("q")
        shell.wait(lambda text: "1049" not in shell.screen.modes)


def test_a_slow_line_a_dumb_terminal_and_other_sizes(host: Guard) -> None:
    with OnScreen("hostguard", "top", TERM="vt100") as top:
        top.wait(r"^> +\d+ +ada ")
        top.watch(3)
        each = top.watch(10) / 10
        print(f"\n{each:.0f} bytes/s on an 80x24 vt100")
        assert each < 480, "half of what a line of 9600 bit/s carries"
        for width, height in ((40, 12), (132, 40), (20, 6), (80, 24)):
            top.resize(width, height)
            text = top.wait(r"^hostguard")
            assert max(map(len, text.splitlines())) < width
        top.wait(r"^> +\d+ +ada ")
    with OnScreen("hostguard", "top", TERM="dumb") as top:
        top.wait(r"ada +main +running")
        assert "\x1b" not in top.raw
        assert top.watch(3) < 100, "a whole screen comes seldom"
        top.press("P")
        top.wait("all minds paused; running turns continue")
        top.press("P")
        top.wait("all minds resumed")
        top.press("q")
        assert top.ended() == 0
        assert top.is_as_before
        assert "\x1b" not in top.raw
    with OnScreen("hostguard", "top", NO_COLOR="1") as top:
        top.wait(r"^> +\d+ +ada ")
        assert not any(code.startswith("3") or ";3" in code for code in top.screen.styles)


def test_once_for_scripts(host: Guard) -> None:
    text = host.cli("top", "--once").stdout
    assert re.search(r"^  \d+ +ada +main +running .* [\d.]+[KM] +\S+ +[\d.]+[KM]$", text, re.M)
    assert "quit" not in text
    assert "\x1b" not in text
    assert host.cli("top").stdout.startswith("hostguard "), "standard output is no terminal"
    told = json.loads(host.cli("top", "--json").stdout)
    ada = next(turn for turn in told["turns"] if turn["mind"] == "ada")
    assert ada["write_rate"] > 0
    assert ada["counted"] in ("scope", "processes")
    assert [mind["name"] for mind in told["minds"] if mind["held"]] == ["carol"]


def test_a_member_of_the_group_sees_what_turns_of_others_write(host: Guard) -> None:
    run("useradd", "--groups", "hostguard", "tom")
    try:
        told = run(
            "setpriv", "--reuid=tom", "--regid=tom", "--init-groups", "hostguard", "top", "--json"
        ).stdout
        ada = next(turn for turn in json.loads(told)["turns"] if turn["mind"] == "ada")
        assert ada["write_rate"] > 0
        denied = OnScreen(
            "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "hostguard", "top"
        )
        with denied as top:
            assert top.ended() == 1
            assert "group hostguard" in top.screen.text
            assert top.is_as_before
    finally:
        run("userdel", "tom")


def test_the_keys_stop_pause_and_change_the_cap(host: Guard) -> None:
    with OnScreen("hostguard", "top") as top:
        top.wait(r"^> +\d+ +ada ")
        top.press("-")
        top.wait(r"^the global cap is 1 now, until the next boot")
        [limit] = [
            one for one in host.json("limit", "show")["limits"] if one["name"] == "global_concurrent_turns"
        ]
        assert limit["value"] == 1
        top.wait(r"2 turns, which may finish; cap 1$")
        top.press("+")
        top.wait(r"2 turns, cap 2$")

        top.press("j")
        chosen = turn(top.wait(r"^> +\d+ +bob "), "bob")[0]
        top.press("p")
        top.wait(r"^! +paused +bob$")
        assert host.json("status")["paused_minds"] == ["bob"]
        top.press("p")
        top.wait(lambda text: "paused   bob" not in text)
        top.press("P")
        top.wait(r"^! +paused +all minds")
        assert host.json("status")["state"] == "paused"
        top.press("P")
        top.wait(lambda text: "all minds" not in text)

        top.press("s")
        top.wait(rf"^stop {chosen} of bob\? y/n")
        top.press("n")
        time.sleep(1.5)
        assert turn(top.text, "bob")[3] == "running"
        top.press("sy")
        top.wait(rf"^stopping {chosen} of bob")
        text = top.wait(r"^[> ] +\d+ +carol ")
        assert not re.search(r"^[> ] +\d+ +bob ", text, re.M)
        assert host.json("turns", chosen)["result"]["outcome"] == "stopped"

        top.press("/dor")
        top.wait(r"^show only: dor_")
        top.press("\r")
        text = top.wait(r"^\[dor\] q quit")
        assert re.search(r"^> dora +idle", text, re.M), text
        assert "ada " not in text.partition("no running turn")[2]
        top.press("\x1b")
        top.wait(r"^> +\d+ +ada ")

        top.press("?")
        top.wait("any key to go back")
        top.press("x")
        top.wait(r"^> +\d+ +ada ")
        top.press("q")
        assert top.ended() == 0
        assert top.is_as_before
        assert not top.screen.modes & {"1049"}
        assert "25" in top.screen.modes, "the cursor is back"


def test_a_guard_that_goes_is_told_of_and_found_again(host: Guard) -> None:
    with OnScreen("hostguard", "top", TERM="vt100") as top:
        top.wait(r"^> +\d+ +ada ")
        host.stop()
        text = top.wait(r"^!! hostguard is not running: systemctl start hostguard")
        assert turn(text, "ada"), "what is known of it stays"
        host.restart()
        assert turn(top.wait(UP), "ada")
        host.kill("STOP")
        try:
            top.wait(r"^!! hostguard (does not answer|takes no requests)")
        finally:
            host.kill("CONT")
        top.wait(r"^hostguard +\d\d:\d\d:\d\d ")
        killed = host.pid
        host.kill()
        # Where the socket is a unit of its own, top only waits meanwhile.
        wait_for(lambda: host.pid not in (0, killed), LONG_S)
        again = time.strftime("%H:%M:%S")
        top.wait(lambda text: (found := re.search(UP, text, re.M)) and found[1] > again, LONG_S)
        top.press("q")
        assert top.ended() == 0
        assert top.is_as_before


def test_a_stopped_card_is_seen(host: Guard, card: Card) -> None:
    with OnScreen("hostguard", "top") as top:
        # On a busy machine the card is slow, too: then it is strained before it is stopped.
        top.wait(r"^ +device .*(calm|strained): \d+ ms a request", LONG_S)
        card.stop()
        text = top.wait(r"^!! disk +stalled for .*: \d+ requests? in flight, no", LONG_S)
        assert re.search(
            r"^hostguard .*2 turns, which may finish; only 1 at a time now \(cap 2\)$", text, re.M
        )
        assert re.search(r"^! +guard +has allowed 1 turn at a time, not 2, for", text, re.M)
        assert re.search(r"^ +level +\S*▁*█+ 2 min$", text, re.M)
        said = host.cli("status").stdout.splitlines()
        assert said[0].startswith("!! disk     stalled for ")
        assert said[1].startswith("!  guard    has allowed 1 turn at a time, not 2, for ")
        card.go()
        host.cli("stop", turn(text, "ada")[0])  # so that the disk is calm, however busy the machine is
        top.wait(r"^ +guard +allowed 1 turn at a time .* ago, for .*: the disk was stalled", 120)
