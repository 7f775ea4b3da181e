"""Which processes are moved into a turn's scope and back. Cgroups and processes are tables here; tests/system/resident has real ones."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
from until import until

from hostguard.core import paths
from hostguard.core.model import Mind
from hostguard.core.signals import MindDied, ProcessesMoved, Signal
from hostguard.linux.cgroup import ROOT
from hostguard.linux.process import Process
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.turns import adoption, mind_server, process_sessions
from hostguard.turns.adoption import Adoption
from hostguard.turns.mind_server import Server

M = Mind("m", url="http://127.0.0.1:9")
HOME = ROOT / "system.slice/m.service"
SERVER, ANCHOR = 10, 50


class Host:
    """Where each process is, who started it; systemd moves them."""

    def __init__(self, monkeypatch):
        self.at = {SERVER: HOME}
        self.found = {SERVER: Process(SERVER, 100, 1, 0.0, False)}
        self.uids, self.read, self.killed, self.attached, self.started_as = {}, {}, [], [], {}
        self.forks = set()  # that execute nothing yet
        self.errors = []
        self.control_group = ""
        monkeypatch.setattr(adoption, "members", self.members)
        monkeypatch.setattr(mind_server, "members", self.members)
        monkeypatch.setattr(adoption, "process", self.found.get)
        monkeypatch.setattr(mind_server, "process", self.found.get)
        monkeypatch.setattr(process_sessions, "process", self.found.get)
        monkeypatch.setattr(process_sessions, "environment", lambda pid, prefix: self.started_as.get(pid, {}))
        monkeypatch.setattr(process_sessions, "executed", lambda found: found.pid not in self.forks)
        monkeypatch.setattr(mind_server, "uid_of", lambda pid: self.uids.get(pid, 0))
        monkeypatch.setattr(adoption, "storage", lambda pid: self.read.get(pid, (0, 0)))
        monkeypatch.setattr(adoption, "populated", lambda scope: bool(self.members(scope)))
        monkeypatch.setattr(adoption.os, "walk", lambda scope: [(str(scope), [], [])])
        monkeypatch.setattr(adoption, "_kill", self.kill)
        died = Signal()
        self.died = []
        died.subscribe(self.died.append)
        moved = Signal()
        self.moved = []
        moved.subscribe(self.moved.append)
        self.adoption = Adoption(self, self.cgroup, died, moved)
        server = Server(M, self.found[SERVER], -1, 0, HOME, False, frozenset({self.found[SERVER]}))
        self.server = server

        async def find(mind):
            return self.server

        self.adoption._servers.find = find

    def cgroup(self, unit, mind):
        return ROOT / "hostguard.slice" / unit

    def members(self, folder):
        return [pid for pid, at in self.at.items() if at == folder]

    def kill(self, anchor, scope):
        self.killed.append(anchor)
        self.at.pop(anchor, None)
        return True

    def begin(self, pid, parent=SERVER, at=HOME, started=200):
        self.found[pid] = Process(pid, started, parent, 0.0, False)
        self.at[pid] = at

    def end(self, pid):
        del self.found[pid], self.at[pid]

    async def attach(self, unit, pids, below=""):
        self.attached.append((unit, sorted(pids), below))
        if self.errors:
            raise self.errors.pop(0)
        for pid in pids:
            if pid in self.found:
                self.at[pid] = HOME if unit == "m.service" else self.cgroup(unit, "m")

    async def turn(self, unit="a.scope", session="s"):
        self.at[ANCHOR + len(self.adoption._visits)] = self.cgroup(unit, "m")
        await self.adoption.begin(unit, M, session, ANCHOR + len(self.adoption._visits))

    def inside(self, unit="a.scope"):
        return sorted(pid for pid in self.members(self.cgroup(unit, "m")) if pid < ANCHOR)


@pytest.fixture
def adopted(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "SESSIONS", tmp_path / "sessions")

    def run(work):
        async def main():
            host = Host(monkeypatch)
            await work(host)
            host.adoption.close()

        asyncio.run(main())

    return run


def test_new_processes_of_the_server_are_adopted_and_go_back(adopted):
    async def work(host):
        host.begin(11)
        await host.turn()
        assert host.inside() == [11]
        assert host.moved == [ProcessesMoved("m")]
        host.begin(12, parent=11)
        host.adoption.look("m")
        await until(lambda: host.inside() == [11, 12])
        host.begin(13, at=host.cgroup("a.scope", "m"))
        assert await host.adoption.end("a.scope") == []
        assert host.inside() == []
        assert host.moved == [ProcessesMoved("m")] * 3
        assert sorted(host.members(HOME)) == [SERVER, 11, 12, 13]
        assert host.killed == [ANCHOR]
        assert host.adoption._sessions._known[host.found[13]] == ("m", "s"), "what was born there, too"
        assert paths.SESSIONS.exists()
        assert await host.adoption.end("a.scope") == []

    adopted(work)


def test_a_process_is_its_sessions_and_its_children_are(adopted):
    async def work(host):
        host.begin(11)
        await host.turn("a.scope", "s")
        await host.adoption.end("a.scope")
        host.begin(12, parent=11)
        host.begin(13)
        await host.turn("b.scope", "t")
        assert host.inside("b.scope") == [13]
        await host.adoption.end("b.scope")
        await host.turn("c.scope", "s")
        assert host.inside("c.scope") == [11, 12]

    adopted(work)


def test_a_new_process_is_the_youngest_turns(adopted):
    async def work(host):
        await host.turn("a.scope", "s")
        await host.turn("b.scope", "t")
        host.begin(11)
        host.adoption.look("m")
        await until(lambda: host.inside("b.scope") == [11])
        assert host.inside("a.scope") == []

    adopted(work)


@pytest.mark.parametrize("what", ["server", "stranger", "other user", "serving", "unknown server"])
def test_what_is_never_moved(adopted, what):
    async def work(host):
        host.begin(11, parent=1 if what == "stranger" else SERVER)
        if what == "other user":
            host.uids[11] = 5
        if what == "serving":
            host.server.serving = frozenset({host.found[SERVER], host.found[11]})
        if what == "unknown server":
            host.server.serving = frozenset()
        await host.turn()
        assert host.inside() == ([11] if what == "server" else [])
        assert host.at[SERVER] == HOME

    adopted(work)


def test_everything_in_the_minds_own_unit_is_its_own(adopted):
    async def work(host):
        host.begin(11, parent=1)
        host.server.own = True
        await host.turn()
        assert host.inside() == [11]

    adopted(work)


def test_one_process_that_is_gone_keeps_no_other(adopted):
    async def work(host):
        host.begin(11)
        host.begin(12)
        host.errors = [SystemdError("x", "one is gone")]
        await host.turn()
        assert host.inside() == [11, 12]
        assert [pids for _, pids, _ in host.attached] == [[11, 12], [11], [12]]

    adopted(work)


def test_a_refusal_is_logged_once(adopted, caplog):
    async def work(host):
        host.begin(11)
        host.errors = [SystemdLost("gone"), SystemdLost("gone")]
        await host.turn()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        host.adoption.look("m")
        await until(lambda: host.inside() == [11])
        assert len(caplog.records) == 1

    adopted(work)


@pytest.mark.parametrize("why", ["no server", "server died", "of an earlier server"])
def test_what_cannot_go_back_is_left(adopted, why):
    async def work(host):
        await host.turn()
        host.begin(11, at=host.cgroup("a.scope", "m"), started=50 if why == "of an earlier server" else 200)
        if why == "no server":
            host.server = host.adoption._visits["a.scope"].server = None
        if why == "server died":
            del host.found[SERVER]
        assert await host.adoption.end("a.scope") == [11]
        assert host.killed == [ANCHOR]

    adopted(work)


def test_idle_is_what_does_nothing(adopted):
    async def work(host):
        await host.turn()
        assert host.adoption.idle_ms("unknown.scope") == 0
        assert host.adoption.idle_ms("a.scope") == 0
        assert not host.adoption.deserted("a.scope")
        host.begin(11, at=host.cgroup("a.scope", "m"))
        host.adoption.look("m")
        await until(lambda: host.adoption._visits["a.scope"].adopted)
        host.adoption.idle_ms("a.scope")
        await asyncio.sleep(0.05)
        assert host.adoption.idle_ms("a.scope") >= 50
        host.adoption.stood_still("a.scope", 0.03)
        assert 0 <= host.adoption.idle_ms("a.scope") - 20 < 2_000
        host.adoption.stood_still("a.scope", 100)
        assert host.adoption.idle_ms("a.scope") < 50
        await asyncio.sleep(0.02)
        host.read[11] = (0, 4 << 20)
        assert host.adoption.idle_ms("a.scope") == 0, "it wrote"
        await asyncio.sleep(0.02)
        assert host.adoption.idle_ms("a.scope") >= 20
        host.found[11] = Process(11, 200, SERVER, 0.0, True)
        assert host.adoption.idle_ms("a.scope") == 0, "it waits for a disk"
        host.end(11)
        assert host.adoption.deserted("a.scope")
        assert not host.adoption.deserted("unknown.scope")

    adopted(work)


def test_an_end_waits_for_a_move_that_is_under_way(adopted):
    async def work(host):
        await host.turn()
        move, go = host.attach, asyncio.Event()

        async def slow(*what):
            await go.wait()
            await move(*what)

        host.attach = slow
        host.begin(11)
        host.adoption.look("m")
        await until(lambda: host.adoption._visits["a.scope"].moving.locked())
        ending = asyncio.create_task(host.adoption.end("a.scope"))
        await asyncio.sleep(0.02)
        assert not ending.done()
        go.set()
        assert await ending == []
        assert host.at[11] == HOME

    adopted(work)


def test_an_end_waits_until_systemd_answers_and_its_anchor_can_be_ended(adopted, monkeypatch):
    monkeypatch.setattr(adoption, "AGAIN_S", 0.01)

    async def work(host):
        await host.turn()
        host.begin(11, at=host.cgroup("a.scope", "m"))
        host.errors = [SystemdLost("gone")] * 3
        kills = [False, False, True]
        monkeypatch.setattr(adoption, "_kill", lambda anchor, scope: kills.pop(0))
        assert await host.adoption.end("a.scope") == []
        assert host.at[11] == HOME
        assert (host.errors, kills) == ([], [])

    adopted(work)


def test_processes_that_fork_while_they_are_moved_are_frozen_for_it(adopted, monkeypatch):
    frozen = []
    monkeypatch.setattr(adoption, "_freeze", lambda scope, on: frozen.append((scope.name, on)))

    async def work(host):
        await host.turn()
        pid, move = 11, host.attach
        host.begin(pid, at=host.cgroup("a.scope", "m"))

        async def forks(*what):
            nonlocal pid
            await move(*what)
            if not frozen:
                pid += 1
                host.begin(pid, at=host.cgroup("a.scope", "m"))

        host.attach = forks
        assert await host.adoption.end("a.scope") == []
        assert frozen == [("a.scope", True)], "once: those that have left it are thawed"
        assert pid == 11 + adoption.FREEZE_TRY
        assert sorted(host.members(HOME)) == [SERVER, *range(11, pid + 1)]

    adopted(work)


def test_a_process_that_cannot_be_moved_is_given_up(adopted, monkeypatch):
    frozen, moves = [], []
    monkeypatch.setattr(adoption, "_freeze", lambda scope, on: frozen.append(on))

    async def work(host):
        await host.turn()
        host.begin(11, at=host.cgroup("a.scope", "m"))

        async def in_vain(*what):
            moves.append(what)

        host.attach = in_vain
        assert await host.adoption.end("a.scope") == [11]
        assert (len(moves), frozen) == (adoption.HOME_TRIES, [True, False])

    adopted(work)


def test_sessions_that_cannot_be_saved_are_no_fault_of_the_turn(adopted, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(paths, "SESSIONS", tmp_path / "missing" / "sessions")

    async def work(host):
        host.begin(11)
        await host.turn()
        assert host.inside() == [11]
        assert "sessions of processes are not saved" in caplog.text

    adopted(work)


def test_a_scope_is_frozen_and_thawed(tmp_path):
    file = tmp_path / "cgroup.freeze"
    for frozen, text in ((True, "1"), (False, "0")):
        adoption._freeze(tmp_path, frozen)
        assert file.read_text() == text
    adoption._freeze(tmp_path / "gone", True)


def test_an_anchor_is_ended_if_its_pid_is_still_its_own(tmp_path, monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as anchor:
        descriptors = len(os.listdir("/proc/self/fd"))
        (tmp_path / "cgroup.procs").write_text("1\n")
        assert adoption._kill(anchor.pid, tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):  # the pid is another process's by now
            anchor.wait(0.1)
        (tmp_path / "cgroup.procs").write_text(f"1\n{anchor.pid}\n")
        assert adoption._kill(anchor.pid, tmp_path)
        assert anchor.wait(10) == -signal.SIGKILL
        assert adoption._kill(anchor.pid, tmp_path), "it is gone"
        assert len(os.listdir("/proc/self/fd")) == descriptors
    for error, known in ((errno.EMFILE, False), (errno.ENFILE, False), (errno.ESRCH, True)):

        def fails(pid, error=error):
            raise OSError(error, "")

        monkeypatch.setattr(adoption.os, "pidfd_open", fails)
        assert adoption._kill(anchor.pid, tmp_path) is known


def test_new_processes_are_looked_for_soon_and_then_more_seldom(adopted, monkeypatch):
    async def work(host):
        waits, look_in = [], host.adoption._look_in

        def at_once(visit, seconds):
            waits.append(round(seconds, 3))
            look_in(visit, 0)

        host.adoption._look_in = at_once
        await host.turn()
        await until(lambda: len(waits) > 6)
        assert waits[:6] == [0.02, 0.04, 0.09, 0.25, 1, 1]
        host.adoption.look("other")
        waits.clear()
        visit = host.adoption._visits["a.scope"]
        for ago, wait in ((5, 0), (0.005, 0.015), (0, 0.02)):
            with monkeypatch.context() as fixed:
                fixed.setattr(adoption, "time", SimpleNamespace(monotonic=lambda ago=ago: visit.looked + ago))
                host.adoption.look("m")
            assert waits.pop() == wait, "as soon as the limit of its rate allows"
        await until(lambda: len(waits) > 2)
        assert waits[:2] == [0.02, 0.04]

    adopted(work)


def test_dead_processes_are_forgotten_once_there_are_many(adopted, monkeypatch):
    monkeypatch.setattr(process_sessions, "FORGET_MIN", 1)

    def known(host):
        assert {pid for pid, *_ in json.loads(paths.SESSIONS.read_bytes())} == {
            found.pid for found in host.adoption._sessions._known
        }
        return sorted(found.pid for found in host.adoption._sessions._known)

    async def turn(host, *pids):
        for pid in pids:
            host.begin(pid)
        await host.turn()
        await host.adoption.end("a.scope")

    async def work(host):
        await turn(host, 11, 12)
        assert known(host) == [11, 12], "they live"
        host.end(11)
        await turn(host, 13, 14, 15)
        assert known(host) == [11, 12, 13, 14, 15], "twice as many as last time, and one"
        await turn(host, 16)
        assert known(host) == [12, 13, 14, 15, 16]

    adopted(work)


def test_a_servers_work_counts_until_a_process_of_its_was_adopted(adopted, monkeypatch):
    async def work(host):
        def works(cpu_s):
            host.found[SERVER] = Process(SERVER, 100, 1, cpu_s, False)

        await host.turn()
        assert host.adoption.idle_ms("a.scope") == 0
        await asyncio.sleep(0.02)
        assert host.adoption.idle_ms("a.scope") >= 20
        works(5.0)
        assert host.adoption.idle_ms("a.scope") == 0, "it may do the session's work itself"
        host.begin(11)
        host.adoption.look("m")
        await until(lambda: host.adoption._visits["a.scope"].adopted)
        host.adoption.idle_ms("a.scope")
        await asyncio.sleep(0.02)
        works(9.0)
        assert host.adoption.idle_ms("a.scope") >= 20, "others may have its work"
        used = 0
        monkeypatch.setattr(adoption.cgroups, "cpu_usec", lambda scope: used)
        used = 9_000_000
        assert host.adoption.idle_ms("a.scope") == 0, "so did the scope"

    adopted(work)


def test_a_fork_of_a_volute_mind_that_executes_nothing_yet_is_the_session_s(adopted):
    """It still shows the server's environment, which names no session."""

    async def work(host):
        host.started_as, host.forks = {11: {b"VOLUTE_MIND": b"m"}}, {11}
        await host.turn("a.scope", "s")
        host.begin(11)
        host.adoption.look("m")
        await until(lambda: host.inside() == [11])

    adopted(work)


def test_what_a_volute_mind_started_in_advance_is_main_s(adopted):
    """The mind sets VOLUTE_SESSION with the first message; whoever has VOLUTE_MIND alone is older."""

    async def work(host):
        host.started_as = {11: {b"VOLUTE_MIND": b"m"}, 12: {b"VOLUTE_MIND": b"m", b"VOLUTE_SESSION": b"s"}}
        host.begin(11)
        await host.turn("a.scope", "s")
        host.begin(12)
        host.begin(13, parent=11)
        host.adoption.look("m")
        await until(lambda: host.inside() == [12])
        assert await host.adoption.at_home(M) == [(host.found[11], "main"), (host.found[13], "main")]
        await host.turn("b.scope", "main")
        assert (host.inside(), host.inside("b.scope")) == ([12], [11, 13])

    adopted(work)


def test_what_was_done_before_a_measurement_is_no_sign_of_work(adopted, monkeypatch):
    async def work(host):
        used, now = 0, 100.0
        monkeypatch.setattr(adoption.cgroups, "cpu_usec", lambda scope: used)
        monkeypatch.setattr(adoption, "time", SimpleNamespace(monotonic=lambda: now))
        await host.turn()
        host.begin(11, at=host.cgroup("a.scope", "m"))
        assert host.adoption.idle_ms("a.scope") == 0
        used, now = 900_000, 102.0
        host.adoption.measure("a.scope")
        now = 105.0
        used += 80_000  # 2.7 % of a CPU: `claude` at rest
        assert host.adoption.idle_ms("a.scope") == 3000
        host.read[11] = (0, 700_000)  # what it writes then
        assert host.adoption.idle_ms("a.scope") == 3000
        used += 20_000
        assert host.adoption.idle_ms("a.scope") == 0, "3.3 %: it waits for its model"
        assert host.adoption.calm_ms("a.scope") == 5000
        now, used = 130.0, used + 100_000
        assert host.adoption.idle_ms("a.scope") == 25_000
        now, used = 132.0, used + 100_000
        assert host.adoption.idle_ms("a.scope") == 0, "a burst shows after any rest"
        host.adoption.measure("unknown.scope")
        assert host.adoption.calm_ms("unknown.scope") == 0

    adopted(work)


def test_a_scope_that_ended_without_the_driver_is_forgotten(adopted):
    async def work(host):
        await host.turn()
        host.at.pop(ANCHOR)
        host.adoption.look("m")
        await until(lambda: not host.adoption._visits)

    adopted(work)


def test_what_an_earlier_guard_knew(adopted, monkeypatch):
    known = Process(11, 200, SERVER, 0.0, False)
    monkeypatch.setattr(process_sessions, "load", lambda: {known: ("m", "t")})

    async def work(host):
        host.begin(11, parent=1)
        await host.turn("a.scope", "s")
        assert host.inside() == [], "it is another session's"
        await host.turn("b.scope", "t")
        assert host.inside("b.scope") == [11], "an orphan that is known is the mind's"

    adopted(work)


def test_a_servers_death_is_reported(adopted):
    async def work(host):
        host.adoption._servers._on_died("m")
        assert host.died == [MindDied("m")]

    adopted(work)
