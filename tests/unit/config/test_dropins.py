"""Drop-ins that hostguard writes: in place only if the whole configuration is valid with them."""

from __future__ import annotations

import os
import stat

import pytest

from hostguard.config import dropins, load
from hostguard.config.load import ConfigError
from hostguard.core import paths


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "CONFIG", tmp_path / "hostguard.toml")
    monkeypatch.setattr(paths, "DROP_INS", (tmp_path / "d",))
    paths.CONFIG.write_text("[limits]\nglobal_concurrent_turns = 2\n")
    return tmp_path / "d"


def test_one_that_fits_is_written_for_all_to_read(folder):
    file = dropins.place("50-mine")
    assert file == folder / "50-mine.toml"
    before = os.umask(0o077)
    try:
        dropins.write(file, "[limits]\nglobal_concurrent_turns = 3\n", replace=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert os.listdir(folder) == ["50-mine.toml"]
    assert load.load().global_concurrent_turns == 3


def test_an_existing_one_is_replaced_only_on_request(folder):
    file = dropins.place("50-mine")
    dropins.write(file, "# one\n", replace=False)
    with pytest.raises(FileExistsError):
        dropins.write(file, "# two\n", replace=False)
    assert file.read_text() == "# one\n"
    dropins.write(file, "# two\n", replace=True)
    assert file.read_text() == "# two\n"
    assert os.listdir(folder) == ["50-mine.toml"]


def test_one_that_is_wrong_by_itself_or_with_the_rest_is_not_written(folder):
    file = dropins.place("50-mine")
    with pytest.raises(ConfigError, match="unknown key") as refused:
        dropins.write(file, "[limits]\nglobal_turns = 1\n", replace=True)
    assert str(refused.value).startswith(f"{file}: "), (
        "the error names the file that is to be, not the new one"
    )
    with pytest.raises(ConfigError, match='no mind "ada" is configured'):
        dropins.write(file, '[channels."#all"]\nminds = ["ada"]\n', replace=True)
    assert os.listdir(folder) == []


def test_it_is_checked_in_its_place_among_the_others(folder):
    """A later drop-in overrides it, an earlier one does not."""
    folder.mkdir()
    (folder / "90-last.toml").write_text("[pressure]\ncalm_await = 0.1\n")
    dropins.write(dropins.place("50-mine"), "[pressure]\ncalm_await = 0.6\n", replace=True)
    with pytest.raises(ConfigError, match=r"calm_await 0\.6 s is not below"):
        dropins.write(dropins.place("95-mine"), "[pressure]\ncalm_await = 0.6\n", replace=True)


def test_keys_that_other_files_set_are_known_with_their_files(folder):
    file, other = dropins.place("50-mine"), dropins.place("60-other")
    dropins.write(file, "[limits]\nrows_per_mind = 5\n", replace=True)
    dropins.write(other, "[turn]\ntasks_max = 5\n", replace=True)
    found = {path: source for path, source in dropins.set_elsewhere(file).items() if len(path) > 1}
    assert found == {
        ("limits", "global_concurrent_turns"): str(paths.CONFIG),
        ("turn", "tasks_max"): str(other),
    }
