"""What the gate sees of the host and of minds, and which rows a driver is handed."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest
from onqueue import on_queue
from played import CONFIG, parts

from hostguard.core.clock import now_ms
from hostguard.core.model import Config, Fold, Hold, HostView, Kind, LiveTurn, Mind, MindView, Row, Start
from hostguard.core.reasons import Reason
from hostguard.core.settings import Level
from hostguard.gate.run_clients import RunClient, RunClients
from hostguard.pressure.rule import State as PressureState
from hostguard.store.settings import LIMIT, PAUSE, SLEEP
from hostguard.turns.live import Phase, Turn

ROW = Row(1, "a", "main")
INPUT = LiveTurn("u.scope", "a", "main", "9", takes_input=True)


@pytest.fixture
def put_together(tmp_path):
    """Runs `work(parts)` on parts that start nothing."""

    def run(work):
        async def main(queue):
            work(parts(queue))

        on_queue(tmp_path, main)

    return run


def live(guard, turn):
    guard.live.add(Turn(turn, 0, Phase.RUNNING))


def test_the_view_is_what_the_parts_say(put_together):
    def work(guard):
        assert guard.gate.host() == HostView(0)
        assert guard.gate.view("a") == MindView("a", 1)
        assert guard.gate.view("unknown") == MindView("unknown", 0)
        live(guard, INPUT)
        guard.scopes.connected = False
        guard.queue.trouble = "full"
        guard.availability.note("a", "nobody listens")
        guard.monitor.state = PressureState(level=Level.STALLED, cap=3)
        limits = {"value": 2, "boot": None}
        guard.settings.use(
            PAUSE.to("", True), PAUSE.to(".mind.a", True), SLEEP.to("a", {"since": 1, "until": None}),
            LIMIT.to("global_concurrent_turns", limits), LIMIT.to("mind_concurrent_turns", limits),
        )  # fmt: skip
        assert guard.gate.host() == HostView(1, ("u.scope",), 2, guard.monitor.admit, True, False, False)
        assert guard.monitor.admit is not None
        assert guard.gate.view("a") == MindView("a", 2, True, True, (INPUT,), "a is down: nobody listens")

    put_together(work)


def test_verdicts_that_are_of_the_gate_itself(put_together):
    def work(guard):
        assert guard.gate.verdict(ROW) == Start()
        assert guard.gate.hold(ROW) is None
        assert guard.gate.hold(replace(ROW, mind="x")).reason is Reason.UNKNOWN_MIND
        run = replace(ROW, kind=Kind.RUN)
        assert guard.gate.hold(run).reason is Reason.CALLER_AWAY
        guard.run_clients._waiting[1] = (run, None)
        assert guard.gate.verdict(run) == Start()
        assert guard.gate.hold(replace(ROW, not_before=now_ms() + 60_000)).reason is Reason.NOT_DUE
        live(guard, INPUT)
        assert guard.gate.verdict(ROW) == Fold(INPUT)
        assert guard.gate.hold(ROW) is None
        guard.policy.config = Config()
        assert isinstance(guard.gate.verdict(ROW), Hold)

    put_together(work)


def test_a_driver_is_handed_what_folds_into_its_turn_and_nothing_else(put_together):
    def work(guard):
        now = guard.recovery._clock.now()
        for row in (ROW, Row(2, "a", "main"), Row(3, "a", "other")):
            guard.backlog.add(row, now)
        assert guard.rows.first(INPUT) is None, "that turn is not live"
        live(guard, INPUT)
        assert guard.rows.first(INPUT) == ROW
        assert guard.rows.first(replace(INPUT, unit="another.scope")) is None
        guard.rows.take(ROW)
        assert guard.rows.first(INPUT) == Row(2, "a", "main")
        guard.rows.give_back(ROW)
        assert guard.rows.first(INPUT) == ROW
        guard.rows.take(ROW)
        guard.rows.give_back(ROW, 5_000)
        assert guard.rows.first(INPUT) is None, "nothing overtakes it"
        assert guard.gate.hold(ROW) == Hold(Reason.RETRY, "it is tried again after a pause")
        behind = guard.gate.hold(Row(2, "a", "main"))
        assert behind == Hold(Reason.RETRY, "1, before it in its session, is tried again after a pause")
        assert guard.gate.hold(Row(3, "a", "other")).reason is Reason.MIND_BUSY
        assert 0 < guard.backlog.due_in(guard.recovery._clock.now()) <= 5_000
        guard.backlog.remove(1, "a", "main")
        assert guard.rows.first(INPUT) == Row(2, "a", "main")
        guard.availability.note("a", "nobody listens")
        assert guard.rows.first(INPUT) is None
        guard.availability.up("a")
        guard.rows.close()
        assert guard.rows.first(INPUT) is None

    put_together(work)


def test_what_is_given_back_is_offered_at_once(put_together):
    def work(guard):
        causes = []
        guard.redrive.subscribe(causes.append)
        guard.rows.give_back(ROW)
        assert len(causes) == 1

    put_together(work)


class Client:
    pid = 7

    def __init__(self):
        self.told = []

    def tell(self, event):
        self.told.append(event)


def test_a_run_client_is_its_process_while_that_runs_as_its_user():
    process = subprocess.Popen(["sleep", "60"])
    client, other = RunClient(process.pid, os.getuid()), RunClient(process.pid, os.getuid() + 1)
    try:
        assert client.alive()
        assert not other.alive(), "a process that changed its user is not trusted"
        client.tell({"event": "held"})
        assert client.events.get_nowait() == {"event": "held"}
    finally:
        process.kill()
        process.wait()
    assert not client.alive()
    fds = len(os.listdir("/proc/self/fd"))
    client.close()
    other.close()
    assert len(os.listdir("/proc/self/fd")) == fds - 2


def test_run_clients():
    clients, client, run = RunClients(), Client(), Row(1, "a", "main", kind=Kind.RUN)
    clients.attach(run, client)
    assert clients.waits(1)
    assert clients.pid_waits(7)
    assert not clients.pid_waits(8)
    clients.tell(1, {"event": "x"})
    clients.tell(2, {"event": "y"})
    assert client.told == [{"event": "x"}]
    assert clients.detach(1, Client()) is None, "another one took its place"
    assert clients.detach(1, client) == run
    assert not clients.waits(1)
    clients.attach(run, client)
    assert clients.take(1) is client
    assert clients.take(1) is None
    assert clients.lost_in() is None
    clients.park(run)
    assert clients.unpark(1) == run
    assert clients.unpark(1) is None
    assert isinstance(CONFIG.minds["a"], Mind)
