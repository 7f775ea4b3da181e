"""hostguardd --user under a user's own service manager, set up by the unit that hostguardd(8) shows."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guard import COMMAND, ROOT, run, systemctl, wait_for
from user_manager import as_user, user_manager

USER = "pat"
# As in dbus-user-session, which the guest does not have.
BUS_SOCKET = """[Socket]
ListenStream=%t/bus
ExecStartPost=-/bin/systemctl --user set-environment DBUS_SESSION_BUS_ADDRESS=unix:path=%t/bus
[Install]
WantedBy=sockets.target
"""
BUS = """[Service]
Type=notify
ExecStart=/usr/bin/dbus-daemon --session --address=systemd: --nofork --nopidfile --systemd-activation
"""


class Pat:
    """The user."""

    def __init__(self) -> None:
        self.entry = pwd.getpwnam(USER)
        self.home = Path(self.entry.pw_dir)

    def run(self, *argv: str, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        path = f"PATH={self.home}/.local/bin:/usr/bin:/bin"
        done = as_user(USER, "env", path, *argv, stdin=stdin)
        assert done.returncode == 0 or not check, done
        return done

    def cli(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("hostguard", "--user", *args, check=check)

    def json(self, *args: str) -> Any:
        return json.loads(self.cli(*args, "--json").stdout)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        run("chown", "-R", f"{USER}:", str(self.home))

    def main_pid(self) -> int:
        shown = self.run("systemctl", "--user", "show", "--value", "--property=MainPID", "hostguard")
        return int(shown.stdout)

    def scopes(self) -> list[str]:
        listed = self.run("systemctl", "--user", "list-units", "--plain", "--no-legend", "hostguard-turn-*")
        return [line.split()[0] for line in listed.stdout.splitlines()]


def documented() -> str:
    """The unit in the manual."""
    text = (ROOT / "packaging/man/hostguardd.8.scd").read_text().partition("\n# USER MANAGER\n")[2]
    return text.split("```")[1].strip() + "\n"


@pytest.fixture(scope="module")
def pat() -> Iterator[Pat]:
    run(
        "useradd", "--create-home", "--groups=systemd-journal", USER
    )  # the guest's journal has no files of users
    made = Pat()
    for name, module in (("hostguard", "hostguard"), ("hostguardd", "hostguard.hostguardd")):
        script = COMMAND.format(root=ROOT, python=sys.executable, module=module)
        made.write(f".local/bin/{name}", script, 0o755)
    units = ".config/systemd/user"
    made.write(f"{units}/dbus.socket", BUS_SOCKET)
    made.write(f"{units}/dbus.service", BUS)
    made.write(f"{units}/hostguard.service", documented())
    try:
        with user_manager(USER):
            made.run("systemctl", "--user", "start", "dbus.socket")
            made.run("systemctl", "--user", "enable", "--now", "hostguard")
            yield made
    finally:
        run("userdel", "--remove", "--force", USER)


def test_from_the_first_start_to_turns(pat: Pat) -> None:
    said = pat.cli("status").stdout
    assert "daemon   runs since" in said
    assert "hostguard mind add" in said
    drop_in = json.loads(
        pat.cli("mind", "add", "ada", "--command", "id -un", "--user", USER, "--json").stdout
    )["file"]
    assert Path(drop_in) == pat.home / ".config/hostguard/hostguard.toml.d/mind-ada.toml"
    pat.run("systemctl", "--user", "reload", "hostguard")

    done = pat.cli("send", "@ada", "hello", "--wait")
    assert "done" in done.stdout
    assert (pat.home / ".local/state/hostguard/queue.db").stat().st_uid == pat.entry.pw_uid

    # In a scope of the user's manager, as the user.
    inside = pat.cli("run", "--mind", "ada", "--", "cat", "/proc/self/cgroup").stdout
    assert (
        f"/user@{pat.entry.pw_uid}.service/hostguard.slice/hostguard-ada.slice/hostguard-turn-ada-" in inside
    )
    assert "ada" in pat.json("minds")["minds"][0]["name"]


def test_logs_and_top_show_the_users_own_turns(pat: Pat) -> None:
    command = "sh -c 'echo said by $HOSTGUARD_TURN; sleep 300'"
    pat.cli("mind", "add", "loud", "--command", command, "--user", USER)
    pat.cli("reload")
    row = str(pat.json("send", "@loud", "work")["deliveries"][0]["id"])
    for what in (row, "loud"):
        wait_for(lambda what=what: f"said by {row}\n" in pat.cli("logs", what).stdout)  # type: ignore[misc]
    [turn] = pat.json("top")["turns"]
    assert (turn["id"], turn["mind"]) == (row, "loud")
    assert turn["cpu_percent"] is not None
    assert turn["write_rate"] is not None, "the user's own processes may be seen"
    pat.cli("stop", row)
    wait_for(lambda: not pat.scopes())


def test_a_turn_outlives_the_guard(pat: Pat) -> None:
    pat.cli("mind", "add", "slow", "--command", "sleep 300", "--user", USER)
    pat.cli("reload")
    row = str(pat.json("send", "@slow", "work")["deliveries"][0]["id"])
    wait_for(lambda: pat.scopes())
    before = pat.main_pid()
    os.kill(before, 9)
    wait_for(lambda: pat.main_pid() not in (0, before), 30)
    wait_for(lambda: pat.cli("status", check=False).returncode == 0, 30)
    assert [turn["unit"] for turn in pat.json("turns")["turns"]] == pat.scopes()
    pat.run("systemctl", "--user", "stop", pat.scopes()[0])
    wait_for(lambda: pat.json("queue", row)["state"] == "done")
    # Without the guard, the gate is under a lock of the user's own.
    pat.run("systemctl", "--user", "stop", "hostguard")
    assert pat.cli("run", "--mind", "slow", "--", "id", "-un").stdout == f"{USER}\n"
    gone = pat.cli("send", "@slow", "x", check=False)
    pat.run("systemctl", "--user", "start", "hostguard")
    assert (gone.returncode, gone.stderr) == (
        3, "hostguard: hostguard is not running: systemctl --user start hostguard\n",
    )  # fmt: skip


def test_a_mind_of_somebody_else_is_refused(pat: Pat) -> None:
    done = pat.cli("mind", "add", "boss", "--command", "id", "--user", "root", check=False)
    assert done.returncode == 1
    assert "under a user's own service manager all minds are that user" in done.stderr


@pytest.fixture
def _controllers() -> Iterator[None]:
    """A kernel that has them, as Debian's: a guest's cgroups have none, and so the user's manager has none, either."""
    file = Path("/run/controllers")
    file.write_text("cpuset cpu io memory pids\n")
    run("mount", "--bind", str(file), "/sys/fs/cgroup/cgroup.controllers")
    yield
    run("umount", "/sys/fs/cgroup/cgroup.controllers")


@pytest.mark.usefixtures("_controllers")
def test_the_doctor_tells_how_the_user_gets_limits_on_the_disk(pat: Pat) -> None:
    """Also that root can type it so, and that it is what the manual says."""
    said = pat.cli("doctor", check=False).stdout
    assert re.search("^warning +io_controller: the user manager has no io controller$", said, re.MULTILINE), (
        said
    )
    checks = {
        check["name"]: check
        for check in json.loads(pat.cli("doctor", "--json", check=False).stdout)["checks"]
    }
    mend = checks["io_controller"]["mend"]
    assert all(f"> {line}" in said for line in mend)
    try:
        for line in mend:
            run("sh", "-ec", line)
        unit = f"user@{pat.entry.pw_uid}.service"
        delegated = run("systemctl", "show", "--value", "--property=DelegateControllers", unit).stdout.split()
    finally:
        run("rm", "-rf", "/etc/systemd/system/user@.service.d")
        systemctl("daemon-reload")
    assert sorted(delegated) == ["cpu", "io", "memory", "pids"]
    setting = "[Service]\nDelegate=cpu io memory pids\n"
    assert repr(setting)[1:-1] in mend[0]
    assert setting in (ROOT / "packaging/man/hostguardd.8.scd").read_text()


def test_what_ran_as_the_manager_was_stopped_runs_again(pat: Pat) -> None:
    pat.cli("mind", "add", "long", "--command", "sleep 300", "--user", USER)
    pat.cli("reload")
    row = str(pat.json("send", "@long", "work")["deliveries"][0]["id"])
    wait_for(lambda: pat.json("queue", row)["state"] == "in_turn")
    since = pat.json("queue", row)["started_at"]
    systemctl("restart", f"user@{pat.entry.pw_uid}.service")
    pat.run("systemctl", "--user", "start", "dbus.socket")
    start = ("systemctl", "--user", "restart", "hostguard")  # without its bus it could not start
    wait_for(lambda: pat.run(*start, check=False).returncode == 0, 60)
    wait_for(lambda: pat.json("queue", row)["state"] == "in_turn")
    again = pat.json("queue", row)
    assert again["attempts"] == 0
    assert again["started_at"] > since
    pat.run("systemctl", "--user", "stop", f"hostguard-turn-long-{row}.scope")
    wait_for(lambda: pat.json("queue", row)["state"] == "done")
