"""What the rule of pressure has learnt, kept for the next guard of the same boot.

A guard is most likely restarted (watchdog, out of memory, by hand) while the disk stalls: without this, the
next one would start turns up to the configured cap before it has seen anything.
"""

from __future__ import annotations

import logging

from hostguard.core import paths
from hostguard.core.settings import Level
from hostguard.linux import files
from hostguard.pressure.rule import State

log = logging.getLogger(__name__)

# Not what is compared with the sample before: the next guard has none.
_KEPT = ("level", "since", "cap", "stalled_at", "changes", "cut_at", "top", "failed", "failures", "risen")
_COLD = State()


def keep(disk: str | None, state: State) -> None:
    """Keep the state of this disk, in a file in memory; one that says nothing is removed."""
    kept = {name: getattr(state, name) for name in _KEPT}
    cold = all(kept[name] == getattr(_COLD, name) for name in _KEPT if name != "since")
    try:
        files.note(paths.PRESSURE, None if cold else {"disk": disk, **kept})
    except OSError as error:
        log.warning("%s: %s; a guard restarted now begins with the configured cap", paths.PRESSURE, error)


def recall(disk: str | None) -> State | None:
    """The state that an earlier guard kept of this disk, if it did."""
    kept = files.recall(paths.PRESSURE)
    if not isinstance(kept, dict) or kept.pop("disk", None) != disk:
        return None
    try:
        return State(**kept | {"level": Level(kept["level"]), "changes": tuple(kept["changes"])})
    except (KeyError, TypeError, ValueError) as error:
        log.warning("%s is not what this version keeps: %r", paths.PRESSURE, error)
        return None
