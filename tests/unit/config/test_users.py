"""The lists of minds' users that polkit and PAM read, and what a strict sandbox needs of the configuration and the host."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hostguard.config import load as config
from hostguard.config import on_host, users
from hostguard.config.dump import as_dict
from hostguard.core import paths
from hostguard.core.errors import ConfigError
from hostguard.core.model import Config, Mind
from hostguard.linux import cgroup

PACKAGING = Path(__file__).parents[3] / "packaging"
NOBODY = '[minds.{}]\ncommand = ["/bin/true"]\nuser = "nobody"\n'
STRICT = 'sandbox = "strict"\n'
CONFINED = "account required pam_permit.so\naccount\trequired\tpam_listfile.so item=user file=/var/lib/hostguard/confined \n"
Write = Callable[..., Path]


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nada:x:7:7::/:\nalias:x:7:7::/:\ncay:x:8:8::/:\n\nodd\neve:x:9:9::/:\n"
    )
    monkeypatch.setattr(users, "PASSWD", tmp_path / "passwd")
    monkeypatch.setattr(users, "COMMON_ACCOUNT", tmp_path / "common-account")
    monkeypatch.setattr(paths, "MIND_USERS", tmp_path / "users")
    monkeypatch.setattr(paths, "CONFINED", tmp_path / "confined")
    return tmp_path


def of(*minds: Mind) -> Config:
    return Config(minds={mind.name: mind for mind in minds})


ADA = Mind("a", user="ada", uid=7)
EVE = Mind("e", user="eve", uid=9, sandbox="strict")
GONE = Mind("g", user="gone", broken="there is no such user")
ROOT = Mind("r", user="root", uid=0)


def test_the_lists_have_all_names_of_the_users_but_root(lists: Path) -> None:
    users.publish(of(ADA, EVE, GONE, ROOT, Mind("none")))
    assert (lists / "users").read_text() == "ada\nalias\neve\ngone\n"
    assert (lists / "confined").read_text() == "eve\n"
    assert [(lists / name).stat().st_mode & 0o777 for name in ("users", "confined")] == [0o644, 0o600]


def test_a_list_is_written_only_when_it_changes_and_is_emptied_with_the_option(lists: Path) -> None:
    users.publish(of(ADA))
    assert not (lists / "confined").exists()
    users.publish(of(EVE))
    before = (lists / "confined").stat().st_ino
    users.publish(of(EVE, ADA))
    assert (lists / "confined").stat().st_ino == before
    users.publish(of(replace(EVE, sandbox="none")))
    assert (lists / "confined").read_text() == ""


def test_a_list_that_cannot_be_written_refuses_the_configuration(
    lists: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "CONFINED", lists / "gone/confined")
    with pytest.raises(ConfigError) as caught:
        users.publish(of(EVE))
    assert re.search("gone/.*: cannot be written: No such file", caught.value.problems[0])


@pytest.mark.parametrize(
    ("rules", "confined"),
    [
        (CONFINED, True),
        ("", False),
        (CONFINED.replace("account\trequired", "#account required"), False),
        (CONFINED.replace("/confined", "/confined-not"), False),
    ],
)
def test_what_pam_is_told(rules: str, confined: bool) -> None:
    assert users.confined_by(rules) is confined


def test_the_shipped_profile_and_rule_read_what_is_written() -> None:
    profile = (PACKAGING / "pam-configs/hostguard").read_text()
    assert users.confined_by(profile)
    assert "onerr=succeed" in profile  # nobody is locked out for lack of the list
    assert f'"{paths.MIND_USERS}"' in (PACKAGING / "polkit/50-hostguard.rules").read_text()


def test_a_strict_mind_is_broken_until_the_host_keeps_its_sandbox(
    lists: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = Mind("m", ("/bin/true",), user="nobody", sandbox="strict")
    assert "pam-auth-update --enable hostguard" in on_host.again(strict).broken
    (lists / "common-account").write_text(
        CONFINED.replace("/var/lib/hostguard/confined", str(paths.CONFINED))
    )
    assert on_host.again(strict).broken == ""
    monkeypatch.setattr(cgroup, "has_login", lambda uid: uid == 65534)
    assert on_host.again(strict).broken.endswith(
        "run loginctl disable-linger nobody; loginctl terminate-user nobody"
    )
    assert on_host.again(replace(strict, sandbox="none")).broken == ""


def test_a_strict_turn_is_in_no_group_that_controls_containers(
    monkeypatch: pytest.MonkeyPatch, lists: Path
) -> None:
    monkeypatch.setattr(os, "getgrouplist", lambda _user, group: [group, 42, 7])
    monkeypatch.setattr(users, "container_groups", lambda: frozenset({7}))
    assert on_host.with_user(Mind("m", user="nobody")).groups[1:] == (42, 7)
    strict = on_host.with_user(Mind("m", user="nobody", sandbox="strict"))
    assert strict.groups[1:] == (42,)
    (lists / "common-account").write_text(
        CONFINED.replace("/var/lib/hostguard/confined", str(paths.CONFINED))
    )
    assert "primary group" in (users.confinement_fault(replace(strict, gid=7)) or "")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (NOBODY.format("a").replace("nobody", "root") + STRICT, "a.sandbox: root can leave any sandbox"),
        ('[minds.a]\nurl = "http://127.0.0.1:1"\n' + STRICT, "a.sandbox: a mind with a sandbox needs a user"),
        (
            NOBODY.format("a") + STRICT + NOBODY.format("b"),
            'a.sandbox: the mind "b" has the same user, and no sandbox',
        ),
        (NOBODY.format("a") + 'sandbox = "loose"', 'found "loose"; allowed: one of "none", "strict"'),
    ],
)
def test_a_sandbox_that_cannot_hold_is_refused(write: Write, text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load([write(text)])
    (only,) = caught.value.problems
    assert fault in only


def test_minds_that_share_a_user_may_all_be_strict(write: Write) -> None:
    found = config.load([write(NOBODY.format("a") + STRICT + NOBODY.format("b") + STRICT)])
    assert [mind.strict for mind in found.minds.values()] == [True, True]
    assert as_dict(found)["minds"]["a"]["sandbox"] == "strict"
