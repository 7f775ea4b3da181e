"""The rig's own resident mind does what shared/volute.md says of one: else its tests prove nothing."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from guard import wait_for
from minds import Minds, OneMind


class Daemon:
    """Answers each done with the next of `statuses`, then with 200."""

    def __init__(self, port: int) -> None:
        self.told: list[tuple[float, str, str | None, str | None, Any]] = []
        self.other: list[tuple[float, str, str | None, str | None, Any]] = []
        self.statuses: list[int] = []
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                session = self.headers["X-Volute-Session"]
                told = (time.monotonic(), self.path, self.headers["Authorization"], session, body)
                is_done = body["type"] == "done"
                (daemon.told if is_done else daemon.other).append(told)
                self.send_response(daemon.statuses.pop(0) if is_done and daemon.statuses else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_told(self, count: int) -> None:
        end = time.monotonic() + 10
        while len(self.told) < count:
            assert time.monotonic() < end, self.told
            time.sleep(0.01)


@pytest.fixture
def rig() -> Iterator[tuple[Minds, Daemon]]:
    with Minds() as minds:
        daemon = Daemon(minds.events_port)
        try:
            yield minds, daemon
        finally:
            daemon.close()


def start(rig: tuple[Minds, Daemon], preset: str = "normal", work: float = 0.2) -> tuple[OneMind, Daemon]:
    minds, daemon = rig
    mind = minds.add("m", preset, work=work, service=False)
    minds.start()
    return mind, daemon


def ask(mind: OneMind, body: Any, path: str = "/message", **headers: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", mind.port, timeout=10)
    try:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(
            "POST", path, raw, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        return connection.getresponse().status
    except http.client.HTTPException:
        return None
    finally:
        connection.close()


def test_it_answers_at_once_works_and_tells(rig):
    mind, daemon = start(rig, work=0.6)
    began = time.monotonic()
    status = ask(
        mind, {"content": "a", "session": "s", "interrupt": True}, Idempotency_Key="k", X_Hostguard_Turn="1"
    )
    assert status == 200
    answered = time.monotonic()
    daemon.wait_told(1)
    at, path, token, session, body = daemon.told[0]
    assert answered < at
    assert at - began > 0.6
    assert (path, token, session) == ("/api/minds/m/events", "Bearer token-of-m", "s")
    assert body == {"type": "done", "session": "s"}
    assert [told[4] for told in daemon.other] == [{"type": "thinking", "session": "s"}]
    [line] = mind.log("message")
    assert (line["content"], line["key"], line["turn"], line["interrupt"]) == ("a", "k", "1", True)
    begin, end = mind.log("begin", "end")
    assert begin["pid"] == end["pid"] != line["pid"], "the work is done in a subprocess"
    assert ask(mind, {"content": "b", "session": "s"}) == 200
    daemon.wait_told(2)
    assert {line["pid"] for line in mind.log("begin")} == {begin["pid"]}, "which is kept"


def test_bad_requests(rig):
    mind, _ = start(rig)
    assert ask(mind, b"{") == 400
    assert ask(mind, {}, "/other") == 404
    assert mind.log("message") == []


def test_messages_of_a_session_fold_and_one_done_covers_them(rig):
    mind, daemon = start(rig, work=0.5)
    for content in "abc":
        assert ask(mind, {"content": content, "session": "s"}) == 200
    assert ask(mind, {"content": "d", "session": "t"}) == 200
    daemon.wait_told(2)
    time.sleep(0.3)
    assert sorted(told[4]["session"] for told in daemon.told) == ["s", "t"]
    assert len(mind.log("end")) == 4


def test_an_interrupt_ends_the_work_that_is_under_way(rig):
    mind, daemon = start(rig, work=5)
    assert ask(mind, {"content": "a"}) == 200
    wait_for(lambda: mind.log("begin"))
    assert ask(mind, {"content": "b !work=0.1", "interrupt": True}) == 200
    daemon.wait_told(1)
    assert [line["id"] for line in mind.log("end")] == [1, 2]


def test_done_is_tried_three_times_but_not_after_a_4xx(rig):
    mind, daemon = start(rig, work=0)
    daemon.statuses = [500, 503, 500]
    assert ask(mind, {"content": "a"}) == 200
    daemon.wait_told(3)
    times = [told[0] for told in daemon.told]
    assert times[1] - times[0] > 0.5
    assert times[2] - times[1] > 1.0
    daemon.statuses = [403]
    assert ask(mind, {"content": "b"}) == 200
    daemon.wait_told(4)
    time.sleep(0.8)
    assert len(daemon.told) == 4


def test_a_repeated_key_is_answered_and_not_worked_on(rig):
    minds, _ = rig
    mind, _daemon = start(rig)
    for _ in range(2):
        assert ask(mind, {"content": "a"}, Idempotency_Key="k") == 200
    minds.stop(mind)
    minds.start()
    assert ask(mind, {"content": "a"}, Idempotency_Key="k") == 200
    assert [line["repeat"] for line in mind.log("message")] == [False, True, True]
    assert mind.contents() == ["a"]


def test_presets_and_control(rig):
    mind, daemon = start(rig, "silent", work=0.05)
    assert ask(mind, {"content": "a"}) == 200
    wait_for(lambda: mind.log("end"))
    time.sleep(0.3)
    assert daemon.told == []
    mind.control(preset="all")
    assert ask(mind, {"content": "a"}) == 200
    daemon.wait_told(1)
    assert daemon.told[0][3:] == (None, {"type": "done"})
    mind.control(preset="normal", refuse=1)
    assert [ask(mind, {"content": "a"}) for _ in range(2)] == [500, 200]
    mind.control(close=1)
    assert [ask(mind, {"content": "b"}) for _ in range(2)] == [None, 200]
    mind.control(lose=1)
    assert [ask(mind, {"content": "c"}, Idempotency_Key="c") for _ in range(2)] == [None, 200]
    assert mind.contents() == ["a", "a", "a", "b", "c"]
    mind.control(delay=0.5)
    began = time.monotonic()
    assert ask(mind, {"content": "d"}) == 200
    assert time.monotonic() - began > 0.5


def test_it_dies_in_the_middle_of_the_work(rig):
    mind, daemon = start(rig)
    assert ask(mind, {"content": "!die work=2"}) == 200  # so that the work has begun by then
    assert mind.process is not None
    assert mind.process.wait(20) == 3
    time.sleep(0.3)
    assert (len(mind.log("begin")), len(mind.log("end")), daemon.told) == (1, 0, []), (
        "its subprocess goes, too"
    )


def test_it_writes_from_subprocesses(rig):
    mind, daemon = start(rig, "spawns")
    assert ask(mind, {"content": "a"}) == 200
    daemon.wait_told(1)
    written = [path.stat().st_size for path in mind.log_path.parent.glob("m.log.m.*")]
    assert len(written) == 3
    assert min(written) > 0


# -- as Volute's templates: shared/volute.md has what real minds do


def sends(rig: tuple[Minds, Daemon], preset: str, *messages: str) -> tuple[OneMind, Daemon]:
    """Send the first, and the others once it is at work, or its tool if it has one."""
    mind, daemon = start(rig, preset)
    first, *others = messages
    assert ask(mind, {"content": first, "session": "s"}) == 200
    wait_for(lambda: mind.log("tool" if "tool" in first else "begin"))
    for other in others:
        assert ask(mind, {"content": other, "session": "s", "interrupt": "!!" in other}) == 200
    wait_for(lambda: len(mind.log("end")) == len(messages))
    return mind, daemon


@pytest.mark.parametrize(
    ("messages", "dones"),
    [
        (("a !work=0.3", "b"), 2),
        (("a !work=0.3", "b", "c"), 2),
        (("a !work=0 tool=0.3", "b"), 1),
        (("a !work=5", "b !! work=0.1"), 2),
    ],
    ids=["one more", "two more", "during a tool call", "interrupt"],
)
def test_a_claude_mind_tells_done_for_each_run(rig, messages, dones):
    _, daemon = sends(rig, "claude", *messages)
    daemon.wait_told(dones)
    time.sleep(0.2)
    assert [told[4]["session"] for told in daemon.told] == ["s"] * dones


def test_a_pi_mind_works_in_its_server_and_tells_one_done(rig):
    mind, daemon = sends(rig, "pi", "a !work=0.3", "b", "c !work=0 tool=0.1")
    daemon.wait_told(1)
    time.sleep(0.2)
    assert len(daemon.told) == 1
    assert mind.process is not None
    assert {line["pid"] for line in mind.log("begin", "end", "tool")} == {mind.process.pid}
    types = [told[4]["type"] for told in daemon.other]
    assert types == ["session_start", "text", "text", "tool_use", "text"]


def test_a_claude_mind_starts_a_process_for_main_in_advance(rig):
    mind, daemon = sends(rig, "claude", "a")
    assert mind.process is not None
    tasks = Path(f"/proc/{mind.process.pid}/task").glob("*/children")
    children = [pid for task in tasks for pid in task.read_text().split()]
    environments = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in children]
    assert [b"VOLUTE_MIND=m" in found for found in environments] == [True, True]
    assert sorted(b"VOLUTE_SESSION=s" in found for found in environments) == [False, True]
    daemon.wait_told(1)
    assert [told[4]["session"] for told in daemon.other if told[4]["type"] == "session_start"][-1] == "s"
