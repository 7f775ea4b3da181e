"""hostguard volute: what it finds, what it writes, and what it says."""

from __future__ import annotations

import json
import os
import pwd
import re
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hostguard.cli.errors import CliError
from hostguard.cli.volute import find, host, state, texts
from hostguard.cli.volute.state import Connections, Mind, Seen
from hostguard.core.model import Volute

ROOT = Path(__file__).parents[3]
VOLUTE = Volute("/var/lib/volute")

# As `systemctl show` says it of the unit that Volute's own setup writes (systemd 252).
SHOWN = """Id=volute.service
LoadState=loaded
ActiveState=active
User=
Environment=PATH=/usr/bin:/bin VOLUTE_HOME=/var/lib/volute VOLUTE_MINDS_DIR=/minds "NOTE=a b"
ExecStart={ path=/usr/bin/volute ; argv[]=/usr/bin/volute up --foreground ; ignore_errors=no ; pid=9 }
MainPID=0
Delegate=no
"""
OTHER = SHOWN.replace("volute.service", "mine.service")
STRANGER = """Id=cron.service
LoadState=loaded
ActiveState=active
ExecStart={ path=/usr/sbin/cron ; argv[]=/usr/sbin/cron -f ; pid=0 }
"""
GONE = "Id=volute.service\nLoadState=not-found\nActiveState=inactive\nDelegate=no\n"


# -- what is found


def test_the_service_of_volute_s_own_setup_is_found() -> None:
    found = find.chosen(find.services("\n".join([GONE, STRANGER, SHOWN, SHOWN])))
    assert found is not None
    assert (found.name, found.active, found.delegate, found.home) == (
        "volute.service", True, False, "/var/lib/volute",
    )  # fmt: skip
    assert found.environment["NOTE"] == "a b"


def test_a_service_of_another_name_is_found_by_what_it_starts() -> None:
    found = find.chosen(find.services("\n".join([GONE, STRANGER, OTHER])))
    assert found is not None
    assert found.name == "mine.service"


def test_no_service_and_several() -> None:
    assert find.chosen(find.services("\n".join([GONE, STRANGER]))) is None
    ours = OTHER.replace("mine.service", "hostguard-mind@volute.service")
    assert find.chosen(find.services(ours)) is None
    with pytest.raises(CliError, match=r"mine\.service, other\.service"):
        find.chosen(find.services("\n".join([OTHER, OTHER.replace("mine", "other")])))


def test_a_service_without_a_home_has_that_of_its_user() -> None:
    me = pwd.getpwuid(os.getuid())
    (found,) = find.services(SHOWN.replace("VOLUTE_HOME", "ANY").replace("User=", f"User={me.pw_name}"))
    assert found.home == f"{me.pw_dir}/.volute"
    with pytest.raises(CliError, match="there is no user 'nobody-there'"):
        assert replace(found, user="nobody-there").home


def test_the_environment_is_that_of_the_process() -> None:
    (found,) = find.services(SHOWN)
    assert find.as_it_runs(found) == found
    with subprocess.Popen(["sleep", "60"], env={"VOLUTE_HOME": "/from/a/file"}) as process:
        try:
            assert find.as_it_runs(replace(found, pid=process.pid)).home == "/from/a/file"
        finally:
            process.kill()


PORTS = [
    ({}, {}, (4100, 4199)),
    ({"VOLUTE_BASE_PORT": "5000"}, {"ada": 5000}, (5000, 5099)),
    ({}, {"ada": 4100, "bob": 4210}, (4100, 4210)),
    ({"VOLUTE_BASE_PORT": "5000"}, {"ada": 4400}, (4400, 5099)),  # it was another one when ada was made
    ({"VOLUTE_BASE_PORT": "no"}, {}, (4100, 4199)),
    ({"VOLUTE_BASE_PORT": "65500"}, {}, (65500, 65535)),
]


@pytest.mark.parametrize(("environment", "minds", "wanted"), PORTS)
def test_the_ports_hold_the_minds_and_those_to_come(
    environment: dict[str, str], minds: dict[str, int], wanted: tuple[int, int]
) -> None:
    assert find.ports(environment, find.Registry(minds, None)) == wanted


def test_the_guard_s_own_port_is_refused_among_those_of_minds() -> None:
    with pytest.raises(CliError, match="4250 to 4349, include 4301"):
        find.ports({"VOLUTE_BASE_PORT": "4250"}, find.Registry({}, None))


def test_a_local_installation_is_refused_with_the_reason_and_the_way_out() -> None:
    me = pwd.getpwuid(os.getuid())
    text = find.not_found(me.pw_name).message
    assert f"{me.pw_dir}/.config/systemd/user/volute.service" in text
    assert "own service manager" in text
    assert f"User={me.pw_name} and Environment=VOLUTE_HOME={me.pw_dir}/.volute" in text
    assert "started with volute up" in find.not_found(None).message


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of Volute with two minds, and a daemon."""
    (tmp_path / "system").mkdir()
    with closing(sqlite3.connect(tmp_path / "system/volute.db")) as db, db:
        db.execute("CREATE TABLE minds (name TEXT PRIMARY KEY, port INTEGER NOT NULL)")
        db.executemany("INSERT INTO minds VALUES (?, ?)", [("ada", 4100), ("bob", 4101)])
    (tmp_path / "system/daemon.json").write_text('{"port": 1618, "token": "secret"}')
    return tmp_path


def test_the_registry_is_read(home: Path) -> None:
    assert find.registry(str(home)) == find.Registry({"ada": 4100, "bob": 4101}, 1618)
    (home / "system/daemon.json").unlink()
    assert find.registry(str(home)).daemon is None


def test_a_registry_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=re.escape(f"{tmp_path}/system/volute.db")):
        find.registry(str(tmp_path))


# -- what is written


def test_the_rules_redirect_new_connections_of_this_host_to_the_ports_of_minds() -> None:
    text = texts.table((4100, 4199), 1618, False)
    assert text.splitlines()[1:3] == ["table inet hostguard", "delete table inet hostguard"]
    rules = [line.strip() for line in text.splitlines() if line.startswith(" " * 8) and "#" not in line]
    assert rules == [
        "type nat hook output priority -101; policy accept;",
        'oifname != "lo" return',
        "meta mark 0x4847 return",
        "tcp flags & (fin | syn | rst | ack) != syn return",
        "tcp dport 4100-4199 redirect to :4301",
    ]


def test_the_daemon_s_own_port_is_left_alone_among_those_of_minds() -> None:
    assert "        tcp dport 4150 return\n" in texts.table((4100, 4199), 4150, False)
    assert "4099" not in texts.table((4100, 4199), 4099, False)


def test_what_is_not_local_is_dropped_on_demand() -> None:
    assert "drop" not in texts.table((4100, 4199), None, False)
    assert '        iifname != "lo" tcp dport 4100-4199 drop\n' in texts.table((4100, 4199), None, True)


def test_the_drop_in_orders_volute_after_the_redirection_and_delegates() -> None:
    lines = texts.drop_in().splitlines()
    assert "After=hostguard-front.socket hostguard-volute.service" in lines
    assert "Wants=hostguard-front.socket hostguard-volute.service" in lines
    assert "Delegate=yes" in lines
    assert "hostguard-volute" not in texts.drop_in(redirected=False)
    assert "Delegate=yes" in texts.drop_in(redirected=False).splitlines()


def test_the_section_is_what_the_guard_reads() -> None:
    volute = Volute('/srv/a "b"', "mine.service", (5000, 5099))
    found = tomllib.loads(texts.configuration(volute))
    assert found == {"volute": {"home": volute.home, "unit": volute.unit, "ports": [5000, 5099]}}


def test_the_unit_loads_and_unloads_the_same_rules() -> None:
    unit = (ROOT / "units/hostguard-volute.service").read_text()
    assert f'ExecStop={host.NFT} "{texts.STRAIGHT}"\n' in unit
    assert f"ExecStart={host.NFT} -f {host.RULES}\n" in unit
    assert f"ExecReload={host.NFT} -f {host.RULES}\n" in unit
    sockets = (ROOT / f"units/{texts.SOCKET}").read_text()
    assert f"ListenStream=127.0.0.1:{texts.FRONT_PORT}\nListenStream=[::1]:{texts.FRONT_PORT}\n" in sockets
    assert re.search(r"^WantedBy=.*\bhostguard.service\b", sockets, re.M), (
        "the guard's restart must start them"
    )


def rule(chain: str, *parts: str, table: str = "hostguard", family: str = "inet") -> dict[str, object]:
    return {
        "rule": {"family": family, "table": table, "chain": chain, "expr": [{part: None} for part in parts]}
    }


LISTED = [
    ([], (False, False)),
    ([rule("output", "match", "redirect")], (True, False)),
    ([rule("output", "match", "return")], (False, False)),
    ([rule("output", "redirect"), rule("input", "match", "drop")], (True, True)),
    ([rule("output", "redirect", table="nat"), rule("input", "drop", table="filter")], (False, False)),
    ([rule("output", "redirect", family="ip")], (False, False)),
]


@pytest.mark.parametrize(("rules", "wanted"), LISTED)
def test_only_our_own_table_counts(rules: list[object], wanted: tuple[bool, bool]) -> None:
    listed = json.dumps({"nftables": [{"metainfo": {}}, {"table": {"name": "hostguard"}}, *rules]})
    assert texts.redirects(listed) == wanted


# -- what is said

ADA, BOB = Mind("ada", 4100, 3, 0, "mind_down"), Mind("bob", 4101, 1, 1, "mind_busy")
WHOLE = Seen(
    VOLUTE, "volute.service", active=True, delegate=True, sockets=True, loader=True, redirects=True, drops=False,
    daemon=1618, guard=True, minds=(ADA, BOB), connections=Connections(0, 0, 2),
)  # fmt: skip


def test_what_is_whole_has_no_problems() -> None:
    assert [*state.problems(WHOLE)] == []
    said = "\n".join(state.lines(WHOLE))
    assert said.startswith("guarded\n")
    assert "mind     ada, port 4100: 3 held (mind_down)" in said
    assert "events   2 of 2 minds" in said
    assert "can POST to minds past the gate" in said
    found = state.as_json(WHOLE)
    assert (found["guarded"], found["held"], found["mind_down"]) == (True, 4, 3)
    assert json.dumps(found)


PARTS = [
    (replace(WHOLE, unit=None), "volute.service does not run Volute"),
    (replace(WHOLE, delegate=False), "lacks Delegate=yes"),
    (replace(WHOLE, guard=False, minds=(), connections=None), "the guard does not run"),
    (replace(WHOLE, sockets=False), "hostguard-front.socket does not listen"),
    (replace(WHOLE, redirects=False), "the table inet hostguard redirects nothing"),
    (replace(WHOLE, loader=False), "not loaded at the next boot"),
    (replace(WHOLE, fault="no sockets"), "no sockets"),
    (replace(WHOLE, connections=Connections(0, 0, 1)), "does not receive the events of 1 of 2 minds"),
]


@pytest.mark.parametrize(("seen", "wanted"), PARTS)
def test_each_part_that_is_missing_is_a_problem_of_its_own(seen: Seen, wanted: str) -> None:
    ((text, fix),) = state.problems(seen)
    assert wanted in text
    assert fix
    assert not state.as_json(seen)["guarded"]
    assert next(state.lines(seen)) == "guarded in part"
    assert f"problem: {text}: {fix}" in [*state.lines(seen)]


def test_only_root_sees_the_table_and_the_connections() -> None:
    seen = replace(WHOLE, redirects=None, drops=None, connections=None)
    assert [*state.problems(seen)] == []
    assert sum("use sudo" in line for line in state.lines(seen)) == 3
    assert state.as_json(seen)["table"] is None


def test_a_host_that_is_not_guarded() -> None:
    assert [*state.lines(Seen(None, "volute.service"))] == [
        "not guarded", "Volute runs as volute.service: sudo hostguard volute guard",
    ]  # fmt: skip
    assert "service of eve alone" in [*state.lines(Seen(None, None, "eve"))][1]
    assert [*state.lines(Seen(None, None))][1] == "no service of this host runs Volute"
    assert not state.as_json(Seen(None, None))["configured"]


def test_what_still_needs_the_guard_is_counted() -> None:
    assert [*state.left((), Connections())] == []
    assert [line.split(":")[0] for line in state.left((ADA, BOB), Connections(through=1))] == [
        "4 messages held", "1 turn", "1 connection through the guard",
    ]  # fmt: skip


# -- the command


def cli(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hostguard", *args], cwd=ROOT, env={**os.environ, **env},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("verb", ["guard", "unguard"])
def test_a_guard_of_a_user_s_manager_cannot(verb: str) -> None:
    done = cli("--user", "volute", verb)
    assert (done.returncode, "leave out --user" in done.stderr) == (1, True), done


@pytest.mark.parametrize("verb", ["guard", "unguard"])
def test_who_is_not_root_is_told_to_use_sudo(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CliError, match=f"sudo hostguard volute {verb}"):
        host.need_root(verb)


def test_a_missing_nft_is_named_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "NFT", "/nowhere/nft")
    with pytest.raises(CliError, match="apt-get install nftables"):
        host.need_nft("")
