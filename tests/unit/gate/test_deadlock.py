"""Which waits would never end: by a table, and against a search of all that can happen on small random hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from searches import sized

from hostguard.core.admission import decide
from hostguard.core.clock import Now
from hostguard.core.model import Fold, HostView, Kind, LiveTurn, MindView, Row, Start
from hostguard.gate.deadlock import Situation, Wait, never_ending

U, V, W = (LiveTurn(name, name[0], "s", name) for name in ("u", "v", "w"))


def situation(
    live: Sequence[LiveTurn], rows: Sequence[Row], cap: int | None = None, mind_cap: int = 1, **in_turn: str
) -> Situation:
    """Rows that are in no turn are queued; `in_turn`: r7="u" for row 7."""
    taken = {int(name[1:]): unit for name, unit in in_turn.items()}
    minds = {
        row.mind: MindView(row.mind, mind_cap, live=tuple(t for t in live if t.mind == row.mind))
        for row in rows
    }
    queued = {row.id for row in rows} - taken.keys()
    return Situation(cap, minds, taken, queued, queued)


def waits(*pairs: tuple[str, Row]) -> list[Wait]:
    return [Wait(unit, row) for unit, row in pairs]


AS, AT, BS, BT, VS, WS = (
    Row(1, "u", "s"), Row(2, "u", "t"), Row(3, "b", "s"), Row(4, "b", "t"), Row(5, "v", "s"), Row(6, "w", "s"),
)  # fmt: skip
INPUT = LiveTurn("u", "u", "s", "u", takes_input=True)
AS2 = LiveTurn("x", "u", "t", "x")

TABLE = [
    ("nobody waits", situation([U], [AS]), [], []),
    ("for its own row", situation([U], [AS], r1="u"), [("u", AS)], [("u", AS, ("u",))]),
    ("for its own session", situation([U], [AS]), [("u", AS)], [("u", AS, ("u",))]),
    ("for its own session, beside another", situation([AS2, U], [AS], mind_cap=3), [("u", AS)], [("u", AS, ("u",))]),
    ("for another session of its mind", situation([U], [AT]), [("u", AT)], [("u", AT, ("u",))]),
    ("the same with room", situation([U], [AT], mind_cap=2), [("u", AT)], []),
    ("for what it takes itself", situation([INPUT], [AS]), [("u", AS)], [("u", AS, ("u",))]),
    ("for what another takes", situation([INPUT, V], [AS]), [("v", AS)], []),
    ("for a mind of its own", situation([U], [BS]), [("u", BS)], []),
    ("with a cap that is full of it", situation([U], [BS], 1), [("u", BS)], [("u", BS, ("u",))]),
    ("with a cap that another fills, too", situation([U, V], [BS], 2), [("u", BS)], []),
    ("with a cap that was lowered below it", situation([U, V], [BS], 1), [("u", BS)], [("u", BS, ("u",))]),
    ("a cap full of two that wait", situation([U, V], [BS, BT], 2), [("u", BS), ("v", BT)], [("v", BT, ("u", "v"))]),
    ("a cap below two that wait", situation([U, V], [BS, BT], 1), [("u", BS), ("v", BT)], [("u", BS, ("u",)), ("v", BT, ("v",))]),
    ("for each other, the younger gives way", situation([U, V], [AS, VS]), [("v", AS), ("u", VS)], [("u", VS, ("v",))]),
    ("behind a circle", situation([U, V, W], [AS, VS]), [("w", AS), ("v", AS), ("u", VS)], [("u", VS, ("v",))]),
    ("one of its two is hopeless", situation([U, V], [AS, VS]), [("u", VS), ("u", AS)], [("u", AS, ("u",))]),
    ("for what is gone", situation([U], []), [("u", BS)], []),
    ("for a mind that is not configured", Situation(1, {}, {}, {3}, {3}), [("u", BS)], []),
    ("for what is due later, behind itself", situation([U], [AS]), [("u", replace(AS, not_before=9))], [("u", replace(AS, not_before=9), ("u",))]),
]  # fmt: skip


@pytest.mark.parametrize(("given_", "asked", "refused"), [t[1:] for t in TABLE], ids=[t[0] for t in TABLE])
def test_the_waits_that_are_refused(given_, asked, refused):
    found = never_ending(given_, waits(*asked))
    assert [(wait.unit, wait.row, units) for wait, units in found] == refused


# -- against a model


MINDS, SESSIONS = "ab", "st"


@dataclass(frozen=True)
class Model:
    """A host. What a turn or row waits for is told by its name or id; a row that ended is in no field."""

    cap: int | None
    caps: tuple[tuple[str, int], ...]
    live: tuple[LiveTurn, ...]
    queued: tuple[Row, ...]  # by id
    in_turn: tuple[tuple[int, str], ...]  # row, unit
    waits: tuple[Wait, ...]

    def view(self, mind: str) -> MindView:
        return MindView(mind, dict(self.caps)[mind], live=tuple(t for t in self.live if t.mind == mind))

    def pending(self, row: Row) -> bool:
        return row in self.queued or row.id in dict(self.in_turn)

    def ends(self) -> Iterator[Model]:
        """After the end of each turn that can end: it waits for nothing, or all of that has ended."""
        for turn in self.live:
            if not any(wait.unit == turn.unit and self.pending(wait.row) for wait in self.waits):
                live = tuple(other for other in self.live if other is not turn)
                yield replace(self, live=live, in_turn=tuple(at for at in self.in_turn if at[1] != turn.unit))

    def starts(self) -> Iterator[Model]:
        """After the start, or the fold, of each session's first row that the gate lets through."""
        sessions = set()
        for row in self.queued:
            if (row.mind, row.session) in sessions:
                continue
            sessions.add((row.mind, row.session))
            queued = tuple(other for other in self.queued if other is not row)
            verdict = decide(HostView(len(self.live), cap=self.cap), self.view(row.mind), row, Now(0))
            if isinstance(verdict, Start):
                turn = LiveTurn(f"new{row.id}", row.mind, row.session, str(row.id))
                in_turn = (*self.in_turn, (row.id, turn.unit))
                yield replace(self, queued=queued, live=(*self.live, turn), in_turn=in_turn)
            elif isinstance(verdict, Fold):
                yield replace(self, queued=queued, in_turn=(*self.in_turn, (row.id, verdict.turn.unit)))

    def can_end(self, wait: Wait) -> bool:
        """True if something that can happen inside leads to the end of the row. Tries everything."""
        seen, front = {self}, [self]
        while front:
            now = front.pop()
            if not now.pending(wait.row):
                return True
            for after in (*now.ends(), *now.starts()):
                if after not in seen:
                    seen.add(after)
                    front.append(after)
        return False

    def situation(self) -> Situation:
        minds = {mind: self.view(mind) for mind, _ in self.caps}
        queued = {row.id for row in self.queued}
        foldable = {
            row.id
            for row in self.queued
            if all(
                one.kind.delivers
                for one in self.queued
                if (one.mind, one.session) == (row.mind, row.session) and one.id <= row.id
            )
        }
        return Situation(self.cap, minds, dict(self.in_turn), queued, foldable)


@st.composite
def models(draw: st.DrawFn) -> Model:
    places = draw(
        st.lists(st.tuples(st.sampled_from(MINDS), st.sampled_from(SESSIONS)), unique=True, max_size=4)
    )
    live = tuple(
        LiveTurn(f"{mind}-{session}", mind, session, str(90 + at), draw(st.booleans()))
        for at, (mind, session) in enumerate(places)
    )
    rows = tuple(
        Row(id_, draw(st.sampled_from(MINDS)), draw(st.sampled_from(SESSIONS)), 0, draw(st.sampled_from([Kind.MESSAGE, Kind.RUN])))
        for id_ in range(1, draw(st.integers(1, 4)) + 1)
    )  # fmt: skip
    of = {(turn.mind, turn.session): turn for turn in live}
    in_turn = tuple(
        (row.id, of[row.mind, row.session].unit)
        for row in rows
        if (row.mind, row.session) in of and draw(st.booleans())
    )
    pairs = [Wait(turn.unit, row) for turn in live for row in rows]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=5)) if pairs else []
    queued = tuple(row for row in rows if row.id not in dict(in_turn))
    caps = tuple((mind, draw(st.integers(1, 2))) for mind in MINDS)
    return Model(draw(st.sampled_from([None, 1, 2, 3])), caps, live, queued, in_turn, tuple(chosen))


@settings(max_examples=sized(133), deadline=None)
@given(models())
@example(Model(1, (("a", 1), ("b", 1)), (LiveTurn("a-s", "a", "s", "90"), LiveTurn("b-s", "b", "s", "91")),
               (Row(1, "b", "t"), Row(2, "a", "t")), (), (Wait("a-s", Row(1, "b", "t")), Wait("b-s", Row(2, "a", "t")))))  # fmt: skip
def test_a_wait_is_refused_if_and_only_if_nothing_inside_can_ever_end_it(model):
    refused = [wait for wait, _ in never_ending(model.situation(), model.waits)]
    for wait in refused:
        assert not model.can_end(wait), "it could have gone on"
    kept = replace(model, waits=tuple(wait for wait in model.waits if wait not in refused))
    for wait in kept.waits:
        assert kept.can_end(wait), "it never goes on, and was not refused"
    for at, wait in enumerate(model.waits):
        if wait in refused:
            older = [one for one in model.waits[:at] if one not in refused]
            assert not replace(model, waits=(*older, wait)).can_end(wait), "an older wait was refused for it"
