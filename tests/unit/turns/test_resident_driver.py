"""A resident mind's turn from its first POST to its end. Scopes are on a fake host; the mind and its processes are fakes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from turned_on import MIND, keeping, row
from until import until

from hostguard.core import outcome, paths
from hostguard.core.model import Config, Mind, Row, Waited
from hostguard.core.outcome import Ending
from hostguard.core.signals import (
    MindDied,
    Redrive,
    SessionChanged,
    Signal,
    TurnThawed,
    UnitStarted,
    WorkSeen,
)
from hostguard.core.tasks import Tasks
from hostguard.store.requests import Waiters
from hostguard.store.writer import Unavailable
from hostguard.systemd.dbus import SystemdLost
from hostguard.telemetry.events import Events
from hostguard.turns.availability import Availability
from hostguard.turns.done_tracker import DoneTracker
from hostguard.turns.drivers import idle_watch, quiet_rule
from hostguard.turns.drivers.idle_watch import IdleWatch
from hostguard.turns.drivers.resident_driver import ResidentDriver
from hostguard.turns.live import Phase, Resident
from hostguard.turns.mind_client import Outcome, Posted

TAKEN, DOWN = Posted(Outcome.TAKEN), Posted(Outcome.DOWN, "nobody listens")
REFUSED = Posted(Outcome.REFUSED, "HTTP 500")
M = Mind("m", url="http://127.0.0.1:9", limits=MIND.limits, idle_end=600)
FAULTS = [ValueError("unexpected"), asyncio.CancelledError()]


class Processes:
    """In place of Adoption: `stays` are processes that cannot be moved, or what `end` raises."""

    def __init__(self, host):
        self._host = host
        self.adopted, self.left, self.looked, self.thawed, self.stays = [], [], [], [], []
        self.measured = []
        self.idle, self.empty, self.still = 0, False, False

    async def begin(self, unit, mind, session, pid):
        self.adopted.append((unit, session, pid))

    async def end(self, unit):
        self.left.append(unit)
        if self.stays and isinstance(self.stays[0], Exception):
            raise self.stays.pop(0)
        if not self.stays:
            self._host.empty(unit)
        return self.stays

    def look(self, mind):
        self.looked.append(mind)

    def idle_ms(self, unit):
        return self.idle

    def calm_ms(self, unit):
        return self.idle

    def measure(self, unit):
        self.measured.append(unit)

    def deserted(self, unit):
        return self.empty

    def frozen(self, unit):
        return self.still

    def stood_still(self, unit, seconds):
        self.thawed.append((unit, seconds))

    def close(self):
        self.closed = True


class Client:
    """In place of MindClient: `answers` come first, then it takes all."""

    def __init__(self):
        self.answers, self.posted = [], []

    def open(self) -> None:
        """A fake is ready."""

    async def post(self, mind, row, body, turn):
        self.posted.append((row.id, body, turn))
        answer = self.answers.pop(0) if self.answers else TAKEN
        if callable(answer):
            answer = await answer()
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Ledger:
    """Notes what is written; `reads` are what rows are found, instead of a row."""

    def __init__(self):
        self.reads, self.confirmed, self.folds, self.settled = {}, [], [], []

    async def fetch(self, id_):
        found = self.reads.get(id_, (row(id_), b'{"content":"x"}'))
        if callable(found):
            found = found()
        if isinstance(found, BaseException):
            raise found
        return found

    def begin(self, delivery, turn, since):
        return Waited(5, "behind")

    def confirm(self, delivery, turn):
        self.confirmed.append(delivery.id)

    def folded(self, delivery, turn, waited):
        self.folds.append((delivery.id, waited))

    def settle(self, delivery, turn, ending, waited):
        self.settled.append((delivery.id, ending))
        return delivery.row if ending.failed or ending.back else None


class Parts:
    """A resident driver and what it works with: also its rows, the configuration and what is frozen."""

    def __init__(self, keeper):
        self.keeper, self.live = keeper, keeper.live
        self.config, self.frozen = Config(minds={"m": M}), {}
        self.queued, self.given_back, self.sessions, self.redrives = [], [], [], []
        self.processes, self.client, self.ledger = Processes(keeper.host), Client(), Ledger()
        self.events = Events()
        self.availability, self.dones = Availability(self.events), DoneTracker(Waiters())
        self.routes_read = asyncio.Event()
        self.routes_read.set()
        session_changed, redrive, work_seen = Signal(), Signal(), Signal()
        self.works = []
        work_seen.subscribe(self.works.append)
        session_changed.subscribe(self.sessions.append)
        redrive.subscribe(self.redrives.append)
        self.idle_watch = IdleWatch(self.live, self.processes, self, self)
        self.driver = ResidentDriver(
            keeper.scopes, self.live, self.processes, self.client, self.availability, self.dones, self.ledger,
            self, self, self, self.idle_watch, session_changed, redrive, work_seen, Tasks(),
        )  # fmt: skip

    def first(self, live):
        return self.queued[0] if self.queued and live.takes_input else None

    def take(self, row):
        self.queued.remove(row)

    def give_back(self, row, pause_ms=0):
        self.given_back.append((row.id, pause_ms))

    def instructions(self, mind, session):
        return f"{mind}'s {session}"

    async def read(self, mind):
        await self.routes_read.wait()

    def turn(self):
        turn = self.keeper.turn("7", row(7), self.driver, takes_input=True)
        turn.waited = Waited(3, "it")
        return turn

    async def started(self):
        """A turn that its mind took."""
        turn = self.turn()
        assert self.driver.prepare(turn)
        assert await self.driver.start(turn, M, turn.delivery, b'{"content":"x"}')
        return turn


@pytest.fixture
def driven(monkeypatch, tmp_path):
    """Runs `await work(parts)`."""
    monkeypatch.setattr(paths, "TURNS", tmp_path / "turns")

    def run(work):
        async def main():
            async with keeping(monkeypatch) as keeper:
                parts = Parts(keeper)
                await work(parts)
                parts.driver.close()
                for turn in parts.live:
                    keeper.host.empty(turn.live.unit)
                await parts.driver._tasks.settled(2)

        asyncio.run(main())

    return run


def test_a_turn_begins_with_a_post_in_a_delegated_scope(driven):
    async def work(parts):
        turn = await parts.started()
        assert parts.driver.takes_input
        assert parts.keeper.host.units[turn.live.unit]["Delegate"] is True
        assert turn.stub.anchored == paths.TURNS / "7"
        assert parts.processes.adopted == [(turn.live.unit, "main", turn.pid)]
        [(id_, body, turn_id)] = parts.client.posted
        assert (id_, turn_id) == (7, "7")
        assert "m's main" in str(body), "the session's instructions"
        assert (turn.phase, turn.resident.posted) == (Phase.RUNNING, True)
        assert parts.ledger.confirmed == [7]
        assert parts.sessions == [SessionChanged("m", "main", True)]
        assert parts.processes.looked == ["m"]

    driven(work)


@pytest.mark.parametrize(
    ("answer", "want", "down"),
    [
        (DOWN, Ending("down", "nobody listens", back=True), True),
        (REFUSED, Ending("refused", "the mind did not accept it: HTTP 500", failed=True), False),
        (FAULTS[0], Ending("refused", "a bug in hostguard: ValueError in ", failed=True), False),
    ],
)
def test_a_turn_that_its_mind_does_not_take_is_over(driven, answer, want, down):
    async def work(parts):
        parts.client.answers = [answer]
        turn = parts.turn()
        parts.driver.prepare(turn)
        assert not await parts.driver.start(turn, M, turn.delivery, b"{}")
        await until(lambda: parts.keeper.over)
        [(over, end)] = parts.keeper.over
        assert over is turn
        assert end.reason.startswith(want.reason)
        assert replace(end, reason=want.reason) == want
        assert (parts.availability.why("m") is not None) == down
        assert parts.ledger.confirmed == []

    driven(work)


def test_a_cancelled_start_is_over_too(driven):
    async def work(parts):
        parts.client.answers = [FAULTS[1]]
        turn = parts.turn()
        parts.driver.prepare(turn)
        with pytest.raises(asyncio.CancelledError):
            await parts.driver.start(turn, M, turn.delivery, b"{}")
        await until(lambda: parts.keeper.over)
        [(_, ending)] = parts.keeper.over
        assert (ending.failed, ending.back) == (True, False)

    driven(work)


@pytest.mark.parametrize("answer", [FAULTS[1], REFUSED, DOWN])
def test_a_guard_that_stops_leaves_the_post_to_the_next(driven, answer):
    async def work(parts):
        turn = parts.turn()
        parts.driver.prepare(turn)

        async def stops():
            parts.driver.close()
            return answer

        parts.client.answers = [stops]
        with pytest.raises(asyncio.CancelledError):
            await parts.driver.start(turn, M, turn.delivery, b"{}")
        await asyncio.sleep(0.05)
        assert (parts.keeper.over, turn.resident.ending) == ([], None)

    driven(work)


def test_a_turn_that_was_stopped_while_it_was_posted(driven):
    async def work(parts):
        turn = parts.turn()
        parts.driver.prepare(turn)

        async def stopped():  # as the answer is there, and not read yet
            asyncio.get_running_loop().call_soon(parts.keeper.host.empty, turn.live.unit)
            return TAKEN

        parts.client.answers = [stopped]
        assert not await parts.driver.start(turn, M, turn.delivery, b"{}")
        assert parts.ledger.confirmed == [7], "its mind has it all the same"
        assert parts.sessions == []

    driven(work)


def hanging(posting):
    """An answer that does not come; `posting` is set once it is waited for."""

    async def hangs():
        posting.set()
        await asyncio.sleep(60)

    return hangs


@pytest.mark.parametrize("how", ["stop", "systemctl stop", "the scope is gone"])
def test_a_post_is_cancelled_with_its_turn(driven, how):
    async def work(parts):
        turn, posting = parts.turn(), asyncio.Event()
        parts.driver.prepare(turn)
        turn.driver, parts.client.answers = parts.driver, [hanging(posting)]
        starting = asyncio.ensure_future(parts.driver.start(turn, M, turn.delivery, b"{}"))
        await posting.wait()
        if how == "stop":
            parts.driver.stopping(turn)
        elif how == "systemctl stop":
            parts.keeper.scopes.scope_job(turn.live.unit)
        else:
            parts.keeper.host.empty(turn.live.unit)
        assert not await asyncio.wait_for(starting, 5)
        assert turn.resident.ending is None, "the end of its scope says how it ended"
        assert (parts.ledger.confirmed, parts.availability.down("m")) == ([], None)

    driven(work)


def test_a_turn_that_is_being_stopped_posts_nothing_more(driven):
    async def work(parts):
        turn = parts.turn()
        parts.driver.prepare(turn)
        turn.driver = parts.driver
        adopted = parts.processes.begin

        async def stopped_meanwhile(*args):
            await adopted(*args)
            parts.driver.stopping(turn)

        parts.processes.begin = stopped_meanwhile
        assert not await parts.driver.start(turn, M, turn.delivery, b"{}")
        assert parts.client.posted == []

    driven(work)


def test_a_message_that_was_to_join_a_turn_that_is_stopped_goes_back(driven):
    async def work(parts):
        turn, posting = await parts.started(), asyncio.Event()
        parts.queued, parts.client.answers = [Row(8, "m", "main")], [hanging(posting)]
        parts.driver.feed(turn)
        await posting.wait()
        parts.driver.stopping(turn)
        await until(lambda: parts.ledger.settled)
        assert parts.ledger.settled == [(8, outcome.NOT_CONFIRMED)]
        assert not outcome.NOT_CONFIRMED.failed

    driven(work)


def test_the_port_of_a_mind_that_somebody_else_took(driven):
    async def work(parts):
        turn, told = parts.turn(), []
        parts.driver.prepare(turn)
        parts.events.sinks += (told.append,)
        parts.client.answers = [Posted(Outcome.STRANGER, "its port 9 is taken by user eve")]
        assert not await parts.driver.start(turn, M, turn.delivery, b"{}")
        assert turn.resident.ending == Ending("down", "its port 9 is taken by user eve", back=True)
        assert (parts.availability.taken("m"), parts.availability.taken("other")) == (True, False)
        [event] = told
        assert (event["type"], event["mind"]) == ("port_taken", "m")
        assert event["text"] == "m gets no messages: its port 9 is taken by user eve"
        parts.availability.note("m", "its port 9 is taken by user eve", taken=True)
        assert len(told) == 1
        parts.availability.note("m", "nobody listens")
        assert not parts.availability.taken("m")
        parts.availability.note("m", "its port 9 is taken by user eve", taken=True)
        assert len(told) == 2

    driven(work)


def test_done_before_the_answer(driven):
    async def work(parts):
        turn = parts.turn()
        parts.driver.prepare(turn)

        async def early():
            assert parts.driver.done("m", "main", None, None) == []
            return TAKEN

        parts.client.answers = [early]
        assert await parts.driver.start(turn, M, turn.delivery, b"{}")
        await until(lambda: parts.keeper.over)
        assert parts.keeper.over[0][1].outcome == "done"

    driven(work)


def test_done_ends_the_sessions_turn(driven):
    async def work(parts):
        turn = await parts.started()
        assert parts.driver.done("m", "other", None, None) == []
        assert parts.driver.done("m", "main", None, "8") == []
        assert parts.driver.done("x", None, None, None) == []
        [done] = parts.driver.done("m", None, "id", None)
        assert (done.row, done.message_id) == (7, "id")
        assert (turn.phase, turn.live.takes_input) == (Phase.ENDING, False)
        assert turn.used is not None, "read while its processes are in the scope"
        assert parts.driver.done("m", "main", None, None) == []
        await until(lambda: parts.keeper.over)
        assert parts.processes.left == [turn.live.unit]
        [(_, ending)] = parts.keeper.over
        assert ending == Ending("done", "the mind reported that it is done with all sessions")

    driven(work)


@pytest.mark.parametrize("id_", ["id", None])
def test_a_repeated_done_does_not_end_the_next_turn(driven, id_):
    """A mind sends its `done` three times; with an id, or without."""

    async def work(parts):
        turn = await parts.started()
        [done] = parts.driver.done("m", "main", id_, None)
        done.answered = True
        await until(lambda: turn not in parts.live)
        following = await parts.started()
        assert parts.driver.done("m", "main", id_, None) == []
        assert following.resident.ending is None
        assert following.resident.late == (id_ is None)

    driven(work)


def test_a_guard_that_stops_leaves_a_fold_to_the_next(driven):
    async def work(parts):
        turn = await parts.started()
        posting = asyncio.Event()

        async def hangs():
            posting.set()
            await asyncio.sleep(60)

        parts.queued, parts.client.answers = [Row(8, "m", "main")], [hangs]
        parts.driver.feed(turn)
        await posting.wait()
        feeding = turn.resident.feeding
        parts.driver.close()
        assert parts.processes.closed
        await until(feeding.done)
        assert feeding.cancelled()
        assert (parts.ledger.settled, parts.ledger.folds, parts.given_back) == ([], [], [])

    driven(work)


def test_a_stop_that_systemd_refuses_is_logged(driven, caplog):
    async def work(parts):
        turn = await parts.started()
        parts.processes.stays = [4]
        parts.keeper.host.errors["stop_unit"] = [SystemdLost("silent")]
        parts.driver.finish(turn, Ending("done", ""))
        await until(lambda: "is not stopped" in caplog.text)
        assert (turn.phase, turn in parts.live) == (Phase.LINGERING, True), "its slot is still taken"

    driven(work)


def test_rows_fold_into_the_turn_one_after_another(driven):
    async def work(parts):
        parts.queued = [Row(8, "m", "main"), Row(9, "m", "main")]
        turn = await parts.started()
        await until(lambda: turn.resident.feeding is None)
        assert [id_ for id_, *_ in parts.client.posted] == [7, 8, 9]
        assert [id_ for id_, _ in parts.ledger.folds] == [8, 9]
        assert [(one.id, waited) for one, waited in turn.rows] == [
            (7, Waited(3, "it")), (8, Waited(5, "behind")), (9, Waited(5, "behind")),
        ]  # fmt: skip
        assert parts.redrives == [Redrive()]
        assert parts.sessions == [SessionChanged("m", "main", True)] * 3

    driven(work)


@pytest.mark.parametrize("answer", [DOWN, REFUSED, FAULTS[0]])
def test_a_row_that_does_not_fold_is_queued_again(driven, answer):
    async def work(parts):
        turn = await parts.started()
        parts.queued, parts.client.answers = [Row(8, "m", "main")], [answer]
        parts.driver.feed(turn)
        await until(lambda: turn.resident.feeding is None)
        [(id_, ending)] = parts.ledger.settled
        assert (id_, ending.failed, ending.back) == (8, answer is not DOWN, answer is DOWN)
        assert parts.given_back == [(8, 0)]
        assert (turn.folded, parts.ledger.folds) == ([], [])

    driven(work)


@pytest.mark.parametrize(
    ("found", "back"),
    [(Unavailable("no"), [(8, 1000)]), (FAULTS[0], [(8, 1000)]), (FAULTS[1], [(8, 1000)]), (None, [])],
)
def test_a_row_that_cannot_be_read(driven, found, back):
    async def work(parts):
        turn = await parts.started()
        parts.queued, parts.ledger.reads[8] = [Row(8, "m", "main")], found
        parts.driver.feed(turn)
        await until(lambda: turn.resident.feeding is None)
        assert parts.given_back == back
        assert len(parts.client.posted) == 1

    driven(work)


def test_a_turn_that_ended_while_the_row_was_read(driven):
    async def work(parts):
        turn = await parts.started()

        def ends():
            parts.live.close_input(turn)
            return row(8), b"{}"

        parts.queued, parts.ledger.reads[8] = [Row(8, "m", "main")], ends
        parts.driver.feed(turn)
        await until(lambda: turn.resident.feeding is None)
        assert (parts.given_back, len(parts.client.posted)) == ([(8, 0)], 1)

    driven(work)


def test_a_turn_that_ended_while_the_row_was_posted(driven):
    async def work(parts):
        turn = await parts.started()

        async def ends():
            parts.keeper.scopes.free(turn, Ending("idle", "quiet"))
            return TAKEN

        parts.queued, parts.client.answers = [Row(8, "m", "main")], [ends]
        parts.driver.feed(turn)
        await until(lambda: parts.ledger.settled)
        assert parts.ledger.settled == [(8, Ending("done", "its turn is over"))]
        assert turn.folded == []

    driven(work)


@pytest.mark.parametrize("when", ["while it is posted", "once it was posted", "before the first is answered"])
def test_a_done_may_not_be_the_last_once_anything_was_folded(driven, monkeypatch, when):
    """Real minds report one for each run of the model, or one for several."""
    monkeypatch.setattr(idle_watch, "SETTLE_S", 0.01)
    monkeypatch.setattr(idle_watch, "QUIET_S", 0.01)

    async def work(parts):
        parts.config = Config(minds={"m": replace(M, idle_end=0.02)})

        async def done():
            assert parts.driver.done("m", "main", None, None) == []
            return TAKEN

        parts.queued = [Row(8, "m", "main")]
        parts.client.answers = {
            "while it is posted": [TAKEN, done],
            "once it was posted": [],
            "before the first is answered": [done],
        }[when]
        turn = await parts.started()
        await until(lambda: turn.folded)
        if when == "once it was posted":
            await done()
        assert turn.resident.done is not None
        parts.processes.idle = 0
        await until(lambda: parts.processes.measured == [turn.live.unit])
        await asyncio.sleep(0.05)
        assert parts.keeper.over == [], "it works"
        turn.resident.fed -= 60
        parts.processes.idle = 60_000
        assert parts.driver.done("m", "main", None, None) == []
        parts.idle_watch._check(parts.driver.finish)
        assert turn.resident.ending.outcome == "done"

    driven(work)


def test_work_after_a_done_of_several_voids_it(driven):
    async def work(parts):
        parts.queued = [Row(8, "m", "main")]
        turn = await parts.started()
        await until(lambda: turn.folded)
        parts.driver.done("m", "main", None, None)
        parts.driver.heard("m", "main", "text")
        assert turn.resident.done is not None, "it may be of the same run"
        turn.resident.done -= 3
        parts.driver.done("m", "main", None, None)
        parts.driver.heard("m", "main", "text")
        assert turn.resident.done is not None, "or of the second, whose done came before it, too"
        turn.resident.told -= quiet_rule.STRAGGLE_S
        parts.driver.heard("m", "main", "usage")
        parts.driver.heard("m", "other", "text")
        assert turn.resident.done is not None
        parts.driver.heard("m", "main", "tool_use")
        assert turn.resident.done is None
        turn.resident.fed, parts.processes.idle = time.monotonic() - 300, 300_000
        parts.idle_watch._check(parts.driver.finish)
        assert turn.resident.ending is None, "a tool may wait for long"

    driven(work)


def test_a_call_of_a_tool_voids_a_done_however_soon_it_comes_and_whichever_comes_first(driven):
    async def work(parts):
        parts.queued = [Row(8, "m", "main")]
        turn = await parts.started()
        await until(lambda: turn.folded)
        for first, second in [("done", "tool_use"), ("tool_use", "done")]:
            for what in (first, second):
                if what == "done":
                    parts.driver.done("m", "main", None, None)
                else:
                    parts.driver.heard("m", "main", what)
            assert (turn.resident.done, turn.resident.tool) == (None, True)
            parts.driver.heard("m", "main", "tool_result")
        parts.driver.done("m", "main", None, None)
        assert turn.resident.done is not None

    driven(work)


def test_a_turn_whose_done_may_have_been_missed_ends_once_it_has_been_at_rest(driven):
    async def work(parts):
        turn = await parts.started()
        parts.driver.missed("m")
        parts.idle_watch._check(parts.driver.finish)
        assert turn.resident.ending is None
        turn.resident.fed = turn.resident.heard = time.monotonic() - 61
        parts.processes.idle = 61_000
        parts.idle_watch._check(parts.driver.finish)
        assert turn.resident.ending.outcome == "done"

    driven(work)


def test_the_done_of_an_idle_turn_may_come_in_the_next_of_its_session(driven):
    async def work(parts):
        first = await parts.started()
        parts.driver.finish(first, Ending("idle", "quiet"))
        await until(lambda: first not in parts.live)
        second = await parts.started()
        assert parts.driver.done("m", "main", None, None) == []
        assert second.resident.ending is None
        parts.driver.finish(second, Ending("done", "quiet since"))
        await until(lambda: second not in parts.live)
        await parts.started()
        assert len(parts.driver.done("m", "main", None, None)) == 1, "at once, as of any single message"

    driven(work)


def test_work_of_a_session_without_a_turn_is_reported(driven):
    async def work(parts):
        await parts.started()
        for session, type_ in [("main", "text"), ("other", "usage"), (None, "text"), ("other", "tool_use")]:
            parts.driver.heard("m", session, type_)
        parts.driver.heard("n", "main", "session_start")
        assert parts.works == [
            WorkSeen("m", "other", "tool_use"),
            WorkSeen("n", "main", "session_start"),
        ]

    driven(work)


@pytest.mark.parametrize(
    ("idle_s", "empty", "frozen", "want"),
    [(599, False, False, None), (600, False, False, "idle"), (31, True, False, "gone"), (29, True, False, None),
     (601, True, True, None)],
)  # fmt: skip
def test_a_quiet_turn_is_over(driven, idle_s, empty, frozen, want):
    async def work(parts):
        turn = await parts.started()
        turn.resident.heard = turn.resident.fed = time.monotonic() - 1000
        parts.processes.idle, parts.processes.empty, parts.frozen = (
            idle_s * 1000,
            empty,
            {turn.live.unit: 1} if frozen else {},
        )
        parts.idle_watch._check(parts.driver.finish)
        assert (turn.resident.ending.outcome if turn.resident.ending else None) == want

    driven(work)


@pytest.mark.parametrize("what", ["a command's", "not posted", "a mind that is gone"])
def test_only_what_a_known_mind_has_taken_ends_by_being_quiet(driven, what):
    async def work(parts):
        turn = await parts.started()
        turn.resident.heard = turn.resident.fed = time.monotonic() - 1000
        parts.processes.idle = 900_000
        if what == "a command's":
            parts.live.remove(turn)
            parts.keeper.turn("8")
        if what == "not posted":
            turn.resident.posted = False
        if what == "a mind that is gone":
            parts.config = Config()
        parts.idle_watch._check(parts.driver.finish)
        assert turn.resident.ending is None
        assert parts.keeper.over == []

    driven(work)


@pytest.mark.parametrize(("idle_end", "delay"), [(600, idle_watch.CHECK_S), (2, 0.5)])
def test_how_often_turns_are_checked(driven, idle_end, delay):
    async def work(parts):
        parts.config = Config(minds={"m": replace(M, idle_end=idle_end)})
        await parts.started()
        loop = asyncio.get_running_loop()
        assert delay - 0.3 < parts.idle_watch._timer.when() - loop.time() <= delay
        parts.idle_watch.close()
        assert parts.idle_watch._timer.cancelled()

    driven(work)


def test_time_that_a_turn_was_frozen_is_not_idleness(driven):
    async def work(parts):
        turn = await parts.started()
        turn.resident.heard = turn.resident.fed = before = time.monotonic() - 100
        parts.idle_watch.thawed(TurnThawed(turn.live.unit, 40))
        parts.idle_watch.thawed(TurnThawed("other.scope", 40))
        assert turn.resident.heard == turn.resident.fed == before + 40
        parts.idle_watch.thawed(TurnThawed(turn.live.unit, 400))
        assert time.monotonic() - turn.resident.heard < 10
        assert parts.processes.thawed == [(turn.live.unit, 40), (turn.live.unit, 400)]

    driven(work)


def test_a_turn_that_somebody_froze_does_not_become_idle(driven):
    """Nobody reports a `systemctl freeze`: each check of a frozen turn takes the time since the last one off."""

    async def work(parts):
        turn, over = await parts.started(), []
        turn.resident.heard = turn.resident.fed = before = time.monotonic() - 100
        parts.processes.still = True
        parts.idle_watch._checked = time.monotonic() - 2
        parts.idle_watch._check(lambda *ended: over.append(ended))
        assert 2 <= turn.resident.fed - before < 3
        parts.frozen = {turn.live.unit: 1}  # by the guard, which reports how long it was
        parts.idle_watch._check(lambda *ended: over.append(ended))
        parts.processes.still, parts.frozen = False, {}
        parts.idle_watch._check(lambda *ended: over.append(ended))
        assert len(parts.processes.thawed) == 1
        assert over == []

    driven(work)


def test_a_mind_that_died_ends_its_turns(driven):
    async def work(parts):
        turn = await parts.started()
        parts.driver.mind_died(MindDied("other"))
        assert turn.resident.ending is None
        turn.stopped = True
        parts.driver.mind_died(MindDied("m"))
        assert turn.resident.ending is None, "it was stopped, and is not to run again"
        turn.stopped = False
        parts.driver.mind_died(MindDied("m"))
        assert turn.resident.ending == Ending("died", "the mind's process died", failed=True, overtaken=True)

    driven(work)


def test_a_mind_that_reports_is_up(driven):
    async def work(parts):
        parts.driver.up("m")
        assert parts.redrives == []
        parts.availability.note("m", "nobody listens")
        parts.driver.heard("m", None)
        assert parts.redrives == [Redrive("m")]
        assert parts.availability.why("m") is None

    driven(work)


def test_a_mind_whose_service_starts_is_tried_at_once(driven):
    async def work(parts):
        parts.config = Config(
            minds={"m": replace(M, unit="m.service"), "n": replace(M, name="n", unit="n.service")}
        )
        for mind in ("m", "n"):
            parts.availability.note(mind, "nobody listens")
        parts.driver.unit_started(UnitStarted("other.service"))
        assert parts.redrives == []
        parts.driver.unit_started(UnitStarted("m.service"))
        assert parts.redrives == [Redrive("m")]
        assert parts.availability.why("m") is None
        assert parts.availability.why("n") is not None

    driven(work)


@pytest.mark.parametrize("stays", [[4], [RuntimeError("whatever")], [SystemdLost("gone")]])
def test_processes_that_cannot_leave_are_stopped(driven, stays):
    async def work(parts):
        turn = await parts.started()
        parts.processes.stays = stays
        parts.driver.finish(turn, Ending("done", ""))
        await until(lambda: parts.keeper.over)
        assert ("stop_unit", turn.live.unit) in parts.keeper.host.calls
        assert parts.keeper.over == [(turn, Ending("done", ""))]

    driven(work)


ENDS = [
    ("posted", "started\n", {}, True, "gone"), ("stopped", "started\n", {"stopped": True}, True, "stopped"),
    ("not posted", "started\n", {}, False, "dismissed"), ("no record", None, {"released": True}, True, "exited"),
    ("too long", "started\n", {"max_turn": 0.0}, True, "timeout"),
    ("too long for a POST", "started\n", {"max_turn": 0.0}, False, "timeout"),
    ("an earlier guard's", "started\n", {"max_turn": 0.0, "resumed": True}, False, "dismissed"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "flags", "posted", "want"), [e[1:] for e in ENDS], ids=[e[0] for e in ENDS])
def test_a_scope_that_is_gone_without_a_report(driven, text, flags, posted, want):
    async def work(parts):
        turn = parts.turn()
        parts.driver.prepare(turn)
        turn.resident = Resident(posted=posted)
        for name, value in flags.items():
            setattr(turn, name, value)
        (paths.TURNS / "7").unlink()
        if text is not None:
            (paths.TURNS / "7").write_text(text)
        assert parts.driver.end(turn).outcome == want
        expected = parts.dones.before(parts.keeper.live.turns[turn.live.unit], "main")
        turn.admitted = time.monotonic() + 1
        expected = parts.dones.before(turn, "main")
        assert bool(expected) == posted, "the mind may yet say that it is done"

    driven(work)


@pytest.mark.parametrize("posted", [True, False])
def test_an_earlier_guards_turn_goes_on(driven, posted):
    async def work(parts):
        turn = parts.turn()
        parts.driver.prepare(turn)
        (paths.TURNS / "7").write_text("started\nanchor 4711\n")
        turn.phase, turn.resident = Phase.RUNNING, Resident(posted=posted)
        parts.routes_read.clear()  # what is confirmed needs no instructions
        resumed = asyncio.ensure_future(parts.driver.resume(turn, M))
        await asyncio.sleep(0.02)
        assert resumed.done() == posted
        parts.routes_read.set()
        await resumed
        assert parts.processes.adopted == [(turn.live.unit, "main", 4711)]
        assert [id_ for id_, *_ in parts.client.posted] == ([] if posted else [7]), (
            "what was not confirmed again"
        )
        assert turn.resident.posted
        assert parts.sessions == [SessionChanged("m", "main", True)]

    driven(work)


@pytest.mark.parametrize("how", ["done", "died"])
def test_an_earlier_guards_turn_whose_row_is_lost_goes_on_and_ends(driven, how):
    async def work(parts):
        turn = parts.turn()
        parts.driver.prepare(turn)
        with (paths.TURNS / "7").open("a") as record:
            record.write("started\nanchor 4711\n")
        turn.phase, turn.resident, turn.delivery = Phase.RUNNING, Resident(posted=True), None
        await parts.driver.resume(turn, M)
        assert parts.processes.adopted == [(turn.live.unit, "main", 4711)]
        assert parts.client.posted == []
        if how == "done":
            assert parts.driver.done("m", "other", None, None) == []
            [done] = parts.driver.done("m", "main", None, None)
            await asyncio.wait_for(parts.dones.stored([done]), 1)
        else:
            parts.driver.mind_died(MindDied("m"))
        await until(lambda: parts.keeper.over)
        assert parts.keeper.over[0][1].outcome == how

    driven(work)


@pytest.mark.parametrize(
    ("mind", "record"),
    [(None, "started\nanchor 4\n"), (MIND, "started\nanchor 4\n"), (M, "started\n"), (M, None)],
)
def test_a_turn_that_cannot_go_on_is_stopped(driven, mind, record):
    async def work(parts):
        turn = await parts.started()
        (paths.TURNS / "7").unlink()
        if record is not None:
            (paths.TURNS / "7").write_text(record)
        await parts.driver.resume(turn, mind)
        assert turn.asked
        assert ("stop_unit", turn.live.unit) in parts.keeper.host.calls

    driven(work)


def test_a_resumed_turn_whose_row_cannot_be_read_comes_again(driven):
    async def work(parts):
        turn = await parts.started()
        turn.resident.posted, parts.ledger.reads[7] = False, Unavailable("no")
        await parts.driver.resume(turn, M)
        assert (turn.resident.ending.back, turn.resident.ending.failed) == (True, False)

    driven(work)


def test_a_done_that_waited_for_the_guard(driven):
    async def work(parts):
        turn = await parts.started()
        turn.resident.ending = Ending("done", "")
        await parts.driver.resume(turn, M)
        assert (parts.processes.left, len(parts.client.posted)) == ([turn.live.unit], 1)

    driven(work)


def test_a_mind_that_is_resident_no_more_takes_nothing_more(driven):
    async def work(parts):
        turn = await parts.started()
        await parts.driver.use(Config(minds={"m": M}))
        assert turn.live.takes_input
        await parts.driver.use(Config())
        assert turn.live.takes_input
        await parts.driver.use(Config(minds={"m": MIND}))
        assert not turn.live.takes_input

    driven(work)


def test_an_anchor_that_cannot_be_let_go(driven):
    async def work(parts):
        parts.keeper.host.errors["take"] = [OSError(11, "none is free")]
        turn = parts.turn()
        assert not await parts.driver.start(turn, M, turn.delivery, b"{}")
        assert (parts.client.posted, parts.processes.adopted) == ([], [])
        assert parts.keeper.over[0][1].back
        assert outcome.RECORD_LOST not in [ending for _, ending in parts.keeper.over]

    driven(work)
