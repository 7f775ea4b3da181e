"""What may run as a mind's user: a script or a line of a file, for whom it was authorised. Pure.

The uid counts, not the name. It is noted when a schedule is added, and when a row is stored. A message runs
nothing of its sender's: the configuration has the command and the user, so such a row is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping

from hostguard.core.model import Delivery, Kind, Mind, Schedule


def row_refusal(row: Delivery, mind: Mind) -> str | None:
    """Why the row must not start; None if it may."""
    return _refusal(row.uid, mind) if row.kind in (Kind.SCRIPT, Kind.FILE) else None


def schedule_refusal(schedule: Schedule, minds: Mapping[str, Mind]) -> str | None:
    """Why the schedule's script must not run; None if it may, or if its mind cannot work at all."""
    mind = minds.get(schedule.mind)
    if schedule.script is None or mind is None or mind.broken:
        return None
    why = _refusal(schedule.uid, mind)
    return why and f"its script is refused: {why}. Remove it, and add it again"


def _refusal(uid: int | None, mind: Mind) -> str | None:
    if uid == mind.uid:
        return None
    runs = f"{mind.name} runs as {mind.user or 'nobody'} (uid {mind.uid}) now"
    if uid is None:
        return f"an older hostguard did not note for which user it was authorised, and {runs}"
    return f"it was authorised for uid {uid}, but {runs}"
