"""A turn asks other services of the host to run something outside its scope: without a sandbox, and with a strict one."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guard import Guard, run, systemctl, wait_for
from guarded import GuardedHost

LOOT, WAYS, OUT = Path("/run/loot"), Path("/run/ways"), "/run/ways/out"
LOGIND = "org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
SYSTEMD = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"
SSH = "ssh -i ~/key -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
# A service of root that starts what members of the group docker ask for, as Docker's does.
DOCKER = {
    "docker.socket": "[Socket]\nListenStream=/run/docker.sock\nSocketMode=0660\nSocketGroup=docker\nAccept=yes\n",
    "docker@.service": f"[Service]\nStandardInput=socket\nExecStart=/bin/sh -c 'read name; tail -n 1 /proc/self/cgroup >{LOOT}/$$name'\n",
}
ASK_DOCKER = 'python3 -c "import socket; s = socket.socket(1); s.connect(\\"/run/docker.sock\\"); s.send(b\\"$USER-{}\\n\\"); s.shutdown(1); s.recv(1)"'
LINGER = {
    "linger": 'loginctl enable-linger "$USER"',
    "linger_by_bus": f"busctl call {LOGIND} SetUserLinger ubb $(id -u) true false",
    "linger_for_another": "loginctl enable-linger zoe",
}
MANAGER = {
    "systemd_run": f"systemd-run --user --quiet --collect {OUT} systemd_run",
    "user_scope": f"systemd-run --user --scope --quiet --collect {OUT} user_scope",
    "attach": f"busctl call {SYSTEMD} AttachProcessesToUnit ssau user@$(id -u).service /init.scope 1 $$; {OUT} attach",
}
OTHERS = {
    "crontab": f"echo '@reboot {OUT} crontab' | crontab -",  # runs as cron starts
    "at": f"echo '{OUT} at' | at now",
    "at_batch": f"echo '{OUT} at_batch' | at -q a now",
    "ssh": f"{SSH} localhost {OUT} ssh",
    "ssh_and_on": f"{SSH} 127.0.0.1 'setsid -f {OUT} ssh_and_on </dev/null >/dev/null 2>&1'",
    "docker": ASK_DOCKER.format("docker"),
    "docker_by_sg": f"sg docker '{ASK_DOCKER.format('docker_by_sg')}'",
}
SCRIPTS = {
    "attack": f'exec /bin/sh {WAYS}/$(sed -n \'s/.*"content":"\\([a-z_]*\\)".*/\\1/p\')',
    "out": f"#!/bin/sh\ntail -n 1 /proc/self/cgroup >{LOOT}/$(id -un).new && mv {LOOT}/$(id -un).new {LOOT}/$(id -un)-$1",
}
MIND = """
[minds.{name}]
command = ["/bin/sh", "/run/ways/attack"]
user = "{user}"
{more}
[minds.{name}.environment]
XDG_RUNTIME_DIR = "/run/user/{uid}"
"""
USERS = ("free", "eve", "zoe")  # zoe has no mind
STRICT = 'sandbox = "strict"'
SERVICES = ("cron", "atd", "ssh", "systemd-user-sessions", "polkit", "systemd-logind", "docker.socket")


def config(more: str = STRICT) -> str:
    uid = {user: pwd.getpwnam(user).pw_uid for user in ("free", "eve")}
    return MIND.format(name="free", user="free", uid=uid["free"], more="") + MIND.format(
        name="eve", user="eve", uid=uid["eve"], more=more
    )


class Host(GuardedHost):
    def turn(self, mind: str, way: str) -> Any:
        """The ended turn of a mind that takes a way out."""
        (row,) = self.done(self.send(f"@{mind}", way, session="$new"))
        return row

    def gets_out(self, mind: str, way: str) -> bool:
        """Whether something of this way runs outside the turn's scope."""
        asked = self.turn(mind, way)["result"]["exit"] == 0
        loot = LOOT / f"{mind}-{way}"
        if asked:
            wait_for(loot.exists)
            return "hostguard-turn-" not in loot.read_text()
        assert not loot.exists()
        return False


def as_user(user: str, *argv: str) -> subprocess.CompletedProcess[str]:
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"]
    return subprocess.run([*become, *argv], capture_output=True, text=True, timeout=60, check=False)


def starts_cron() -> None:
    Path("/run/crond.reboot").unlink(missing_ok=True)
    systemctl("restart", "cron")


@pytest.fixture(scope="module")
def host(_installed: None) -> Iterator[Host]:
    run("groupadd", "--force", "docker")
    for user in USERS:
        run("useradd", "--create-home", "--groups", "docker", "--shell", "/bin/sh", user)
        key = f"/home/{user}/key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        run("install", "-D", "-m", "600", f"{key}.pub", f"/home/{user}/.ssh/authorized_keys")
        run("chown", "-R", f"{user}:", f"/home/{user}")
    LOOT.mkdir()
    LOOT.chmod(0o1777)
    WAYS.mkdir()
    for name, script in {**SCRIPTS, **LINGER, **MANAGER, **OTHERS}.items():
        (WAYS / name).write_text(f"{script}\n")
        (WAYS / name).chmod(0o755)
    for name, unit in DOCKER.items():
        Path("/run/systemd/system", name).write_text(unit)
    systemctl("daemon-reload")
    systemctl("start", "systemd-user-sessions", "ssh", "atd", "docker.socket")
    guard = Guard()
    guard.start(config())
    made = Host(guard)
    yield made
    made.api.close()
    guard.close()
    run("pam-auth-update", "--package", "--remove", "hostguard")
    for user in USERS:
        subprocess.run(["loginctl", "disable-linger", user], check=False, capture_output=True)
        subprocess.run(["loginctl", "terminate-user", user], check=False, capture_output=True)
        run("userdel", "--force", "--remove", user)
    systemctl("stop", *SERVICES)
    run("rm", "-rf", str(LOOT), str(WAYS), *(f"/run/systemd/system/{name}" for name in DOCKER))
    systemctl("daemon-reload")


# The tests of this file go on from one another.


def test_a_strict_mind_is_held_until_pam_keeps_its_sandbox(host: Host) -> None:
    row = host.send("@eve", "linger")
    (problem,) = [one for one in host.get("/v1/status")["problems"] if one["code"] == "mind_broken"]
    assert "eve: its sandbox needs a rule of PAM: run pam-auth-update --enable hostguard" in problem["text"]
    run("pam-auth-update", "--enable", "hostguard")
    host.guard.reload()
    (ended,) = host.done(row)
    assert ended["result"]["exit"] != 0


@pytest.mark.parametrize("way", LINGER)
@pytest.mark.parametrize("mind", ["free", "eve"])
def test_no_minds_user_gets_a_service_manager_by_lingering(host: Host, mind: str, way: str) -> None:
    assert host.turn(mind, way)["result"]["exit"] != 0
    assert os.listdir("/var/lib/systemd/linger") == []


def test_another_user_may_linger(host: Host) -> None:
    assert as_user("zoe", "loginctl", "enable-linger", "zoe").returncode == 0
    assert as_user("zoe", "loginctl", "disable-linger", "zoe").returncode == 0


@pytest.mark.parametrize("way", MANAGER)
def test_a_service_manager_that_root_allowed_runs_things_outside_but_for_no_strict_mind(
    host: Host, way: str
) -> None:
    if way == next(iter(MANAGER)):
        run("loginctl", "enable-linger", "free", "eve")
        wait_for(Path(f"/run/user/{pwd.getpwnam('free').pw_uid}/systemd/private").exists)
        wait_for(lambda: refused("systemd-user"))
    assert host.gets_out("free", way)
    assert not host.gets_out("eve", way)


@pytest.mark.parametrize("way", [way for way in OTHERS if way != "crontab"])
def test_without_a_sandbox_other_services_run_things_outside_and_with_one_they_do_not(
    host: Host, way: str
) -> None:
    assert host.gets_out("free", way)
    assert not host.gets_out("eve", way)


def test_what_was_prepared_before_or_by_others_is_refused_by_pam(host: Host) -> None:
    assert host.turn("free", "crontab")["result"]["exit"] == 0
    assert host.turn("eve", "crontab")["result"]["exit"] != 0
    run("crontab", "-u", "eve", str(crontab_of("eve")))
    assert as_user("eve", "sh", str(WAYS / "at")).returncode == 0
    starts_cron()
    wait_for(lambda: (LOOT / "free-crontab").exists())
    wait_for(lambda: refused("cron") and refused("atd"))
    assert not (LOOT / "eve-crontab").exists()
    assert not (LOOT / "eve-at").exists()


def crontab_of(user: str) -> Path:
    file = WAYS / f"crontab-{user}"
    file.write_text(f"@reboot {OUT} crontab\n")
    return file


def refused(service: str) -> bool:
    """Whether PAM has said that it refuses a service to eve."""
    by = [f"--identifier={name}" for name in ("CRON", "atd", "(systemd)")]
    said = run("journalctl", "--boot", "--output=cat", *by).stdout
    return f"pam_listfile({service}:account): Refused user eve for service {service}" in said


def doctor(host: Host) -> dict[str, Any]:
    said = host.guard.cli("doctor", "--json", check=False).stdout  # it fails for a problem
    return {check["name"]: check for check in json.loads(said)["checks"]}


def test_the_doctor_names_every_way_and_what_to_type(host: Host) -> None:
    checks = doctor(host)
    assert checks["sandbox"]["level"] == "ok"
    for name, mend in {
        "linger": "loginctl disable-linger free",
        "cron": "echo free >>/etc/cron.deny",
        "containers": "gpasswd --delete free docker",
        "ssh_keys": "rm /home/free/.ssh/authorized_keys",
    }.items():
        assert checks[name]["level"] == "warning"
        assert any(line.startswith(mend) for line in checks[name]["mend"])
        assert "eve" not in checks[name]["found"]


def test_a_mind_whose_user_has_a_service_manager_is_held_until_that_has_ended(host: Host) -> None:
    host.guard.configure(config().replace('user = "free"', f'user = "free"\n{STRICT}'))
    host.guard.reload()
    row = host.send("@free", "systemd_run")
    (problem,) = [one for one in host.get("/v1/status")["problems"] if one["code"] == "mind_broken"]
    fix = "loginctl disable-linger free; loginctl terminate-user free"
    assert f"outside its sandbox: run {fix}" in problem["text"]
    found = doctor(host)["sandbox"]
    assert (found["level"], found["mend"]) == ("problem", [fix])
    (LOOT / "free-systemd_run").unlink()
    run("sh", "-c", fix)
    wait_for(lambda: not Path(f"/sys/fs/cgroup/user.slice/user-{pwd.getpwnam('free').pw_uid}.slice").exists())
    host.guard.reload()
    (ended,) = host.done(row)
    assert ended["result"]["exit"] != 0
    assert not (LOOT / "free-systemd_run").exists()


def test_without_the_option_pam_admits_the_user_again(host: Host) -> None:
    host.guard.configure(config(more=""))
    host.guard.reload()
    assert host.gets_out("eve", "ssh")
