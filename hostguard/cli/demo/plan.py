"""The minds of the demo, and the commands of their turns. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hostguard.config.toml import quoted, toml_value

PREFIX = "demo-"
HEARTBEATS = ("mimsy", "whorl", "pip")  # the three of the incident
MINDS = (
    *HEARTBEATS, "bandersnatch", "borogove", "burble", "gimble", "jubjub", "rath", "slithy", "tove", "wabe",
)  # fmt: skip
CHANNEL = "#demo"
CAP = 2
BLOCK = 512 << 10  # bytes between two syncs, as in the table of facts.md
SIZE = 6 << 20  # bytes per turn: 15 turns take a card of 4 MB/s 24 s
SIZE_MAX = 1 << 30
STOP_AFTER_S = 1.0  # by then turns are running
STOP_S = 10.0
STOP_MAX_S = 600.0
MAX_TURN = "10min"  # ends turns left by a killed demo


# The turns to start: (mind, cause).
WAKES = (*((mind, "heartbeat") for mind in HEARTBEATS), *((mind, "message") for mind in MINDS))


def configured(mind: str) -> str:
    """The mind's name in the configuration."""
    return PREFIX + mind


def shown(mind: str) -> str:
    """The inverse of `configured`."""
    return mind.removeprefix(PREFIX)


def command(file: Path, size: int) -> list[str]:
    """A command that writes `size` bytes, rounded up to whole blocks, and syncs each block."""
    blocks = f"count={-(-size // BLOCK)}"
    return ["/bin/dd", "if=/dev/zero", f"of={file}", f"bs={BLOCK}", blocks, "oflag=dsync", "status=none"]


def space(size: int) -> int:
    """The free bytes that one phase needs, with a reserve for the file system."""
    return len(WAKES) * (size + BLOCK) * 5 // 4


@dataclass(frozen=True, slots=True)
class Note:
    """The changes that a later demo must undo if this one is killed.

    `limit` is the value that restores the global cap through the API; None if the cap was not changed.
    `runtime`: it applies only until the next boot.
    """

    folder: str
    limit: int | str | None = None
    runtime: bool = False


_NOTE = "# undo: "


def drop_in(note: Note, size: int) -> str:
    """The configuration of the demo's minds, with the note as a comment."""
    lines = [
        "# Written by `hostguard demo`, which removes it. If it was killed, the next demo does.",
        _NOTE + json.dumps(asdict(note)),
    ]
    for mind in MINDS:
        lines += [
            f"[minds.{quoted(configured(mind))}]",
            f"command = {toml_value(command(Path(note.folder, mind), size))}",
            'user = "root"',
            'directory = "/"',
            "concurrent_turns = 1",
            f"turn.max_turn = {quoted(MAX_TURN)}",
        ]
    channel = (f"[channels.{quoted(CHANNEL)}]", f"minds = {toml_value([configured(mind) for mind in MINDS])}")
    return "\n".join([*lines, *channel, ""])


def read_note(text: str) -> Note | None:
    """The note in a drop-in; None if there is no valid one."""
    for line in text.splitlines():
        if line.startswith(_NOTE):
            try:
                return Note(**json.loads(line.removeprefix(_NOTE)))
            except (ValueError, TypeError):
                return None
    return None


def restoring(limit: Mapping[str, Any]) -> tuple[int | str, bool]:
    """(value, runtime) to restore a global cap that GET /v1/limits showed."""
    if limit["source"] not in ("kept", "runtime"):
        return "default", False
    return "unlimited" if limit["value"] is None else limit["value"], limit["source"] == "runtime"
