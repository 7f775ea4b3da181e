"""`hostguard mind add --volute` of a real mind's folder yields a mind that answers, and that can be restarted."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fakemodel import line
from guard import run, systemctl
from minds import free_port
from real_minds import VOLUTE, RealHost, lay_out, of_model

NAME = "sue"
FOLDER = Path("/home", NAME)
REGISTRY = Path("/srv/volute")
UNIT = f"hostguard-mind@{NAME}.service"
VARIABLES = Path(f"/etc/hostguard/minds/{NAME}.env")
# As the mind does itself once it has edited its SOUL: with what it has in its environment.
RESTART = """curl -s -X POST -H "Authorization: Bearer $VOLUTE_DAEMON_TOKEN" -H "Content-Type: application/json" \\
    -d '{"context": {"type": "reload"}}' "http://127.0.0.1:$VOLUTE_DAEMON_PORT/api/minds/$VOLUTE_MIND/restart" """


@pytest.fixture(params=["claude", "pi"])
def added(request: pytest.FixtureRequest, real: RealHost) -> Iterator[RealHost]:
    """A guard that runs, and sue's folder, which Volute's registry knows."""
    lay_out(FOLDER, NAME, request.param)
    run("useradd", "--system", "--no-create-home", f"--home-dir={FOLDER}", NAME)
    run("chown", "-R", f"{NAME}:", str(FOLDER))
    (REGISTRY / "system").mkdir(parents=True)
    with closing(sqlite3.connect(REGISTRY / "system/volute.db")) as db, db:
        db.execute("CREATE TABLE minds (name TEXT PRIMARY KEY, port INTEGER NOT NULL)")
        db.execute("INSERT INTO minds VALUES (?, ?)", (NAME, free_port()))
    real.guard.start(real.minds.config())
    yield real
    run("systemctl", "stop", UNIT)
    for folder in (
        FOLDER,
        REGISTRY,
        Path(f"/etc/systemd/system/{UNIT}.d"),
        Path("/etc/hostguard/hostguard.toml.d"),
    ):
        shutil.rmtree(folder)
    VARIABLES.unlink()
    run("userdel", NAME)
    systemctl("daemon-reload")
    real.guard.reload()


def main_pid() -> int:
    return int(run("systemctl", "show", "--value", "--property=MainPID", UNIT).stdout)


def test_a_mind_that_was_added_answers_and_is_restarted_between_turns(added: RealHost) -> None:
    environment = {**os.environ, "PATH": f"{VOLUTE}/bin:{os.environ['PATH']}", "VOLUTE_HOME": str(REGISTRY)}
    command = ["hostguard", "mind", "add", NAME, "--volute", str(FOLDER)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with VARIABLES.open("a") as file:  # "add what its model needs"
        file.writelines(f'{key}="{value}"\n' for key, value in of_model(added.model).items())
    for step in ("hostguard reload", f"systemctl daemon-reload && systemctl start {UNIT}"):
        run("sh", "-c", step)
    first = main_pid()
    row = added.say(NAME, bash=RESTART)
    turn = added.done(row)[0]
    assert turn["result"]["reason"] == "the mind reported that it is done"
    told = next(call.result for call in added.model.calls if call.result)
    assert '"deferred":true' in told, told
    added.done(added.send(NAME, f"after\n{line()}"))
    assert main_pid() not in (0, first)
    assert run("systemctl", "show", "--value", "--property=NRestarts", UNIT).stdout == "0\n", (
        "it did not crash"
    )
    assert [row["kind"] for row in added.rows()] == ["message", "message"], "it is told nothing of a reload"
