"""The mind and session of each process, saved in a file for the restart of the guard.

The file is in the runtime folder: like the processes, it is gone after a reboot.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from hostguard.core import paths
from hostguard.linux.files import write_whole
from hostguard.linux.process import Process, process

log = logging.getLogger(__name__)


def load() -> dict[Process, tuple[str, str]]:
    """The mind and session of each process that is still alive."""
    try:
        rows = json.loads(paths.SESSIONS.read_bytes())
        told = {int(pid): (started, str(mind), str(session)) for pid, started, mind, session in rows}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        log.warning("%s: %s; new processes in a turn count for its session", paths.SESSIONS, error)
        return {}
    alive = (process(pid) for pid in told)
    return {known: told[known.pid][1:] for known in alive if known and told[known.pid][0] == known.started}


def store(sessions: Mapping[Process, tuple[str, str]]) -> None:
    """Write the file. Raises OSError."""
    rows = [[known.pid, known.started, *works_for] for known, works_for in sessions.items()]
    write_whole(paths.SESSIONS, json.dumps(rows))
