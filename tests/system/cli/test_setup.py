"""hostguard setup on a real slow card, asked at a terminal; and mind add, up to a message that is delivered."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
from pathlib import Path

import pytest
from card import Card
from guard import Guard, wait_for

from hostguard.cli.doctor import rate

FILE = Path("/etc/hostguard/hostguard.toml.d/50-setup.toml")


@pytest.fixture
def host(card: Card, guard: Guard) -> Guard:
    """The guard's state is on the card."""
    state = card.mount / "state"
    state.mkdir()
    guard.start("", state)
    return guard


def answered(*answers: str) -> tuple[int, str]:
    """`hostguard setup` at a terminal, and what is typed at each question."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(["hostguard", "setup"], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said, left = "", list(answers)
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # EIO: nobody has the terminal any more
            break
        said += part.decode()
        if said.rstrip().endswith("[y/N]:") and left:
            os.write(ours, left.pop(0).encode() + b"\n")
            said += " "
    os.close(ours)
    assert not left, said
    return process.wait(), said


def test_a_card_is_measured_and_limited(host: Guard, card: Card) -> None:
    before = time.monotonic()
    status, said = answered("y", "y")
    assert status == 0, said
    assert time.monotonic() - before < rate.SECONDS_MAX + rate.PATIENCE_S + 20
    measured = re.search(r"measured: ([0-9.]+) MB/s", said)
    assert measured is not None, said
    assert 1 < float(measured[1]) <= 4.1  # the card takes 4 MB/s, less what each request costs
    assert f"{FILE}:" in said
    assert {file.name for file in (card.mount / "state").iterdir()} <= {
        "queue.db",
        "queue.db-wal",
        "queue.db-shm",
    }
    assert FILE.stat().st_mode & 0o777 == 0o644
    host.reload()
    limits = {item["name"]: item["value"] for item in host.json("limit", "show")["limits"]}
    assert limits["global_concurrent_turns"] == 2
    assert "no weight for all turns together: cgroup version 2 has no io controller on this host" in said
    turn = host.json("config", "show")["turn"]
    assert 0.3e6 < turn["write_bandwidth"] < 1.6e6  # three quarters, for two


@pytest.mark.parametrize("answers", [("n", "n"), ("y", "n")])
def test_on_no_nothing_is_written(host: Guard, answers: tuple[str, str]) -> None:
    status, said = answered(*answers)
    assert status == 0, said
    assert ("measured: " in said) == (answers[0] == "y")
    assert "nothing was written" in said
    assert not FILE.exists()


def test_a_card_that_hangs_is_given_up(host: Guard, card: Card) -> None:
    card.stop()
    try:
        before = time.monotonic()
        done = host.cli("setup", "--yes")
        took = time.monotonic() - before
    finally:
        card.go()
    assert "the disk completed no write in 10 seconds" in done.stdout
    assert took < rate.SECONDS_MAX + rate.PATIENCE_S + 20
    assert "write_bandwidth" not in FILE.read_text()


def test_the_one_before_is_kept(guard: Guard) -> None:
    guard.start()
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text("[limits]\nglobal_concurrent_turns = 7\n")
    done = guard.cli("setup", "--yes")
    assert f"the previous file is now {FILE}~" in done.stdout
    assert Path(f"{FILE}~").read_text() == "[limits]\nglobal_concurrent_turns = 7\n"
    guard.cli("config", "check")
    assert guard.json("config", "show")["limits"]["global_concurrent_turns"] != 7


def test_nothing_is_measured_while_turns_run(host: Guard) -> None:
    host.configure('[minds.ada]\ncommand = ["/bin/sleep", "60"]\nuser = "root"\n')
    host.reload()
    host.cli("send", "@ada", "work")
    wait_for(lambda: host.scopes())
    assert "not measured: turns are running" in host.cli("setup", "--yes").stdout
    host.cli("stop", "1")


def test_from_nothing_to_a_message_that_is_delivered(guard: Guard) -> None:
    """The first steps of hostguard(1), with what each of them tells to do next."""
    guard.start()
    assert "hostguard setup" in guard.cli("status").stdout
    assert "hostguard setup" in guard.cli("doctor", check=False).stdout
    assert "hostguard reload" in guard.cli("setup", "--yes").stdout
    told = guard.cli("mind", "add", "ada", "--command", "cat", "--user", "root").stdout.splitlines()
    for line in told[told.index("next:") + 1 :]:
        words = line.split()
        assert words[0] == "hostguard"
        guard.cli(*words[1:])
    wait_for(lambda: guard.json("queue", "1")["state"] == "done")
    assert "hostguard setup" not in guard.cli("status").stdout
    assert "hostguard setup" not in guard.cli("doctor", check=False).stdout
