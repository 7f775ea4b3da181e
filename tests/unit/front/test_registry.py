"""Volute's registry: what is read of it, by whom, and the minds that the guard has by it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hostguard.core.model import Config, Limits, Mind, Volute
from hostguard.front import registry_rows
from hostguard.front.registry import DaemonAddress, joined, known

PORTS = (4100, 4199)
VOLUTE = Volute("/var/lib/volute")


def test_minds_of_the_range_are_known() -> None:
    rows = [["ada", 4100], ["bob", 4199], ["out", 4200], [None, 4101], ["x", "4102"]]
    assert known(rows, None, PORTS).names == {4100: "ada", 4199: "bob"}


def test_a_name_that_the_guard_cannot_have_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert known([["x" * 49, 4100]], None, PORTS).names == {}
    assert "past the gate" in caplog.text


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ({"port": 1618, "token": "t", "hostname": "0.0.0.0"}, ("127.0.0.1", 1618)),
        ({"port": 443, "internalPort": 1619, "token": "t", "tls": True}, ("127.0.0.1", 1619)),
        ({"port": 1618, "token": "t", "hostname": "10.0.0.1"}, ("10.0.0.1", 1618)),
        ({"port": 1618}, None),
        ({"port": "x", "token": "t"}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_daemon_is_where_it_says(said: Any, address: tuple[str, int] | None) -> None:
    found = known([], said, PORTS).daemon
    assert found == (None if address is None else DaemonAddress(*address, "t"))
    assert "'t'" not in repr(found)  # a token is in no log


def test_minds_of_volute_are_minds_of_the_guard() -> None:
    turn = Limits(memory_max=1)
    config = Config(turn=turn, volute=VOLUTE, minds={"eve": Mind("eve", command=("/bin/x",))})
    minds = joined(config, {4100: "ada"}).minds
    assert minds["ada"] == Mind("ada", url="http://127.0.0.1:4100", volute="volute.service", limits=turn)
    assert minds["eve"] == config.minds["eve"]


def test_of_a_configured_mind_the_limits_hold() -> None:
    own = Mind("ada", concurrent_turns=3, limits=Limits(memory_max=2))
    found = joined(Config(volute=VOLUTE, minds={"ada": own}), {4100: "ada"}).minds["ada"]
    assert (found.concurrent_turns, found.limits, found.url) == (3, own.limits, "http://127.0.0.1:4100")


def test_a_mind_of_the_same_name_does_not_lead_past_the_gate(caplog: pytest.LogCaptureFixture) -> None:
    config = Config(volute=VOLUTE, minds={"ada": Mind("ada", url="http://127.0.0.1:5000", unit="x.service")})
    found = joined(config, {4100: "ada"}).minds["ada"]
    assert (found.url, found.unit, found.volute) == ("http://127.0.0.1:4100", None, "volute.service")
    assert "[minds.ada] is ignored" in caplog.text


def test_a_mind_that_volute_has_no_more_is_none_of_the_guard() -> None:
    first = joined(Config(volute=VOLUTE), {4100: "ada", 4101: "bob"})
    assert joined(first, {4101: "bob"}).minds.keys() == {"bob"}
    assert joined(Config(minds=first.minds), {4101: "bob"}).minds == {}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "system").mkdir()
    with closing(sqlite3.connect(tmp_path / "system/volute.db")) as db, db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE minds (name TEXT, port INTEGER)")
        db.execute("INSERT INTO minds VALUES ('ada', 4100)")
    return tmp_path


def read(home: Path) -> Any:
    """What the script prints, as the guard has it run."""
    argv = [sys.executable, "-I", "-S", "-", str(home)]
    script = Path(registry_rows.__file__).read_bytes()
    return json.loads(subprocess.run(argv, input=script, capture_output=True, check=True).stdout)


def test_the_script_reads_the_newest_rows_and_daemon_json(home: Path) -> None:
    assert read(home) == [[["ada", 4100]], None]
    (home / "system/daemon.json").write_text('{"port": 1}')
    with closing(sqlite3.connect(home / "system/volute.db")) as db:  # as Volute: rows are only in the WAL
        db.execute("INSERT INTO minds VALUES ('bob', 4101)")
        db.commit()
        assert read(home) == [[["ada", 4100], ["bob", 4101]], {"port": 1}]


def test_the_script_says_why_it_reads_nothing(home: Path) -> None:
    (home / "system/volute.db").write_bytes(b"no database" * 100)
    assert "not a database" in read(home)
    assert "No such file" in read(home / "nowhere")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_it_is_read_as_the_first_owner_that_is_not_root(home: Path) -> None:
    system = home / "system"
    way = (str(home), str(system), f"{system}/volute.db")
    assert registry_rows.owner(*way)[0] == 0
    os.chown(f"{system}/volute.db", 7, 8)
    assert registry_rows.owner(*way) == (7, 8)
    os.chown(home, 5, 6)  # who has the home can put anything at the end of the way
    os.chown(f"{system}/volute.db", 0, 0)
    assert registry_rows.owner(*way) == (5, 6)
