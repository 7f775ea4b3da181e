"""`hostguard mind add --volute` with the shipped unit: the commands that it prints make a mind that answers.

The mind's server is rig's, started as Volute starts its own; tests/volute has the real ones.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from guard import Guard, run, systemctl, wait_for
from guarded import LONG_S, GuardedHost
from minds import MIND, free_port

HOME = Path("/srv/volute")
DIR = HOME / "minds/eve"
UNIT = "hostguard-mind@eve.service"
# What Volute's own minds rely on: without one of these, the server does not start.
TSX = f"""#!/bin/sh
[ "$1" = src/server.ts ] && [ "$2" = --port ] && [ "$3" = "$VOLUTE_MIND_PORT" ] || exit 5
[ "$PWD" = {DIR} ] && [ "$VOLUTE_MIND_DIR" = {DIR} ] || exit 6
[ "$(id -un)" = eve ] || exit 7
[ "${{PATH%%:*}}" = {DIR}/home/.local/bin ] || exit 8
[ "$VOLUTE_MIND_TOKEN" = "$VOLUTE_DAEMON_TOKEN" ] || exit 9
exec /usr/bin/python3 -S src/mind.py --name "$VOLUTE_MIND" --port "$3" --log {DIR}/log \\
    --daemon-port "$VOLUTE_DAEMON_PORT" --token "$VOLUTE_DAEMON_TOKEN"
"""


@pytest.fixture
def eve(guard: Guard) -> Iterator[GuardedHost]:
    """A guard without an endpoint for minds, and a mind as Volute has it, with a user of its own."""
    run("useradd", "eve")
    for folder in (DIR / "home/.config", DIR / "node_modules/.bin", DIR / "src", HOME / "system"):
        folder.mkdir(parents=True)
    for source in (MIND, MIND.with_name("mind_work.py")):
        shutil.copy(source, DIR / "src")
    tsx = DIR / "node_modules/.bin/tsx"
    tsx.write_text(TSX)
    tsx.chmod(0o755)
    (DIR / "log").touch()
    run("chown", "-R", "eve:eve", str(DIR))
    with closing(sqlite3.connect(HOME / "system/volute.db")) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE minds (name TEXT PRIMARY KEY, port INTEGER NOT NULL)")
        db.execute("INSERT INTO minds VALUES ('eve', ?)", (free_port(),))
    guard.start()
    host = GuardedHost(guard)
    yield host
    host.api.close()
    systemctl("disable", "--now", UNIT)
    shutil.rmtree(f"/etc/systemd/system/{UNIT}.d")
    shutil.rmtree("/etc/hostguard/minds")
    shutil.rmtree("/etc/hostguard/hostguard.toml.d")
    systemctl("daemon-reload")
    shutil.rmtree(HOME)
    run("userdel", "eve")


def log(what: str) -> list[dict[str, object]]:
    lines = map(json.loads, (DIR / "log").read_text().splitlines())
    return [line for line in lines if line["what"] == what]


def test_the_printed_commands_make_a_mind_that_answers_and_can_be_restarted(eve: GuardedHost) -> None:
    told = eve.guard.json("mind", "add", "eve", "--volute", str(DIR), "--json")
    assert [Path(file).name for file in told["files"]] == [
        "mind-eve.toml", "events.toml", "eve.env", "volute.conf",
    ]  # fmt: skip
    commands = [step for step in told["next"] if not step.startswith(("volute ", "editor "))]
    for command in commands:
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert "the mind reported that it is done" in done.stdout, "of hostguard send @eve hello --wait"
    assert [line["content"] for line in log("message")] == ["hello"]
    [mind] = [mind for mind in eve.get("/v1/status")["minds"] if mind["name"] == "eve"]
    assert (mind["state"], eve.get("/v1/status")["problems"]) == ("idle", [])

    # It asks for a restart as Volute's minds do, with the token that it was given.
    variables = dict(
        line.split("=", 1) for line in Path("/etc/hostguard/minds/eve.env").read_text().splitlines()[1:]
    )
    token, port = (variables[name].strip('"') for name in ("VOLUTE_DAEMON_TOKEN", "VOLUTE_DAEMON_PORT"))
    before = run("systemctl", "show", "--value", "--property=MainPID", UNIT).stdout
    request = [
        "-H", f"Authorization: Bearer {token}", "-H", "Content-Type: application/json",
        "-d", '{"context": {"type": "reload"}}', f"http://127.0.0.1:{port}/api/minds/eve/restart",
    ]  # fmt: skip
    assert json.loads(run("curl", "-s", *request).stdout) == {"ok": True, "deferred": True}
    wait_for(
        lambda: run("systemctl", "show", "--value", "--property=MainPID", UNIT).stdout not in ("0\n", before),
        LONG_S,
    )
    eve.done(eve.send("@eve", "again"))
    assert [line["content"] for line in log("message")] == ["hello", "again"]
    missing = run("curl", "-s", f"http://127.0.0.1:{port}/api/minds/eve/history/cross-session").stdout
    assert "hostguard keeps no conversations" in json.loads(missing)["detail"]
