"""Drop-ins from the command line: what `mind add` and `setup` write, and when they write nothing."""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hostguard.config import load as config

ROOT = Path(__file__).parents[3]
ME = pwd.getpwuid(os.getuid()).pw_name
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`hostguard ARGS` on a host whose files are all in tmp_path, and which has no daemon."""
    for name in ("etc", "state", "run"):
        (tmp_path / name).mkdir()
    env = {
        **os.environ,
        "HOSTGUARD_CONFIG": str(tmp_path / "etc/hostguard.toml"),
        "HOSTGUARD_STATE": str(tmp_path / "state"),
        "HOSTGUARD_RUNTIME": str(tmp_path / "run"),
        "HOME": str(tmp_path),
    }

    def run(*args: str, umask: int = 0o077, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hostguard", *args],
            env={**env, **more}, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, umask=umask,
        )  # fmt: skip

    return run


def drop_ins(tmp_path: Path) -> list[str]:
    folder = tmp_path / "etc/hostguard.toml.d"
    return sorted(os.listdir(folder)) if folder.exists() else []


def loaded(tmp_path: Path) -> config.Config:
    main = tmp_path / "etc/hostguard.toml"
    return config.load(config.host_files(main, [main.with_name("hostguard.toml.d")]))


# -- hostguard mind add


def test_a_mind_with_a_command(run: Run, tmp_path: Path) -> None:
    done = run("mind", "add", "@ada", "--command", "env 'A=b c' true", "--user", ME)
    assert (done.returncode, done.stderr) == (0, "")
    assert drop_ins(tmp_path) == ["mind-ada.toml"]
    assert (tmp_path / "etc/hostguard.toml.d/mind-ada.toml").stat().st_mode & 0o777 == 0o644
    mind = loaded(tmp_path).minds["ada"]
    assert (mind.command, mind.user) == (("/usr/bin/env", "A=b c", "true"), ME)
    assert done.stdout.splitlines()[1:] == ["next:", "  hostguard reload", "  hostguard send @ada hello"]


def test_a_resident_mind(run: Run, tmp_path: Path) -> None:
    done = run("mind", "add", "b o/b", "--url", "http://127.0.0.1:4100", "--unit", "b.service", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert [Path(told["file"]).name] == drop_ins(tmp_path) == [r"mind-b\x20o\x2fb.toml"]
    assert [step.split("  ")[0] for step in told["next"]] == [
        "hostguard reload",
        told["next"][1],
        "hostguard mind token 'b o/b'",
        "hostguard send '@b o/b' hello",
    ]
    assert told["next"][1].startswith('set listen = "127.0.0.1:4200" under [events]')
    mind = loaded(tmp_path).minds["b o/b"]
    assert (mind.url, mind.unit, mind.user) == ("http://127.0.0.1:4100", "b.service", "")


def test_a_drop_in_is_replaced_only_by_force(run: Run, tmp_path: Path) -> None:
    add = ("mind", "add", "ada", "--user", ME, "--command")
    assert run(*add, "true").returncode == 0
    done = run(*add, "false")
    assert done.returncode == 1
    assert "mind-ada.toml exists: use --force to replace it" in done.stderr
    assert loaded(tmp_path).minds["ada"].command == ("/usr/bin/true",)
    assert run(*add, "false", "--force").returncode == 0
    assert loaded(tmp_path).minds["ada"].command == ("/usr/bin/false",)
    assert drop_ins(tmp_path) == ["mind-ada.toml"]


def test_a_mind_of_another_file_stays_there(run: Run, tmp_path: Path) -> None:
    main = tmp_path / "etc/hostguard.toml"
    main.write_text(f'[minds.ada]\ncommand = ["/bin/true"]\nuser = "{ME}"\n')
    done = run("mind", "add", "ada", "--command", "false", "--user", ME, "--force")
    assert done.returncode == 1
    assert f"mind 'ada' already exists in {main}: " in done.stderr
    assert drop_ins(tmp_path) == []


WRONG = [
    (("--command", "true"), "minds.ada: user is missing"),
    (("--command", "true", "--user", "no-such-user"), 'there is no user "no-such-user"'),
    (("--command", "no-such-program", "--user", ME), "program not found"),
    (("--command", "", "--user", ME), "program not found"),
    (("--command", "a 'b", "--user", ME), "No closing quotation"),
    (("--url", "http://127.0.0.1"), "it has no port"),
    (("--url", "http://127.0.0.1:1"), 'belongs to "bob"'),  # of bob, see below
    (("--command", "true", "--user", ME, "--unit", "x.service"), "only a mind with a url can have it"),
    (("--user", ME), "give exactly one of --command, --url and --volute"),
    (
        ("--command", "true", "--url", "http://127.0.0.1:2"),
        "give exactly one of --command, --url and --volute",
    ),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_what_does_not_fit_is_not_written(
    run: Run, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "etc/hostguard.toml").write_text('[minds.bob]\nurl = "http://127.0.0.1:1"\n')
    done = run("mind", "add", "ada", *options)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert ".new" not in done.stderr  # it names the file that would have been
    assert drop_ins(tmp_path) == []


def test_nothing_is_written_beside_a_configuration_that_is_wrong(run: Run, tmp_path: Path) -> None:
    (tmp_path / "etc/hostguard.toml").write_text("[limits]\nrows_per_mind = 0\n")
    done = run("mind", "add", "ada", "--command", "true", "--user", ME)
    assert done.returncode == 1
    assert "limits.rows_per_mind" in done.stderr
    assert drop_ins(tmp_path) == []


# -- a Volute mind


@pytest.fixture
def eve(tmp_path: Path) -> Path:
    """A mind's folder as Volute has it."""
    folder = tmp_path / "volute/minds/eve"
    (folder / "home/.config").mkdir(parents=True)
    (folder / "home/.config/routes.json").write_text("{}")
    return folder


def registry(home: Path, form: str) -> None:
    entries = [("adam", 4100), ("eve", 4107)]
    if form == "minds.json":
        (home / form).write_text(json.dumps([{"name": name, "port": port} for name, port in entries]))
        return
    (home / form).parent.mkdir(exist_ok=True)
    with sqlite3.connect(home / form) as db:
        db.execute("CREATE TABLE minds (name TEXT PRIMARY KEY, port INTEGER NOT NULL, dir TEXT)")
        db.executemany("INSERT INTO minds (name, port) VALUES (?, ?)", entries)
    db.close()


@pytest.mark.parametrize("form", ["minds.json", "volute.db", "system/volute.db"])
def test_a_volute_mind_is_taken_over(run: Run, tmp_path: Path, eve: Path, form: str) -> None:
    registry(tmp_path / "volute", form)
    (tmp_path / "etc/hostguard.toml").write_text('[events]\nlisten = "127.0.0.1:4321"\n')
    done = run("mind", "add", "eve", "--volute", str(eve), "--user", ME)
    assert (done.returncode, done.stderr) == (0, "")
    mind = loaded(tmp_path).minds["eve"]
    assert (mind.url, mind.routes, mind.user) == (
        "http://127.0.0.1:4107", str(eve / "home/.config/routes.json"), ME,
    )  # fmt: skip
    assert "VOLUTE_DAEMON_TOKEN, with VOLUTE_DAEMON_PORT=4321" in done.stdout


def test_an_older_registry_beside_an_empty_database(run: Run, tmp_path: Path, eve: Path) -> None:
    sqlite3.connect(tmp_path / "volute/volute.db").close()
    registry(tmp_path / "volute", "minds.json")
    assert run("mind", "add", "eve", "--volute", str(eve), "--user", ME).returncode == 0
    assert loaded(tmp_path).minds["eve"].url == "http://127.0.0.1:4107"


def test_volute_s_home_and_the_owner_of_the_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere/eve"
    (folder / "home").mkdir(parents=True)
    os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
    (tmp_path / "home").mkdir()
    registry(tmp_path / "home", "system/volute.db")
    done = run("mind", "add", "eve", "--volute", str(folder), VOLUTE_HOME=str(tmp_path / "home"))
    assert (done.returncode, done.stderr) == (0, "")
    mind = loaded(tmp_path).minds["eve"]
    assert (mind.url, mind.user) == ("http://127.0.0.1:4107", "nobody")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("eve", (), "'eve' is in no registry of Volute"),
        ("lilith", ("--url", "http://127.0.0.1:4107"), "Volute calls this mind 'eve'"),
        (
            "eve",
            ("--url", "http://127.0.0.1:4107"),
            'belongs to root; add --user, with "root" if that is intended',
        ),
    ],
)
def test_what_volute_does_not_tell_is_asked_for(
    run: Run, tmp_path: Path, eve: Path, name: str, options: tuple[str, ...], said: str
) -> None:
    os.chown(eve, 0, 0)
    done = run("mind", "add", name, "--volute", str(eve), *options)
    assert done.returncode == 1
    assert said in done.stderr
    assert drop_ins(tmp_path) == []


def test_a_registry_that_cannot_be_read(run: Run, tmp_path: Path, eve: Path) -> None:
    (tmp_path / "volute/minds.json").write_text('[{"name": "eve"}]')
    done = run("mind", "add", "eve", "--volute", str(eve), "--user", ME)
    assert done.returncode == 1
    assert "cannot read Volute's registry" in done.stderr
    assert "minds.json: not a list of minds" in done.stderr


# -- hostguard setup; how a card is measured is in tests/system/cli/test_setup.py


def test_setup_asks_nobody_that_is_not_there(run: Run, tmp_path: Path) -> None:
    done = run("setup")
    assert done.returncode == 2
    assert "--yes or --dry-run" in done.stderr


def test_a_dry_run_writes_and_measures_nothing(run: Run, tmp_path: Path) -> None:
    done = run("setup", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "measured" not in done.stdout
    assert "global_concurrent_turns = " in done.stdout
    assert done.stdout.endswith("nothing was written\n")
    assert (drop_ins(tmp_path), os.listdir(tmp_path / "state")) == ([], [])


def test_setup_refuses_to_add_to_a_configuration_that_is_wrong(run: Run, tmp_path: Path) -> None:
    (tmp_path / "etc/hostguard.toml").write_text("[x]\n")
    done = run("setup", "--yes")
    assert done.returncode == 1
    assert "unknown key" in done.stderr
    assert drop_ins(tmp_path) == []
