"""Each of the doctor's checks, on a host that is well otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from doctor_hosts import (
    CGROUP2,
    EVERYTHING,
    MMC_MOUNTS,
    PI_MENDED,
    RUNNING,
    VIRTUAL,
    WANTED,
    Files,
    disk,
    host,
    levels,
    one,
)
from statuses import problem

from hostguard.cli import doctor
from hostguard.cli.doctor.checks import Level
from hostguard.core.model import Config, Limits, Mind


@pytest.mark.parametrize(
    ("files", "fields", "name", "level", "words"),
    [
        ({}, {"systemd": 247}, "systemd", Level.WARNING, "247"),
        ({}, {"faults": ("a.toml: cannot be read: Permission denied",)}, "config", Level.WARNING, "no permission to read it: a.toml"),
        ({}, {"faults": ("a.toml: limits.x: unknown key", "b")}, "config", Level.PROBLEM, "unknown key (and 1 more)"),
        (
            {},
            {"config": Config(minds={n: Mind(n, url=f"http://127.0.0.1:{n}") for n in "12345"})},
            "ports",
            Level.WARNING,
            "neither unit nor user is set: 1, 2, 3 and 2 more",
        ),
        ({}, {"daemon": None}, "daemon", Level.PROBLEM, "it is not running"),
        ({}, {"daemon": None, "daemon_fault": "you may not", "denied": True}, "daemon", Level.WARNING, "you may not"),
        ({}, {"daemon": None, "daemon_fault": "does not answer"}, "daemon", Level.PROBLEM, "does not answer"),
        ({}, {"daemon": RUNNING | {"state": "no_systemd"}}, "daemon", Level.PROBLEM, "cannot reach systemd"),
        (
            {},
            {"daemon": RUNNING | {"problems": [problem("queue_damaged", "queue.db was damaged"), problem("mind_down")]}},
            "daemon",
            Level.PROBLEM,
            "queue.db was damaged",
        ),
        ({}, {"daemon": RUNNING | {"problems": [problem("mind_failing", "ada 6 times")]}}, "daemon", Level.WARNING, "ada 6"),
        (
            {},
            {"daemon": RUNNING | {"device": {"path": "auto", "node": None, "reason": "whose device /sys does not know"}}},
            "device",
            Level.PROBLEM,
            "the daemon found no disk: whose device /sys does not know; this command found /dev/mmcblk0: ",
        ),
        (
            {},
            {"daemon": RUNNING | {"problems": [problem("no_disk", "not watched: the kernel no longer has mmcblk0")]}},
            "device",
            Level.PROBLEM,
            "no longer has mmcblk0",
        ),
        (
            {},
            {"daemon": RUNNING | {"enforcement": [{"limit": "io_weight", "label": "inert", "why": "so"}]}},
            "limits",
            Level.PROBLEM,
            "io_weight without effect (so)",
        ),
        (
            {},
            {"daemon": RUNNING | {"enforcement": [{"limit": "io_weight", "label": "partial", "why": "so"}]}},
            "limits",
            Level.WARNING,
            "io_weight in part (so)",
        ),
        ({"sys/fs/cgroup/hostguard.slice/hostguard.service/cgroup.procs": "1\n"}, {}, "place", Level.PROBLEM, "is in"),
        ({"proc/self/mountinfo": MMC_MOUNTS}, {}, "cgroup", Level.PROBLEM, "version 2 is not mounted"),
        (
            {
                "proc/self/mountinfo": "31 25 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
                "32 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" + MMC_MOUNTS,
                "proc/cmdline": "quiet systemd.unified_cgroup_hierarchy=0\n",
            },
            {},
            "cgroup",
            Level.PROBLEM,
            "next to version 1",
        ),
        ({"proc/self/mountinfo": CGROUP2.replace("rw", "ro") + MMC_MOUNTS}, {}, "cgroup", Level.PROBLEM, "read-only"),
        ({"proc/sys/kernel/hung_task_panic": "1\n"}, {}, "hung_task", Level.WARNING, "waits 120 s"),
        ({"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS.replace("rw", "ro")}, {}, "file_system", Level.PROBLEM, "/, which holds the queue, is read-only"),
        (
            {"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS.replace("rw,noatime", "rw,sync,noatime")},
            {},
            "file_system",
            Level.WARNING,
            "/ is mounted with sync",
        ),
        (
            {"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS.replace("mmcblk0p2 rw", "mmcblk0p2 rw,discard")},
            {},
            "file_system",
            Level.WARNING,
            "/ is mounted with discard",
        ),
        (
            {"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS + "60 25 0:61 / /var rw - tmpfs tmpfs rw\n"},
            {},
            "file_system",
            Level.WARNING,
            "in memory (tmpfs on /var)",
        ),
        (
            {"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS + "60 25 0:61 / /var rw - nfs4 nas:/var rw\n"},
            {},
            "file_system",
            Level.WARNING,
            "is on another machine (nfs4 on /var, from nas:/var)",
        ),
        ({}, {"free": (100 << 20, 1 << 34)}, "space", Level.WARNING, "100 of 16384 MiB"),
        ({}, {"free": (10 << 20, 1 << 34)}, "space", Level.PROBLEM, "10 of 16384 MiB"),
        (
            {"proc/swaps": "Filename Type Size Used Priority\n/var/swap file 102396 1024 -2\n", "etc/dphys-swapfile": ""},
            {},
            "swap",
            Level.WARNING,
            "/var/swap, 1 MiB used",
        ),
        ({"etc/systemd/journald.conf.d/50-keep.conf": "[Journal]\nStorage=persistent\n"}, {}, "journal", Level.WARNING, "mmcblk0"),
        (
            {"sys/fs/cgroup/cgroup.controllers": "cpu io pids\n", "boot/firmware/cmdline.txt": Path("none")},
            {},
            "memory_controller",
            Level.WARNING,
            "cgroup_disable=memory disables it",
        ),
    ],
)  # fmt: skip
def test_one_thing_wrong(
    tmp_path: Path, files: Files, fields: Mapping[str, Any], name: str, level: Level, words: str
) -> None:
    checks = doctor.examine(host(tmp_path, {**PI_MENDED, **files}, **fields))
    assert levels(checks) == {name: level}
    assert checks[0].name == name
    assert words in checks[0].found
    assert checks[0].mend


@pytest.mark.parametrize(
    ("files", "fields", "name"),
    [
        ({}, {"config": Config(device_path="none")}, "device"),
        ({"etc/systemd/journald.conf.d/30-keep.conf": "[Journal]\nStorage=persistent\n"}, {}, "journal"),  # 40- wins
        ({"etc/systemd/journald.conf": "[Journal]\nStorage=persistent\n"}, {}, "journal"),  # a drop-in wins
        ({"proc/sys/vm/dirty_bytes": "0\n", "proc/sys/vm/dirty_ratio": "1\n"}, {}, "dirty_pages"),
        ({"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS + "9 25 179:2 / /m ro - ext4 /dev/mmcblk0p2 ro,sync\n"}, {}, "file_system"),
        ({}, {"free": (0, 0)}, "space"),
        ({}, {"config": Config()}, "cap"),  # the daemon's own cap, set with hostguard limit, counts
        ({"proc/self/mountinfo": CGROUP2 + MMC_MOUNTS.replace("rw", "ro") + MMC_MOUNTS}, {}, "file_system"),  # hidden
    ],
)  # fmt: skip
def test_what_is_no_matter(tmp_path: Path, files: Files, fields: Mapping[str, Any], name: str) -> None:
    assert one(doctor.examine(host(tmp_path, {**PI_MENDED, **files}, **fields)), name).level is Level.OK


def test_a_guard_that_does_not_start_at_boot(tmp_path: Path) -> None:
    files = {name: text for name, text in PI_MENDED.items() if name not in WANTED}
    assert levels(doctor.examine(host(tmp_path, files))) == {"daemon": Level.WARNING}


def test_weights_act_with_bfq(tmp_path: Path) -> None:
    files = {
        **PI_MENDED,
        "sys/devices/platform/emmc2bus/fe340000.mmc/block/mmcblk0/queue/scheduler": "none [bfq]\n",
    }
    checks = doctor.examine(host(tmp_path, files, config=EVERYTHING))
    assert levels(checks) == {}
    assert one(checks, "scheduler").found == "bfq, weights applied by BFQ"


def test_limits_that_were_not_read_back_are_not_called_enforced(tmp_path: Path) -> None:
    config = Config(global_concurrent_turns=2, turn=Limits(write_bandwidth=1, tasks_max=9))
    checks = doctor.examine(host(tmp_path, PI_MENDED, config=config, daemon=None))
    assert one(checks, "limits").found == "write_bandwidth, tasks_max, not read back yet"


@pytest.mark.parametrize(
    ("bus", "rotational", "slow"),
    [("usb1/1-1", "0", True), ("ata1", "1", True), ("ata1", "0", False)],
)
def test_which_sd_disks_are_easily_kept_busy(tmp_path: Path, bus: str, rotational: str, slow: bool) -> None:
    files = {**VIRTUAL, **disk("sda", 8, "sda1", bus=f"pci0000:00/{bus}", schedulers="[mq-deadline]")}
    files[f"sys/devices/pci0000:00/{bus}/block/sda/queue/rotational"] = f"{rotational}\n"
    assert host(tmp_path, files, (8, 1)).slow is slow


def process(pid: int, cgroup: str, uid: int = 0, environ: str = "") -> dict[str, str | Path]:
    return {
        f"proc/{pid}/cgroup": f"0::{cgroup}\n",
        f"proc/{pid}/status": f"Name:\tp{pid}\nUmask:\t0022\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n",
        f"proc/{pid}/environ": environ,
    }


IN_TURN = "/hostguard.slice/hostguard-ada.slice/hostguard-turn-ada-1.scope"
TURN = "HOME=/\0HOSTGUARD_TURN=17\0"


@pytest.mark.parametrize(
    ("tree", "stray", "why"),
    [
        (process(7, IN_TURN, 1001, TURN), False, "a turn"),
        (process(7, "/system.slice/cron.service", 0, TURN), True, "a turn's process that got away"),
        (process(7, "/system.slice/hostguard.service", 0, TURN), False, "the guard's own"),
        (process(7, "/system.slice/docker.service", 1001), True, "a mind's user in a service"),
        (process(7, "/system.slice/bob.service", 1002), False, "a resident mind's server"),
        (process(7, "/system.slice/bob.service/below", 1002), False, "below a resident mind's server"),
        (process(7, "/user.slice/user-1001.slice/session-3.scope", 1001), False, "somebody who logged in"),
        (
            process(7, "/user.slice/user-1001.slice/user@1001.service/app.slice/run-r1.scope", 1001),
            True,
            "systemd-run",
        ),
        (process(7, "/system.slice/cron.service", 1003), False, "not a mind"),
        (process(7, "/", 1001), False, "a thread of the kernel"),
    ],
)
def test_processes_of_minds_outside_the_slice(tmp_path: Path, tree: Files, stray: bool, why: str) -> None:
    minds = {
        "ada": Mind("ada", command=("/bin/true",), user="ada", uid=1001),
        "bob": Mind("bob", url="http://127.0.0.1:1", unit="bob.service", user="bob", uid=1002),
        "r": Mind("r", command=("/bin/true",), user="root", uid=0),
    }
    config = Config(global_concurrent_turns=2, minds=minds)
    checks = doctor.examine(host(tmp_path, {**PI_MENDED, **tree}, config=config))
    assert levels(checks) == ({"strays": Level.WARNING} if stray else {}), why
    assert ("7 p7 in " in one(checks, "strays").found) is stray


def test_of_many_strays_some_are_named(tmp_path: Path) -> None:
    files = dict(PI_MENDED)
    for pid in (12, 9, 10, 11, 13):
        files |= process(pid, "/system.slice/cron.service", 0, TURN)
    found = one(doctor.examine(host(tmp_path, files)), "strays").found
    assert found.endswith(": 9 p9 in cron.service, 10 p10 in cron.service, 11 p11 in cron.service and 2 more")
