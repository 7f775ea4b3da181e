"""`hostguard demo` on a slow card: its output, and that it leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from card import Card
from guard import Guard, run, wait_for
from guarded import LONG_S

RUNTIME = Path("/run/hostguard")
HELD = range(10, 14)  # of 15 under a cap of 2: on a busy host one is over before the last is sent
CONFIG = """
[minds.bob]
command = ["/bin/true"]
user = "root"
"""


@pytest.fixture
def host(guard: Guard) -> Guard:
    """A host with a mind of its own, and a cap that its operator has set for good."""
    guard.start(CONFIG)
    guard.cli("limit", "set", "global_concurrent_turns=7")
    return guard


def assert_nothing_left(host: Guard, card: Card) -> None:
    assert not (RUNTIME / "hostguard.toml.d").exists()
    with host.client() as http:
        limits = http.get("/v1/limits").json()["limits"]
        assert http.get("/v1/deliveries").json()["deliveries"] == []
        assert [mind["name"] for mind in http.get("/v1/minds").json()["minds"]] == ["bob"]
    assert [(limit["name"], limit["value"], limit["source"]) for limit in limits] == [
        ("global_concurrent_turns", 7, "kept"),
        ("mind_concurrent_turns", 1, "default"),
    ]
    assert host.scopes() == []
    slices = ("systemctl", "list-units", "--all", "--no-legend", "hostguard-*.slice")
    wait_for(lambda: "demo" not in run(*slices).stdout, LONG_S)
    assert os.listdir(card.mount) == ["lost+found"]
    assert f"{card.mount}/" not in run("ps", "-eo", "args").stdout
    assert list((RUNTIME / "turns").iterdir()) == []


@contextmanager
def demo(card: Card, *args: str) -> Iterator[subprocess.Popen[str]]:
    """`hostguard demo`, on its way."""
    command = ["hostguard", "demo", "--dir", str(card.mount), *args]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read what the demo tells until a line with `text`."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"the demo ended before {text!r}: {process.communicate()}")


@contextmanager
def guarded_demo(card: Card) -> Iterator[subprocess.Popen[str]]:
    """A demo whose first half is over soon."""
    card.set_rate(None)
    with demo(card, "--size", "512K") as process:
        read_until(process, "guarded: 15 turns start in the same second, with")
        card.set_rate(4_000_000)
        yield process


def test_the_guard_keeps_its_word_and_the_host_usable(host: Guard, card: Card) -> None:
    told = json.loads(host.cli("demo", "--dir", str(card.mount), "--size", "512K", "--json").stdout)
    before, after = told["unguarded"], told["guarded"]
    assert told["failures"] == []
    assert [len(phase["turns"]) for phase in (before, after)] == [15, 15]
    assert all(turn["exit"] == 0 for turn in before["turns"] + after["turns"])
    assert (before["turns_at_once"], before["scopes_at_once"]) == (15, 0)
    assert (after["turns_at_once"], after["scopes_at_once"]) == (2, 2)
    held = [turn["held"] for turn in after["turns"] if turn["held"]]
    assert len(held) in HELD
    assert {hold["reason"] for hold in held} == {"global_cap", "mind_busy"}
    assert all(hold["seconds"] > 0.1 for hold in held)
    # 15 writers ahead of it, or 2.
    assert before["bystander"]["max"] > 2 * after["bystander"]["max"]
    assert after["seconds"] < 2 * before["seconds"]
    assert_nothing_left(host, card)


def test_what_it_prints(host: Guard, card: Card) -> None:
    card.set_rate(16_000_000)
    done = host.cli("demo", "--dir", str(card.mount), "--size", "512K")
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert lines[0] == "unguarded: 15 turns start in the same second"
    words = [line.split()[2] for line in lines if " s  " in line and line[:8].strip()[:1].isdigit()]
    assert words.count("held") in HELD
    others = [word for word in words if word != "held"]
    assert {word: others.count(word) for word in set(others)} == {"start": 30, "end": 30, "over": 2}
    at = lines.index("Guarded: 15 turns, a global cap of 2")
    pip = lines[at + 3]
    assert pip.startswith("pip           ░")
    assert "█" in pip
    assert lines.index("Holds under the guard") < lines.index(
        "Delay of a bystander that writes and syncs 4 KiB four times a second"
    )
    assert_nothing_left(host, card)


def test_ctrl_c_among_plain_turns_ends_and_undoes_all(host: Guard, card: Card) -> None:
    with demo(card, "--size", "8M") as process:
        read_until(process, "wabe message")
        other = host.cli("demo", "--dir", str(card.mount), check=False)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)  # 15 times 8 MB, written to their end, take 30 s
    assert (process.returncode, "undoing its changes" in said) == (130, True)
    assert_nothing_left(host, card)
    assert (other.returncode, other.stderr) == (
        1,
        "hostguard: another `hostguard demo` is running on this host\n",
    )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_among_guarded_turns_ends_and_undoes_all(
    host: Guard, card: Card, number: int, status: int
) -> None:
    with guarded_demo(card) as process:
        read_until(process, "end ")
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, "undoing its changes" in said) == (status, True)
    assert_nothing_left(host, card)


def test_the_next_demo_undoes_what_a_killed_one_left(host: Guard, card: Card) -> None:
    with guarded_demo(card) as process:
        read_until(process, "end ")
    assert host.json("limit", "show")["limits"][0]["value"] == 2
    card.set_rate(None)
    host.cli("demo", "--dir", str(card.mount), "--size", "512K")
    assert os.listdir(RUNTIME / "hostguard.toml.d") == []
    (RUNTIME / "hostguard.toml.d").rmdir()  # was there when the second one began
    assert_nothing_left(host, card)


def test_a_daemon_that_is_killed_meanwhile_ends_it(host: Guard, card: Card) -> None:
    with guarded_demo(card) as process:
        read_until(process, "end ")
        host.kill()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 3, said
    assert "lost the connection to hostguard" in said
    assert_nothing_left(host, card)


def test_a_turn_that_does_not_run_to_its_end_is_a_failure_with_a_name(host: Guard, card: Card) -> None:
    with guarded_demo(card) as process:
        read_until(process, "held   wabe")
        (row,) = [row for row in host.json("queue")["deliveries"] if row["mind"] == "demo-wabe"]
        host.cli("cancel", str(row["id"]))
        out, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said == "hostguard: guarded: wabe message: cancelled by request\n"
    assert "Holds under the guard" in out
    assert_nothing_left(host, card)


def test_what_it_cannot_do_it_refuses_before_it_changes_anything(host: Guard, card: Card) -> None:
    full = host.cli("demo", "--dir", str(card.mount), "--size", "100M", check=False)
    assert full.returncode == 1
    assert "use another --dir or a smaller --size" in full.stderr
    host.cli("pause")
    paused = host.cli("demo", "--dir", str(card.mount), check=False)
    assert (paused.returncode, "the guard is paused" in paused.stderr) == (1, True)
    host.configure(CONFIG.replace("bob", "demo-pip") + CONFIG)
    host.cli("resume")
    host.reload()
    taken = host.cli("demo", "--dir", str(card.mount), check=False)
    assert (taken.returncode, "already has a mind demo-pip" in taken.stderr) == (1, True)
    host.configure(CONFIG)
    host.reload()
    assert_nothing_left(host, card)
    host.stop()
    assert host.cli("demo", check=False).returncode == 3
