"""Which work outside of turns gets a turn. Scopes are on a fake host; the mind's processes are a table."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from turned_on import keeping
from until import until

from hostguard.core import paths
from hostguard.core.model import Config, Mind
from hostguard.core.outcome import Ending
from hostguard.core.signals import WorkSeen
from hostguard.linux.process import Process
from hostguard.telemetry.events import Events
from hostguard.turns.drivers import unscoped
from hostguard.turns.drivers.unscoped import Unscoped, Use
from hostguard.turns.live import Phase, TurnEnded

M = Mind("m", url="http://127.0.0.1:9")


class Parts:
    """Also in place of Adoption and ResidentDriver: `home` are processes with their sessions."""

    def __init__(self, keeper, now):
        self.keeper, self.live, self.now = keeper, keeper.live, now
        self.config = Config(minds={"m": M, "e": Mind("e", ("/bin/true",))})
        self.events, self.told, self.followed, self.home, self.moved = Events(), [], [], [], {}
        self.events.sinks += (self.told.append,)
        self.unscoped = Unscoped(self.live, keeper.scopes, self, self, self, self.events, keeper.clock)

    async def follow(self, turn, mind):
        self.followed.append((turn.live.mind, turn.live.session))
        turn.phase = Phase.RUNNING

    async def at_home(self, mind):
        return self.home

    def stopping(self, turn):
        """Nothing is posted."""

    def end(self, turn):
        return Ending("done", "")

    def slots(self):
        return [(turn.live.mind, turn.live.session) for turn in self.live]

    def ended(self, session="s"):
        self.unscoped.turn_ended(TurnEnded(SimpleNamespace(
            resident=object(), unasked=False, live=SimpleNamespace(id="7", mind="m", session=session)
        ), Ending("done", "")))  # fmt: skip

    async def look(self, after, cpu_s, session="s"):
        self.now[0] += after
        self.home = [(Process(11, 200, 1, cpu_s, False), session)]
        await self.unscoped._look_at(M)


@pytest.fixture
def watched(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "TURNS", tmp_path / "turns")
    now = [1000.0]
    monkeypatch.setattr(unscoped, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def run(work):
        async def main():
            async with keeping(monkeypatch) as keeper:
                parts = Parts(keeper, now)
                monkeypatch.setattr(unscoped, "storage", lambda pid: parts.moved.get(pid))
                await work(parts)
                parts.unscoped.close()
                for turn in parts.live:
                    parts.live.remove(turn)

        asyncio.run(main())

    return run


def test_a_report_of_work_takes_a_slot_at_once(watched):
    async def work(parts):
        for mind in ("m", "e", "unknown"):
            parts.unscoped.work_seen(WorkSeen(mind, "s", "text"))
        assert parts.slots() == [("m", "s")], "exec minds report nothing"
        [turn] = parts.live
        assert turn.unasked
        assert turn.resident.shared, "no done is certain"
        assert turn.live.takes_input
        assert not turn.resident.early, "a tool may wait for long"
        parts.unscoped.work_seen(WorkSeen("m", "s", "text"))
        assert parts.slots() == [("m", "s")], "a session never has two turns"
        await until(lambda: parts.followed == [("m", "s")])
        assert (paths.TURNS / turn.live.id).exists(), "a guard that is started again finds its session there"
        parts.unscoped.turn_ended(TurnEnded(turn, Ending("done", "")))
        assert not (paths.TURNS / turn.live.id).exists()
        assert [event["type"] for event in parts.told] == ["outside"]

    watched(work)


def test_a_report_that_comes_with_the_done_is_of_the_turn_that_ended(watched):
    async def work(parts):
        parts.ended()
        parts.now[0] += unscoped.STRAGGLE_S
        parts.unscoped.work_seen(WorkSeen("m", "s", "text"))
        assert parts.slots() == []
        parts.unscoped.work_seen(WorkSeen("m", "t", "text"))
        parts.now[0] += 0.1
        parts.unscoped.work_seen(WorkSeen("m", "s", "text"))
        assert parts.slots() == [("m", "t"), ("m", "s")]

    watched(work)


def test_a_process_that_works_takes_a_slot_for_its_session(watched):
    async def work(parts):
        await parts.look(0, 50.0)
        assert parts.slots() == [], "it may have worked before"
        await parts.look(1, 50.15)
        assert parts.slots() == [], "at rest a session uses so much just after its done"
        await parts.look(1, 50.4)
        assert parts.slots() == [("m", "s")]
        await parts.look(1, 51.27)
        assert parts.slots() == [("m", "s")], "it has one"

    watched(work)


def test_a_process_that_writes_works_and_an_unknown_one_is_of_the_last_turn(watched):
    async def work(parts):
        parts.ended("t")
        parts.moved[11] = (0, 0)
        await parts.look(0, 0.0, None)
        parts.moved[11] = (0, 900_000)
        await parts.look(1, 0.0, None)
        assert parts.slots() == []
        parts.moved[11] = (0, 2_000_000)
        await parts.look(1, 0.0, None)
        assert parts.slots() == [("m", "t")]

    watched(work)


def test_it_looks_soon_after_an_end_then_seldom_and_then_no_more(watched, monkeypatch):
    async def work(parts):
        seen, loop = [], asyncio.get_running_loop()

        async def look_at(mind):
            seen.append(mind.name)

        monkeypatch.setattr(parts.unscoped, "_look_at", look_at)

        def due():
            return parts.unscoped._timer and round(parts.unscoped._timer.when() - loop.time())

        parts.unscoped.look_later()
        assert due() is None, "nothing runs"
        parts.unscoped._looked = parts.now[0]
        parts.unscoped.work_seen(WorkSeen("m", "other", "text"))
        parts.unscoped.look_later()
        assert due() == 10, "a turn lives"
        for turn in parts.live:
            parts.live.remove(turn)
        parts.ended()
        delays = [due()]
        for after in (1, 7, 2, 80):
            parts.now[0] += after
            parts.unscoped._timer.cancel()
            parts.unscoped._look_now()
            await asyncio.sleep(0.01)
            delays.append(due())
        assert delays == [1, 1, 10, 10, None]
        assert seen == ["m"] * 4, "exec minds have no sessions"

    watched(work)


def test_what_ended_long_ago_is_forgotten(watched):
    async def work(parts):
        for pid in range(300):
            parts.unscoped._used[Process(pid, 1, 1, 0.0, False)] = Use(parts.now[0] - 100, 0.0, 0)
        await parts.look(0, 1.0)
        assert len(parts.unscoped._used) == 1

    watched(work)
