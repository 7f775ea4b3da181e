"""The mounts of this process's namespace (proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: `number` is the device of its file system, "8:2"; `options` are those of both."""

    id: str
    number: str
    place: str
    kind: str
    source: str
    options: frozenset[str]


def read(root: Path = Path("/")) -> list[Mount]:
    """All mounts, in order: a later one hides an earlier one at the same place. Raises OSError."""
    return parse((root / "proc/self/mountinfo").read_text(errors="surrogateescape"))


def parse(mountinfo: str) -> list[Mount]:
    """The mounts in the text of /proc/PID/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        mount, _, file_system = line.partition(" - ")
        id_, _parent, number, _root, place, options = mount.split(" ")[:6]
        kind, source, more = file_system.split(" ", 2)
        both = frozenset(f"{options},{more}".split(","))
        found.append(Mount(id_, number, _plain(place), kind, _plain(source), both))
    return found


def _plain(text: str) -> str:
    r"""A field with its octal escapes, such as \040, decoded."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
