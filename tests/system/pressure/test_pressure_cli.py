"""`hostguard pressure` on the slow card: what it shows while the card is stopped, and the trace it records."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from card import Card
from guard import DISK, Guard, wait_for

from hostguard.pressure import trace

CONFIG = """
[limits]
global_concurrent_turns = 2
[device]
path = "{device}"
[minds.a]
command = ["/bin/sh", "-c", "while dd if=/dev/zero of={file} bs=4K count=1 conv=fsync status=none; do sleep 0.1; done"]
user = "root"
"""


@pytest.fixture
def at_work(guard: Guard, card: Card) -> Iterator[Guard]:
    """A guard of the card, whose own state is elsewhere, with one turn that writes."""
    guard.start(CONFIG.format(device=card.device, file=card.mount / "file"))
    guard.cli("send", "@a", "go")
    wait_for(lambda: (card.mount / "file").exists())
    try:
        yield guard
    finally:
        card.go()
        guard.end_turns()


def test_a_stop_is_shown_recorded_and_replayed(at_work: Guard, card: Card) -> None:
    file = DISK / "trace.jsonl"
    time.sleep(3)
    with subprocess.Popen(["hostguard", "pressure", "record", "--for", "14s", "-o", str(file)]) as record:
        time.sleep(2)
        card.stop()
        wait_for(lambda: at_work.json("pressure")["level"] == "stalled", 5)
        shown = at_work.cli("pressure").stdout
        watched = subprocess.run(
            ["timeout", "--signal=INT", "3", "hostguard", "pressure", "--watch", "--json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        card.go()
        assert record.wait() == 0
    assert "Live turns: 1, only 1 at a time now (2 configured)\n" in shown
    assert f"Device: {card.device}\n" in shown
    assert "completed for 1." in shown.split("CHANGED")[1]
    lines = [json.loads(line) for line in watched.stdout.splitlines()]
    assert len(lines) >= 2
    assert {line["level"] for line in lines} == {"stalled"}

    with file.open("rb") as stream:
        head, samples = trace.read(stream)
        recorded = [*samples]
    assert head.device == Path(card.device).name
    assert {sample.live for sample in recorded[-20:]} == {1}
    assert {sample.cap for sample in recorded} == {2}
    assert recorded[-1].at - recorded[0].at > 13
    replayed = at_work.json("pressure", "replay", str(file))["changes"]
    assert [(one["level"], one["cap"]) for one in replayed][:2] == [("calm", None), ("stalled", 1)]
    later = at_work.json("pressure", "replay", str(file), "--set", "stall_after=60s")["changes"]
    assert "stalled" not in [one["level"] for one in later]


def test_without_the_daemon_it_records_what_the_kernel_says(at_work: Guard, card: Card) -> None:
    at_work.stop()
    done = at_work.cli("pressure", "record", "--for", "2s")
    head, *samples = map(json.loads, done.stdout.splitlines())
    assert head["device"] == Path(card.device).name
    assert len(samples) >= 3, "while the disk is at work it looks more often than once a second"
    assert {sample["live"] for sample in samples} == {1}
    assert samples[-1]["disk"]["writes"] > samples[0]["disk"]["writes"]
    assert at_work.cli("pressure", check=False).returncode == 3
