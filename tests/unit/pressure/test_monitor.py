"""When the monitor ticks, what it reports, and what the gate gets. Counters and systemd are played."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from set_clock import SetClock
from until import until

from hostguard.core.clock import now_ms
from hostguard.core.model import Config, LiveTurn
from hostguard.core.settings import Level, Settings
from hostguard.core.signals import Redrive, Signal
from hostguard.linux.disk import Device
from hostguard.linux.psi import Trigger
from hostguard.pressure import monitor, rule
from hostguard.pressure.freezer import Freezer
from hostguard.pressure.monitor import Monitor
from hostguard.pressure.sample import Disk, Sample
from hostguard.pressure.sampler import boottime
from hostguard.pressure.throttle import Throttle
from hostguard.telemetry.timeline_recorder import TimelineRecorder
from hostguard.turns.live import Live, Phase, Turn

CARD = Device("/dev/mmcblk0", "mmcblk0", "")
OTHER = Device("/dev/sda", "sda", "")
QUICK = Settings(stall_after=0.1, strained_after=0.1, hold_off=0.15, calm_window=0.1)


class Played:
    """Counters of a disk that completes a request between two looks, or, if `stuck`, none."""

    disk_reason = psi_reason = "ok"

    def __init__(self) -> None:
        self.stuck = False
        self.fails = False
        self.looks = 0
        self._disk = Disk(0, 0, 0, 0, 0, 1, 0)

    def sample(self, live: int, cap: int | None) -> Sample:
        self.looks += 1
        if self.fails:
            raise RuntimeError("a fault of ours")
        if not self.stuck:
            self._disk = replace(self._disk, writes=self._disk.writes + 1)
        return Sample(boottime(), live, cap, self._disk, None, None)


class Host:
    """What the monitor needs, some of it played."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        self.pumps = 0
        self.live = Live()
        self.backlog: list[int] = []
        systemd = SimpleNamespace(control_group="/")
        caps = SimpleNamespace(config=Config(pressure=QUICK), global_cap=lambda: 4, paused=lambda: False)
        events = SimpleNamespace(emit=lambda _, text, **fields: self.reported.append(text))
        queue = SimpleNamespace(trouble="there is none")
        freezer = Freezer(self.live, systemd, events, Signal())
        redrive = Signal[Redrive]()
        redrive.subscribe(self.pump)
        self.clock = SetClock()
        self.recorder = TimelineRecorder(queue, self.backlog, self.clock)
        self.monitor = Monitor(
            self.live,
            systemd,
            caps,
            events,
            self.recorder,
            freezer,
            Throttle(systemd, Signal()),
            redrive,
            self.clock,
        )
        self.disk = Played()

    def pump(self, _: Redrive) -> None:
        self.pumps += 1
        self.monitor.poke()  # as the daemon does

    def run(self, count: int) -> None:
        """So many turns run from now on."""
        self.live.turns.clear()
        for unit in map(str, range(count)):
            self.live.add(Turn(LiveTurn(unit, "m"), 0, Phase.RUNNING))
        self.monitor.poke()


@pytest.fixture
def on_host(monkeypatch, tmp_path):
    """Run `await work(host)` with a monitor that ticks a hundred times faster."""
    monkeypatch.setattr(rule, "TICK", 0.01)
    monkeypatch.setattr(rule, "FAST_TICK", 0.005)
    monkeypatch.setattr(rule, "SPAN", 0.008)
    monkeypatch.setattr(rule, "MINUTE", 0.1)
    monkeypatch.setattr(monitor, "TICK_S", 0.01)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))  # no trigger

    def runner(work):
        async def main():
            host = Host()
            host.monitor.use(CARD)
            host.monitor.sampler = host.disk
            await work(host)
            await host.monitor.close()
            looks = host.disk.looks
            host.run(1)  # turns end, and are pumped, while the guard stops
            await asyncio.sleep(0.05)
            assert host.disk.looks == looks

        asyncio.run(main())

    return runner


def test_it_looks_while_turns_run_and_not_while_none_does(on_host):
    async def work(host):
        host.monitor.poke()
        await asyncio.sleep(0.05)
        assert host.disk.looks == 0
        assert host.monitor.since_ms == pytest.approx(now_ms(), abs=1000)  # calm: as far as is known
        host.run(2)
        await until(lambda: host.disk.looks > 5)
        host.run(0)
        await asyncio.sleep(0.05)
        looks = host.disk.looks
        await asyncio.sleep(0.1)
        assert host.disk.looks == looks
        assert (host.reported, host.monitor.state.level) == ([], Level.CALM)

    on_host(work)


def test_a_stall_is_reported_and_the_gate_is_asked_again_when_it_may_start_more(on_host):
    async def work(host):
        host.run(4)
        await until(lambda: host.disk.looks > 2)
        host.disk.stuck = True
        await until(lambda: host.monitor.state.cap == 1)
        state = host.monitor.state
        assert (state.level, state.cap, state.admit) == (Level.STALLED, 1, 1)
        assert all(
            text.startswith("stalled: 1 request in flight, not completed for 0.") for text in host.reported
        )
        assert [text.rpartition("; ")[2] for text in host.reported] == ["cap 4 -> 2", "cap 2 -> 1"]
        assert [(one.level, one.cap) for one in host.monitor.changes] == [("stalled", 2), ("stalled", 1)]
        assert host.monitor.since_ms == pytest.approx(host.monitor.shown_changes()[0]["at"], abs=50)
        noted = host.recorder.timeline
        assert noted.known()[-1].seen.cap == 1, "the lower of what is configured and what pressure admits"
        pumps = host.pumps
        host.disk.stuck = False
        await until(lambda: host.monitor.state.evidence.startswith("nothing completed until"))
        assert noted.incidents[-1].evidence.startswith("1 request in flight"), "that of the worst moment"
        await until(lambda: "cap 1 -> 2" in [text.rpartition("; ")[2] for text in host.reported])
        assert host.pumps > pumps

    on_host(work)


def test_another_disk_is_met_without_prejudice(on_host):
    async def work(host):
        host.run(4)
        host.disk.stuck = True
        await until(lambda: host.monitor.state.cap == 1)
        host.monitor.use(CARD)  # a reload: the same one
        assert host.monitor.state.level is Level.STALLED
        host.monitor.use(OTHER)
        assert (host.monitor.state.level, host.monitor.state.cap) == (Level.CALM, None)
        assert host.reported[-1] == "calm: no sample yet; cap 1 -> 4"
        assert not host.monitor.samples, "what was seen of another disk is not compared with this one"

    on_host(work)


def test_a_fault_in_a_look_does_not_end_the_looking(on_host, caplog):
    async def work(host):
        host.run(1)
        await until(lambda: host.disk.looks > 1)
        host.disk.fails = True
        looks = host.disk.looks
        await until(lambda: host.disk.looks > looks + 2)
        host.disk.fails = False
        host.disk.stuck = True
        await until(lambda: host.monitor.state.level is Level.STALLED)

    with caplog.at_level(logging.CRITICAL, "asyncio"):
        on_host(work)


def test_readers_get_samples_even_if_no_turn_runs(on_host):
    async def work(host):
        with host.monitor.reader() as samples:
            assert (await asyncio.wait_for(samples.get(), 10)).live == 0
            await asyncio.wait_for(samples.get(), 10)
        await asyncio.sleep(0.03)
        looks = host.disk.looks
        await asyncio.sleep(0.05)
        assert host.disk.looks == looks

    on_host(work)


def test_the_kernels_call_makes_it_look_for_a_while_and_then_rests(on_host, monkeypatch):
    rests = []
    monkeypatch.setattr(monitor, "AWAKE_S", 0.1)
    monkeypatch.setattr(Trigger, "rest", lambda self, seconds: rests.append(seconds))

    async def work(host):
        for _ in range(20):  # it calls again and again
            host.monitor._pressed()
            await asyncio.sleep(0.01)
            if rests:
                break
        assert 1 < host.disk.looks < 20
        assert rests == [monitor.REST_S]

    on_host(work)


def test_what_changes_is_noted_also_while_no_turn_runs(on_host):
    async def work(host):
        host.monitor.poke()
        host.backlog += [1, 2]
        host.monitor.poke()
        assert host.disk.looks == 0
        assert host.recorder.timeline.known()[-1].seen.held == 2
        host.run(1)
        await until(lambda: host.recorder.timeline.known()[-1].seen.await_ms is not None)
        assert host.recorder.timeline.known()[-1].seen.turns == 1

    on_host(work)
