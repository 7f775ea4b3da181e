"""A turn that ran when the host went down runs again, and no attempt is counted: every orderly way down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from suites import SUITES

from tests.rig.switched import REBOOTED, SWITCHED_OFF, Switched, mind

# Each mind does something else with SIGTERM. One line of the log each: what, row, attempt.
TURN = """#!/bin/bash
{trap}
echo "start $HOSTGUARD_DELIVERY $HOSTGUARD_ATTEMPT" >>/keep/log
until [ -e /keep/go ]; do sleep 0.05; done
echo "end $HOSTGUARD_DELIVERY $HOSTGUARD_ATTEMPT" >>/keep/log
"""
TRAPS = {"plain": "", "polite": "trap 'exit 0' TERM", "deaf": "trap '' TERM"}
RESIDENT = """
[events]
listen = "127.0.0.1:4200"
[minds.bob]
url = "http://127.0.0.1:4100"
unit = "hostguard-mind@bob.service"
idle_end = "2s"
"""
BOB = (
    "COMMAND=/usr/bin/python3 -S /src/tests/rig/mind.py --name=bob --port=4100 --log=/keep/bob --daemon-port=4200"
    " --token=t --work={work}\n"
)
CALLED = "setsid --fork hostguard run --mind caller -- sleep 1000 >/dev/null 2>&1"
SHORT_STOP = """mkdir -p /run/systemd/system.conf.d
printf '[Manager]\\nDefaultTimeoutStopSec=2s\\n' >/run/systemd/system.conf.d/stop.conf
systemctl daemon-reload"""

WAYS = {
    "poweroff": ("systemctl poweroff", SWITCHED_OFF),
    "halt": ("systemctl halt", SWITCHED_OFF),
    "reboot": ("systemctl reboot", REBOOTED),
    "kexec": (
        "systemctl start --no-block kexec.target",
        REBOOTED,
    ),  # without a new kernel it reboots in the end
    "isolate": ("systemctl isolate --no-block reboot.target", REBOOTED),
    "start": ("systemctl start --no-block poweroff.target", SWITCHED_OFF),
    "signal": ("kill -s RTMIN+4 1", SWITCHED_OFF),
    "forced poweroff": ("systemctl --force poweroff", SWITCHED_OFF),
    "forced reboot": ("systemctl --force reboot", REBOOTED),
}

# All of them on the newest systemd; on others one of each kind, as each boots two guests.
ALL = "trixie" in SUITES
KINDS = WAYS if ALL else ("poweroff", "isolate", "forced reboot")


class Turns:
    """A host with turns of every sort that run, and a row behind each cap."""

    def __init__(self, host: Switched) -> None:
        self.host = host

    def start(self) -> None:
        host = self.host
        for name, trap in (*TRAPS.items(), ("other", ""), ("caller", "")):
            script = host.keep / name
            script.write_text(TURN.format(trap=trap))
            script.chmod(0o755)
        for file in ("bob", "log"):
            (host.keep / file).touch()
            (host.keep / file).chmod(0o666)
        minds = "".join(mind(name, f"/keep/{name}") for name in (*TRAPS, "caller", "other"))
        host.boot(f"[limits]\nglobal_concurrent_turns = 6\n{minds}{RESIDENT}")
        host.sh(SHORT_STOP)
        self.start_bob(work=1000)
        self.running = [host.send(f"@{name}") for name in TRAPS]
        self.posted = [host.send("@bob", f"message {number}") for number in (1, 2)]
        host.sh(CALLED)
        host.wait_for(lambda: len(self.turns()) == 5)
        self.called = next(turn["delivery"] for turn in self.turns() if turn["mind"] == "caller")
        host.wait_for(lambda: len(host.logged()) == 3 and len(self.bob()) == 2)
        self.waiting = [host.send(f"@{name}") for name in TRAPS]  # while a slot of the global cap is free

    def start_bob(self, work: float) -> None:
        folder = self.host.keep.parent / "etc/minds"
        folder.mkdir(exist_ok=True)
        (folder / "bob.env").write_text(BOB.format(work=work))
        self.host.sh("id bob || useradd --create-home bob; systemctl restart hostguard-mind@bob")
        self.host.wait_for(lambda: self.host.ask("curl -sf 127.0.0.1:4100/health").returncode == 0)

    def turns(self) -> list[Any]:
        found: list[Any] = self.host.call("GET", "/v1/turns")["turns"]
        return found

    def bob(self) -> list[Any]:
        """What bob was sent."""
        lines = [json.loads(line) for line in (self.host.keep / "bob").read_text().splitlines()]
        return [line for line in lines if line["what"] == "message"]

    def all_run_again(self, bob_died: bool = False) -> None:
        """After the boot: what ran runs again, as its first attempt; what waited did not start.

        `bob_died`: before the host went down. If the guard saw that, the messages were tried again: another attempt.
        """
        host = self.host
        starts = Counter(int(row) for what, row, _ in host.logged() if what == "start")
        assert starts == Counter(self.running), "nothing was admitted on the way down"
        host.start_guard()
        self.start_bob(work=0)
        host.wait_for(lambda: len(host.logged()) == 6)
        for id_ in self.running:
            row = host.row(id_)
            assert (row["state"], row["attempts"]) == ("in_turn", 0), row
        (host.keep / "go").touch()
        for id_ in (*self.running, *self.waiting, *self.posted):
            row = host.row(id_, 60)
            tried = row["attempts"] if bob_died and id_ in self.posted else 0
            assert (row["state"], row["attempts"]) == ("done", tried), row
        begun = [(int(row), attempt) for what, row, attempt in host.logged() if what == "start"]
        assert Counter(begun) == Counter([(row, "1") for row in self.running * 2 + self.waiting])
        ended = [int(row) for what, row, _ in host.logged() if what == "end"]
        assert sorted(ended) == sorted([*self.running, *self.waiting]), "each was done once"
        sent = [(one["content"], one["key"]) for one in self.bob()]
        assert len(sent) == 4 or (bob_died and len(sent) == 2)
        assert sent == sent[:2] * (len(sent) // 2), "posted again, in order, with the same keys"
        assert host.row(self.called)["state"] == "cancelled", "its caller is gone"
        assert not (host.keep.parent / "state/went-down").exists()


@pytest.fixture
def turns(tree: Path, tmp_path: Path) -> Iterator[Turns]:
    with Switched(tree, tmp_path) as host:
        made = Turns(host)
        made.start()
        yield made


@pytest.mark.parametrize("way", KINDS)
def test_what_ran_runs_again(turns: Turns, way: str) -> None:
    host, (command, ends) = turns.host, WAYS[way]
    host.ask(command)
    assert host.wait_off() == ends
    host.boot(start=False)
    turns.all_run_again()


# A soft reboot unmounts what has an entry in fstab, to mount it again; the guest's folders have none.
KEEP_MOUNTS = """mkdir -p /run/systemd/system/mount.d
printf '[Unit]\\nDefaultDependencies=no\\n' >/run/systemd/system/mount.d/keep.conf; systemctl daemon-reload"""
SOFT = {"soft-reboot": "systemctl soft-reboot", "forced soft-reboot": "systemctl --force soft-reboot"}


@pytest.mark.parametrize("way", SOFT)
def test_a_soft_reboot_is_a_way_down_too(turns: Turns, way: str) -> None:
    """The kernel goes on, and /run with the records of how the turns ended."""
    host = turns.host
    if "soft-reboot" not in host.sh("systemctl --help"):
        pytest.skip("this systemd has no soft reboot")
    host.sh(KEEP_MOUNTS)
    host.ask(SOFT[way])
    # The old PID 1 may take a question that nobody answers any more.
    count = "timeout 5 systemctl show --property=SoftRebootsCount"
    host.wait_for(lambda: host.ask(count).stdout.strip()[-2:] == "=1")
    host.wait_for(lambda: host.ask("timeout 5 systemctl is-active basic.target").returncode == 0)
    turns.all_run_again()


STATES = {
    "down": "systemctl stop hostguard.service hostguard.socket",
    "killed": "systemctl kill --kill-whom=main --signal=KILL hostguard",  # it waits to be started again
    "standing": "systemctl kill --kill-whom=main --signal=STOP hostguard",
    "hanging": "echo 1 >/sys/fs/cgroup/system.slice/hostguard.service/cgroup.freeze",
    "restarting": "systemctl restart --no-block hostguard",
}


@pytest.mark.parametrize("state", STATES if ALL else ("down", "hanging"))
def test_a_reboot_while_the_guard_does_not_answer(turns: Turns, state: str) -> None:
    host = turns.host
    host.sh("mkdir -p /run/systemd/system/hostguard.service.d; cd /run/systemd/system/hostguard.service.d;"
            "printf '[Service]\\nTimeoutStopSec=3\\n' >stop.conf; systemctl daemon-reload")  # fmt: skip
    host.sh(f"{STATES[state]}; systemctl reboot")
    assert host.wait_off() == REBOOTED
    host.boot(start=False)
    turns.all_run_again()


def test_a_turn_that_ended_before_without_a_guard_has_ended(turns: Turns) -> None:
    """The records of their ends are in /run, which ends with the boot."""
    host = turns.host
    host.sh("systemctl stop hostguard.service hostguard.socket")
    (host.keep / "go").touch()
    live = "systemctl list-units --plain --no-legend 'hostguard-turn-*.scope' | grep -E 'plain|polite|deaf'"
    host.wait_for(lambda: host.ask(live).returncode == 1)
    host.ask("systemctl reboot")
    assert host.wait_off() == REBOOTED
    host.boot()
    for id_ in turns.running:
        row = host.row(id_, 60)
        assert (row["state"], row["attempts"], row["result"]["exit"]) == ("done", 0, 0), row
    starts = Counter(int(row) for what, row, _ in host.logged() if what == "start")
    assert [starts[row] for row in turns.running] == [1, 1, 1]
    assert not (host.keep.parent / "state/went-down-turns").exists()


def test_a_forced_reboot_without_a_guard_is_as_a_power_failure(turns: Turns) -> None:
    host = turns.host
    host.sh("systemctl stop hostguard.service hostguard.socket")
    host.ask("systemctl --force reboot")
    assert host.wait_off() == REBOOTED
    host.boot()
    host.wait_for(lambda: host.row(turns.running[0])["attempts"] == 1)


@pytest.mark.parametrize("unit", ["hostguard-turn-plain-*.scope", "hostguard.slice"])
def test_what_an_operator_stops_has_ended(turns: Turns, unit: str) -> None:
    host, stopped = turns.host, turns.running[0]
    host.sh(f"systemctl stop '{unit}'")
    row = host.row(stopped, 60)
    assert (row["state"], row["attempts"], row["result"]["outcome"]) == ("done", 0, "stopped"), row
    host.ask("systemctl reboot")
    assert host.wait_off() == REBOOTED
    host.boot()
    assert host.row(stopped)["state"] == "done"
    assert [int(row) for what, row, _ in host.logged() if what == "start"].count(stopped) == 1


def test_isolate_ends_no_turn(turns: Turns) -> None:
    """The minds' servers are stopped, and the guard in most cases; the turns of commands go on."""
    host = turns.host
    host.sh("printf '[Unit]\\nRequires=basic.target\\nAllowIsolate=yes\\n'"
            " >/run/systemd/system/bare.target; systemctl daemon-reload; systemctl isolate bare.target")  # fmt: skip
    host.wait_for(lambda: not host.sh("systemctl list-jobs --no-legend"))
    assert host.sh("systemctl is-active hostguard-shutdown.service") == "active"
    host.sh("systemctl start hostguard")
    assert {turn["delivery"] for turn in turns.turns()} >= {*turns.running, turns.called}, "they go on"
    host.sh("systemctl stop hostguard hostguard.socket; systemctl isolate --no-block reboot.target")
    assert host.wait_off() == REBOOTED
    host.boot(start=False)
    turns.all_run_again(bob_died=True)


SLOW = (
    "systemd-run --quiet --unit=slow --property=TimeoutStopSec=120 --property=After=hostguard.service"
    " --property=ExecStop='/bin/sh -c \"until [ -e /keep/enough ]; do sleep 0.1; done\"' sleep 1000"
)


def test_nothing_is_admitted_once_the_host_goes_down(turns: Turns) -> None:
    """Something takes long to stop, and the guard is stopped after it: slots are free, and rows come meanwhile."""
    host = turns.host
    host.sh(SLOW)
    host.ask("systemctl reboot")
    late = [host.send("@other"), host.send("@bob", "late")]
    assert [host.row(id_)["hold"]["reason"] for id_ in late] == ["shutdown"] * 2
    host.sh("systemctl kill --signal=KILL 'hostguard-turn-caller-*.scope'")  # a stop would wait
    host.wait_for(lambda: len(turns.turns()) < 5)
    assert [host.row(id_)["state"] for id_ in late] == ["queued"] * 2
    (host.keep / "enough").touch()
    assert host.wait_off() == REBOOTED
    assert [words for words in host.logged() if words[1] == str(late[0])] == []
    (host.keep / "go").touch()
    host.boot()
    turns.start_bob(work=0)
    for id_ in late:
        row = host.row(id_, 60)
        assert (row["state"], row["attempts"]) == ("done", 0), row
