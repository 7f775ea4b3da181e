"""Whether it is the mind that listens: the rule, with the sockets and cgroups as tables."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest

from hostguard.core import paths
from hostguard.core.model import Mind
from hostguard.linux.cgroup import ROOT
from hostguard.linux.sockets import Socket
from hostguard.turns import mind_listener
from hostguard.turns.mind_listener import MindListeners, Unseen

HERE, THERE = ("127.0.0.1", 50000), ("127.0.0.1", 4100)
URL = "http://127.0.0.1:4100"
UNIT, USER = Mind("m", url=URL, unit="m.service"), Mind("m", url=URL, user="ada", uid=1000)
BOTH = Mind("m", url=URL, unit="m.service", user="ada", uid=1000)
NEITHER = Mind("m", url=URL)
IN_UNIT, BELOW = "system.slice/m.service", "hostguard.slice/hostguard-m.slice/m.service/workers"
ELSEWHERE, SESSION = "system.slice/x.service", "user.slice/user-1000.slice/session-3.scope"
FORGED = "user.slice/user-1001.slice/user@1001.service/app.slice/m.service"


class Host:
    """One listening process, pid 7, in a cgroup; `control_group` is systemd's."""

    control_group = ""

    def __init__(self, monkeypatch):
        self.ends, self.cgroup, self.searches = (Socket(1000, 9),), IN_UNIT, []
        monkeypatch.setattr(mind_listener, "SockDiag", lambda: nullcontext(self))
        monkeypatch.setattr(mind_listener, "holders", self.holders)
        monkeypatch.setattr(mind_listener, "home_of", lambda pid: ROOT / self.cgroup)
        monkeypatch.setattr(mind_listener, "_below", lambda home: [7] if home == ROOT / self.cgroup else [])
        monkeypatch.setattr(mind_listener, "described", lambda found, pids: f"uid {found.uid} {pids}")

    def other_end(self, local, peer):
        if isinstance(self.ends, OSError):
            raise self.ends
        return self.ends

    def holders(self, sockets, pids=None):
        self.searches.append(pids)
        return [7] if pids is None or 7 in pids else []


@pytest.fixture
def host(monkeypatch):
    return Host(monkeypatch)


@pytest.mark.parametrize(("mind", "uid", "cgroup", "ours"), [
    (UNIT, 1000, IN_UNIT, True),
    (UNIT, 100_000, BELOW, True),  # a container of the unit, with uids of its own
    (UNIT, 0, ELSEWHERE, True),  # docker-proxy
    (UNIT, 0, "init.scope", True),  # systemd listens for it until it is accepted
    (UNIT, 1000, SESSION, False),
    (UNIT, 1001, FORGED, False),  # a unit of that name of another service manager
    (BOTH, 1000, IN_UNIT, True),
    (BOTH, 1000, ELSEWHERE, False),  # another mind of the same user
    (BOTH, 1001, IN_UNIT, True),
    (USER, 1000, SESSION, True),
    (USER, 1001, IN_UNIT, False),
    (USER, 0, ELSEWHERE, True),
    (NEITHER, 1001, ELSEWHERE, True),  # nobody knows
])  # fmt: skip
def test_the_rule(host, mind, uid, cgroup, ours):
    host.ends, host.cgroup = (Socket(uid, 9),), cgroup
    found = MindListeners(host).stranger(mind, HERE, THERE)
    assert found == (None if ours else f"uid {uid} [7]")


def test_each_of_several_that_may_accept_it_must_be_the_minds(host):
    host.ends = (Socket(1000, 9), Socket(1001, 10))
    assert MindListeners(host).stranger(USER, HERE, THERE) == "uid 1001 [7]"
    host.ends = ()
    assert MindListeners(host).stranger(USER, HERE, THERE) is None


@pytest.mark.parametrize(("ends", "why"), [
    (None, "it is left before"), (OSError("no module; run: modprobe it"), "does not tell .*; run: modprobe it"),
])  # fmt: skip
def test_a_mind_whose_listener_is_not_seen_gets_nothing(host, ends, why):
    host.ends = ends
    for mind in (UNIT, USER):
        with pytest.raises(Unseen, match=why):
            MindListeners(host).stranger(mind, HERE, THERE)
        assert MindListeners(host).stranger(mind, ("192.0.2.1", 50000), ("192.0.2.2", 4100)) is None
    assert MindListeners(host).stranger(NEITHER, HERE, THERE) is None


def test_where_the_unit_was_found_is_searched_first(host):
    listeners = MindListeners(host)
    assert listeners.stranger(UNIT, HERE, THERE) is None
    assert listeners.stranger(UNIT, HERE, THERE) is None
    assert host.searches == [None, [7]]
    host.cgroup = BELOW
    assert listeners.stranger(UNIT, HERE, THERE) is None, "it is in another slice by now"


def test_under_a_users_manager_all_minds_are_that_user(host, monkeypatch):
    monkeypatch.setattr(paths, "USER", True)
    host.ends = (Socket(os.getuid() + 1, 9),)
    assert MindListeners(host).stranger(NEITHER, HERE, THERE) is not None
    host.ends = (Socket(os.getuid(), 9),)
    assert MindListeners(host).stranger(NEITHER, HERE, THERE) is None


def test_a_process_below_a_cgroup(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "cgroup.procs").write_text("5\n")
    (tmp_path / "a/cgroup.procs").write_text("6\n")
    assert sorted(mind_listener._below(tmp_path)) == [5, 6]
