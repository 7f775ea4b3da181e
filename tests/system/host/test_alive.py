"""The guard keeps working while something it needs does not: the card, PID 1, the journal, its own CPU."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import copy2
from typing import Any

import httpx
import pytest
from bus_relay import Bus
from card import Card
from guard import ROOT, UNIT, Guard, drop_in, run, systemctl, wait_for
from guarded import LONG_S
from scripted_host import ScriptedHost

from hostguard.cli.demo.results import felt
from hostguard.systemd.dbus import CALL_S

LIBC = ctypes.CDLL(None)
PROCESS_MADVISE = 440  # its number, on every architecture
MADV_PAGEOUT = 21  # of asm-generic/mman-common.h
ANSWER_S = 2.0  # 100 ms on a machine that is not busy; a stop lasts much longer


def test_pid_1_is_slow(scripted: ScriptedHost, bus: Bus) -> None:
    """Longer than the guard waits for one answer, and than its watchdog's limit."""
    with drop_in("WatchdogSec=10"):
        scripted.start("ab")
        pid, running = scripted.guard.pid, scripted.send("@a", "wait_go")
        scripted.wait_started(running)
        with asked_all_the_time(scripted.guard):
            bus.hold_answers()
            rows = [scripted.send("@b"), scripted.send("@a"), scripted.send("@b")]
            scripted.go(running)
            scripted.done(running)
            time.sleep(CALL_S + 3)
            bus.go()
            scripted.done(*rows)
        assert scripted.guard.pid == pid
    assert sorted(scripted.order()) == sorted([running, *rows])
    scripted.prove()


def test_the_journal_takes_nothing(scripted: ScriptedHost) -> None:
    """journald stopped, its queue full: turns run, and what they print waits in their own pipes.

    Once it reads that, whose it was is still known; what another user calls by the mind's name is not taken for it.
    """
    scripted.start("a")
    forge = ["setpriv", "--reuid=nobody", "--clear-groups", "systemd-cat", "-t", "a", "echo", "forged"]
    systemctl("kill", "--kill-whom=main", "--signal=STOP", "systemd-journald.service")
    try:
        with asked_all_the_time(scripted.guard):
            for _ in range(400):
                scripted.post("/v1/pause", mind="a")
                scripted.post("/v1/resume", mind="a")
            rows = [scripted.send("@a", "echo said") for _ in range(20)]
            scripted.done(*rows)
            run(*forge)
    finally:
        systemctl("kill", "--kill-whom=main", "--signal=CONT", "systemd-journald.service")
    wait_for(lambda: lost(scripted), LONG_S)
    logs = scripted.guard.cli("logs", "a").stdout
    assert (logs.count(": said\n"), logs.count("forged")) == (len(rows), 0)
    assert scripted.guard.cli("logs", str(rows[0])).stdout.count(": said\n") == 1
    scripted.prove(cap=1)


def lost(scripted: ScriptedHost) -> bool:
    """Have a line written; whether it tells of lines before it that were lost."""
    scripted.post("/v1/pause", mind="a")
    scripted.post("/v1/resume", mind="a")
    lines = scripted.guard.journal(f"_SYSTEMD_UNIT={UNIT}")
    return any("lines before this one were lost" in line["MESSAGE"] for line in lines)


def test_the_guard_is_stopped_for_a_while(scripted: ScriptedHost) -> None:
    """By SIGSTOP, for less than its watchdog's limit: what happened meanwhile is seen, and who asked is answered."""
    with drop_in("WatchdogSec=30"), ThreadPoolExecutor() as pool:
        scripted.start("ab")
        pid, running, behind = scripted.guard.pid, scripted.send("@a", "wait_go"), scripted.send("@a")
        scripted.wait_started(running)
        scripted.guard.kill("STOP")
        asked = pool.submit(ask, scripted.guard, "POST", "deliveries", {"to": "@b", "content": ""})
        scripted.go(running)
        time.sleep(12)
        assert not asked.done()
        scripted.guard.kill("CONT")
        assert asked.result(LONG_S).status_code == 201
        scripted.done(running, behind, asked.result().json()["deliveries"][0]["id"])
        assert scripted.guard.pid == pid
    scripted.prove()


@contextmanager
def asked_all_the_time(guard: Guard) -> Iterator[None]:
    """A client asks for the status 20 times a second, and always has its answer at once."""
    took: list[float] = []
    over = threading.Event()

    def ask() -> None:
        with guard.client() as client:
            while not over.wait(0.05):
                began = time.monotonic()
                assert client.get("/v1/status").status_code == 200
                took.append(time.monotonic() - began)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield
        finally:
            over.set()
        asking.result()
    told = felt(took)
    print(
        f"status, {told.count} times: p50 {told.p50 * 1000:.1f} ms, p99 {told.p99 * 1000:.1f} ms, max {told.max * 1000:.1f} ms"
    )
    assert told.p99 < ANSWER_S


@pytest.fixture
def fast_card() -> Iterator[Card]:
    """A card with room for Python and all libraries. It is only ever stopped, never slow."""
    with Card(size_mib=768, write_delay_ms=0, rate=None) as card:
        yield card


def test_all_of_the_guard_is_on_the_card_that_stops(fast_card: Card, scripted: ScriptedHost) -> None:
    """Program, libraries, configuration, database, as on a Raspberry Pi; what is not in memory cannot be read.

    The row of the next turn, or its command, is on the card, too: it waits for it alone.
    """
    card, state = fast_card, fast_card.mount / "state"
    state.mkdir()
    command = card.mount / "root/turn"
    on_card = f'[minds.c]\ncommand = ["{command}"]\nuser = "root"'
    config = scripted.config("ab", on_card, global_concurrent_turns=1)
    scripted.guard.configure(config)
    with drop_in(f"WatchdogSec=10\n{moved(card.mount / 'root')}"):
        copy2(scripted.turn, command)
        scripted.guard.start(config, state)
        pid = scripted.guard.pid
        rows = [scripted.send("@a", "wait_go"), scripted.send("@c"), scripted.send("@a")]
        scripted.wait_started(rows[0])
        assert forgotten(pid, card.mount / "root") == 0
        # A reload gets as far as to the groups of the minds' users.
        for name in ("hostguard/hostguard.toml", "passwd", "nsswitch.conf"):
            (card.mount / "root/etc" / name).read_bytes()
        with ThreadPoolExecutor() as pool, asked_all_the_time(scripted.guard):
            card.stop()
            try:
                told = [pool.submit(ask, scripted.guard, *request) for request in STORED]
                scripted.go(rows[0])
                wait_for(lambda: scripted.events("ended"))
                for path in NOT_READ:
                    began = time.monotonic()
                    assert scripted.api.get(f"/v1/{path}").status_code == 200
                    assert time.monotonic() - began < ANSWER_S
                for answer in told:
                    refused = answer.result(40)
                    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
                    assert int(refused.headers["Retry-After"]) > 0
                assert scripted.order() == rows[:1]
                assert not scripted.events("reloaded")
            finally:
                card.go()
            wait_for(lambda: scripted.events("reloaded"), LONG_S)
        scripted.done(*rows, scripted.send("@b"))
        assert (scripted.guard.pid, scripted.order()[:3]) == (pid, rows)
    scripted.prove(cap=1)


STORED: list[tuple[str, str, Any]] = [
    ("POST", "deliveries", {"to": "@b", "content": "", "key": "stalled"}),
    ("POST", "pause", {"mind": "b"}),
    ("PATCH", "limits", {"name": "global_concurrent_turns", "value": 3}),
    ("POST", "reload", None),
    ("POST", "schedules", {"name": "one", "mind": "b", "cron": "@daily", "message": "stored"}),
    (
        "POST",
        "schedules",
        {"name": "two", "mind": "b", "cron": "@daily", "message": "", "timezone": "Asia/Tokyo"},
    ),
]
NOT_READ = ("turns", "limits", "minds", "config", "schedules", "events?follow=0", "pressure")


def ask(guard: Guard, method: str, path: str, body: Any) -> httpx.Response:
    with guard.client() as client:
        return client.request(method, f"/v1/{path}", json=body)


def moved(root: Path) -> str:
    """Settings of a service whose program, libraries and configuration are copies below `root`."""
    python, multiarch = f"python3.{sys.version_info.minor}", sysconfig.get_config_var("MULTIARCH")
    places = (
        f"/usr/bin/{python}",
        f"/usr/lib/{python}",
        "/usr/lib/python3",
        f"/usr/lib/{multiarch}",
        "/usr/share/zoneinfo",
        "/etc",
    )
    lines = []
    for place in (*map(Path, places), ROOT / "hostguard"):
        copy = root / place.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        run("cp", "--archive", str(place), str(copy))
        lines.append(f"BindPaths={copy}:{place}")
    return "\n".join(lines)


def forgotten(pid: int, folder: Path) -> int:
    """Have the kernel forget the files in the folder, as it does when memory is short; KiB that the process lost."""
    run("sync", "--file-system", str(folder))
    before = resident(pid)
    pidfd = os.pidfd_open(pid)
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, _rights, _offset, _device, inode, *_ = line.split(maxsplit=5)
        if inode != "0":
            first, last = (int(end, 16) for end in span.split("-"))
            LIBC.syscall(PROCESS_MADVISE, pidfd, struct.pack("PN", first, last - first), 1, MADV_PAGEOUT, 0)
    os.close(pidfd)
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return before - resident(pid)


def resident(pid: int) -> int:
    """KiB of files that the process has in memory."""
    found = re.search(r"^RssFile:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return int(found[1])
