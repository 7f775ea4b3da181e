"""Scopes come up, are followed and give their slots back, whatever systemd does. On a fake host."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_host import FakeStub
from turned_on import MIND, keeping
from until import until

from hostguard.core import outcome
from hostguard.core.model import Limits
from hostguard.core.signals import Redrive, UnitStarted
from hostguard.systemd.client import Scope
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.turns import scope_reaper, scopes
from hostguard.turns.live import Phase, Resident

UNIT = "hostguard-turn-m-7.scope"
REFUSED = SystemdError("org.freedesktop.systemd1.Refused", "no")


def kept(work):
    """A test: `await work(keeper)` on a keeper of scopes."""

    def test(monkeypatch):
        async def run():
            async with keeping(monkeypatch) as keeper:
                await work(keeper)

        asyncio.run(run())

    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


async def started(keeper, turn, **more):
    """Start the turn around a stub; whether it was let go."""
    let_go = []
    going = await keeper.scopes.start_stub(turn, MIND.limits, lambda *one: let_go.append(one), **more)
    assert let_go == ([(turn.stub, "7")] if going else [])
    return going


@kept
async def test_a_turn_runs_in_a_scope_with_its_limits(keeper):
    turn = keeper.turn()
    assert await started(keeper, turn)
    assert (turn.phase, turn.released, turn.pid) == (Phase.RUNNING, True, turn.stub.pid)
    assert turn.started
    properties = keeper.host.units[UNIT]
    assert properties["Description"] == "what it is"
    assert properties["Slice"] == "hostguard-m.slice"
    assert properties["PIDs"] == [turn.pid]
    assert properties["TasksMax"] == 9
    assert properties["CollectMode"] == "inactive-or-failed"
    accounting = {"CPUAccounting", "MemoryAccounting", "TasksAccounting", "IOAccounting"}
    assert all(properties[name] is True for name in accounting)
    named = {"Description", "Slice", "PIDs", "TasksMax", "CollectMode", "RuntimeMaxUSec"}
    assert set(properties) == accounting | named
    assert properties["RuntimeMaxUSec"] == 60_000_000
    assert "Delegate" not in properties
    assert keeper.checked == [(UNIT, MIND.limits)], "its limits are read back before it runs"
    assert keeper.over == []


@kept
async def test_a_scope_into_which_others_are_moved_is_delegated(keeper):
    assert await started(keeper, keeper.turn(), delegate=True)
    assert keeper.host.units[UNIT]["Delegate"] is True


@kept
async def test_its_slot_is_free_once_the_last_process_ended(keeper):
    turn = keeper.turn()
    await started(keeper, turn)
    child = await keeper.host.take()
    keeper.host.processes[UNIT].add(child.pid)
    turn.stub.dismiss()
    await until(lambda: turn.phase is Phase.LINGERING)
    assert turn in keeper.live
    assert turn.stub is None
    keeper.host.empty(UNIT)
    await until(lambda: keeper.over)
    assert keeper.over == [(turn, keeper.driver.ending)]
    assert len(keeper.live) == 0


def test_a_scope_that_systemd_does_not_see_end_is_stopped_if_it_is_ours(monkeypatch):
    monkeypatch.setattr(scope_reaper, "REAP_S", 0.05)

    async def run():
        async with keeping(monkeypatch) as keeper:
            for turn in (keeper.turn("7"), keeper.turn("8")):
                await keeper.scopes.start_stub(turn, MIND.limits, lambda *_: None)
            keeper.host.processes["any.scope"] = {1}
            keeper.scopes.scope_new(Scope("any.scope", "m"))
            keeper.host.listener = None  # systemd reports nothing
            for name in [*keeper.live.turns]:
                keeper.host.empty(name, report=False)
                keeper.scopes.free(keeper.live.turns[name], keeper.driver.ending)
            await asyncio.sleep(0.2)
            stopped = [call[1] for call in keeper.host.calls if call[0] == "stop_unit"]
            assert sorted(stopped) == ["hostguard-turn-m-7.scope", "hostguard-turn-m-8.scope"]

    asyncio.run(run())


@kept
async def test_a_stub_that_ends_alone_ends_its_turn_though_systemd_says_nothing(keeper):
    turn = keeper.turn()
    await started(keeper, turn)
    keeper.host.listener = None
    keeper.host.units.clear()
    keeper.host.processes.clear()
    turn.stub.dismiss()
    await until(lambda: keeper.over)
    assert keeper.over == [(turn, keeper.driver.ending)]


def test_empty_scopes_that_are_found_are_stopped_if_they_are_turns(monkeypatch):
    monkeypatch.setattr(scope_reaper, "REAP_S", 0.05)

    async def run():
        async with keeping(monkeypatch) as keeper:
            live = keeper.turn("8")
            found = [Scope("any.scope", "m"), Scope(UNIT, "m"), Scope(live.live.unit, "m")]
            keeper.scopes.systemd_up(found)
            await asyncio.sleep(0.2)
            assert [call for call in keeper.host.calls if call[0] == "stop_unit"] == [("stop_unit", UNIT)]
            assert list(keeper.live) == [live]

    asyncio.run(run())


@kept
async def test_a_stub_that_ends_alone_ends_its_turn(keeper):
    turn = keeper.turn()
    await started(keeper, turn)
    turn.stub.dismiss()
    await until(lambda: keeper.over)
    assert keeper.over == [(turn, keeper.driver.ending)]
    assert turn.used is not None, "what it used was read before its scope went"


@pytest.mark.parametrize("flag", ["revoked", "asked"])
def test_what_was_revoked_meanwhile_does_not_run(monkeypatch, flag):
    async def run():
        async with keeping(monkeypatch) as keeper:
            turn = keeper.turn()
            setattr(turn, flag, True)
            assert not await started(keeper, turn)
            await until(lambda: keeper.over)
            assert not turn.released

    asyncio.run(run())


@kept
async def test_a_stub_that_cannot_be_let_go_ends_without_having_run(keeper):
    turn = keeper.turn()

    def fails(stub, turn_id):
        raise OSError

    assert not await keeper.scopes.start_stub(turn, MIND.limits, fails)
    await until(lambda: keeper.over)
    assert not turn.released


@kept
async def test_without_a_process_the_row_comes_again(keeper):
    keeper.host.errors["take"] = [OSError(11, "none is free")]
    turn = keeper.turn()
    assert not await started(keeper, turn)
    [(over, ending)] = keeper.over
    assert over is turn
    assert (ending.outcome, ending.back, ending.failed, ending.pause_ms) == ("dismissed", True, False, 1000)
    assert "none is free" in ending.reason


@kept
async def test_what_systemd_refuses_fails(keeper):
    keeper.host.errors["start_scope"] = [REFUSED]
    turn = keeper.turn()
    assert not await started(keeper, turn)
    [(_, ending)] = keeper.over
    assert (ending.outcome, ending.failed, ending.back) == ("not_started", True, False)
    assert len(keeper.live) == 0


@kept
async def test_a_scope_of_which_systemd_says_nothing_keeps_its_slot_until_the_list_is_read(keeper):
    keeper.host.errors["start_scope"] = [SystemdLost("silent")]
    turn = keeper.turn()
    assert not await started(keeper, turn)
    assert (turn.phase, list(keeper.live), keeper.over) == (Phase.UNSURE, [turn], [])
    assert not turn.stub.alive(), "should the scope come up after all, it runs nothing"
    await until(lambda: keeper.over)
    assert ("refresh",) in keeper.host.calls


def test_the_sweep_frees_it_where_that_fails_and_rests_when_nothing_is_live(monkeypatch):
    monkeypatch.setattr(scopes, "SWEEP_S", 0.1)

    async def run():
        async with keeping(monkeypatch) as keeper:
            keeper.host.errors["start_scope"] = [SystemdLost("silent")]
            keeper.host.errors["refresh"] = [SystemdLost("silent"), SystemdError("x", "refused")]
            turn = keeper.turn()
            assert not await started(keeper, turn)
            await asyncio.sleep(0.05)
            assert turn in keeper.live
            await until(lambda: keeper.over)
            read = keeper.host.calls.count(("refresh",))
            assert read == 3
            await asyncio.sleep(0.3)
            assert keeper.host.calls.count(("refresh",)) == read

    asyncio.run(run())


def test_no_sweep_without_a_connection(monkeypatch):
    monkeypatch.setattr(scopes, "SWEEP_S", 0.05)

    async def run():
        async with keeping(monkeypatch) as keeper:
            await started(keeper, keeper.turn())
            keeper.scopes.systemd_down()
            assert not keeper.scopes.connected
            await asyncio.sleep(0.2)
            assert ("refresh",) not in keeper.host.calls
            keeper.scopes.connected = True
            await until(lambda: ("refresh",) in keeper.host.calls)

    asyncio.run(run())


async def around(keeper, turn, caller):
    """Start the turn around a stub and a process that waits; whether it may go on."""
    waiting = SimpleNamespace(pid=caller.pid, alive=caller.alive)
    return await keeper.scopes.start_stub(turn, Limits(), lambda stub, _: stub.watch(5), caller=waiting)


@kept
async def test_a_callers_process_has_a_stub_beside_it_that_keeps_the_slot(keeper):
    turn, caller = keeper.turn(), await keeper.host.take()
    assert await around(keeper, turn, caller)
    assert (turn.phase, turn.pid, turn.stub.watched) == (Phase.RUNNING, caller.pid, 5)
    assert keeper.host.units[UNIT]["PIDs"] == [caller.pid, turn.stub.pid]
    assert keeper.scopes.owns(caller.pid)
    assert not keeper.scopes.owns(turn.stub.pid)
    keeper.host.processes[UNIT].discard(caller.pid)  # it left for another cgroup
    keeper.scopes.scope_gone(UNIT)
    assert turn in keeper.live
    caller.dismiss()
    turn.stub.dismiss()  # as the true one does then
    await until(lambda: keeper.over)
    assert not keeper.scopes.owns(caller.pid)


@pytest.mark.parametrize("fails", ["asked", "watch"])
def test_a_caller_that_is_not_to_go_on_lasts_as_long_as_its_process(monkeypatch, fails):
    async def run():
        async with keeping(monkeypatch) as keeper:
            turn, caller = keeper.turn(), await keeper.host.take()
            if fails == "asked":
                turn.asked = True
            else:

                def watch(stub, caller):
                    raise OSError(9, "no descriptor")

                monkeypatch.setattr(FakeStub, "watch", watch)
            assert not await around(keeper, turn, caller)
            await until(lambda: turn.phase is Phase.LINGERING)
            caller.dismiss()
            await until(lambda: keeper.over)

    asyncio.run(run())


@kept
async def test_a_scope_that_went_as_it_started_is_over(keeper):
    turn = keeper.turn()

    async def look(cgroup, limits):
        keeper.host.empty(UNIT)

    keeper.look = look
    assert not await started(keeper, turn)
    assert turn.gone
    assert keeper.over == [(turn, keeper.driver.ending)]


@kept
async def test_an_end_that_was_of_an_earlier_turn_of_that_name_is_none(keeper):
    turn = keeper.turn()
    keeper.scopes.scope_gone(UNIT)
    assert turn.gone
    assert keeper.over == []
    assert await started(keeper, turn)


@kept
async def test_a_record_that_cannot_be_read_now_is_read_later(keeper):
    scopes.AGAIN_MS, before = 20, scopes.AGAIN_MS
    try:
        keeper.driver.fails = [OSError("busy")]
        turn = keeper.turn()
        await started(keeper, turn)
        keeper.host.listener = None  # the stub's end alone is seen
        turn.stub.dismiss()
        await until(lambda: not keeper.driver.fails)
        assert keeper.over == []
        assert turn in keeper.live
        await until(lambda: keeper.over)
    finally:
        scopes.AGAIN_MS = before


@kept
async def test_what_a_turn_used_is_read_once_unless_its_record_has_it(keeper):
    reads = []
    keeper.scopes.usage = lambda turn: reads.append(turn) or len(reads)
    turn = keeper.turn()
    keeper.scopes.account(turn)
    keeper.scopes.account(turn)  # its processes may have left the scope since
    assert (turn.used, reads) == (1, [turn])
    recorded, foreign = keeper.turn("8"), keeper.turn("9")
    recorded.record = outcome.Record(True, exit=0, account={"write_bytes": 7})
    foreign.delivery = None
    for other in (recorded, foreign):
        keeper.scopes.account(other)
        assert other.used is None
    recorded.record = outcome.Record(True, exit=0)
    keeper.scopes.account(recorded)
    assert recorded.used == 2


@kept
async def test_a_turn_that_is_given_up_after_a_stop_never_began(keeper):
    turn, back = keeper.turn(), outcome.Ending("dismissed", "", back=True)
    turn.asked = True
    keeper.scopes.give_up(turn, back)
    keeper.scopes.give_up(turn, back)
    assert keeper.over == [(turn, outcome.NEVER_BEGAN)], "once"


@kept
async def test_a_stop_goes_to_systemd_once_the_scope_is_up(keeper):
    turn = keeper.turn(takes_input=True)
    await keeper.scopes.stop(turn)
    assert (turn.stopped, turn.asked, keeper.host.calls) == (True, True, [])
    assert not turn.live.takes_input
    turn.asked = False
    await started(keeper, turn)
    keeper.host.errors["thaw"] = [REFUSED]
    await keeper.scopes.stop(turn)
    assert keeper.host.calls[-2:] == [("thaw", UNIT), ("stop_unit", UNIT)]
    assert turn.asked
    await until(lambda: keeper.over)


@kept
async def test_somebody_elses_stop_is_noted(keeper):
    turn = keeper.turn(takes_input=True)
    keeper.scopes.scope_job(UNIT)
    assert not turn.stopped, "while it starts that is the job of its own start"
    await started(keeper, turn)
    keeper.scopes.scope_job(UNIT)
    assert (turn.stopped, turn.asked, turn.live.takes_input) == (True, False, False)
    keeper.scopes.scope_job("other.scope")


@kept
async def test_scopes_of_others_take_slots(keeper):
    for name in ("hostguard-turn-m-9.scope", "any.scope"):
        keeper.host.processes[name] = {1}
        keeper.scopes.scope_new(Scope(name, "m", "by hand"))
    keeper.scopes.scope_new(Scope("any.scope", "m"))
    assert keeper.redrives == [Redrive(), Redrive()]
    found = [(turn.live.unit, turn.live.id, turn.phase, turn.description) for turn in keeper.live]
    assert found == [
        ("hostguard-turn-m-9.scope", "9", Phase.FOREIGN, "by hand"),
        ("any.scope", None, Phase.FOREIGN, "by hand"),
    ]
    keeper.host.empty("any.scope")
    assert [(turn.live.unit, ending.outcome) for turn, ending in keeper.over] == [("any.scope", "exited")]


@kept
async def test_the_list_is_the_truth(keeper):
    turn = keeper.turn()
    await started(keeper, turn)
    starting = keeper.turn("8")
    keeper.host.processes |= {"new.scope": {1}}
    keeper.host.empty(UNIT, report=False)
    keeper.scopes.connected = False
    keeper.scopes.systemd_up([Scope("new.scope", "m"), Scope("empty.scope", "m")])
    assert keeper.scopes.connected
    assert {one.live.unit for one in keeper.live} == {starting.live.unit, "new.scope"}
    assert not starting.gone, "the list may be older than its start"
    assert keeper.over == [(turn, keeper.driver.ending)]
    assert keeper.redrives == [Redrive()]


@kept
async def test_systemd_errs_about_a_scope_that_has_processes(keeper):
    turn = keeper.turn()
    await started(keeper, turn)
    keeper.scopes.scope_gone(UNIT)
    assert (turn in keeper.live, keeper.over) == (True, [])


@kept
async def test_a_started_service_is_reported(keeper):
    keeper.scopes.unit_started("m.service")
    assert keeper.started == [UnitStarted("m.service")]


@kept
async def test_where_cgroups_are(keeper):
    keeper.host.control_group = "/user"
    folder = keeper.scopes.cgroup("a.scope", "m")
    assert folder.parts[-4:] == ("user", "hostguard.slice", "hostguard-m.slice", "a.scope")
    assert keeper.scopes.cgroup("a.scope", "").parent == folder.parents[1]
    assert isinstance(folder, Path)


# -- the host goes down

DESTRUCTIVE = SystemdError("org.freedesktop.systemd1.TransactionIsDestructive", "another job is in the way")
CUT = outcome.Ending("stopped", "ended by SIGTERM")


async def cut(keeper, **more):
    """A turn that was ended by a signal."""
    keeper.driver.ending = CUT
    turn = keeper.turn()
    await started(keeper, turn)
    for name, value in more.items():
        setattr(turn, name, value)
    turn.stub.dismiss()
    await until(lambda: ("shutting_down",) in keeper.host.calls or keeper.over)
    await asyncio.sleep(0.02)
    return turn


@kept
async def test_a_turn_that_a_signal_ended_is_over_if_the_host_does_not_go_down(keeper):
    turn = await cut(keeper)
    assert keeper.over == [(turn, CUT)]


@kept
async def test_it_goes_back_if_the_host_goes_down(keeper):
    keeper.host.stopping = True
    turn = await cut(keeper)
    assert keeper.over == [(turn, outcome.HOST_DOWN)]


@kept
async def test_a_stop_that_was_asked_for_stays_one(keeper):
    keeper.host.stopping = True
    turn = await cut(keeper, asked=True)
    assert keeper.over == [(turn, CUT)]


@kept
async def test_what_a_mind_reports_as_it_is_stopped_with_the_host_is_no_end(keeper):
    keeper.driver.ending = outcome.Ending("done", "the mind said so")
    turn = keeper.turn()
    turn.resident = Resident(posted=True)
    await started(keeper, turn)
    turn.asked = True  # as by the driver, for processes that it could not move back
    keeper.scopes.shutdown(True)
    turn.stub.dismiss()
    await until(lambda: keeper.over)
    assert keeper.over == [(turn, outcome.HOST_DOWN)]


@kept
async def test_it_keeps_its_slot_until_systemd_answers(keeper):
    keeper.host.errors["shutting_down"] = [SystemdLost("silent"), SystemdError("x", "refused")]
    keeper.host.listener = None
    turn = await cut(keeper)
    assert keeper.over == []
    assert turn.used is not None, "it was read at once: systemd may remove the scope before it answers"
    keeper.host.listener = keeper.scopes
    await keeper.host.refresh()
    await asyncio.sleep(0.02)
    assert turn in keeper.live
    await keeper.host.refresh()
    await until(lambda: keeper.over)
    assert keeper.over == [(turn, CUT)]


@pytest.mark.parametrize("status", [0, None])
def test_nothing_is_over_once_systemd_ends_all_processes(monkeypatch, status):
    monkeypatch.setattr(scopes, "dying", lambda: True)

    async def run():
        async with keeping(monkeypatch) as keeper:
            keeper.driver.ending = outcome.Ending("exited", "as it may be", status)
            turn = keeper.turn()
            await started(keeper, turn)
            turn.stub.dismiss()
            await asyncio.sleep(0.1)
            assert keeper.over == []
            assert await keeper.scopes.going_down()

    asyncio.run(run())


@kept
async def test_a_scope_that_systemd_refuses_as_it_shuts_down_counts_no_attempt(keeper):
    keeper.host.stopping = True
    keeper.host.errors["start_scope"] = [DESTRUCTIVE]
    turn = keeper.turn()
    assert not await started(keeper, turn)
    assert keeper.over == [(turn, outcome.HOST_DOWN)]
    assert keeper.scopes.stopping


@kept
async def test_a_scope_that_systemd_refuses_for_another_job_is_no_shutdown(keeper):
    """An operator stops a slice, and nothing may replace that: systemd's error is the same."""
    keeper.host.errors["start_scope"] = [DESTRUCTIVE]
    turn = keeper.turn()
    assert not await started(keeper, turn)
    [(_, ending)] = keeper.over
    assert (ending.outcome, ending.failed) == ("not_started", True)
    assert not keeper.scopes.stopping


@kept
async def test_what_systemd_reports_of_a_shutdown(keeper):
    assert not keeper.scopes.stopping
    assert not await keeper.scopes.going_down()
    keeper.scopes.shutdown(True)
    assert keeper.scopes.stopping
    assert await keeper.scopes.going_down()
    assert keeper.redrives == []
    keeper.scopes.shutdown(False)
    assert not keeper.scopes.stopping
    assert keeper.redrives == [Redrive()], "somebody cancelled it"
    keeper.host.errors["shutting_down"] = [SystemdLost("silent")]
    assert not await keeper.scopes.going_down()


@kept
async def test_a_start_that_the_shutdown_cancels_counts_no_attempt(keeper):
    keeper.host.errors["start_scope"] = [SystemdError("JobFailed", "the start job ended as 'canceled'")]
    keeper.host.stopping = True
    turn = keeper.turn()
    assert not await started(keeper, turn)
    assert keeper.over == [(turn, outcome.HOST_DOWN)]
