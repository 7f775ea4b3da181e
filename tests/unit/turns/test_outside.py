"""What turns leave outside keeps their slots, and what is none of theirs does not. On a fake host."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from fake_host import FakeHost
from turned_on import Keeper, row
from until import until

from hostguard.core import outcome
from hostguard.core.model import Config, Kind, Mind
from hostguard.linux.process import Process, process
from hostguard.linux.strays import Stray
from hostguard.systemd.client import Login
from hostguard.systemd.dbus import SystemdError
from hostguard.telemetry.events import Events
from hostguard.turns import outside
from hostguard.turns.live import Phase
from hostguard.turns.outside import Outside, ancestry, belongs, described, of_person

MIND = Mind("m", ("/bin/true",), user="m", uid=1001)
PERSON = Login("session-3.scope", "user", "sshd", True, "203.0.113.5")


class Host:
    """Finds the processes that a test started."""

    def __init__(self, monkeypatch, keeper):
        self.processes, self.places, self.waiting, self.told = [], {}, [], []
        self.config = Config(minds={"m": MIND, "root": Mind("root", ("/bin/true",), user="root", uid=0)})
        self.keeper = keeper
        self.outside = Outside(
            keeper.live, keeper.scopes, keeper.host, self, self, self, Events(self.told.append), keeper.clock
        )
        keeper.before.append(self.outside.turn_ended)
        monkeypatch.setattr(outside, "strays", self.strays)
        monkeypatch.setattr(outside, "FOLLOW_S", 0.01)

    def homes(self):
        return ()

    def pids(self):
        return self.waiting

    def strays(self, uid, since, root, homes, known):
        assert uid == MIND.uid
        alive = [one for one in self.processes if one.poll() is None and process(one.pid) not in known]
        return [Stray(process(one.pid), "sleep", self.places[one.pid], True) for one in alive]

    def leave(self, place="user@1001.service"):
        """A process is outside from now on."""
        self.processes.append(subprocess.Popen(["sleep", "60"]))
        self.places[self.processes[-1].pid] = place
        return self.processes[-1]

    async def turn(self, **more):
        """A turn of the mind that is over; those of its slots that are kept."""
        turn = self.keeper.turn("7", row(7, **more))
        await self.keeper.scopes.start_stub(turn, MIND.limits, lambda stub, _: None)
        turn.stub.dismiss()
        await until(lambda: turn not in self.keeper.live)
        return turn

    @property
    def slots(self):
        return [turn for turn in self.keeper.live if turn.live.unit.startswith("hostguard-outside-m-")]


def hosted(work):
    """A test: `await work(host)`."""

    @asynccontextmanager
    async def hosting(monkeypatch):
        fake = FakeHost()
        fake.use(monkeypatch)
        keeper = Keeper(fake)
        await keeper.scopes.open()
        host = Host(monkeypatch, keeper)
        try:
            yield host
        finally:
            host.outside.close()
            for turn in keeper.live:
                keeper.scopes._unfollow(turn)
            await keeper.scopes.close()
            fake.end()
            for one in host.processes:
                one.kill()
                one.wait()
            await asyncio.sleep(0.02)

    def test(monkeypatch):
        async def run():
            async with hosting(monkeypatch) as host:
                await work(host)

        asyncio.run(run())

    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


@hosted
async def test_the_slot_is_kept_without_a_gap_until_the_process_ends(host):
    left = host.leave()
    free = []
    host.keeper.after.append(lambda ended: free.append(len(host.keeper.live)))
    await host.turn()
    assert free == [1], "who takes the next slot sees that none is free"
    [slot] = host.slots
    await until(lambda: slot.phase is Phase.OUTSIDE)
    assert slot.stub.held == [left.pid]
    assert slot.live.id.startswith("outside-")
    [event] = host.told
    assert (event["type"], event["mind"], event["uid"], event["pids"]) == (
        "outside",
        "m",
        1001,
        str(left.pid),
    )
    assert event["text"].endswith(
        f"; they keep a slot until they end: hostguard stop {slot.live.id} frees it"
    )
    left.kill()
    left.wait()
    slot.stub.dismiss()
    await until(lambda: not host.slots)
    assert len(host.told) == 1


@hosted
async def test_what_it_started_meanwhile_keeps_the_slot_on(host):
    first = host.leave()
    await host.turn()
    [slot] = host.slots
    await until(lambda: slot.phase is Phase.OUTSIDE)
    second = host.leave()
    first.kill()
    first.wait()
    slot.stub.dismiss()
    await until(lambda: slot not in host.slots)
    [after] = host.slots
    await until(lambda: after.phase is Phase.OUTSIDE)
    assert after.stub.held == [second.pid]
    assert len(host.told) == 1, "a chain of processes does not fill the journal"


@hosted
async def test_the_login_of_a_person_keeps_no_slot(host):
    host.leave()
    host.keeper.host.sessions = [PERSON]
    await host.turn()
    await until(lambda: not host.slots)
    assert host.told == []
    assert ("logins", "1001") in host.keeper.host.calls


@hosted
async def test_without_logind_nobody_is_logged_in(host):
    host.leave()
    host.keeper.host.errors["logins"] = [SystemdError("x", "no such service")]
    await host.turn()
    [slot] = host.slots
    await until(lambda: slot.phase is Phase.OUTSIDE)


@hosted
async def test_whoever_stops_it_lets_the_processes_be(host):
    host.leave()
    await host.turn()
    [slot] = host.slots
    await until(lambda: slot.phase is Phase.OUTSIDE)
    await host.keeper.scopes.stop(slot)
    await until(lambda: slot not in host.keeper.live)
    assert host.slots == []
    await host.turn()
    assert host.slots == [], "nor do they count at the end of another turn"


@hosted
async def test_who_waits_for_a_slot_keeps_none(host):
    host.waiting.append(host.leave().pid)
    await host.turn()
    assert host.slots == []


@hosted
async def test_the_slot_of_a_process_that_comes_to_wait_for_one_is_freed(host):
    left = host.leave()
    await host.turn()
    [slot] = host.slots
    await until(lambda: slot.phase is Phase.OUTSIDE)
    host.waiting.append(left.pid)
    host.outside._look()
    await until(lambda: not host.slots)


@pytest.mark.parametrize(("mind", "kind"), [("m", Kind.RUN), ("root", Kind.MESSAGE), ("gone", Kind.MESSAGE)])
def test_turns_of_root_and_of_callers_are_not_looked_at(monkeypatch, mind, kind):
    @hosted
    async def work(host):
        host.leave()
        turn = host.keeper.turn("7", row(7, kind, mind=mind))
        turn.live = SimpleNamespace(unit=turn.live.unit, mind=mind, session=None, id="7", takes_input=False)
        turn.released = True
        host.outside.turn_ended(SimpleNamespace(turn=turn, ending=outcome.NEVER_BEGAN))
        assert host.slots == []

    work(monkeypatch)


@hosted
async def test_a_turn_of_an_earlier_boot_left_nothing(host):
    host.leave()
    turn = host.keeper.turn("7", row(7))
    turn.resumed, turn.started = True, -host.keeper.clock.now().date
    host.outside.turn_ended(SimpleNamespace(turn=turn, ending=outcome.NEVER_BEGAN))
    assert host.slots == []
    turn.started = host.keeper.clock.now().stamp
    host.outside.turn_ended(SimpleNamespace(turn=turn, ending=outcome.NEVER_BEGAN))
    assert len(host.slots) == 1


@hosted
async def test_what_comes_while_the_turn_lives_is_reported_once_and_kept_at_its_end(host):
    turn = host.keeper.turn("7", row(7))
    await host.keeper.scopes.start_stub(turn, MIND.limits, lambda stub, _: None)
    host.leave()
    for _ in range(2):
        host.outside._look()
        await until(lambda: host.told)
    assert [event["text"].count("keep") for event in host.told] == [0]
    assert host.slots == []
    turn.stub.dismiss()
    await until(lambda: host.slots)
    [slot] = host.slots
    await until(lambda: slot.phase is Phase.OUTSIDE)
    assert len(host.told) == 1


@hosted
async def test_what_comes_after_the_end_takes_a_slot_for_a_while(host):
    await host.turn()
    host.leave()
    host.outside._look()
    [slot] = host.slots
    await until(lambda: slot.phase is Phase.OUTSIDE)


@hosted
async def test_nothing_is_looked_at_long_after_the_last_turn(host):
    await host.turn()
    host.outside._ended = {"m": (0, 0.0)}
    host.leave()
    host.outside._look()
    assert host.slots == []
    assert host.outside._timer is None, "nor does a timer run"


# -- the rules


@pytest.mark.parametrize(
    ("login", "person"),
    [
        (PERSON, True),
        (Login("", "user", "gdm-password"), True),
        (Login("", "user-early", "login"), True),
        (Login("", "user", "sshd", True, "127.0.0.1"), False),
        (Login("", "user", "sshd", True, "::1"), False),
        (Login("", "user", "sshd", True, "localhost"), False),
        (Login("", "user", "sshd", True, ""), False),
        (Login("", "user", "cron"), False),
        (Login("", "user", "atd"), False),
        (Login("", "background", "cron"), False),
        (Login("", "background", "su-l"), True),
    ],
)
def test_whose_session_is_a_persons(login, person):
    assert of_person(login) is person


@pytest.mark.parametrize(
    ("place", "own", "persons", "theirs"),
    [
        ("session-3.scope", True, [PERSON], True),
        ("session-4.scope", True, [PERSON], False),
        ("user@1001.service", True, [PERSON], True),
        ("user@1001.service", True, [], False),
        ("user@1001.service", True, [Login("session-3.scope", "user", active=False)], False),
        ("session-3.scope", True, [Login("session-3.scope", "user", active=False)], True),
        ("cron.service", False, [PERSON], False),
        ("session-3.scope", True, [Login("session-3.scope", "background", "su-l")], True),
        ("user@1001.service", True, [Login("session-3.scope", "background", "su-l")], False),
        ("user@1001.service", True, [Login("", "manager", "systemd-user")], False),
    ],
)
def test_what_belongs_to_a_persons_login(place, own, persons, theirs):
    assert belongs(Stray(Process(1, 1, 1, 0.0, False), "x", place, own), persons) is theirs


def test_the_ancestry_of_a_process():
    with subprocess.Popen(["sleep", "60"]) as child:
        above = process(child.pid).parent
        found = ancestry([child.pid, 4194305])
        assert {child.pid, above} < found
        assert 1 not in found
        child.kill()


def test_a_description_names_a_few_and_no_control_characters():
    left = [Stray(Process(pid, 1, 1, 0.0, False), "a\x1bb", "p", True) for pid in range(5, 10)]
    text = described(left)
    assert text.endswith(" and 2 more")
    assert text.startswith(
        "processes outside of its turns: a\\x1bb (5) in p, a\\x1bb (6) in p, a\\x1bb (7) in p"
    )
