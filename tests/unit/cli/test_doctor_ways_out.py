"""What the doctor finds of the ways out of a turn, and what it says to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doctor_hosts import VIRTUAL, Files, one
from doctor_hosts import host as any_host

from hostguard.cli.doctor import examine
from hostguard.cli.doctor.checks import Check, Level
from hostguard.core.model import Config, Mind

ADA = Mind("a", user="ada", uid=7, home="/home/ada", gid=70, groups=(70,))
BEA = Mind("b", user="bea", uid=8, home="/home/bea")
EVE = Mind("e", user="eve", uid=9, home="/home/eve", sandbox="strict")
ROOT = Mind("r", user="root", uid=0, home="/root")
CRON, AT = {"usr/bin/crontab": ""}, {"usr/bin/at": ""}
SSHD = {"usr/sbin/sshd": "", "etc/ssh/sshd_config": "# as Debian has it\nUsePAM yes\n"}
PAM = {"etc/pam.d/common-account": "account required pam_listfile.so file=/var/lib/hostguard/confined\n"}
STRICT = "# or, if nobody logs in as the user"


def host(*args: Any, **fields: Any) -> list[Check]:
    return examine(any_host(*args, **fields))


@pytest.mark.parametrize(
    ("files", "name", "words", "mend"),
    [
        ({"var/lib/systemd/linger/ada": ""}, "linger", "linger, so that systemd-run --user works without a login: ada", "loginctl disable-linger ada"),
        (CRON, "cron", "may use cron or at: ada, bea", "echo ada >>/etc/cron.deny"),
        ({**CRON, "etc/cron.deny": "bea\n"}, "cron", "at: ada", "echo ada >>/etc/cron.deny"),
        ({**CRON, "etc/cron.allow": "bea\n"}, "cron", "at: bea", "sed -i '/^bea$/d' /etc/cron.allow"),
        ({**AT, "etc/at.deny": "bea\ndaemon\n"}, "cron", "at: ada", "echo ada >>/etc/at.deny"),
        ({"var/spool/cron/crontabs/bea": "x"}, "cron", "at: bea", "crontab -r -u bea"),
        ({"etc/group": "docker:x:99:bea,eve\n"}, "containers", "(groups: docker): bea", "gpasswd --delete bea docker"),
        ({"etc/group": "lxd:x:70:\n"}, "containers", "(groups: lxd): ada", "gpasswd --delete ada lxd"),
        ({**SSHD, "home/ada/.ssh/authorized_keys": "ssh-ed25519 A"}, "ssh_keys", "to this host: ada", "rm /home/ada/.ssh/"),
        ({**SSHD, "home/ada/.ssh/authorized_keys2": Path("/dev/zero")}, "ssh_keys", "to this host: ada", "authorized_keys2"),
    ],
)  # fmt: skip
def test_a_way_out(tmp_path: Path, files: Files, name: str, words: str, mend: str) -> None:
    config = Config(minds={mind.name: mind for mind in (ADA, BEA, EVE, ROOT)})
    found = one(host(tmp_path, {**VIRTUAL, **PAM, **files}, config=config), name)
    assert found.level is Level.WARNING
    assert words in found.found
    assert found.mend[0].startswith(mend) or mend in found.mend[0]
    assert found.mend[-1].startswith(STRICT)
    assert "eve" not in f"{found.found}{found.mend}"
    assert "root" not in found.found.partition(": ")[2]


@pytest.mark.parametrize(
    "files",
    [
        {**CRON, "etc/cron.deny": "ada\nbea\n"},
        {**CRON, "etc/cron.allow": ""},
        AT,
        {**AT, "etc/at.allow": "root\n"},
        {"etc/group": "docker:x:99:other\nsudo:x:27:ada\n"},
        {**SSHD, "home/ada/.ssh/authorized_keys": ""},
        {"home/ada/.ssh/authorized_keys": "ssh-ed25519 A"},
        {"var/lib/systemd/linger/other": ""},
    ],
)
def test_no_way_out(tmp_path: Path, files: Files) -> None:
    config = Config(minds={mind.name: mind for mind in (ADA, BEA, EVE, ROOT)})
    there = host(tmp_path, {**VIRTUAL, **PAM, **files}, config=config)
    for name in ("linger", "cron", "containers", "ssh_keys", "sandbox", "shared_users"):
        assert one(there, name).level is Level.OK


def test_minds_of_one_user(tmp_path: Path) -> None:
    minds = {"x": Mind("x", user="ada", uid=7), "y": Mind("y", user="ada", uid=7), "b": BEA}
    found = one(host(tmp_path, VIRTUAL, config=Config(minds=minds)), "shared_users")
    assert (found.level, found.found) == (Level.WARNING, "x, y all run as ada")
    assert found.mend[0].startswith("useradd")


@pytest.mark.parametrize(
    ("files", "words", "mend"),
    [
        (
            {**PAM, **SSHD, "etc/ssh/sshd_config": "#UsePAM yes\n"},
            "sshd does not ask PAM about eve",
            "echo 'UsePAM yes'",
        ),
        (
            {
                **PAM,
                **SSHD,
                "etc/ssh/sshd_config": "UsePAM yes\n",
                "etc/ssh/sshd_config.d/a.conf": "usepam=no\n",
            },
            "sshd does not ask PAM about eve",
            "echo 'UsePAM yes' >/etc/ssh/sshd_config.d/00-hostguard.conf",
        ),
        ({}, "PAM does not confine eve", "pam-auth-update --enable hostguard"),
        (
            {**PAM, "sys/fs/cgroup/user.slice/user-9.slice/cgroup.events": "populated 1\nfrozen 0\n"},
            "left: eve",
            "loginctl disable-linger eve; loginctl terminate-user eve",
        ),
    ],
)
def test_a_sandbox_that_does_not_hold(tmp_path: Path, files: Files, words: str, mend: str) -> None:
    found = one(host(tmp_path, {**VIRTUAL, **files}, config=Config(minds={"e": EVE})), "sandbox")
    assert found.level is Level.PROBLEM
    assert found.mend[0].startswith(mend)
    assert words in found.found


def test_under_a_users_own_manager_there_is_nothing_to_keep_apart(tmp_path: Path) -> None:
    minds = {"x": Mind("x", user="ada", uid=7), "y": Mind("y", user="ada", uid=7)}
    files = {**VIRTUAL, **CRON, "var/lib/systemd/linger/ada": ""}
    there = host(tmp_path, files, config=Config(minds=minds), user=True)
    for name in ("linger", "cron", "containers", "ssh_keys", "sandbox", "shared_users"):
        assert one(there, name).level is Level.OK
