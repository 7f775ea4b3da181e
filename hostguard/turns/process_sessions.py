"""The mind and session of each process, saved in a file for the restart of the guard.

The file is in the runtime folder: like the processes, it is gone after a reboot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hostguard.core import paths
from hostguard.linux import files
from hostguard.linux.process import Process, process


def load() -> dict[Process, tuple[str, str]]:
    """The mind and session of each process that is still alive."""
    told = files.recall(paths.SESSIONS, _read) or {}
    alive = (process(pid) for pid in told)
    return {known: told[known.pid][1:] for known in alive if known and told[known.pid][0] == known.started}


def _read(note: Any) -> dict[int, tuple[int, str, str]]:
    return {int(pid): (started, str(mind), str(session)) for pid, started, mind, session in note}


def store(sessions: Mapping[Process, tuple[str, str]]) -> None:
    """Write the file. Raises OSError."""
    rows = [[known.pid, known.started, *works_for] for known, works_for in sessions.items()]
    files.write_whole(paths.SESSIONS, json.dumps(rows))
