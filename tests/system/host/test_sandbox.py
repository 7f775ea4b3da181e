"""The guard's sandbox confines the guard, lets it do its work, and does not confine what it starts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from card import Card
from guard import Guard, run, systemctl, wait_for
from guarded import GuardedHost
from resident_host import ResidentHost

# What a turn sees of itself, as JSON on its output.
LOOK = """import json, os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    **{name: status[name].strip() for name in ("NoNewPrivs", "Seccomp", "CapBnd")},
    **{name: os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "net", "user")},
    "oom_score_adj": open("/proc/self/oom_score_adj").read().strip(),
    "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
    "fds": sorted(os.listdir("/proc/self/fd")),
}))
"""
CAPABILITIES = {"cap_dac_override", "cap_ipc_lock", "cap_kill", "cap_net_raw", "cap_sys_ptrace"}
NUMBERS = {1: "cap_dac_override", 5: "cap_kill", 13: "cap_net_raw", 14: "cap_ipc_lock", 19: "cap_sys_ptrace"}


@pytest.fixture
def host(guard: Guard) -> Iterator[GuardedHost]:
    Path("/run/look").write_text(LOOK)
    argv = json.dumps(["/usr/bin/python3", "-I", "/run/look"])
    guard.start(f'[minds.ada]\ncommand = {argv}\nuser = "root"\n')
    host = GuardedHost(guard)
    with host.api:
        yield host


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def inside(pid: int, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in the guard's mounts, with all capabilities."""
    command = ["nsenter", "--target", str(pid), "--mount", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def spawners() -> list[str]:
    listed = run("systemctl", "list-units", "--plain", "--no-legend", "--all", "hostguard-spawner-*").stdout
    return [line.split()[0] for line in listed.splitlines()]


def test_the_guard_can_do_little_but_its_work(host: GuardedHost) -> None:
    pid = host.guard.pid
    status = status_of(pid)
    bound = int(status["CapBnd"], 16)
    assert {NUMBERS.get(bit, str(bit)) for bit in range(64) if bound >> bit & 1} == CAPABILITIES
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    for folder in ("/etc", "/usr", "/run", "/root", "/home", "/var/lib", "/boot"):
        if Path(folder).is_dir():
            assert "Read-only file system" in inside(pid, f"touch {folder}/x").stderr
    own = "/var/lib/hostguard/x /run/hostguard/x"
    assert inside(pid, f"touch {own} && rm {own}").returncode == 0
    assert inside(pid, "ls /dev/loop0").returncode != 0


def test_nothing_of_the_sandbox_is_a_turns(host: GuardedHost) -> None:
    (row,) = host.done(host.send("@ada"))
    (line,) = host.guard.journal(
        f"_SYSTEMD_UNIT=hostguard-turn-ada-{row['id']}.scope", "SYSLOG_IDENTIFIER=ada"
    )
    told = json.loads(line["MESSAGE"])
    plain = json.loads(run("systemd-run", "--quiet", "--wait", "--pipe", "python3", "-I", "/run/look").stdout)
    assert told == {**plain, "fds": ["0", "1", "2", "3"]}
    assert told["mnt"] != os.readlink(f"/proc/{host.guard.pid}/ns/mnt")


def test_the_fork_server_comes_and_goes_with_its_guard(host: GuardedHost) -> None:
    (first,) = spawners()
    host.guard.restart()
    wait_for(lambda: len(spawners()) == 1)
    (second,) = spawners()
    assert second != first
    host.guard.kill()
    host.guard.restart()
    wait_for(lambda: len(spawners()) == 1 and spawners() != [second])
    host.guard.stop()
    wait_for(lambda: spawners() == [])
    host.guard.restart()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_another_fork_server_is_started_if_it_is_gone(host: GuardedHost, how: str) -> None:
    (first,) = spawners()
    systemctl(*([how] if how == "stop" else [how, "--signal=KILL"]), first)
    wait_for(lambda: spawners() == [])
    rows = [host.send("@ada", session=f"s{i}") for i in range(4)]
    host.done(*rows)
    (second,) = spawners()
    assert second != first


def test_the_disk_is_found_by_its_node_and_by_links_to_it(guard: Guard, card: Card) -> None:
    link = Path("/dev/disk/by-id/card")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(card.device, link.parent))
    guard.start()
    try:
        for path in (str(card.device), str(link)):
            guard.configure(f'[device]\npath = "{path}"\n')
            guard.reload()
            assert guard.json("status")["device"]["node"] == str(card.device)
    finally:
        link.unlink()


def test_routes_in_a_home_that_is_closed_to_others_are_read_and_followed(guard: Guard) -> None:
    run("useradd", "--create-home", "zoe")
    home = Path("/home/zoe")
    try:
        home.chmod(0o700)
        routes = home / "routes.json"
        routes.write_text('{"rules": [{"channel": "#x", "session": "first"}]}')
        run("chown", "zoe:", str(routes))
        routes.chmod(0o600)
        with ResidentHost(guard) as host:
            host.minds.add("m", config=f'routes = "{routes}"\nuser = "zoe"\n')
            host.start()
            test = ("route", "test", "m", "--channel", "#x")
            assert host.guard.json(*test)["session"] == "first"
            routes.write_text('{"rules": [{"channel": "#x", "session": "second"}]}')
            wait_for(lambda: host.guard.json(*test)["session"] == "second")
    finally:
        run("userdel", "--remove", "zoe")
