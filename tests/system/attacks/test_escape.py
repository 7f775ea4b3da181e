"""A mind's user with code of its own leaves its turn's scope. Its user manager runs, as after enable-linger."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from guard import Guard, run, systemctl, wait_for
from guarded import GuardedHost
from user_manager import as_user, user_manager

from hostguard.core.units import HOLDER
from hostguard.linux import cgroup

EVE = "eve"
HOME = Path("/home", EVE)
# Runs what its message says, in a shell whose parent is the process that keeps the slot.
TURN = """import json, os, sys
os.environ["XDG_RUNTIME_DIR"] = f"/run/user/{os.getuid()}"
os.execv("/bin/sh", ["sh", "-c", json.load(sys.stdin)["content"]])
"""
CONFIG = f"""
[minds.eve]
command = ["/usr/bin/python3", "{HOME}/turn.py"]
user = "{EVE}"
"""
MANAGER = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"


class Attacked(GuardedHost):
    """The guard with a mind whose turns do what their message says."""

    uid = 0

    def attach(self, *pids: str) -> str:
        """A command that has systemd move processes to the user's own manager."""
        unit = f"user@{self.uid}.service"
        return f"busctl call {MANAGER} AttachProcessesToUnit ssau {unit} '' {len(pids)} {' '.join(pids)}"

    def turn(self, script: str) -> int:
        """Start a turn that runs the script, and wait until it wrote the file `up`; its row."""
        row = self.send("@eve", f"{script}; touch {HOME}/up; {WAIT}")
        wait_for((HOME / "up").exists, 30)
        return row

    def stub(self) -> int:
        """The process that keeps the slot of the only turn."""
        [turn] = self.turns()
        folder = cgroup.ROOT / "hostguard.slice/hostguard-eve.slice" / turn["unit"]
        [pid] = [pid for pid in cgroup.pids(folder) if Path(f"/proc/{pid}").stat().st_uid in (0, HOLDER)]
        return pid

    def held(self) -> int:
        """A message that has to wait for a slot of the mind's; its row."""
        row = self.send("@eve", "true", session="another")
        assert self.row(row)["hold"]["reason"] == "mind_busy"
        return row


WAIT = f"read _ <{HOME}/go"  # until the test says so


def go() -> None:
    """Let a process that waits end."""
    subprocess.run(["timeout", "10", "sh", "-c", f"echo >{HOME}/go"], check=True)


@pytest.fixture(scope="module")
def host(_installed: None) -> Iterator[Attacked]:
    run("useradd", "--create-home", "--groups=hostguard", EVE)
    (HOME / "turn.py").write_text(TURN)
    guard = Guard()
    systemctl("start", "hostguard.socket")  # as it is installed
    made = Attacked(guard)
    with user_manager(EVE) as made.uid:
        guard.start(CONFIG)
        try:
            yield made
        finally:
            made.api.close()
            guard.close()
    run("userdel", "--remove", "--force", EVE)


@pytest.fixture(autouse=True)
def _clean(host: Attacked) -> Iterator[None]:
    (HOME / "go").unlink(missing_ok=True)
    as_user(EVE, "mkfifo", str(HOME / "go"))
    for name in ("up", "said"):
        (HOME / name).unlink(missing_ok=True)
    yield
    host.guard.end_turns()
    subprocess.run(["pkill", "-KILL", "-u", EVE, "sh|sleep"], check=False)
    wait_for(lambda: not host.turns(), 30)


def outside(pid: int) -> bool:
    """True if the process is in the user's own manager."""
    return "/user@" in Path(f"/proc/{pid}/cgroup").read_text()


def test_what_keeps_a_slot_can_be_neither_moved_stopped_nor_killed(host: Attacked) -> None:
    tries = (host.attach("$PPID"), host.attach("$PPID", "$$"), "kill -STOP $PPID", "kill -KILL $PPID")
    row = host.turn(
        "; ".join(f"{attack} && echo {number} >>{HOME}/said" for number, attack in enumerate(tries))
    )
    assert not (HOME / "said").exists()
    pid = host.stub()
    status = Path(f"/proc/{pid}/status").read_text().split("\n")
    has = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    assert has["Uid"].split() == has["Gid"].split() == [str(HOLDER)] * 4
    assert (has["CapEff"], has["State"]) == ("0" * 16, "S (sleeping)")
    waiting = host.held()
    go()
    [ended] = host.done(row)
    assert (ended["result"]["outcome"], ended["result"]["exit"]) == ("exited", 0)
    host.done(waiting)


def test_a_turn_that_leaves_keeps_its_slot_until_its_command_ends(host: Attacked) -> None:
    row = host.turn(f"{host.attach('$$')}; echo $$ >{HOME}/said")
    assert outside(int((HOME / "said").read_text()))
    stub, waiting = host.stub(), host.held()
    assert as_user(EVE, "kill", "-KILL", str(stub)).returncode != 0  # nor can it be from there
    go()
    host.done(row, waiting)


def test_a_double_fork_stays(host: Attacked) -> None:
    row = host.send("@eve", f"setsid sh -c '(echo up >{HOME}/up; {WAIT}) & exit' >/dev/null 2>&1 & exit 0")
    wait_for((HOME / "up").exists, 30)
    wait_for(lambda: [turn["state"] for turn in host.turns()] == ["lingering"])
    waiting = host.held()
    go()
    host.done(row, waiting)


def test_a_run_that_leaves_keeps_its_slot_until_its_command_ends(host: Attacked) -> None:
    """The caller's own process is the turn; it cannot move the one that waits for its end, nor end it."""
    script = f"{host.attach('$$')}; echo $$ >{HOME}/said; touch {HOME}/up; {WAIT}"
    become = ["setpriv", f"--reuid={EVE}", f"--regid={EVE}", "--init-groups"]
    with subprocess.Popen(
        [*become, "hostguard", "run", "--mind", "eve", "--", "sh", "-c", script]
    ) as process:
        wait_for((HOME / "up").exists, 30)
        assert outside(process.pid)
        stub, waiting = host.stub(), host.held()
        for attack in (host.attach(str(stub)), f"kill -KILL {stub}", f"kill -STOP {stub}"):
            assert as_user(EVE, "sh", "-c", attack).returncode != 0
        host.guard.kill()  # the next guard knows it, too
        host.guard.restart()
        assert host.row(waiting)["hold"]["reason"] == "mind_busy"
        go()
        assert process.wait(10) == 0
    host.done(waiting)
