"""What the gate says is what happens, on random hosts; and nothing inside the guard stops all starts."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onqueue import message, on_queue, put
from played import OK, Played, parts
from searches import sized
from set_clock import SetClock

from hostguard.core.clock import Now, now_ms
from hostguard.core.model import Config, Fold, Kind, LiveTurn, Mind, Row, Start
from hostguard.core.outcome import Ending
from hostguard.core.reasons import Reason
from hostguard.core.settings import Level
from hostguard.core.signals import Redrive
from hostguard.pressure.rule import State as PressureState
from hostguard.store import deliveries
from hostguard.store.settings import LIMIT, PAUSE, SLEEP
from hostguard.turns.live import Phase, Turn

MINDS = ("a", "b")
SESSIONS = ("s", "t")
CONFIG = Config(minds={"a": Mind("a", url="http://127.0.0.1:9"), "b": Mind("b", ("/bin/true",))})
FLAGS = ("paused", "a paused", "b asleep", "no systemd", "no writes", "a down", "stalled")

ROWS = st.lists(
    st.tuples(
        st.sampled_from([*MINDS, *MINDS, "unknown"]), st.sampled_from(SESSIONS),
        st.sampled_from([Kind.MESSAGE, Kind.MESSAGE, Kind.RUN, Kind.SCRIPT]),
        st.sampled_from([False, False, True]),
    ),
    min_size=4, max_size=12,
)  # fmt: skip
LIVE = st.lists(
    st.tuples(st.sampled_from(MINDS), st.sampled_from(SESSIONS), st.sampled_from([True, True, False])),
    max_size=3,
)


class Fed(Played):
    """Notes the turns it is asked to feed."""

    def __init__(self, scopes):
        super().__init__(scopes)
        self.fed = []

    def feed(self, turn):
        self.fed.append(turn.live.unit)


def hosted(queue, live, flags, cap, mind_cap):
    guard = parts(queue, CONFIG)
    guard.driver = guard.drivers.exec = guard.drivers.run = guard.drivers.resident = Fed(guard.scopes)
    for at, (mind, session, takes) in enumerate(live):
        if session not in guard.live.sessions(mind):
            turn = LiveTurn(f"u{at}.scope", mind, session, f"9{at}", takes)
            guard.live.add(Turn(turn, 0, Phase.RUNNING, driver=guard.driver))
    for name, value in (("global_concurrent_turns", cap), ("mind_concurrent_turns", mind_cap)):
        guard.settings.use(LIMIT.to(name, {"value": value, "boot": None}))
    if "paused" in flags:
        guard.settings.use(PAUSE.to("", True))
    if "a paused" in flags:
        guard.settings.use(PAUSE.to(".mind.a", True))
    if "b asleep" in flags:
        guard.settings.use(SLEEP.to("b", {"since": 1, "until": None}))
    guard.scopes.connected = "no systemd" not in flags
    guard.queue.trouble = "full" if "no writes" in flags else None
    if "a down" in flags:
        guard.availability.note("a", "nobody listens")
    if "stalled" in flags:
        guard.monitor.state = PressureState(level=Level.STALLED, cap=1)
    guard.begun = []

    def begin(row, now):
        """As Starter.begin does, without a task."""
        assert guard.gate.verdict(row) == Start(), "only what the gate lets through is begun"
        guard.rows.take(row)
        turn = LiveTurn(f"t{row.id}.scope", row.mind, row.session, str(row.id))
        guard.live.add(Turn(turn, now.date, Phase.RUNNING, driver=guard.driver))
        guard.begun.append(row.id)
        return True

    guard.starter.begin = begin
    return guard


@settings(max_examples=sized(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=ROWS, live=LIVE, flags=st.sets(st.sampled_from(FLAGS), max_size=2), cap=st.sampled_from([None, 0, 1, 3]),
    mind_cap=st.sampled_from([0, 1, 2]), waits=st.booleans(), loaded=st.sampled_from([False, False, True]),
)  # fmt: skip
def test_what_the_gate_says_is_what_happens(rows, live, flags, cap, mind_cap, waits, loaded):
    async def work(queue):
        guard = hosted(queue, live, flags, cap, mind_cap)
        now = guard.recovery._clock.now()
        made = []
        for at, (mind, session, kind, late) in enumerate(rows, 1):
            made.append(Row(at, mind, session, now.date + 10**7 if late else 0, kind))
            if kind is Kind.RUN and waits:
                guard.run_clients._waiting[at] = (made[-1], Played(None))
        guard.run_clients.tell = lambda id_, event: None
        if loaded:
            guard.backlog.load(
                [(r.id, r.mind, r.session, r.not_before, str(r.kind), 0, 1, 0) for r in made], now
            )
        else:
            for row in made:
                guard.backlog.add(row, now)
        guard.dispatcher.ready = True
        guard.dispatcher.pump()
        assert guard.begun == sorted(guard.begun), "in order of id"
        sessions = set()
        for row in made:
            if row.id in guard.begun:
                continue
            verdict = guard.gate.verdict(row)
            if verdict == Start():
                assert (row.mind, row.session) in sessions, (
                    "nothing startable waits, but behind its session's first"
                )
            if isinstance(verdict, Fold):
                first = guard.backlog.first_in(row.mind, row.session)
                if first is not None and isinstance(guard.gate.verdict(first), Fold) and not loaded:
                    assert verdict.turn.unit in guard.driver.fed
            if guard.backlog.has(row.id, row.mind, row.session) and not row.not_before:
                sessions.add((row.mind, row.session))
            elif not row.not_before:
                assert (row.kind, verdict.reason) == (Kind.RUN, Reason.CALLER_AWAY), (
                    "it is parked with its caller"
                )
                assert replace(guard.run_clients.unpark(row.id), since=0) == row
        fed = len(guard.driver.fed)
        before = list(guard.begun)
        guard.dispatcher.pump()
        assert (guard.begun, len(guard.driver.fed)) == (before, fed), "nothing changed, nothing happens"

    with tempfile.TemporaryDirectory() as folder:
        on_queue(Path(folder), work)


@pytest.fixture
def guarded(tmp_path):
    def run(work, **more):
        async def main(queue):
            guard = hosted(queue, [], set(), None, 1)
            guard.dispatcher.ready = True
            await work(guard)

        on_queue(tmp_path, main)

    return run


def test_a_fault_in_one_row_stops_no_other(guarded, caplog):
    async def work(guard):
        begin = guard.starter.begin

        def fails(row, now):
            if row.mind == "a":
                raise RuntimeError("a fault")
            return begin(row, now)

        guard.starter.begin = fails
        for id_, mind in enumerate("aab", 1):
            guard.backlog.add(Row(id_, mind, "s"), SetClock().now())
        guard.dispatcher.pump()
        assert guard.begun == [3]
        assert "row 1 cannot be offered to the gate" in caplog.text
        guard.starter.begin = begin
        guard.dispatcher.pump()
        assert guard.begun == [3], "its session waits until it is touched"
        guard.backlog.touch("a", "s")
        guard.dispatcher.pump()
        assert guard.begun == [3, 1]

    guarded(work)


def test_a_row_whose_unit_is_live_waits_a_second(guarded):
    async def work(guard):
        guard.starter.begin = lambda row, now: False
        guard.backlog.add(Row(1, "a", "s"), SetClock().now())
        guard.dispatcher.pump()
        assert guard.backlog.paused("a", "s").id == 1
        assert 0 < guard.backlog.due_in(guard.recovery._clock.now()) <= 1_000
        assert guard.dispatcher._timer.when() - guard.dispatcher._timer._loop.time() <= 1.1

    guarded(work)


def test_rows_are_held_with_a_reason_once_and_what_ends_lets_the_next_start(guarded):
    async def work(guard):
        rows = [row for _ in range(3) for row in (await put(guard.queue, message("b", session="s")))[1]]
        guard.dispatcher.admit(rows)
        assert guard.begun == [1]
        held = [event for event in guard.recent.kept(0) if event["type"] == "held"]
        assert [(event["delivery"], event["reason"]) for event in held] == [
            (2, "session_busy"),
            (3, "session_busy"),
        ]
        changes = []
        guard.session_changed.subscribe(changes.append)
        guard.scopes.free(guard.live.by_id("1"), OK)
        assert guard.begun == [1, 2]
        assert [(one.session, one.busy) for one in changes] == [("s", False)]
        held = [event for event in guard.recent.kept(0) if event["type"] == "held"]
        assert len(held) == 2

    guarded(work)


def test_every_row_of_a_turn_is_accounted_for(guarded):
    async def work(guard):
        rows = [row for _ in range(3) for row in (await put(guard.queue, message("a", session="s")))[1]]
        turn = Turn(LiveTurn("x.scope", "a", "s", "1"), now_ms(), Phase.RUNNING, rows[0])
        turn.folded = [(rows[1], turn.waited), (rows[2], turn.waited)]
        guard.live.add(turn)
        for row in rows:
            await guard.queue.write(lambda db, i=row.id: deliveries.mark_delivering(db, i, "1", Now(1), {}))
        guard.scopes.free(turn, Ending("refused", "no", failed=True))
        assert (guard.backlog.count("a"), guard.backlog.paused("a", "s").id) == (3, 1)
        await guard.queue.write(lambda db: None)
        stored = [await guard.queue.read(lambda db, i=row.id: deliveries.get(db, i)) for row in rows]
        assert [row.attempts for row in stored] == [1, 1, 1]

    guarded(work)


@pytest.mark.parametrize("paused", [True, False])
def test_a_row_that_folds_is_fed_at_once_whatever_is_paused(guarded, paused):
    async def work(guard):
        guard.live.add(Turn(LiveTurn("x.scope", "a", "s", "9", True), 0, Phase.RUNNING, driver=guard.driver))
        if paused:
            guard.settings.use(PAUSE.to("", True))
        guard.backlog.add(Row(1, "b", "s"), SetClock().now())
        guard.backlog.add(Row(2, "a", "s"), SetClock().now())
        guard.backlog.add(Row(3, "b", "t", now_ms() + 10**6), SetClock().now())
        guard.dispatcher.pump()
        held = [event["delivery"] for event in guard.recent.kept(0) if event["type"] == "held"]
        assert held == ([1] if paused else []), "what only has to come due is not held"
        assert set(guard.driver.fed) == {"x.scope"}
        assert guard.begun == ([] if paused else [1])
        assert guard.backlog.has(2, "a", "s"), "the driver takes it"

    guarded(work)


def test_a_mind_that_is_up_again_is_offered_its_rows_and_turns(guarded):
    async def work(guard):
        guard.live.add(Turn(LiveTurn("x.scope", "a", "t", "9", True), 0, Phase.RUNNING, driver=guard.driver))
        guard.settings.use(LIMIT.to("mind_concurrent_turns", {"value": 2, "boot": None}))
        guard.availability.note("a", "nobody listens")
        guard.backlog.add(Row(1, "a", "s"), SetClock().now())
        guard.dispatcher.pump()
        assert (guard.begun, guard.driver.fed) == ([], [])
        guard.availability.up("a")
        guard.redrive.send(Redrive("a"))
        assert (guard.begun, guard.driver.fed) == ([1], ["x.scope"])
        guard.dispatcher.redrive(Redrive("a"))
        assert guard.driver.fed[1:] == ["x.scope", "t1.scope"]

    guarded(work)


def test_a_pause_of_a_mind_that_is_down_ends_by_itself(guarded, monkeypatch):
    monkeypatch.setattr("hostguard.turns.availability.backoff", lambda tries: 30)

    async def work(guard):
        guard.availability.note("a", "nobody listens")
        guard.backlog.add(Row(1, "a", "s"), SetClock().now())
        guard.dispatcher.pump()
        assert guard.begun == []
        await asyncio.sleep(0.1)
        assert guard.begun == [1]

    guarded(work)
