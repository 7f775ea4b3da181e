"""Saves the state of the rule of pressure for the next guard of the same boot.

A guard is most likely restarted (watchdog, out of memory, by hand) while the disk stalls: without this the
next one would start turns up to the configured cap before it has any evidence.
"""

from __future__ import annotations

import logging
from typing import Any

from hostguard.core import paths
from hostguard.core.settings import Level
from hostguard.linux import files
from hostguard.pressure.rule import State

log = logging.getLogger(__name__)

# Not the fields for comparison with the last sample: the next guard has none.
_SAVED = ("level", "since", "cap", "stalled_at", "changes", "cut_at", "top", "failed", "failures", "risen")
_COLD = State()


def keep(disk: str | None, state: State) -> None:
    """Save the state for this disk, in a file in memory; a cold state removes the file."""
    kept = {name: getattr(state, name) for name in _SAVED}
    cold = all(kept[name] == getattr(_COLD, name) for name in _SAVED if name != "since")
    try:
        files.note(paths.PRESSURE, None if cold else {"disk": disk, **kept})
    except OSError as error:
        log.warning("%s: %s; after a restart the guard begins with the configured cap", paths.PRESSURE, error)


def recall(disk: str | None) -> State | None:
    """The state that an earlier guard saved for this disk; None if there is none."""
    kept = files.recall(paths.PRESSURE, _read)
    return kept[1] if kept is not None and kept[0] == disk else None


def _read(note: Any) -> tuple[str | None, State]:
    disk = note.pop("disk")
    state = State(**note | {"level": Level(note["level"]), "changes": tuple(note["changes"])})
    numbers = [getattr(state, name) for name in _SAVED if name not in ("level", "changes")] + [*state.changes]
    if not all(number is None or isinstance(number, int | float) for number in numbers):
        raise TypeError("not numbers")
    if None in (state.since, state.stalled_at, state.cut_at, state.top, state.failures, *state.changes):
        raise TypeError("numbers are missing")
    return disk, state
