"""systemctl as the control: each command that hostguard(1) names under SYSTEMCTL, on the real systemd."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guard import ROOT, UNIT, Guard, run, systemctl, wait_for
from guarded import LONG_S, GuardedHost
from scripted_host import ScriptedHost

SHARES_GUARD = True
CONFIG = """
[limits]
global_concurrent_turns = 1
[minds.ada]
command = ["/bin/sleep", "300"]
user = "root"
[minds.deaf]
command = ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
user = "root"
"""
NEW = """
[turn]
tasks_max = 77
[minds.new]
command = ["/bin/true"]
user = "root"
[channels."#team"]
minds = ["new"]
[schedules.tidy]
mind = "new"
cron = "0 3 * * *"
message = "tidy up"
"""


def show(unit: str, name: str) -> str:
    return run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()


class Host(GuardedHost):
    """Turn `live` of ada's is live, row `waits`, another one of hers, waits."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard)
        self.live, self.waits = self.send("@ada"), self.send("@ada", session="$new")
        wait_for(lambda: self.row(self.live)["state"] == "in_turn")


@pytest.fixture
def host(guard: Guard) -> Iterator[Host]:
    guard.start(CONFIG)
    made = Host(guard)
    yield made
    for row in made.get("/v1/deliveries")["deliveries"]:
        if row["state"] == "queued":
            made.post(f"/v1/deliveries/{row['id']}/cancel")
    systemctl("stop", "hostguard.slice")
    wait_for(lambda: not guard.scopes())
    made.api.close()


def unit_of(host: Host, row: int | None = None) -> str:
    turn: str = next(turn["unit"] for turn in host.turns() if turn["delivery"] == (row or host.live))
    return turn


def status(host: Host) -> None:
    wait_for(lambda: "1/1 turns, 1 held, cap 1" in run("systemctl", "status", "hostguard").stdout)


def start_stop_restart(host: Host) -> None:
    before, turn = host.guard.pid, unit_of(host)
    systemctl("restart", "hostguard")
    assert host.guard.pid not in (0, before)
    assert unit_of(host) == turn
    systemctl("stop", "hostguard")
    assert turn in host.guard.scopes()
    systemctl("start", "hostguard")
    assert unit_of(host) == turn
    assert host.row(host.waits)["hold"]["reason"] == "mind_busy"


def socket_starts(host: Host) -> None:
    """While it is stopped whoever uses the socket starts it again."""
    systemctl("stop", "hostguard")
    systemctl("start", "hostguard.socket")
    assert host.guard.pid == 0
    assert host.guard.cli("status").returncode == 0
    systemctl("stop", "hostguard.socket", "hostguard")
    assert host.guard.cli("status", check=False).returncode == 3
    systemctl("start", "hostguard")


def reload(host: Host) -> None:
    host.guard.configure(CONFIG.replace("turns = 1", "turns = x"))
    failed = subprocess.run(["systemctl", "reload", "hostguard"], capture_output=True, text=True)
    assert failed.returncode != 0
    assert host.get("/v1/config")["limits"]["global_concurrent_turns"] == 1
    assert "the last reload failed" in show(UNIT, "StatusText")
    assert "!! problem  the last reload failed" in host.guard.cli("status").stdout
    host.guard.configure(CONFIG.replace("turns = 1", "turns = 2") + NEW)
    turn = unit_of(host)
    tasks = show(turn, "TasksMax")
    systemctl("reload", "hostguard")
    # A second one of ada's must wait, but not one of another mind: it has the new limits, the first one its own.
    deaf = host.send("@deaf")
    wait_for(lambda: len(host.turns()) == 2)
    assert show(unit_of(host, deaf), "TasksMax") == "77"
    assert show(turn, "TasksMax") == tasks != "77"
    assert "problem" not in host.guard.cli("status").stdout
    assert host.get("/v1/schedules")["schedules"][0]["name"] == "tidy"
    assert host.row(host.send("#team"))["mind"] == "new"
    run("systemctl", "kill", "--signal=KILL", unit_of(host, deaf))
    wait_for(lambda: host.row(deaf)["state"] == "queued")  # it crashed, and is to be tried again


def list_units(host: Host) -> None:
    listed = run("systemctl", "list-units", "hostguard-*").stdout
    assert unit_of(host) in listed
    assert "hostguard-ada.slice" in listed
    tree = run("systemd-cgls", "--unit", "hostguard.slice").stdout
    assert re.search(rf"hostguard-turn-ada-{host.live}\.scope.*sleep 300", tree, re.DOTALL), tree


def stop(host: Host) -> None:
    systemctl("stop", unit_of(host))
    host.done(host.live)
    assert host.row(host.live)["result"]["outcome"] == "stopped"
    wait_for(lambda: host.row(host.waits)["state"] == "in_turn")  # its slot


def kill(host: Host) -> None:
    host.post(f"/v1/deliveries/{host.waits}/cancel")
    systemctl("kill", "--signal=INT", unit_of(host))
    host.done(host.live)
    assert host.row(host.live)["result"]["reason"] == "ended by SIGINT"
    host.post(f"/v1/deliveries/{host.live}/retry")
    wait_for(lambda: host.row(host.live)["state"] == "in_turn")
    systemctl("kill", "--signal=KILL", unit_of(host))
    wait_for(lambda: host.row(host.live)["state"] == "queued")
    assert host.row(host.live)["attempts"] == 1


def freeze_thaw(host: Host) -> None:
    turn = unit_of(host)
    systemctl("freeze", turn)
    assert show(turn, "FreezerState") == "frozen"
    wait_for(lambda: "1/1 turns, 1 held" in show(UNIT, "StatusText"))
    assert host.row(host.waits)["state"] == "queued"
    systemctl("thaw", turn)
    assert show(turn, "FreezerState") == "running"
    assert host.row(host.live)["state"] == "in_turn"


def set_property(host: Host) -> None:
    turn = unit_of(host)
    systemctl("set-property", "hostguard.slice", "IOWeight=20")
    systemctl("set-property", "hostguard-ada.slice", "TasksMax=55")
    systemctl("set-property", turn, "CPUWeight=7")
    try:
        systemctl("reload", "hostguard")
        systemctl("restart", "hostguard")
        systemctl("daemon-reload")
        assert (show("hostguard.slice", "IOWeight"), show(turn, "CPUWeight")) == ("20", "7")
        systemctl("stop", turn)
        wait_for(lambda: host.row(host.waits)["state"] == "in_turn")  # another turn, in the same slices
        assert (show("hostguard.slice", "IOWeight"), show("hostguard-ada.slice", "TasksMax")) == ("20", "55")
        assert Path(
            "/etc/systemd/system.control/hostguard.slice.d"
        ).is_dir()  # so over a restart of the host, too
    finally:
        systemctl("revert", "hostguard.slice", "hostguard-ada.slice")
    assert show("hostguard.slice", "IOWeight") != "20"
    assert not Path("/etc/systemd/system.control/hostguard.slice.d").exists()


def edit(host: Host) -> None:
    editor = Path("/tmp/editor")
    editor.write_text('#!/bin/sh\nfor file; do last=$file; done\nprintf "[Service]\\nNice=3\\n" >"$last"\n')
    editor.chmod(0o755)
    drop_in = Path("/etc/systemd/system/hostguard.service.d/override.conf")
    ours = subprocess.Popen(
        ["script", "--quiet", "--return", "--command", "systemctl edit hostguard", "/dev/null"],
        env={**os.environ, "SYSTEMD_EDITOR": str(editor)}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    said, _ = ours.communicate(timeout=60)
    try:
        assert "Nice=3" in drop_in.read_text(), said
        systemctl("restart", "hostguard")
        assert os.getpriority(os.PRIO_PROCESS, host.guard.pid) == 3
        assert host.row(host.live)["state"] == "in_turn"
    finally:
        drop_in.unlink()
        systemctl("daemon-reload")


def foreign(host: Host) -> None:
    """A scope that anybody makes in a mind's slice is a turn of the mind's."""
    systemctl("stop", unit_of(host))
    host.done(host.live)
    wait_for(lambda: host.row(host.waits)["state"] == "in_turn", LONG_S)
    own = subprocess.Popen(
        ["systemd-run", "--scope", "--quiet", "--slice=hostguard-ada.slice", "sleep", "300"]
    )
    try:
        wait_for(lambda: [turn["state"] for turn in host.turns()].count("foreign") == 1, LONG_S)
        systemctl("stop", unit_of(host, host.waits))
        host.done(host.waits)
        late = host.send("@ada", session="$new")
        wait_for(lambda: (host.row(late)["hold"] or {}).get("reason") in ("mind_busy", "global_cap"), LONG_S)
    finally:
        own.kill()
        own.wait()
    wait_for(lambda: host.row(late)["state"] == "in_turn", LONG_S)


TRIED: dict[str, Callable[[Host], None]] = {
    "systemctl status hostguard": status,
    "systemctl start hostguard": start_stop_restart,
    "systemctl stop hostguard": socket_starts,
    "systemctl restart hostguard": start_stop_restart,
    "systemctl reload hostguard": reload,
    "systemctl list-units 'hostguard-*'": list_units,
    "systemctl stop hostguard-turn-ada-17.scope": stop,
    "systemctl kill": kill,
    "systemctl freeze hostguard-turn-ada-17.scope": freeze_thaw,
    "systemctl thaw hostguard-turn-ada-17.scope": freeze_thaw,
    "systemctl set-property hostguard.slice IOWeight=20": set_property,
    "systemctl revert hostguard.slice": set_property,
    "systemctl edit hostguard": edit,
    "systemd-run --scope --slice=hostguard-ada.slice make test": foreign,
}


def test_each_command_of_the_manual_is_tried() -> None:
    page = (ROOT / "packaging/man/hostguard.1.scd").read_text()
    section = page.partition("\n# SYSTEMCTL\n")[2].partition("\n# ")[0].replace("\\*", "ASTERISK")
    named = re.findall(r"\*(systemctl [^*]+)\*", " ".join(section.split()))
    named += re.findall(r"^\t(systemd-run .*)$", section, re.MULTILINE)
    assert sorted({name.replace("ASTERISK", "*") for name in named}) == sorted(TRIED)


@pytest.mark.parametrize("work", dict.fromkeys(TRIED.values()), ids=lambda work: work.__name__)
def test_the_command(host: Host, work: Callable[[Host], None]) -> None:
    work(host)


def test_a_stop_that_nothing_may_replace_is_no_shutdown(scripted: ScriptedHost) -> None:
    """systemd refuses starts with the same error as at a shutdown. It was taken for one, and nothing started again."""
    scripted.start("ab")
    deaf = scripted.send("@a", "trap '' TERM; wait_go")
    scripted.wait_started(deaf)
    systemctl("stop", "--no-block", "--job-mode=replace-irreversibly", "hostguard.slice")
    row = scripted.send("@b")
    wait_for(lambda: scripted.row(row)["attempts"], LONG_S)
    scripted.go(deaf)
    scripted.done(deaf, row)
    assert scripted.order() == [deaf, row]
