"""The `hostguard` command against a stand-in for the daemon on a real socket."""

from __future__ import annotations

import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@dataclass
class StandIn:
    """Answers canned responses on the daemon's socket, and keeps what was asked."""

    folder: Path
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)  # environment

    def answer(self, request: str, body: Any, status: int = 200, **headers: str) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers[request] = (status, headers, raw)

    def run(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        options = {"stdin": subprocess.DEVNULL} | options if "input" not in options else options
        return subprocess.run(
            [sys.executable, "-m", "hostguard.cli", *args],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )

    @property
    def env(self) -> dict[str, str]:
        return (
            os.environ | {"HOSTGUARD_RUNTIME": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"} | self.extra
        )


@pytest.fixture
def away() -> Iterator[StandIn]:
    """A runtime folder without a daemon."""
    with tempfile.TemporaryDirectory(prefix="hg") as folder:
        Path(folder).chmod(0o755)
        yield StandIn(Path(folder))


@pytest.fixture
def daemon(away: StandIn) -> Iterator[StandIn]:
    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            away.asked.append((f"{self.command} {self.path}", body))
            path = self.path.partition("?")[0]
            status, headers, raw = away.answers.get(
                f"{self.command} {path}", (404, {}, b'{"code": "unknown_delivery", "detail": "not there"}')
            )
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PATCH = respond

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with socketserver.ThreadingUnixStreamServer(str(away.folder / "hostguard.sock"), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield away
        server.shutdown()
        thread.join()


def row(id_: int = 1, state: str = "queued", **more: Any) -> dict[str, Any]:
    unset = dict.fromkeys(
        ("key", "sender", "channel", "not_before", "expires_at", "turn", "started_at", "ended_at", "hold")
    )
    now = round(time.time() * 1000)
    return {
        "id": id_, "mind": "m", "session": "main", "state": state, "kind": "message", "created_at": now,
        "attempts": 0, "result": {}, **unset, **more,
    }  # fmt: skip


def test_a_missing_daemon_is_told_with_the_mend(away: StandIn) -> None:
    done = away.run("cancel", "1", "2")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "hostguard: hostguard is not running: systemctl start hostguard\n"


def test_status_without_systemd_says_so_and_that_the_daemon_is_away(away: StandIn) -> None:
    away.extra["DBUS_SYSTEM_BUS_ADDRESS"] = f"unix:path={away.folder}/none"
    done = away.run("status")
    assert (done.returncode, done.stdout) == (3, "")
    assert "needs a host with systemd" in done.stderr
    assert "systemctl start hostguard" in done.stderr


def test_a_stale_socket_is_a_missing_daemon(away: StandIn) -> None:
    socketserver.UnixStreamServer(str(away.folder / "hostguard.sock"), BaseHTTPRequestHandler).server_close()
    done = away.run("minds")
    assert (done.returncode, done.stderr.count("systemctl start hostguard")) == (3, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="root hands the file to another user")
@pytest.mark.parametrize("barred", ["folder", "socket"])
def test_a_user_without_access_is_told_of_the_group(daemon: StandIn, barred: str) -> None:
    path = daemon.folder if barred == "folder" else daemon.folder / "hostguard.sock"
    path.chmod(0o700)
    os.chown(path, 65534, 65534)
    done = subprocess.run(
        ["setpriv", "--bounding-set=-all", sys.executable, "-m", "hostguard.cli", "queue"],
        cwd=ROOT, env=daemon.env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "group hostguard" in done.stderr
    assert "Traceback" not in done.stderr


def test_refusals_reach_the_person_in_the_daemons_words(daemon: StandIn) -> None:
    daemon.answer(
        "GET /v1/minds", {"code": "unavailable", "detail": "the \x1b[31mcard stalls"}, 503, Retry_After="7"
    )
    done = daemon.run("minds")
    assert (done.returncode, done.stderr) == (
        1,
        "hostguard: the \\x1b[31mcard stalls; try again in 7 s\n",
    )


def test_something_else_on_the_socket_is_no_traceback(daemon: StandIn) -> None:
    daemon.answer("GET /v1/minds", b"<html>")
    done = daemon.run("minds")
    assert done.returncode == 1
    assert re.fullmatch(r"hostguard: what answers on .*/hostguard.sock is not hostguard\n", done.stderr)


def test_an_unknown_verb_is_a_usage_error(away: StandIn) -> None:
    done = away.run("frobnicate")
    assert done.returncode == 2
    assert "frobnicate" in done.stderr


def test_hostile_names_are_escaped_in_tables_and_in_json(daemon: StandIn) -> None:
    held = {"reason": "mind_busy", "blocker": "x\x07", "since": 1}
    daemon.answer(
        "GET /v1/deliveries", {"deliveries": [row(mind="a\x1b]0;x\x07", hold=held)], "total_queued": 1}
    )
    for args in (("queue",), ("queue", "--json")):
        done = daemon.run(*args)
        assert done.returncode == 0
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout)
        assert "mind_busy" in done.stdout
    assert daemon.asked[0] == ("GET /v1/deliveries?limit=100", None)


def test_send_posts_the_message_and_prints_a_line_per_delivery(daemon: StandIn) -> None:
    hold = {"reason": "global_cap", "blocker": "u.scope", "since": 1}
    daemon.answer(
        "POST /v1/deliveries",
        {"deliveries": [row(1), row(2, mind="n", session="s", hold=hold)], "refused": []},
        201,
    )
    done = daemon.run(
        "send", "#c", "hi", "--session", "s", "--sender", "ci", "--key", "k", "--at", "+1m", "--interrupt"
    )
    assert done.stdout == "1 m queued\n2 n/s queued (global_cap: u.scope)\n"
    request, body = daemon.asked[0]
    assert request == "POST /v1/deliveries"
    assert abs(body.pop("not_before") - (time.time() + 60) * 1000) < 30_000
    assert body == {
        "to": "#c", "content": "hi", "session": "s", "sender": "ci", "key": "k", "expires_at": None,
        "interrupt": True,
        "instructions": None,
        "whileSleeping": None,
    }  # fmt: skip


@pytest.mark.parametrize("args", [["-"], []])
def test_send_reads_standard_input(daemon: StandIn, args: list[str]) -> None:
    daemon.answer("POST /v1/deliveries", {"deliveries": [row()], "refused": []}, 201)
    assert daemon.run("send", "@m", *args, input="a\nü\n").returncode == 0
    assert daemon.asked[0][1]["content"] == "a\nü\n"


def test_send_refuses_too_much_input_and_what_is_not_text(daemon: StandIn) -> None:
    done = daemon.run("send", "@m", input="x" * (1 << 20) + "x")
    assert (done.returncode, "1048576 bytes" in done.stderr) == (1, True)
    with tempfile.TemporaryFile() as binary:
        binary.write(b"ab\xff")
        binary.seek(0)
        done = daemon.run("send", "@m", stdin=binary)
    assert (done.returncode, "byte 2" in done.stderr) == (1, True)
    assert daemon.asked == []


EXITED = {"outcome": "exited", "exit": 0, "reason": "exit status 0", "run_ms": 1200, "held_ms": 63_000}


@pytest.mark.parametrize(
    ("state", "result", "exit_code", "said"),
    [
        ("done", EXITED, 0, "1 m done: exit status 0, held 1m 3s, ran 1.2s"),
        ("done", {**EXITED, "exit": 3, "reason": "exit status 3"}, 1, "exit status 3"),
        ("done", {**EXITED, "exit": None, "outcome": "killed", "reason": ""}, 1, "killed"),
        ("dead", {"outcome": "not_started", "exit": None, "reason": "no such file"}, 1, "no such file"),
        ("expired", {}, 1, "1 m expired"),
        ("cancelled", EXITED, 1, "1 m cancelled"),
        ("queued", {}, 75, "hostguard cancel 1"),
        ("in_turn", {}, 1, "its turn goes on"),
    ],
)
def test_send_wait_exits_with_what_became_of_it(
    daemon: StandIn, state: str, result: dict[str, Any], exit_code: int, said: str
) -> None:
    daemon.answer("POST /v1/deliveries", {"deliveries": [row()], "refused": []}, 201)
    daemon.answer("GET /v1/deliveries/1", row(state=state, result=result))
    done = daemon.run("send", "@m", "hi", "--wait", "--timeout", "500ms")
    assert (done.returncode, said in done.stdout) == (exit_code, True), done


def test_minds_whose_queue_was_full_are_named(daemon: StandIn) -> None:
    daemon.answer("POST /v1/deliveries", {"deliveries": [row()], "refused": ["n"]}, 201)
    done = daemon.run("send", "#c", "hi")
    assert (done.returncode, done.stdout) == (1, "1 m queued\n")
    assert "not sent to n" in done.stderr


def test_timeout_without_wait_is_a_usage_error(daemon: StandIn) -> None:
    assert daemon.run("send", "@m", "hi", "--timeout", "1s").returncode == 2
    assert daemon.asked == []


def test_one_refused_cancel_does_not_stop_the_others(daemon: StandIn) -> None:
    daemon.answer("POST /v1/deliveries/2/cancel", row(2, "cancelled"))
    done = daemon.run("cancel", "1", "2")
    assert (done.returncode, done.stdout) == (4, "2 m cancelled\n")
    assert done.stderr.startswith("hostguard: not there")


def test_limit_set_patches_and_prints(daemon: StandIn) -> None:
    limits = [{"name": "global_concurrent_turns", "mind": None, "value": None, "source": "kept"}]
    daemon.answer("PATCH /v1/limits", {"limits": limits})
    done = daemon.run("limit", "set", "global_concurrent_turns=unlimited", "--runtime")
    assert daemon.asked[0][1] == {
        "name": "global_concurrent_turns", "mind": None, "value": "unlimited", "runtime": True,
    }  # fmt: skip
    assert done.stdout.splitlines()[1].split() == ["global_concurrent_turns", "-", "unlimited", "kept"]


def test_a_configuration_error_on_reload_is_a_failure_not_a_usage_error(daemon: StandIn) -> None:
    daemon.answer("POST /v1/reload", {"code": "bad_request", "detail": "a.toml: x: no\nb.toml: y: no"}, 400)
    done = daemon.run("reload")
    assert (done.returncode, done.stderr) == (1, "hostguard: a.toml: x: no\nb.toml: y: no\n")


def test_events_prints_what_is_remembered_and_ends(daemon: StandIn) -> None:
    event = {
        "id": 5,
        "at": 0,
        "type": "held",
        "mind": "m",
        "session": "main",
        "delivery": 7,
        "text": "waits\x1b",
        "waited_ms": 2000,
    }
    daemon.answer("GET /v1/events", f"id: 5\nevent: held\ndata: {json.dumps(event)}\n\n".encode())
    done = daemon.run("events")
    assert re.fullmatch(r"5  \d{4}-\S+ \S+  held        waits\\x1b\n", done.stdout)
    assert json.loads(daemon.run("events", "--json").stdout) == event


@pytest.mark.parametrize(
    ("event", "exit_code", "said"),
    [
        ({"event": "expired"}, 75, "held for too long"),
        ({"event": "cancelled"}, 1, "cancelled"),
        ({"event": "failed", "detail": "no scope"}, 1, "no scope"),
        (
            {"event": "start", "turn": "1", "unit": "hostguard-turn-m-1.scope"},
            1,
            "is not in hostguard-turn-m-1",
        ),
    ],
)
def test_run_starts_nothing_outside_its_scope(
    daemon: StandIn, event: dict[str, Any], exit_code: int, said: str
) -> None:
    held = {"event": "held", "reason": "mind_busy", "blocker": "u.scope"}
    stream = "".join(json.dumps(e) + "\n" for e in (held, held, event))
    daemon.answer("POST /v1/run", stream.encode())
    marker = daemon.folder / "ran"
    done = daemon.run("run", "-v", "--mind", "m", "--", "touch", str(marker))
    assert (done.returncode, said in done.stderr) == (exit_code, True), done
    assert done.stderr.count("held: mind_busy: u.scope") == 1
    assert not marker.exists()


@pytest.mark.parametrize(("command", "exit_code"), [("no-such-thing", 127), ("/etc/passwd", 126)])
def test_run_refuses_what_cannot_run_before_it_waits(daemon: StandIn, command: str, exit_code: int) -> None:
    assert daemon.run("run", "--mind", "m", "--", command).returncode == exit_code
    assert daemon.asked == []


def test_a_closed_pipe_is_quiet(daemon: StandIn) -> None:
    daemon.answer("GET /v1/deliveries", {"deliveries": [row(i) for i in range(3000)], "total_queued": 3000})
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "hostguard.cli", "queue"],
            cwd=ROOT, env=daemon.env, stdout=closed, stderr=subprocess.PIPE, check=False, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, b"")


def test_ctrl_c_is_quiet(daemon: StandIn) -> None:
    started = threading.Event()
    daemon.answers["GET /v1/minds"] = (200, {}, b"")

    class Slow(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            started.set()
            time.sleep(1)
            return super().get(key, default)

    daemon.answers = Slow(daemon.answers)
    process = subprocess.Popen(
        [sys.executable, "-m", "hostguard.cli", "minds"],
        cwd=ROOT, env=daemon.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert started.wait(30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.strip()) == (130, b"", b"")


def test_completion_offers_live_names(daemon: StandIn) -> None:
    daemon.answer("GET /v1/minds", {"minds": [{"name": "alpha"}, {"name": "beta"}]})
    env = {
        **daemon.env,
        "_HOSTGUARD_COMPLETE": "bash_complete",
        "COMP_WORDS": "hostguard send @a",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "hostguard.cli"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "plain,@alpha\n"
