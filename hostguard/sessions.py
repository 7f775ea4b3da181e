"""Which session each process of the resident minds works for, kept in a file while the guard restarts.

The file is in the runtime folder: like the processes it is gone after a reboot.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping

from hostguard import paths
from hostguard.procs import Process, process

log = logging.getLogger(__name__)


def load() -> dict[Process, str]:
    """The sessions of the processes that live still."""
    try:
        rows = json.loads(paths.SESSIONS.read_bytes())
        found = {known: str(session) for pid, _, session in rows if (known := process(int(pid))) is not None}
        started = {int(pid): started for pid, started, _ in rows}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        log.warning("%s: %s; what is new in a turn counts as its session's", paths.SESSIONS, error)
        return {}
    return {known: session for known, session in found.items() if started[known.pid] == known.started}


def store(sessions: Mapping[Process, str]) -> None:
    """Write the file. Raises OSError."""
    rows = [[known.pid, known.started, session] for known, session in sessions.items()]
    new = paths.SESSIONS.with_suffix(".new")
    new.write_text(json.dumps(rows))
    os.replace(new, paths.SESSIONS)
