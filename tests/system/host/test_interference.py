"""Somebody else changes the guard's files and units while it works."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from guard import STATE, UNIT, Guard, run, systemctl, wait_for

TWO = """
[limits]
mind_concurrent_turns = 2
[minds.bob]
command = ["/bin/sh", "-c", "echo ran >>/disk/strange.log; sleep 1"]
user = "root"
"""


def ran() -> int:
    log = Path("/disk/strange.log")
    return len(log.read_text().split()) if log.exists() else 0


def begin(guard: Guard, state: Path | None = None) -> None:
    Path("/disk/strange.log").unlink(missing_ok=True)
    guard.start(TWO, state)


def done(guard: Guard, row: int) -> dict[str, Any]:
    with guard.client() as client:
        answer: dict[str, Any] = client.get(f"/v1/deliveries/{row}", params={"wait_s": 30}).json()
    assert answer["state"] == "done", answer
    return answer


def test_a_scope_of_somebody_s_has_the_name_of_the_next_turn(guard: Guard) -> None:
    begin(guard)
    name = ["--slice=hostguard-bob.slice", "--unit=hostguard-turn-bob-1"]
    other = subprocess.Popen(["systemd-run", "--quiet", "--scope", *name, "sleep", "3"])
    wait_for(lambda: guard.json("turns")["turns"])
    guard.cli("send", "@bob", "hello")
    assert ran() == 0
    other.wait()
    assert done(guard, 1)["attempts"] == 0
    assert ran() == 1


def test_the_records_are_removed_while_a_turn_runs(guard: Guard) -> None:
    begin(guard)
    guard.cli("send", "@bob", "hello")
    wait_for(ran)
    run("rm", "-rf", "/run/hostguard/turns")
    assert "its result is unknown" in done(guard, 1)["result"]["reason"]
    guard.cli("send", "@bob", "again", "--wait")
    assert ran() == 2


def test_the_database_is_moved_away_while_a_turn_runs(guard: Guard) -> None:
    begin(guard)
    for _ in range(3):
        guard.cli("send", "@bob", "hello", "--wait")
    guard.cli("send", "@bob", "hello")
    wait_for(lambda: ran() == 4)
    guard.stop()
    for path in STATE.iterdir():
        path.unlink()
    guard.restart()  # turn 4 lives on, and nobody knows its row
    sent = guard.json("send", "@bob", "new")["deliveries"][0]["id"]
    assert sent == 5
    guard.restart()
    done(guard, sent)
    wait_for(lambda: not guard.scopes())
    assert ran() == 5


@contextmanager
def small_disk(guard: Guard, size: str) -> Iterator[Path]:
    """A disk for the guard's state, which stops at the end."""
    small = Path("/disk/small")
    small.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(small))
    try:
        yield small
    finally:
        guard.stop()
        run("umount", str(STATE))
        guard._mounted = False
        run("umount", str(small))


def test_a_full_disk_at_the_start_is_said_until_there_is_room(guard: Guard) -> None:
    with small_disk(guard, "128k") as small:
        (small / "fill").write_bytes(b"x" * 128 * 1024)
        begin(guard, small)
        refused = guard.cli("send", "@bob", "hello", check=False)
        assert refused.returncode == 1
        assert "full" in refused.stderr
        shown = run("systemctl", "show", "--property=StatusText,NRestarts", UNIT).stdout
        assert "full" in shown
        assert "NRestarts=0" in shown
        (small / "fill").unlink()
        wait_for(lambda: guard.cli("status", check=False).returncode == 0, 30)


def test_a_disk_that_fills_up_starts_nothing_until_there_is_room(guard: Guard) -> None:
    def problems() -> list[str]:
        return [problem["code"] for problem in guard.json("status")["problems"]]

    def full() -> bool:
        refused = guard.cli("send", "@bob", "x" * 100_000, check=False)  # small ones may still fit
        time.sleep(2)
        return refused.returncode == 1 and "full" in refused.stderr and "no_writes" in problems()

    with small_disk(guard, "1m") as small:
        begin(guard, small)
        row = guard.json("send", "@bob", "later", "--at", "+5s")["deliveries"][0]["id"]
        with suppress(OSError), (small / "fill").open("wb", buffering=0) as fill:
            while True:
                fill.write(b"x" * 4096)
        wait_for(full, 30)
        wait_for(lambda: guard.json("why", str(row))["reason"] == "no_writes", 30)
        (small / "fill").unlink()
        done(guard, row)
        assert "no_writes" not in problems()


def later(guard: Guard, text: str, at: str, *more: str) -> str:
    """Send a message for later; its id."""
    return str(guard.json("send", "@bob", text, "--at", at, *more)["deliveries"][0]["id"])


def test_nothing_is_told_on_a_full_disk_before_it_is_stored(guard: Guard) -> None:
    """`cancel` hung for more than 60 s, the journal said "cancelled by request", and the row ran after a kill."""

    def told() -> list[str]:
        texts = ("cancelled", "paused", "resumed", "limit", "expired", "asleep")
        return [
            line["MESSAGE"]
            for line in guard.journal("_SYSTEMD_UNIT=hostguard.service")
            if any(t in line["MESSAGE"] for t in texts)
        ]

    with small_disk(guard, "1m") as small:
        begin(guard, small)
        guard.cli("schedule", "add", "tea", "@bob", "--at", "2033-01-01", "--message", "x")
        row = int(later(guard, "later", "+1h"))
        ended = guard.json("send", "@bob", "now", "--wait")["deliveries"][0]["id"]
        guard.cli("pause", "bob")  # what is tried again below does not run
        waits, gone = ([later(guard, "spare", "+1h") for _ in range(9)] for _ in range(2))
        guard.cli("cancel", *gone)
        short = later(guard, "short", "+19s", "--expires", "+20s")
        with suppress(OSError), (small / "fill").open("wb", buffering=0) as fill:
            while True:
                fill.write(b"x" * 4096)
        while not all(  # small changes still fit, and not all are of one size
            guard.cli(*verb, check=False).returncode
            for verb in (
                ("cancel", waits.pop()), ("retry", gone.pop()),
                ("limit", "set", f"global_concurrent_turns={len(gone)}"),
            )
        ):  # fmt: skip
            pass
        before = told()
        for verb in (
            ("cancel", str(row)), ("cancel", str(row)), ("retry", str(ended)), ("pause",), ("resume", "bob"),
            ("limit", "set", "global_concurrent_turns=3"), ("sleep", "bob"), ("schedule", "remove", "tea"),
            ("schedule", "add", "more", "@bob", "--at", "2033-01-01", "--message", "x"),
            ("schedule", "run-now", "tea"), ("send", "@bob", "hello"),
        ):  # fmt: skip
            began = time.monotonic()
            said = guard.cli(*verb, check=False)
            assert (said.returncode, said.stdout) == (1, ""), verb
            assert "full" in said.stderr, (verb, said.stderr)
            assert time.monotonic() - began < 10, verb
        time.sleep(10)
        assert told() == before, "nothing of it is stored"
        guard.kill()
        (small / "fill").unlink()
        wait_for(lambda: guard.cli("status", check=False).returncode == 0, 30)
        wait_for(lambda: guard.json("queue", short)["state"] == "expired", 60)
        assert guard.json("queue", str(row))["state"] == "queued"
        assert guard.json("cancel", str(row))["deliveries"][0]["state"] == "cancelled"
        assert sum(f"bob: {row} cancelled" in line for line in told()) == 1
        assert ran() == 1


def test_the_journal_is_made_anew(guard: Guard) -> None:
    begin(guard)
    systemctl(
        "stop", "systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-journald.service"
    )
    guard.cli("pause", "bob")
    systemctl("start", "systemd-journald.socket", "systemd-journald.service")
    guard.cli("resume", "bob")
    lines = [entry["MESSAGE"] for entry in guard.journal("SYSLOG_IDENTIFIER=hostguardd")]
    assert any("is resumed" in line for line in lines)
