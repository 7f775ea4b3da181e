"""What the doctor says of whole hosts, and how the command shows it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from doctor_hosts import (
    BTRFS,
    CONTAINER,
    DEBIAN_CARD,
    ENCRYPTED,
    EVERYTHING,
    OVERLAY,
    PI,
    PI_CMDLINE,
    PI_MENDED,
    RUNNING,
    VIRTUAL,
    host,
    levels,
    one,
)
from trees import build

from hostguard.cli import doctor
from hostguard.cli.doctor.checks import OUTSIDE, Host, Level
from hostguard.cli.verbs.doctor import command, report
from hostguard.core.model import Config, Limits
from hostguard.linux.disk import of_btrfs


def test_a_host_without_a_mind_is_told_what_to_do_next(tmp_path: Path) -> None:
    first = replace(host(tmp_path, PI_MENDED), config=Config(global_concurrent_turns=2))
    checks = doctor.examine(first)
    assert levels(checks) == {"minds": Level.WARNING}
    assert [line.split(" ", 1)[0] for line in one(checks, "minds").mend] == ["hostguard"] * 3
    # What is in a configuration that cannot be read is not known.
    assert levels(doctor.examine(replace(first, faults=("x",)))) == {"config": Level.PROBLEM}


def test_debian_12_on_a_card(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, DEBIAN_CARD))
    assert levels(checks) == dict.fromkeys(("dirty_pages", "swap", "journal"), Level.WARNING)
    assert "lets 796 MB of writes wait in memory: 79 s for a card" in one(checks, "dirty_pages").found
    assert one(checks, "swap").mend[0].startswith("swapoff /dev/mmcblk0p1")
    assert "2 MiB used" in one(checks, "swap").found
    assert "/etc/systemd/journald.conf.d/90-hostguard.conf" in one(checks, "journal").mend[0]
    assert (
        one(checks, "device").found == "/var/lib/hostguard is on the partition mmcblk0p2, on the disk mmcblk0"
    )


def test_debian_12_on_a_card_with_every_limit(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, DEBIAN_CARD, config=EVERYTHING, daemon=None))
    assert one(checks, "scheduler").level is Level.PROBLEM
    assert 'KERNEL=="mmcblk0", ATTR{queue/scheduler}="bfq"' in one(checks, "scheduler").mend[0]
    assert one(checks, "limits").found.startswith("io_weight without effect (mmcblk0 has the scheduler mq-d")


def test_raspberry_pi_os_as_it_comes(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, PI, config=Config(), daemon=RUNNING | {"cap": None}))
    names = ("memory_controller", "psi", "cap", "dirty_pages")
    assert levels(checks) == dict.fromkeys(names, Level.WARNING)
    append = "sed -i '1s/$/ {}/' /boot/firmware/cmdline.txt"
    assert one(checks, "memory_controller").mend[0].startswith(append.format("cgroup_enable=memory"))
    assert one(checks, "psi").mend == (append.format("psi=1") + "    # it stays one line", "reboot")
    assert one(checks, "journal").found == "in memory"
    assert one(checks, "swap").found == "none on mmcblk0"


def test_raspberry_pi_os_with_every_limit(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, PI, config=EVERYTHING, daemon=None))
    problems = {name for name, level in levels(checks).items() if level is Level.PROBLEM}
    assert problems == {"daemon", "limits", "memory_controller", "scheduler"}
    found = one(checks, "limits").found
    assert "io_weight without effect (mmcblk0 has the" in found
    assert "write_bandwidth in part (" in found
    assert "memory_max without effect (" in found
    assert "tasks_max" not in found
    assert (
        one(checks, "scheduler").mend[0]
        == "# this kernel has no BFQ: use write_bandwidth instead of io_weight"
    )
    assert one(checks, "memory_controller").found.endswith("disables it: memory_max cannot take effect")


def test_raspberry_pi_os_mended_is_well_and_fits_on_a_screen(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, PI_MENDED))
    assert levels(checks) == {}
    lines = list(report(checks, 80))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80 + len("\x1b[32m\x1b[0m")
    assert all(check.name in " ".join(lines) for check in checks)


def test_an_option_that_was_added_waits_for_a_reboot(tmp_path: Path) -> None:
    files = {**PI, "boot/firmware/cmdline.txt": f"{PI_CMDLINE} psi=1 cgroup_enable=memory\n"}
    checks = doctor.examine(host(tmp_path, files))
    for name, option in (("psi", "psi=1"), ("memory_controller", "cgroup_enable=memory")):
        assert one(checks, name).mend == (f"reboot    # {option} is in /boot/firmware/cmdline.txt already",)


def test_a_kernel_without_psi_is_not_to_be_given_the_option_again(tmp_path: Path) -> None:
    files = {**PI, "proc/cmdline": f"{PI_CMDLINE} psi=1\n"}
    assert one(doctor.examine(host(tmp_path, files)), "psi").mend == (
        "# this needs a kernel with CONFIG_PSI",
    )


def test_a_virtual_machine(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, VIRTUAL, (254, 1), config=Config()))
    assert levels(checks) == {}  # its disk is taken for fast: no cap, pages and discard are its own affair


def test_swap_on_a_fast_disk_is_no_matter(tmp_path: Path) -> None:
    swaps = "Filename\tType\tSize\tUsed\tPriority\n/dev/vda1 partition\t999420\t2048\t-2\n"
    swap = one(doctor.examine(host(tmp_path, {**VIRTUAL, "proc/swaps": swaps}, (254, 1))), "swap")
    assert (swap.level, swap.found) == (Level.OK, "swap is on vda (/dev/vda1, 2 MiB used)")


def test_lvm_on_luks(tmp_path: Path) -> None:
    config = Config(turn=Limits(write_bandwidth=4_000_000, read_bandwidth=8_000_000))
    checks = doctor.examine(host(tmp_path, ENCRYPTED, (253, 1), config=config, daemon=None))
    assert levels(checks) == {"daemon": Level.PROBLEM, "limits": Level.WARNING}
    assert "write_bandwidth in part (nvme0n1 is encrypted" in one(checks, "limits").found
    assert "dm-1 (LVM vg-root), on dm-0 (encrypted nvme0n1p3_crypt), on the" in one(checks, "device").found


def test_btrfs_on_two_disks(tmp_path: Path) -> None:
    build(tmp_path, BTRFS)
    device = of_btrfs(tmp_path, "/dev/sda1", "/var/lib/hostguard is on", tmp_path / "sys")
    config = Config(turn=Limits(write_bandwidth=4_000_000, io_weight=50))
    checks = doctor.examine(host(tmp_path, {}, device=device, config=config, daemon=None))
    assert levels(checks) == dict.fromkeys(("daemon", "device", "limits"), Level.PROBLEM)
    assert "on several disks (sda, sdb); set path under [device]" in one(checks, "device").found


def test_a_users_own_manager_has_fewer_controllers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostguard.core.paths.USER", True)
    monkeypatch.setattr("os.getuid", lambda: 1001)
    manager = "sys/fs/cgroup/user.slice/user-1001.slice/user@1001.service"
    files = {
        **PI_MENDED,
        f"{manager}/cgroup.controllers": "cpu memory pids\n",
        "run/systemd/container": "lxc\n",
    }
    config = Config(turn=Limits(write_bandwidth=1, memory_max=1 << 20))
    checks = doctor.examine(host(tmp_path, files, config=config, daemon=None, user=True))
    assert one(checks, "io_controller").level is Level.PROBLEM
    assert (
        "the user manager has no io controller: write_bandwidth cannot take effect"
        in one(checks, "io_controller").found
    )
    mend = one(checks, "io_controller").mend[0]
    assert r"printf '[Service]\nDelegate=cpu io memory pids\n' >" in mend, "one line, as it is to be typed"
    assert one(checks, "memory_controller").level is Level.OK
    assert one(checks, "daemon").mend[0] == "systemctl --user enable --now hostguard"
    assert "write_bandwidth without effect (the user manager has no io" in one(checks, "limits").found


def test_a_container_with_systemd(tmp_path: Path) -> None:
    checks = doctor.examine(host(tmp_path, CONTAINER, device=OVERLAY, config=EVERYTHING, daemon=None))
    problems = {name for name, level in levels(checks).items() if level is Level.PROBLEM}
    assert problems == {"daemon", "device", "limits", "io_controller", "memory_controller"}
    for name in ("io_controller", "memory_controller"):
        assert one(checks, name).mend == (OUTSIDE,)


def test_a_container_without_systemd_hears_only_that(tmp_path: Path) -> None:
    [check] = doctor.examine(host(tmp_path, CONTAINER, device=OVERLAY, systemd=None))
    assert (check.name, check.level) == ("systemd", Level.PROBLEM)


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    ill = host(tmp_path, PI, config=EVERYTHING)
    monkeypatch.setattr(doctor, "this_host", lambda: ill)
    return ill


def test_the_screen_has_problems_first_then_warnings_then_what_is_well(shown: Host) -> None:
    result = CliRunner().invoke(command, standalone_mode=False)
    assert result.return_value == 1
    words = [line.split()[0] for line in result.output.splitlines() if not line.startswith(" ")]
    assert words == ["problem"] * 2 + ["warning"] * 2 + ["ok"]
    assert "\n         > sed -i '1s/$/ psi=1/' /boot/firmware/cmdline.txt    #" in result.output


def test_warnings_alone_are_no_failure(shown: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "this_host", lambda: replace(shown, config=Config()))
    assert CliRunner().invoke(command, standalone_mode=False).return_value == 0


def test_json_has_every_check(shown: Host) -> None:
    result = CliRunner().invoke(command, ["--json"], standalone_mode=False)
    told = json.loads(result.output)
    assert (result.return_value, told["ok"]) == (1, False)
    assert len(told["checks"]) == len(doctor.CHECKS)
    assert {*told["checks"][0]} == {"name", "level", "found", "why", "mend"}


def test_this_machine_can_be_examined() -> None:
    assert doctor.examine(doctor.this_host())
