"""The mind and session of each process of a resident mind, saved in a file for the restart of the guard.

The file is in the runtime folder: like the processes, it is gone after a reboot.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from hostguard.core import paths
from hostguard.core.names import MAIN_SESSION
from hostguard.linux import files
from hostguard.linux.process import Process, environment, executed, process

log = logging.getLogger(__name__)

FORGET_MIN = 100  # remembered processes before dead ones are removed
WorksFor = tuple[str, str]  # mind and session


class ProcessSessions:
    """Knows which session each process works for."""

    def __init__(self) -> None:
        self._known = load()
        self._kept = dict(self._known)
        self._keeping = asyncio.Lock()
        self._forget_at = FORGET_MIN  # processes

    def belongs(self, found: Process, mind: str) -> bool:
        """True if the process is known to be the mind's."""
        return self._known.get(found, ("", ""))[0] == mind

    def note(self, found: Iterable[Process], works_for: WorksFor) -> None:
        """These processes work for that session."""
        self._known |= dict.fromkeys(found, works_for)

    def works_for(self, found: Process, mind: str, ancestors: Iterable[Process]) -> WorksFor | None:
        """The mind and session of the process, or of the process that started it; None if not known.

        One that a Volute mind started before its first message is main's: it starts that one in advance.
        """
        if found in self._known:
            return self._known[found]
        for above in ancestors:
            if above in self._known:
                return self._known[above]
        started_as = environment(found.pid, b"VOLUTE_")
        if b"VOLUTE_MIND" in started_as and b"VOLUTE_SESSION" not in started_as and executed(found):
            return mind, MAIN_SESSION
        return None

    def forget_dead(self) -> None:
        """Remove the dead now and then: with many minds it would take long at each end of a turn."""
        if len(self._known) > self._forget_at:
            self._known = {known: at for known, at in self._known.items() if process(known.pid) == known}
            self._forget_at = 2 * len(self._known) + FORGET_MIN

    async def keep(self) -> None:
        """Write the file, if anything changed. A failure is logged."""
        async with self._keeping:
            if self._known == self._kept:
                return
            self._kept = dict(self._known)
            try:
                await asyncio.to_thread(store, self._kept)
            except OSError as error:
                log.warning("the sessions of processes are not saved: %s", error)


def load() -> dict[Process, WorksFor]:
    """The mind and session of each process that is still alive."""
    told = files.recall(paths.SESSIONS, _read) or {}
    alive = (process(pid) for pid in told)
    return {known: told[known.pid][1:] for known in alive if known and told[known.pid][0] == known.started}


def _read(note: Any) -> dict[int, tuple[int, str, str]]:
    return {int(pid): (started, str(mind), str(session)) for pid, started, mind, session in note}


def store(sessions: Mapping[Process, WorksFor]) -> None:
    """Write the file. Raises OSError."""
    rows = [[known.pid, known.started, *works_for] for known, works_for in sessions.items()]
    files.write_whole(paths.SESSIONS, json.dumps(rows))
