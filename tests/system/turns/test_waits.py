"""Turns that wait for turns: one that would wait for ever is refused, and what it sent is still delivered."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from guard import DISK, Guard, wait_for

# Sends what follows "to" to that mind, and waits for its end; then writes how that went.
TURN = """#!/bin/sh
read -r message
to=$(echo "$message" | sed -n 's/.*"content":"to \\([^"]*\\)".*/\\1/p')
[ -n "$to" ] || exit 0
hostguard send "$to" "no more" --session other --wait --timeout 60 >"{folder}/$HOSTGUARD_MIND" 2>&1
echo "exit $?" >>"{folder}/$HOSTGUARD_MIND"
"""


def start(guard: Guard, folder: Path, cap: int) -> None:
    turn = folder / "turn"
    turn.write_text(TURN.format(folder=folder))
    turn.chmod(0o755)
    minds = "".join(f'[minds.{name}]\ncommand = ["{turn}"]\nuser = "root"\n' for name in "ab")
    guard.start(f"[limits]\nglobal_concurrent_turns = {cap}\n{minds}")


def said(folder: Path, mind: str) -> str:
    wait_for(lambda: (folder / mind).exists() and "\nexit " in (folder / mind).read_text(), 30)
    return (folder / mind).read_text()


def all_done(guard: Guard) -> None:
    wait_for(lambda: not guard.json("queue")["deliveries"], 20)
    rows = guard.json("queue", "--state", "all")["deliveries"]
    assert {row["state"] for row in rows} == {"done"}, json.dumps(rows)


@pytest.mark.parametrize(
    ("to", "cap", "words"),
    [
        ("@a", 2, ("would never end", "exit 1")),  # its own mind
        ("@b", 2, ("exit 0",)),
        ("@b", 1, ("would never end",)),  # the cap is full of itself
    ],
)
def test_a_turn_waits_only_for_what_can_end(guard: Guard, to: str, cap: int, words: tuple[str, ...]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="waits-", dir=DISK))
    start(guard, folder, cap)
    guard.cli("send", "@a", f"to {to}")
    text = said(folder, "a")
    assert all(word in text for word in words), text
    all_done(guard)
