"""Finds turns that would wait for a delivery for ever. Pure.

A waiting turn keeps its slot. It waits for ever if its delivery needs a slot that only comes free when other
waiting turns end, in a circle; in the simplest case it waits for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def hopeless(
    waits: Mapping[str, Collection[int]], blockers: Mapping[int, Collection[str] | None]
) -> set[str]:
    """Units that wait for ever.

    `waits`: what each waiting unit waits for, all of it. `blockers`: for each of those rows the units of
    which one must end before the row can end: its own turn, or those that keep it from starting; None if
    it does not wait for a turn (it is due later, or paused). A unit that does not wait ends some day.
    """
    hopeful: set[str] = set()

    def ends(row: int) -> bool:
        units = blockers.get(row)
        return units is None or any(unit in hopeful or unit not in waits for unit in units)

    grew = True
    while grew:
        grew = False
        for unit, rows in waits.items():
            if unit not in hopeful and all(ends(row) for row in rows):
                hopeful.add(unit)
                grew = True
    return set(waits) - hopeful
