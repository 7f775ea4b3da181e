"""Which process is a mind's server, and that it died. Servers are real processes; where they are and listen is a table."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import replace

import pytest
from until import until

from hostguard.core.model import Mind
from hostguard.linux.cgroup import ROOT
from hostguard.linux.process import Process, process
from hostguard.systemd.dbus import SystemdError, SystemdLost
from hostguard.turns import mind_server
from hostguard.turns.mind_server import Servers

M = Mind("m", url="http://127.0.0.1:9", unit="m.service")
BY_PORT = replace(M, unit=None)
HOME = ROOT / "system.slice/m.service"


class Host:
    control_group = ""

    def __init__(self, monkeypatch):
        self.started = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
        self.pids = [one.pid for one in self.started]
        self.main, self.home, self.listening = self.pids[0], HOME, [self.pids[0]]
        self.error, self.scans, self.attached, self.died = None, 0, [], []
        monkeypatch.setattr(mind_server, "home_of", lambda pid: self.home)
        monkeypatch.setattr(mind_server, "members", lambda folder: self.pids)
        monkeypatch.setattr(mind_server, "listeners", self.listeners)
        self.servers = Servers(self, self.died.append)

    def listeners(self, url, pids=None):
        self.scans += 1
        return [pid for pid in self.listening if pids is None or pid in pids]

    async def main_pid(self, unit):
        assert unit == "m.service"
        if self.error is not None:
            raise self.error
        return self.main

    async def attach(self, unit, pids, below=""):
        self.attached.append((unit, pids, below))
        if self.error is not None:
            raise self.error


@pytest.fixture
def hosted(monkeypatch):
    def run(work):
        async def main():
            host = Host(monkeypatch)
            try:
                await work(host)
            finally:
                host.servers.close()
                for one in host.started:
                    one.kill()
                    one.wait()

        asyncio.run(main())

    return run


@pytest.mark.parametrize("mind", [M, BY_PORT])
def test_a_server_is_found_once_and_its_death_is_reported(hosted, mind):
    async def work(host):
        server = await host.servers.find(mind)
        assert (server.process.pid, server.home, server.own) == (host.pids[0], HOME, mind is M)
        assert server.serving >= {process(host.pids[0])}
        assert server.alive()
        scans = host.scans
        assert await host.servers.find(mind) is server
        assert host.scans == scans
        host.started[0].kill()
        await until(lambda: host.died == ["m"])
        assert not server.alive()
        assert host.servers.homes == {HOME}, "what its sessions left there outlives it"

    hosted(work)


def test_the_eldest_of_those_that_share_a_port(hosted):
    async def work(host):
        host.listening = [*reversed(host.pids), 4194304]
        server = await host.servers.find(BY_PORT)
        assert server.process == min(map(process, host.pids), key=lambda one: (one.started, one.pid))

    hosted(work)


def test_a_process_of_another_user_on_the_port_is_not_the_server(hosted):
    async def work(host):
        host.listening = [host.pids[0]]
        mine = replace(BY_PORT, user="me", uid=os.getuid())
        assert (await host.servers.find(mine)).process.pid == host.pids[0]
        theirs = Mind("t", url="http://127.0.0.1:8", user="ada", uid=os.getuid() + 1)
        found = await host.servers.find(theirs)
        assert found is None or os.getuid() == 0, "root's may be docker-proxy"

    hosted(work)


@pytest.mark.parametrize(
    "what", ["nobody", "init", "itself", "gone", "nowhere", "in a turn", "refused", "lost"]
)
def test_no_server(hosted, what):
    async def work(host):
        host.main = {"nobody": 0, "init": 1, "itself": os.getpid(), "gone": 4194304}.get(what, host.main)
        if what == "nowhere":
            host.home = None
        if what == "in a turn":
            host.home = ROOT / "hostguard.slice/hostguard-m.slice/hostguard-turn-m-1.scope"
        host.error = {"refused": SystemdError("x", "no"), "lost": SystemdLost("gone")}.get(what)
        assert await host.servers.find(M) is None
        assert host.died == []

    hosted(work)


def test_a_search_without_a_result_is_not_repeated_at_once(hosted, monkeypatch):
    async def work(host):
        host.listening = []
        assert await host.servers.find(BY_PORT) is None
        assert await host.servers.find(BY_PORT) is None
        assert host.scans == 1
        monkeypatch.setattr(mind_server, "SCAN_S", 0.0)
        host.listening = [host.pids[0]]
        assert (await host.servers.find(BY_PORT)).process.pid == host.pids[0]

    hosted(work)


def test_a_mind_that_is_configured_anew_has_another_server(hosted):
    async def work(host):
        first = await host.servers.find(M)
        host.main = host.pids[1]
        second = await host.servers.find(replace(M, url="http://127.0.0.1:10"))
        assert (first.process.pid, second.process.pid) == (host.pids[0], host.pids[1])
        assert host.died == []
        host.started[1].kill()
        await until(lambda: host.died == ["m"])

    hosted(work)


@pytest.mark.parametrize("error", [None, SystemdError("x", "not delegated"), SystemdLost("gone")])
def test_processes_go_home(hosted, monkeypatch, error):
    async def work(host):
        server = await host.servers.find(M)
        host.error, written = error, []
        monkeypatch.setattr(mind_server.Server, "_write", lambda self, pids: written.extend(pids))
        # One that is alive makes the refusal that of the unit.
        pids = [host.pids[1]]
        if isinstance(error, SystemdLost):
            with pytest.raises(SystemdLost):
                await server.take_home(host, pids)
        else:
            await server.take_home(host, pids)
        assert host.attached[0] == ("m.service", pids, "")
        assert written == (pids if isinstance(error, SystemdError) else [])

    hosted(work)


def test_a_death_is_seen_by_a_search_too(hosted):
    async def work(host):
        first = await host.servers.find(M)
        host.main = host.pids[1]
        host.started[0].kill()
        host.started[0].wait()  # the event loop has not seen it
        second = await host.servers.find(M)
        assert host.died == ["m"]
        assert second.process.pid == host.pids[1]
        await asyncio.sleep(0.05)
        assert host.died == ["m"]
        assert first.pidfd != second.pidfd or not first.alive()

    hosted(work)


def test_what_systemd_cannot_move_is_moved_in_the_kernels_files(hosted, tmp_path):
    async def work(host):
        server = await host.servers.find(M)
        server.home = tmp_path
        procs = tmp_path / "cgroup.procs"
        server._write([5])
        assert procs.read_text() == "5"
        server.home = tmp_path / "gone"
        server._write([5, 6])  # as far as possible

    hosted(work)


def test_an_older_process_was_an_earlier_servers(hosted):
    async def work(host):
        server = await host.servers.find(M)
        at = server.process.started
        assert server.had(Process(5, at, 1, 0.0, False))
        assert not server.had(Process(5, at - 1, 1, 0.0, False))
        assert server.serves(M)
        assert not server.serves(BY_PORT)

    hosted(work)
