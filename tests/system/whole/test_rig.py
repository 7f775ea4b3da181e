"""The bench itself: a card that really is slow and really stops, a guard on a real disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import card as card_module
import psutil
import pytest
from card import BASE, Card, CardError
from guard import Guard, wait_for

WRITER = """
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
while True:
    os.write(file, bytes(4096))
    os.fsync(file)
    print(flush=True)
"""


class Writer:
    """A process that writes and fsyncs 4 KiB again and again."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "count"
        self.process: subprocess.Popen[bytes]

    @property
    def count(self) -> int:
        return self._log.stat().st_size

    def per_second(self) -> float:
        before, began = self.count, time.monotonic()
        time.sleep(1)
        return (self.count - before) / (time.monotonic() - began)

    @contextmanager
    def writing(self, folder: Path) -> Iterator[None]:
        with self._log.open("wb") as log:
            command = [sys.executable, "-c", WRITER, str(folder / "file")]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: self.count > 3)
            yield
        finally:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def in_flight(card: Card) -> int:
    """Requests that the kernel has given to the card's device and that are not done."""
    numbers = Path("/sys/block", Path(card.device).name, "inflight").read_text().split()
    return sum(map(int, numbers))


def completed(card: Card) -> int:
    return psutil.disk_io_counters(perdisk=True)[Path(card.device).name].write_count


def test_a_stopped_card_completes_nothing_and_goes_on(card: Card, writer: Writer) -> None:
    with writer.writing(card.mount):
        card.stop()
        wait_for(lambda: in_flight(card) > 0)
        time.sleep(0.2)  # what was answered before the stop may not have been counted yet
        before = writer.count, completed(card)
        time.sleep(0.5)
        assert (writer.count, completed(card)) == before
        assert in_flight(card) > 0
        card.go()
        wait_for(lambda: writer.count > before[0] + 3)


def test_delay_is_set_while_writes_run(card: Card, writer: Writer) -> None:
    with writer.writing(card.mount):
        assert 12 < writer.per_second() < 80  # an fsync is three or four requests of 4 ms
        card.set_delay(write_ms=50)
        assert writer.per_second() < 8
        card.set_delay(write_ms=0)
        card.set_rate(None)
        assert writer.per_second() > 80


def test_rate_is_set_while_writes_run(card: Card) -> None:
    card.set_delay(write_ms=0)
    card.set_rate(1_000_000)
    script = f"dd if=/dev/zero of={card.mount}/file bs=1M count=2 conv=fsync"
    began = time.monotonic()
    subprocess.run(script.split(), check=True, stderr=subprocess.DEVNULL)
    assert 2.0 < time.monotonic() - began < 8.0

    card.set_rate(1000)
    with subprocess.Popen(script.split(), stderr=subprocess.DEVNULL) as process:
        time.sleep(0.5)
        assert process.poll() is None
        card.set_rate(None)
        assert process.wait(20) == 0  # holds for requests under way, too


def test_the_card_is_a_block_device_with_nothing_in_between(card: Card) -> None:
    assert os.stat(card.mount).st_dev == os.stat(card.device).st_rdev
    assert Path("/sys/block", Path(card.device).name, "loop/dio").read_text() == "1\n"


def test_a_card_that_is_stopped_goes_away_with_its_context(writer: Writer) -> None:
    with Card() as card, contextlib.ExitStack() as stack:
        stack.enter_context(writer.writing(card.mount))
        card.stop()
        wait_for(lambda: in_flight(card) > 0)
        writer.process.kill()
        stack.pop_all()
    writer.process.wait()
    assert traces(card.folder) == []


def test_a_card_in_use_is_taken_away_and_named() -> None:
    with contextlib.ExitStack() as stack:
        card = stack.enter_context(Card())
        with (card.mount / "file").open("w"), pytest.raises(CardError, match="target is busy"):
            stack.close()
    wait_for(lambda: traces(card.folder) == [])


def test_a_killed_owner_takes_the_card_along_and_the_next_card_sweeps(writer: Writer) -> None:
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(card_module.__file__).parent)!r})
from card import Card
with Card() as card:
    print(card.folder, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        with writer.writing(folder / "mount"):
            owner.kill()
            assert writer.process.wait(10) == 1  # an I/O error
    assert traces(folder)
    with Card():
        pass
    assert traces(folder) == []


def traces(folder: Path) -> list[str]:
    """What is left of a card. Other cards of this machine may have its loop device meanwhile."""
    backing_files = Path("/sys/block").glob("loop*/loop/backing_file")
    mounts = Path("/proc/mounts").read_text().splitlines()
    return [
        *(str(file) for file in backing_files if folder.name in file.read_text()),
        *(line for line in mounts if folder.name in line),
        *map(str, BASE.glob(folder.name)),
    ]


def test_the_guard_has_its_state_on_a_real_disk_and_a_turn_across_a_kill(guard: Guard) -> None:
    guard.start('[minds.a]\ncommand = ["/bin/sh", "-c", "sleep 1; echo spoken"]\nuser = "root"\n')
    assert guard.json("status")["device"]["node"]
    first = guard.pid
    guard.cli("send", "@a", "hello")
    wait_for(lambda: guard.scopes() == ["hostguard-turn-a-1.scope"])
    guard.kill()
    wait_for(lambda: guard.pid not in (0, first))
    guard.wait_ready()
    wait_for(lambda: guard.json("queue", "1")["state"] == "done")
    assert [entry["MESSAGE"] for entry in guard.journal("_SYSTEMD_UNIT=hostguard-turn-a-1.scope")] == [
        "spoken"
    ]


def test_a_guard_on_a_card(guard: Guard, card: Card) -> None:
    state = card.mount / "state"
    state.mkdir()
    guard.start(state=state)
    assert guard.json("status")["device"]["node"] == card.device
    assert (state / "queue.db").exists()


def test_turns_that_a_test_leaves_are_found_and_taken_away(guard: Guard) -> None:
    guard.start('[minds.a]\ncommand = ["/bin/sleep", "60"]\nuser = "root"\n')
    guard.cli("send", "@a", "hello")
    wait_for(guard.scopes)
    assert guard.close() == ["hostguard-turn-a-1.scope"]
    assert guard.scopes() == []
