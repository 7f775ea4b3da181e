"""Drop-ins from the command line: what `mind add` and `setup` write, and when they write nothing."""

from __future__ import annotations

import hashlib
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
        "HOSTGUARD_UNITS": str(tmp_path / "units"),
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
    assert mind.unit == "hostguard-mind@eve.service"
    assert drop_ins(tmp_path) == ["mind-eve.toml"], "where minds report is configured already"
    variables, conf = tmp_path / "etc/minds/eve.env", tmp_path / f"units/{mind.unit}.d/volute.conf"
    assert variables.stat().st_mode & 0o777 == 0o600
    given = dict(line.split("=", 1) for line in variables.read_text().splitlines()[1:])
    token = given["VOLUTE_DAEMON_TOKEN"].strip('"')
    assert mind.token == hashlib.sha256(token.encode()).hexdigest()
    path = given.pop("PATH")
    assert path.startswith(f'"{eve}/home/.local/bin:')
    assert path.endswith(':/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"')
    assert given == {
        "COMMAND": '"node_modules/.bin/tsx src/server.ts --port 4107"', "VOLUTE_MIND": '"eve"',
        "VOLUTE_MIND_DIR": f'"{eve}"', "VOLUTE_MIND_PORT": '"4107"', "VOLUTE_DAEMON_PORT": '"4321"',
        "VOLUTE_DAEMON_TOKEN": f'"{token}"', "VOLUTE_MIND_TOKEN": f'"{token}"',
    }  # fmt: skip
    assert conf.read_text().splitlines()[1:] == ["[Service]", f"User={ME}", f"WorkingDirectory={eve}"]
    wrote = [line.removeprefix("wrote ") for line in done.stdout.splitlines() if line.startswith("wrote ")]
    assert wrote == [str(tmp_path / "etc/hostguard.toml.d/mind-eve.toml"), str(variables), str(conf)]
    assert [step.split("    #")[0].strip() for step in done.stdout.splitlines()[4:]] == [
        "volute mind stop eve",
        f"editor {variables}",
        "hostguard reload",
        "systemctl daemon-reload && systemctl enable --now hostguard-mind@eve.service",
        "hostguard send @eve hello --wait",
    ]
    assert token not in done.stdout


def test_a_volute_mind_gets_an_endpoint_and_is_replaced_only_by_force(
    run: Run, tmp_path: Path, eve: Path
) -> None:
    add = ("mind", "add", "eve", "--volute", str(eve), "--user", ME, "--url", "http://127.0.0.1:4107")
    assert run(*add).returncode == 0
    assert drop_ins(tmp_path) == ["events.toml", "mind-eve.toml"]
    before = loaded(tmp_path)
    assert before.events_listen == ("127.0.0.1", 4200)
    assert 'VOLUTE_DAEMON_PORT="4200"' in (tmp_path / "etc/minds/eve.env").read_text()
    (tmp_path / "etc/hostguard.toml.d/mind-eve.toml").unlink()
    done = run(*add)
    assert (done.returncode, "eve.env exists: use --force" in done.stderr) == (1, True)
    assert drop_ins(tmp_path) == ["events.toml"]
    assert run(*add, "--force").returncode == 0
    assert loaded(tmp_path).minds["eve"].token != before.minds["eve"].token


def test_a_volute_mind_with_a_service_of_its_own(run: Run, tmp_path: Path, eve: Path) -> None:
    add = ("mind", "add", "eve", "--volute", str(eve), "--user", ME, "--url", "http://127.0.0.1:4107")
    done = run(*add, "--unit", "eve.service")
    assert (done.returncode, done.stderr) == (0, "")
    assert loaded(tmp_path).minds["eve"].unit == "eve.service"
    assert not (tmp_path / "units").exists()
    assert f"EnvironmentFile={tmp_path}/etc/minds/eve.env, WorkingDirectory={eve}, User={ME}" in done.stdout


def test_an_endpoint_that_volute_minds_cannot_reach(run: Run, tmp_path: Path, eve: Path) -> None:
    (tmp_path / "etc/hostguard.toml").write_text('[events]\nlisten = "[::1]:4321"\n')
    done = run("mind", "add", "eve", "--volute", str(eve), "--user", ME, "--url", "http://127.0.0.1:4107")
    assert done.returncode == 1
    assert 'set listen = "127.0.0.1:4321" under [events]' in done.stderr
    assert drop_ins(tmp_path) == []


# The registry is a file of whoever runs Volute: it is never opened as root.
NOBODY = pwd.getpwnam("nobody")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_registry_is_read_as_the_owner_of_its_folder(run: Run, tmp_path: Path, eve: Path) -> None:
    home = tmp_path / "volute"
    for place in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        place.chmod(0o755)
    os.chown(home, NOBODY.pw_uid, NOBODY.pw_gid)
    secret = tmp_path / "secret.json"  # that only root may read
    secret.write_text(json.dumps([{"name": "eve", "port": 4107}]))
    secret.chmod(0o600)
    (home / "minds.json").symlink_to(secret)
    add = ("mind", "add", "eve", "--volute", str(eve), "--user", "nobody")
    done = run(*add)
    assert (done.returncode, "Permission denied" in done.stderr) == (1, True), done
    assert drop_ins(tmp_path) == []
    secret.chmod(0o644)
    assert run(*add).returncode == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("trap", ["link", "shared", "above"])
def test_root_reads_no_registry_that_others_can_change(
    run: Run, tmp_path: Path, eve: Path, trap: str
) -> None:
    home = tmp_path / "volute"
    registry(home, "minds.json")
    if trap == "link":
        (home / "minds.json").rename(tmp_path / "elsewhere")
        (home / "minds.json").symlink_to(tmp_path / "elsewhere")
    if trap == "shared":
        home.chmod(0o775)
    if trap == "above":
        os.chown(tmp_path, NOBODY.pw_uid, NOBODY.pw_gid)
    done = run("mind", "add", "eve", "--volute", str(eve), "--user", ME)
    assert (done.returncode, "users other than root can change" in done.stderr) == (1, True), done
    assert drop_ins(tmp_path) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_registry_that_never_answers(run: Run, tmp_path: Path, eve: Path) -> None:
    os.mkfifo(tmp_path / "volute/minds.json")
    done = run("mind", "add", "eve", "--volute", str(eve), "--user", ME)
    assert (done.returncode, "cannot read Volute's registry" in done.stderr) == (1, True), done


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
