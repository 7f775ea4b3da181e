"""The gate's rules, by a table, and gate plus backlog against a naive model, by random histories."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from searches import sized

from hostguard.core.admission import decide
from hostguard.core.clock import Now
from hostguard.core.model import Fold, Hold, HostView, Kind, LiveTurn, MindView, Row, Start
from hostguard.core.reasons import HOST, MIND, SESSION, Reason
from hostguard.gate.backlog import Backlog

NOW = Now(1_000_000, 5_000, 7)
ROW = Row(7, "x", "main")
RUN, LATER = Row(7, "x", "main", kind=Kind.RUN), Row(7, "x", "main", NOW.date + 1)
UNROUTED = replace(ROW, kind=Kind.UNROUTED)
OTHER = LiveTurn("u-other", "x", "other", "1")
SAME = LiveTurn("u-same", "x", "main", "2")
INPUT = LiveTurn("u-input", "x", "main", "3", takes_input=True)

TABLE = [
    ("nothing in the way", HostView(0), MindView("x", 1), ROW, Start()),
    ("fold asks nothing else", HostView(9, cap=0, paused=True), MindView("x", 0, True, True, (INPUT,)), ROW, Fold(INPUT)),
    ("going down, nothing", HostView(1, stopping=True), MindView("x", 2, live=(INPUT,)), ROW, Reason.SHUTDOWN),
    ("a run never folds", HostView(1), MindView("x", 2, live=(INPUT,)), RUN, Reason.SESSION_BUSY),
    ("nor what is not due", HostView(1), MindView("x", 2, live=(INPUT,)), LATER, Reason.NOT_DUE),
    ("nor what its mind takes not", HostView(1), MindView("x", 2, live=(INPUT,), down="x is down"), ROW, Reason.MIND_DOWN),
    ("host paused", HostView(0, paused=True), MindView("x", 1), ROW, Reason.PAUSED),
    ("mind paused", HostView(0), MindView("x", 1, paused=True), ROW, Reason.MIND_PAUSED),
    ("mind down", HostView(0), MindView("x", 1, down="x is down"), ROW, Reason.MIND_DOWN),
    ("routes not read", HostView(0), MindView("x", 1, unread="/r"), ROW, Reason.ROUTES_UNREAD),
    ("nor does it fold then", HostView(1), MindView("x", 2, live=(INPUT,), unread="/r"), ROW, Reason.ROUTES_UNREAD),
    ("routes read, but no place yet", HostView(1), MindView("x", 2, live=(INPUT,)), UNROUTED, Reason.ROUTES_UNREAD),
    ("asleep", HostView(0), MindView("x", 1, asleep=True), ROW, Reason.ASLEEP),
    ("restarting, none starts", HostView(0), MindView("x", 1, restarting=True), ROW, Reason.MIND_RESTARTING),
    ("but one that is on goes on", HostView(1), MindView("x", 2, live=(INPUT,), restarting=True), ROW, Fold(INPUT)),
    ("due a millisecond from now", HostView(0), MindView("x", 1), Row(7, "x", "main", NOW.date + 1), Reason.NOT_DUE),
    ("due now", HostView(0), MindView("x", 1), Row(7, "x", "main", NOW.date), Start()),
    ("bus lost", HostView(0, systemd=False), MindView("x", 1), ROW, Reason.NO_SYSTEMD),
    ("no writes", HostView(0, writes=False), MindView("x", 1), ROW, Reason.NO_WRITES),
    ("other session live", HostView(1), MindView("x", 1, live=(OTHER,)), ROW, Reason.MIND_BUSY),
    ("other session live, room for two", HostView(1), MindView("x", 2, live=(OTHER,)), ROW, Start()),
    ("same session live, room for two", HostView(1), MindView("x", 2, live=(SAME,)), ROW, Reason.SESSION_BUSY),
    ("mind cap 0", HostView(0), MindView("x", 0), ROW, Reason.MIND_BUSY),
    ("global cap reached", HostView(2, cap=2), MindView("x", 1), ROW, Reason.GLOBAL_CAP),
    ("above a lowered cap", HostView(5, cap=2), MindView("x", 1), ROW, Reason.GLOBAL_CAP),
    ("one below the cap", HostView(1, cap=2), MindView("x", 1), ROW, Start()),
    ("global cap 0", HostView(0, cap=0), MindView("x", 1), ROW, Reason.GLOBAL_CAP),
    ("pressure lowers the cap", HostView(1, cap=4, effective_cap=1), MindView("x", 1), ROW, Reason.PRESSURE),
    ("a floor of 1 starts from cold", HostView(0, cap=4, effective_cap=1), MindView("x", 1), ROW, Start()),
]  # fmt: skip


@pytest.mark.parametrize(("host", "mind", "row", "want"), [t[1:] for t in TABLE], ids=[t[0] for t in TABLE])
def test_table(host, mind, row, want):
    got = decide(host, mind, row, NOW)
    assert (got.reason if isinstance(want, Reason) else got) == want
    if isinstance(got, Hold):
        assert got.blocker


@pytest.mark.parametrize(
    ("host", "mind", "row", "units"),
    [
        (HostView(2, ("u-one", "u-two"), cap=2), MindView("x", 1), ROW, ("u-one", "u-two")),
        (HostView(0, cap=0), MindView("x", 1), ROW, ()),
        (HostView(2, ("u-one", "u-other"), cap=2), MindView("x", 1, live=(OTHER,)), ROW, ("u-other",)),
        (HostView(2), MindView("x", 3, live=(OTHER, SAME)), ROW, ("u-same",)),
        (HostView(2), MindView("x", 1, live=(OTHER, SAME)), ROW, ("u-same",)),
        (HostView(0), MindView("x", 0), ROW, ()),
        (HostView(1, ("u-one",), effective_cap=1), MindView("x", 1), ROW, None),
        (HostView(1, ("u-other",), paused=True), MindView("x", 1, live=(OTHER,)), ROW, None),
        (HostView(1, ("u-other",)), MindView("x", 1, live=(OTHER,)), LATER, None),
    ],
)
def test_a_hold_names_the_turns_of_which_one_must_end(host, mind, row, units):
    assert decide(host, mind, row, NOW).units == units


@dataclass
class Naive:
    """All rows in one dict; the next row is found by asking about every one."""

    rows: dict[int, Row] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)  # given back: their sessions wait until they are due

    def next(self, ask):
        """The first row, by id, that may start, if only the oldest of each session may."""
        sessions = set()
        for id_ in sorted(self.rows):
            row = self.rows[id_]
            verdict = ask(row)
            if verdict == Hold(Reason.NOT_DUE, "it is not due yet") and id_ not in self.kept:
                continue
            if (row.mind, row.session) not in sessions and isinstance(verdict, Start):
                return row
            sessions.add((row.mind, row.session))
        return None


MINDS = ["a", "b", "c"]
SESSIONS = ["main", "s1", "s2"]


class Gate(RuleBasedStateMachine):
    """Sends, starts, ends, caps, pauses, cancels and time, in any order."""

    def __init__(self):
        super().__init__()
        self.now = Now(1000, 1000, 7)
        self.ids = 0
        self.backlog = Backlog()
        self.naive = Naive()
        self.live: dict[int, LiveTurn] = {}
        self.caps = dict.fromkeys(MINDS, 1)
        self.cap = None
        self.paused = set()

    def view(self, mind):
        live = tuple(turn for turn in self.live.values() if turn.mind == mind)
        return MindView(mind, self.caps[mind], mind in self.paused, live=live)

    def host(self):
        return HostView(len(self.live), ("oldest",), self.cap, None, "host" in self.paused)

    def ask(self, row):
        return decide(self.host(), self.view(row.mind), row, self.now)

    @rule(
        mind=st.sampled_from(MINDS),
        session=st.sampled_from(SESSIONS),
        delay=st.sampled_from([0, 0, 0, 5]),
        # Unrouted rows hold all others of their mind, which this model does not know.
        kind=st.sampled_from([kind for kind in Kind if kind is not Kind.UNROUTED]),
    )
    def send(self, mind, session, delay, kind):
        self.ids += 1
        row = Row(self.ids, mind, session, self.now.date + delay if delay else 0, kind)
        self.backlog.add(row, self.now)
        self.naive.rows[row.id] = row

    @rule(back=st.sampled_from(["", "later", "at its place"]), data=st.data())
    @precondition(lambda self: self.live)
    def end(self, back, data):
        id_ = data.draw(st.sampled_from(sorted(self.live)))
        turn = self.live.pop(id_)
        self.backlog.touch(turn.mind, turn.session)
        if back:  # a failure: the row comes back with its old id
            row = Row(id_, turn.mind, turn.session, self.now.date + 3, Kind.FILE, self.now.in_(3))
            self.naive.rows[id_] = row
            if back == "later":
                self.backlog.add(row, self.now)
            else:
                self.backlog.give_back(row, self.now)
                self.naive.kept.add(id_)

    @rule(data=st.data())
    @precondition(lambda self: self.naive.rows)
    def cancel(self, data):
        row = self.naive.rows.pop(data.draw(st.sampled_from(sorted(self.naive.rows))))
        self.naive.kept.discard(row.id)
        assert self.backlog.remove(row.id, row.mind, row.session)
        assert not self.backlog.remove(row.id, row.mind, row.session)

    @rule(mind=st.sampled_from(MINDS), cap=st.integers(0, 3))
    def set_mind_cap(self, mind, cap):
        self.caps[mind] = cap
        self.backlog.touch(mind)

    @rule(cap=st.none() | st.integers(0, 4))
    def set_cap(self, cap):
        self.cap = cap

    @rule(who=st.sampled_from([*MINDS, "host"]))
    def pause(self, who):
        self.paused ^= {who}
        if who != "host":
            self.backlog.touch(who)

    @rule(by=st.integers(0, 10))
    def tick(self, by):
        self.now = replace(self.now, date=self.now.date + by, ticks=self.now.ticks + by)
        due = self.backlog.due(self.now)
        assert [row.id for row in due] == sorted(row.id for row in due)

    @rule(by=st.integers(-20, 20))
    def set_the_clock(self, by):
        """What was due stays so; a pause is neither longer nor shorter."""
        for id_, row in self.naive.rows.items():
            if not row.later(self.now):
                self.naive.rows[id_] = replace(row, not_before=0, due=0)
        self.now = replace(self.now, date=self.now.date + by)

    @rule()
    def restart(self):
        self.backlog = Backlog()
        rows = (self.naive.rows[i] for i in sorted(self.naive.rows))
        stored = ((r.id, r.mind, r.session, r.not_before, r.kind, r.due, 1, 0) for r in rows)
        self.backlog.load(stored, self.now, self.naive.kept)

    @invariant()
    def pump_starts_exactly_what_may_start(self):
        self.backlog.due(self.now)
        while (row := self.backlog.next()) is not None:
            verdict = self.ask(row)
            want = self.naive.next(self.ask)
            if isinstance(verdict, Start):
                assert row.id == want.id, "FIFO among the startable"
                assert row.kind is self.naive.rows[row.id].kind
                assert self.backlog.remove(row.id, row.mind, row.session)
                self.naive.rows.pop(row.id)
                self.naive.kept.discard(row.id)
                self.live[row.id] = LiveTurn(f"u{row.id}", row.mind, row.session, str(row.id))
                assert self.cap is None or len(self.live) <= self.cap
                assert len(self.view(row.mind).live) <= self.caps[row.mind]
            elif verdict.reason.holds == HOST:
                break
            else:
                self.backlog.park(row, verdict.reason.holds)
        assert self.naive.next(self.ask) is None, "no startable row waits while a slot is free"

    @invariant()
    def sessions_are_serial_and_counts_agree(self):
        keys = [(turn.mind, turn.session) for turn in self.live.values()]
        assert len(keys) == len(set(keys))
        later = [
            row for row in self.naive.rows.values() if row.later(self.now) and row.id not in self.naive.kept
        ]
        assert self.backlog.later == len(later)
        assert len(self.backlog) == len(self.naive.rows) - len(later)
        for mind in MINDS:
            assert self.backlog.total(mind) == sum(row.mind == mind for row in self.naive.rows.values())


TestGate = Gate.TestCase
TestGate.settings = settings(max_examples=sized(50), stateful_step_count=40, deadline=None)


def test_place_in_line_and_kind():
    backlog = Backlog()
    for id_, session in ((1, "a"), (2, "b"), (3, "a")):
        backlog.add(Row(id_, "x", session, kind=Kind.RUN if id_ == 1 else Kind.MESSAGE), NOW)
    assert [backlog.place(id_, "x") for id_ in (1, 2, 3)] == [1, 2, 3]
    assert backlog.next().kind is Kind.RUN
    backlog.park(Row(1, "x", "a"), SESSION)
    assert backlog.next() == Row(2, "x", "b")
    assert backlog.first("x") == backlog.first_in("x", "a") == Row(1, "x", "a", kind=Kind.RUN)
    backlog.park(Row(2, "x", "b"), SESSION)
    assert backlog.next() is None
    backlog.touch("x", "a")
    assert backlog.next().id == 1
    backlog.park(Row(1, "x", "a"), MIND)
    assert backlog.next() is None
    backlog.touch("x")
    assert backlog.next().id == 1
    backlog.remove(1, "x", "a")
    assert backlog.next() == Row(3, "x", "a")
    assert backlog.first("y") is backlog.first_in("y", "a") is None
    backlog.add(Row(4, "z", "a", NOW.date + 10), NOW)
    assert [backlog.due_by("z", within, NOW) for within in (9, 10, 11)] == [False, True, True]
    assert [backlog.due_by(mind, 0, NOW) for mind in ("x", "y")] == [True, False]
    assert (backlog.place(4, "y"), backlog.count("y")) == (1, 0)


def test_what_is_not_there_is_not_removed():
    backlog = Backlog()
    for id_, session in ((1, "a"), (2, "a"), (3, "b")):
        backlog.add(Row(id_, "x", session), NOW)
    gone = [(4, "x", "a"), (4, "x", "b"), (4, "x", "c"), (4, "y", "a"), (3, "x", "a"), (1, "x", "b")]
    assert [backlog.remove(*row) for row in gone] == [False] * len(gone)
    assert [backlog.has(*row) for row in gone] == [False] * len(gone)
    assert backlog.count("x") == 3
    assert [backlog.remove(id_, "x", session) for id_, session in ((1, "a"), (2, "a"), (3, "b"))] == [
        True
    ] * 3
    assert (len(backlog), backlog.mind_names()) == (0, [])


def test_what_is_touched_again_and_again_takes_no_room():
    backlog = Backlog()
    backlog.add(Row(1, "x", "a"), NOW)
    for _ in range(100):
        backlog.touch("x")
        backlog.touch("x", "a")
    assert len(backlog._order) == 1


@pytest.mark.parametrize("kind", Kind)
def test_a_row_keeps_its_kind_whether_it_is_due_or_not(kind):
    backlog = Backlog()
    at, later = NOW.date + 5, replace(NOW, date=NOW.date + 5, ticks=NOW.ticks + 5)
    backlog.load([(1, "x", "a", 0, str(kind), 0, 1, 0), (2, "x", "b", at, str(kind), 0, 1, 0)], NOW)
    assert backlog.first_in("x", "a") == backlog.next() == Row(1, "x", "a", kind=kind)
    assert backlog.due(later) == backlog.fresh() == [Row(2, "x", "b", at, kind)]
    assert backlog.first_in("x", "b") == Row(2, "x", "b", kind=kind)
    backlog.remove(2, "x", "b")
    backlog.add(Row(2, "x", "b"), NOW)
    assert backlog.first_in("x", "b") == Row(2, "x", "b"), "no kind outlives its row"


def test_a_row_given_back_holds_its_session_until_it_is_due_or_gone():
    backlog = Backlog()
    for id_, session in ((2, "a"), (3, "b"), (4, "a")):
        backlog.add(Row(id_, "x", session), NOW)
    first = Row(1, "x", "a", NOW.date + 5, due=NOW.in_(5))
    backlog.give_back(first, NOW)
    assert backlog.next() == backlog.first_in("x", "a") == backlog.first("x") == first
    assert backlog.paused("x", "a") == first
    assert (backlog.later, backlog.count("x"), backlog.place(2, "x")) == (0, 4, 2)
    assert backlog.paused("x", "b") is backlog.paused("y", "a") is None
    backlog.park(first, SESSION)
    assert backlog.next() == Row(3, "x", "b"), "other sessions go on"
    assert [row.id for row in backlog.fresh()] == [2, 3, 4], "the rest of it is no news yet"
    soon, due = replace(NOW, ticks=NOW.ticks + 4), replace(NOW, ticks=NOW.ticks + 5)
    assert (backlog.due_in(NOW), backlog.due(soon)) == (5, [])
    backlog.touch("x", "a")
    assert backlog.next() == first, "it stays the first, whatever is offered again"
    backlog.park(first, SESSION)
    assert backlog.due(due) == [first]
    assert backlog.next() == Row(1, "x", "a")
    assert backlog.next().since == first.due, "it waits since it came due"
    assert backlog.paused("x", "a") is backlog.due_in(due) is None

    backlog.remove(1, "x", "a")
    backlog.give_back(first, NOW)
    backlog.park(first, SESSION)
    backlog.fresh()
    assert backlog.remove(1, "x", "a"), "cancelled, or expired"
    assert backlog.next() == Row(2, "x", "a")
    assert backlog.fresh() == [Row(2, "x", "a")], "a live turn may take it"
    assert backlog.due_in(NOW) is None
    backlog.give_back(Row(1, "x", "a", NOW.date), NOW)
    assert (backlog.next(), backlog.fresh()) == (Row(1, "x", "a"), [Row(1, "x", "a", NOW.date)])


def test_a_row_that_comes_due_goes_before_a_later_one_of_its_session_that_was_given_back():
    """It waited until the pause of the other was over: found by TestGate."""
    backlog = Backlog()
    backlog.add(Row(1, "x", "main", NOW.date + 5), NOW)
    backlog.give_back(Row(2, "x", "main", NOW.date + 3000, due=NOW.in_(3000)), NOW)
    paused = backlog.next()
    assert paused.id == 2
    backlog.park(paused, SESSION)
    assert backlog.next() is None
    backlog.due(replace(NOW, date=NOW.date + 5, ticks=NOW.ticks + 5))
    assert backlog.next().id == 1
