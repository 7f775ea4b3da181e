"""What is mounted where, from /proc/self/mountinfo. It is in memory: no disk is accessed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
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

    def option(self, name: str) -> str | None:
        """The value of an option NAME=VALUE; None if it is not set."""
        found = (option.partition("=") for option in self.options)
        return next((value for key, equals, value in found if equals and key == name), None)


def read_mounts(root: Path = Path("/")) -> list[Mount]:
    """All mounts, in order: a later one hides an earlier one at the same place. Raises OSError."""
    return parse_mounts((root / "proc/self/mountinfo").read_text(errors="surrogateescape"))


def parse_mounts(mountinfo: str) -> list[Mount]:
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


def mount_of(place: Path) -> Mount | None:
    """The mount that a path that exists is in; None if it is in none of this namespace. Raises OSError."""
    # By the id of the mount: prefixes of the path mislead if one mount hides another.
    handle = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        info = Path(f"/proc/self/fdinfo/{handle}").read_text()
    finally:
        os.close(handle)
    found = re.search(r"^mnt_id:\s*([0-9]+)$", info, re.MULTILINE)
    return next((mount for mount in read_mounts() if found is not None and mount.id == found[1]), None)


def by_name(mounts: Iterable[Mount], path: str) -> Mount | None:
    """The mount that contains the path, by its name alone."""
    inside = [mount for mount in mounts if mount.place == "/" or f"{path}/".startswith(f"{mount.place}/")]
    # The last one with the longest name hides the others.
    return max(reversed(inside), key=lambda mount: len(mount.place), default=None)
