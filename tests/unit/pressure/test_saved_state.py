"""What the next guard of the same boot knows of the disk."""

from __future__ import annotations

import json

import pytest

from hostguard.core import paths
from hostguard.core.settings import Level
from hostguard.pressure import saved_state
from hostguard.pressure.rule import State

STALLED = State(
    level=Level.STALLED, since=5.0, cap=2, stalled_at=9.0, changes=(1.0, 5.0), cut_at=5.0, top=8, failed=4,
    failures=1, risen=True,
)  # fmt: skip


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "PRESSURE", tmp_path / "pressure.json")
    return tmp_path / "pressure.json"


def test_it_goes_on_where_the_last_one_was():
    saved_state.keep("mmcblk0", STALLED)
    assert saved_state.recall("mmcblk0") == STALLED


def test_of_another_disk_it_knows_nothing():
    saved_state.keep("mmcblk0", STALLED)
    assert saved_state.recall("sda") is None


def test_nothing_is_kept_while_nothing_was_learnt(file):
    saved_state.keep("mmcblk0", STALLED)
    saved_state.keep("mmcblk0", State(since=7.0, evidence="requests take 1 ms"))
    assert not file.exists()
    assert saved_state.recall("mmcblk0") is None


@pytest.mark.parametrize(
    "change",
    [{"level": "so-so"}, {"changes": None}, {"more": 1}, {"level": None}, {"cap": "2"}, {"since": None}],
    ids=str,
)
def test_what_another_version_kept_is_left(file, caplog, change):
    saved_state.keep("mmcblk0", STALLED)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert saved_state.recall("mmcblk0") is None
    assert "cannot be used" in caplog.text
    assert file.with_name("pressure.json.damaged").exists()


def test_where_it_cannot_be_kept_that_is_said(file, caplog):
    file.with_name(f".{file.name}.new").mkdir()
    saved_state.keep("mmcblk0", STALLED)
    assert "begins with the configured cap" in caplog.text
