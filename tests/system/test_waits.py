"""Turns that wait for turns: one that would wait for ever is told so, and what it sent is delivered all the same."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_a_turn_does_not_wait_for_its_own_mind(guard: Guard) -> None:
    folder = DISK / "own"
    folder.mkdir()
    start(guard, folder, 2)
    guard.cli("send", "@a", "to @a")
    text = said(folder, "a")
    assert "would never end" in text
    assert "exit 1" in text
    all_done(guard)


def test_a_turn_waits_for_another_mind(guard: Guard) -> None:
    folder = DISK / "other"
    folder.mkdir()
    start(guard, folder, 2)
    guard.cli("send", "@a", "to @b")
    assert "exit 0" in said(folder, "a")
    all_done(guard)


def test_a_full_cap_does_not_wait_for_itself(guard: Guard) -> None:
    folder = DISK / "cap"
    folder.mkdir()
    start(guard, folder, 1)
    guard.cli("send", "@a", "to @b")
    assert "would never end" in said(folder, "a")
    all_done(guard)
