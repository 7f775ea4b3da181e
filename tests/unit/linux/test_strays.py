"""Where processes of a user count as outside. The cgroups are folders, the processes real ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from trees import build

from hostguard.core.clock import Clock
from hostguard.linux import strays
from hostguard.linux.process import process

UID = os.geteuid()
OWN = f"user.slice/user-{UID}.slice"
NOW = Clock("0" * 32).ticks()


@pytest.fixture(scope="module")
def pid():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as found:
        yield found.pid
        found.communicate(b"\n", timeout=10)


@pytest.mark.parametrize(
    ("place", "unit"),
    [
        (f"{OWN}/session-3.scope", "session-3.scope"),
        (f"{OWN}/user@{UID}.service", f"user@{UID}.service"),
        (f"{OWN}/user@{UID}.service/app.slice/run-u1.service", f"user@{UID}.service"),
        ("system.slice/cron.service", "cron.service"),
        ("system.slice/cron-ada-0.service", "cron-ada-0.service"),
        ("system.slice/atd.service/below", "atd.service"),
        ("system.slice/ssh.service", "ssh.service"),
        ("system.slice/system-ssh.slice/ssh@1-127.0.0.1:22.service", "system-ssh.slice"),
        ("system.slice/dropbear.service", "dropbear.service"),
        ("system.slice/system-backup.slice/backup@1.service", None),
        ("system.slice/backup.service", None),
        ("system.slice/crontabs.service", None),
        (f"user.slice/user-{UID + 1}.slice/session-3.scope", None),
        ("hostguard.slice/hostguard-m.slice/hostguard-turn-m-1.scope", None),
        ("machine.slice/box.scope", None),
        ("", None),
    ],
)
def test_a_process_of_the_user_counts_in_its_own_slice_and_in_services_that_start_jobs(
    tmp_path, pid, place, unit
):
    build(tmp_path, {f"{place}/cgroup.procs".lstrip("/"): f"{pid}\n4194305\n"})
    found = strays.strays(UID, 0, tmp_path)
    assert [(one.process, one.place, one.own) for one in found] == (
        [] if unit is None else [(process(pid), unit, place.startswith(OWN))]
    )
    assert all(one.name.startswith("python") for one in found)


@pytest.mark.parametrize(("place", "counts"), [("system.slice/cron.service", False), ("OWN", True)])
def test_of_a_service_only_the_users_processes_count_but_in_its_own_slice_all(tmp_path, pid, place, counts):
    """In the own slice others are of its making: users in its containers, for example."""
    place = place.replace("OWN", f"user.slice/user-{UID + 1}.slice/user@{UID + 1}.service")
    build(tmp_path, {f"{place}/cgroup.procs": f"{pid}\n"})
    assert bool(strays.strays(UID + 1, 0, tmp_path)) is counts


def test_what_began_before_does_not_count(tmp_path, pid):
    build(tmp_path, {f"{OWN}/session-3.scope/cgroup.procs": f"{pid}\n"})
    began = process(pid).started * 1000 // os.sysconf("SC_CLK_TCK")
    assert strays.strays(UID, began, tmp_path)
    assert strays.strays(UID, began + 9, tmp_path), "the kernel's clock ticks every 10 ms"
    assert not strays.strays(UID, began + 10, tmp_path)


def test_the_homes_of_servers_do_not_count(tmp_path, pid):
    place = f"{OWN}/user@{UID}.service/app.slice/mind.service"
    build(tmp_path, {f"{place}/below/cgroup.procs": f"{pid}\n"})
    assert strays.strays(UID, 0, tmp_path, {tmp_path / f"{OWN}/session-3.scope"})
    assert not strays.strays(UID, 0, tmp_path, {tmp_path / place})


def test_of_very_many_only_some_are_found_at_once_and_none_that_is_known(tmp_path, pid):
    for number in range(strays.MOST + 9):  # in truth a process is in one cgroup
        build(tmp_path, {f"{OWN}/session-{number}.scope/cgroup.procs": f"{pid}\n"})
    assert len(strays.strays(UID, 0, tmp_path)) == strays.MOST
    assert strays.strays(UID, 0, tmp_path, known={process(pid)}) == []


@pytest.mark.parametrize("place", [f"{OWN}/user@{UID}.service/init.scope", "system.slice/cron.service"])
def test_the_helpers_of_a_service_manager_do_not_count_there(tmp_path, monkeypatch, pid, place):
    program = os.readlink(f"/proc/{pid}/exe")
    assert program.startswith("/usr/")
    monkeypatch.setattr(strays, "HELPERS", {os.path.basename(program)})
    build(tmp_path, {f"{place}/cgroup.procs": f"{pid}\n"})
    assert bool(strays.strays(UID, 0, tmp_path)) is place.startswith("system")


@pytest.mark.parametrize("where", ["init.scope/", ""])
def test_of_a_place_with_too_much_to_look_at_one_process_stands_for_all(tmp_path, pid, where, monkeypatch):
    monkeypatch.setattr(strays, "LOOKED_MAX", 22)
    manager = f"{OWN}/user@{UID}.service"
    files = {f"{manager}/c{number}/cgroup.procs": "" for number in range(18)}
    build(tmp_path, {**files, f"{manager}/{where}cgroup.procs": f"{pid}\n"})
    now = 1 << 40
    assert strays.strays(UID, now, tmp_path) == [], "it began before"
    build(tmp_path, {f"{manager}/c{number}/cgroup.procs": "" for number in range(18, 30)})
    [found] = strays.strays(UID, now, tmp_path)
    assert (found.process, found.place, found.own) == (process(pid), f"user@{UID}.service", True)
    assert strays.strays(UID, now, tmp_path, known={process(pid)}) == [], "somebody lets it be"
