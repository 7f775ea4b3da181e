"""Finds the waits of turns that would never end. Pure.

A turn that waits for a delivery keeps its slot. It waits for ever if that delivery can end only after turns
that wait themselves, in a circle; in the simplest case it waits for itself. A turn that does not wait ends
some day, and so does what else holds a delivery (a pause, a mind that sleeps or is down, a cap of 0, pressure
or a time): what counts is whether the gate lets it start then. That a delivery expires, or that `max_turn`
ends a turn, does not count: the delivery would never have run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hostguard.core.admission import decide
from hostguard.core.clock import Now
from hostguard.core.model import Fold, Hold, HostView, MindView, Row


@dataclass(frozen=True, slots=True)
class Wait:
    """A process in the scope `unit` waits for the end of the row."""

    unit: str
    row: Row


@dataclass(frozen=True, slots=True)
class Situation:
    """What the rows that turns wait for depend on."""

    cap: int | None  # of the host; None = unlimited
    minds: Mapping[str, MindView]  # those of the rows; a cap of 0 is told as unlimited
    in_turn: Mapping[int, str]  # row -> the unit of its live turn
    queued: Collection[int]  # the rows that wait for a turn
    foldable: Collection[int]  # of those, the ones that a live turn of their session can take before it ends


def never_ending(situation: Situation, waits: Sequence[Wait]) -> list[tuple[Wait, tuple[str, ...]]]:
    """The waits to refuse, each with the units that keep its row from its end, so that all others can end.

    `waits` are in the order in which they began: of those that wait for one another the youngest is refused.
    """
    if not _stuck(situation, waits):
        return []
    kept: list[Wait] = []
    refused = []
    for wait in waits:
        stuck = _stuck(situation, [*kept, wait])
        if stuck:
            refused.append((wait, _blockers(situation, wait.row, stuck)))
        else:
            kept.append(wait)
    return refused


def _stuck(situation: Situation, waits: Sequence[Wait]) -> dict[str, list[Row]]:
    """The units that never end, with the rows that each waits for: all but those that can end in turn."""
    stuck: dict[str, list[Row]] = {}
    for wait in waits:
        stuck.setdefault(wait.unit, []).append(wait.row)
    shrank = True
    while shrank:
        ends = [
            unit for unit, rows in stuck.items() if not any(_blockers(situation, row, stuck) for row in rows)
        ]
        for unit in ends:
            del stuck[unit]
        shrank = bool(ends)
    return stuck


def _blockers(situation: Situation, row: Row, stuck: Collection[str]) -> tuple[str, ...]:
    """The units, of those that are stuck, that keep the row from its end once all other turns have ended."""
    if (unit := situation.in_turn.get(row.id)) is not None:
        return (unit,) if unit in stuck else ()
    mind = situation.minds.get(row.mind)
    if mind is None or row.id not in situation.queued:
        return ()
    session = [turn for turn in mind.live if turn.session == row.session and turn.takes_input]
    if row.id in situation.foldable and any(turn.unit not in stuck for turn in session):
        return ()
    mind = replace(mind, live=tuple(turn for turn in mind.live if turn.unit in stuck))
    host = HostView(len(stuck), tuple(stuck), situation.cap)
    verdict = decide(host, mind, row.as_if_due(), Now(0))
    if isinstance(verdict, Fold):
        return (verdict.turn.unit,)
    return verdict.units or () if isinstance(verdict, Hold) else ()
