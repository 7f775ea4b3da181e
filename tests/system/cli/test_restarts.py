"""Commands that wait while the guard is restarted or killed: they say what they wait for, and go on."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest
from guard import DISK, wait_for
from guarded import LONG_S
from scripted_host import ScriptedHost

from hostguard.core import paths

SHARES_GUARD = True


class Waiting:
    """`hostguard ARGS` in the background."""

    def __init__(self, *args: str) -> None:
        folder = Path(tempfile.mkdtemp(prefix="waiting-", dir=DISK))
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = self._begin(args, out, err)

    def _begin(self, args: tuple[str, ...], out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["hostguard", *args], stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def ended(self) -> int:
        return self.process.wait(LONG_S)


def go_away(scripted: ScriptedHost, how: str) -> None:
    if how == "restarted":
        scripted.guard.restart()
    else:
        scripted.guard.kill()
        scripted.guard.wait_ready()


@pytest.mark.parametrize("how", ["restarted", "killed"])
@pytest.mark.parametrize(("content", "code"), [("wait_go", 0), ("wait_go; exit 3", 1)])
def test_send_wait_asks_again_by_its_id(scripted: ScriptedHost, how: str, content: str, code: int) -> None:
    """It was a bare 500 without the id, or exit 3."""
    scripted.start("a")
    waiting = Waiting("send", "@a", content, "--wait")
    row = scripted.first_row
    scripted.wait_started(row)
    wait_for(lambda: waiting.err)
    first = waiting.err
    assert first.startswith(f"hostguard: {row} a "), "the id first"
    for _ in range(2):
        go_away(scripted, how)
        time.sleep(0.5)
        assert waiting.process.poll() is None, waiting.err
    scripted.go(row)
    assert waiting.ended() == code
    assert waiting.out.startswith(f"{row} a done: exit status {3 * code}"), waiting.out
    assert waiting.err == first
    assert scripted.order() == [row]


def test_send_wait_over_a_guard_that_stays_away_names_its_id(scripted: ScriptedHost) -> None:
    scripted.start("a")
    waiting = Waiting("send", "@a", "wait_go", "--wait", "--timeout", "5s")
    row = scripted.first_row
    scripted.wait_started(row)
    scripted.guard.stop()
    assert waiting.ended() == 1
    assert waiting.out == f"{row} a in_turn; its turn continues\n"
    scripted.guard.restart()
    scripted.go(row)
    scripted.done(row)


def test_a_long_poll_is_answered_when_the_guard_stops(scripted: ScriptedHost) -> None:
    scripted.start("a")
    row = scripted.send("@a", "wait_go")
    scripted.wait_started(row)
    asking = subprocess.Popen(
        ["curl", "--silent", "--show-error", "--fail-with-body", "--unix-socket", str(paths.SOCKET),
         f"http://h/v1/deliveries/{row}?wait_s=50"], stdout=subprocess.PIPE,
    )  # fmt: skip
    time.sleep(1)
    began = time.monotonic()
    scripted.guard.restart()
    out, _ = asking.communicate(timeout=30)
    assert (asking.returncode, json.loads(out)["state"]) == (0, "in_turn")
    assert time.monotonic() - began < 10
    scripted.go(row)
    scripted.done(row)


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_streams_connect_again(scripted: ScriptedHost, how: str) -> None:
    scripted.start("a")
    events = Waiting("events", "--follow")
    lines = Waiting("events", "--follow", "--json")
    watch = Waiting("pressure", "--watch", "--json")
    record = Waiting("pressure", "record", "--for", "1h")
    wait_for(lambda: watch.out.count("\n") > 1, LONG_S)
    rows = [scripted.send("@a")]
    scripted.done(*rows)
    wait_for(lambda: f"turn {rows[0]} ended" in events.out, LONG_S)
    go_away(scripted, how)
    seen = watch.out.count("\n"), record.out.count("\n")
    rows.append(scripted.send("@a"))
    scripted.done(*rows)
    wait_for(lambda: f"turn {rows[1]} ended" in events.out, LONG_S)
    wait_for(lambda: watch.out.count("\n") > seen[0], LONG_S)
    wait_for(lambda: record.out.count("\n") > seen[1], LONG_S)
    for stream in (events, lines, watch, record):
        assert stream.process.poll() is None, stream.err
        stream.process.send_signal(signal.SIGINT)
        assert stream.ended() == 130
    found = [json.loads(line) for line in lines.out.splitlines()]
    assert [e["delivery"] for e in found if e["type"] == "ended"] == rows, "each once"


def test_what_a_command_gave_up_is_not_carried_out_later(scripted: ScriptedHost) -> None:
    """The daemon hangs: the request waits in the socket, and is there still when the daemon goes on."""
    scripted.start("a")
    scripted.guard.kill("STOP")
    began = time.monotonic()
    said = scripted.guard.cli("send", "@a", ":", check=False)
    assert (said.returncode, "so nothing was done" in said.stderr) == (3, True), said
    assert time.monotonic() - began < LONG_S / 2
    scripted.guard.kill("CONT")
    row = scripted.send("@a")
    scripted.done(row)
    assert scripted.order() == [row] == [scripted.first_row]


@pytest.mark.parametrize("key", ["k", None])
def test_a_message_whose_answer_is_lost_is_sent_again_if_it_has_a_key(
    scripted: ScriptedHost, key: str | None
) -> None:
    """The guard is killed before it answers: the card holds up its commit."""
    scripted.start("a")
    with closing(sqlite3.connect(paths.DATABASE, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        sending = Waiting("send", "@a", ":", *(("--key", key) if key else ()))
        time.sleep(1)  # less than the guard waits for the file
        scripted.guard.kill()
        db.execute("ROLLBACK")
    scripted.guard.wait_ready()
    if key is None:
        assert sending.ended() == 3
        assert "hostguard queue --state all" in sending.err
        return
    assert sending.ended() == 0, sending.err
    row = scripted.first_row
    assert sending.out.startswith(f"{row} a ")
    scripted.done(row)
    assert scripted.order() == [row]


def test_a_bug_in_a_write_is_told_once_and_costs_one_row(scripted: ScriptedHost) -> None:
    """It was tried again each second for ever, row by row, with a traceback each. A trigger plays the bug."""
    scripted.start("abc")
    wrong = [scripted.send("@a", f"exit {n}", session=f"s{n}") for n in range(3)]
    scripted.sql(
        "CREATE TRIGGER bug BEFORE UPDATE OF state ON deliveries WHEN new.state = 'done' AND new.mind = 'b'"
        " BEGIN SELECT RAISE(ABORT, 'a secret'); END"
    )
    scripted.done(*wrong)
    lost = [scripted.send("@b", "", session=f"s{n}") for n in range(3)]
    wait_for(lambda: len(scripted.order()) == 6 and not scripted.turns(), LONG_S)
    good = scripted.send("@c")
    scripted.done(good)
    time.sleep(3)
    said = [
        line["MESSAGE"] for line in scripted.guard.journal("PRIORITY=3", "_SYSTEMD_UNIT=hostguard.service")
    ]
    assert len(said) == 1, said
    assert "SQLITE_CONSTRAINT_TRIGGER in finish (deliveries.py:" in said[0]
    assert "secret" not in said[0]
    [problem] = [one for one in scripted.get("/v1/status")["problems"] if one["code"] == "write_failed"]
    assert "(3 times)" in problem["text"]
    assert {scripted.row(row)["state"] for row in lost} == {"delivering"}, "kept as they were"
    assert len(list(paths.TURNS.iterdir())) == 3, "how they ended, for the next guard"
    scripted.sql("DROP TRIGGER bug")
    scripted.guard.restart()
    scripted.done(*lost)
    assert "write_failed" not in [one["code"] for one in scripted.get("/v1/status")["problems"]]
    assert sorted(scripted.order()) == sorted([*wrong, *lost, good]), "none ran twice"
