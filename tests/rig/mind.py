"""A resident mind for tests: an HTTP server that behaves as shared/volute.md says. Standard library only.

Presets say what it does by default:
  normal   answers at once, works in a subprocess of the session, then tells that it is done
  silent   never tells that it is done
  dies     its process ends in the middle of every third message's work
  refuses  every fourth message is refused with 500, the first one too
  slow     answers late, at work already
  spawns   the session's subprocess starts further ones, which write
  all      tells `done` without a session
  claude   as Volute's claude template: a `done` for each run of the model. What comes meanwhile gets the next run, all
           of it one; what comes during a tool call belongs to this run. An interrupted run tells its `done` at once.
           One process is started in advance for the session main. At rest it works a little now and then
  pi       as its pi template: the work is in the server itself, and one `done` covers all that came. What interrupts
           only comes next
A message changes that by the last line of its content, words after a "!": work=S (seconds), die, silent, spawns,
keyless (the last word: it does not remember the key, as no Volute mind does), tool=S (after that a tool that waits so
long), spin=S (of a CPU each 20 ms), mute (tells nothing but done; else that it thinks, too), quit (the session's subprocess leaves after the work, and no
done is told), tell=S (an event each S seconds of work), say=NAME[/SESSION]:TEXT (send that to a mind before the
work), wait=S (at most so long, for a message that folds in).
POST /control {"refuse": N, "close": N, "lose": N, "delay": S, "preset": P} changes what comes next: N messages are
refused with 500; N connections closed before, or after, the message is taken.

The log has one JSON object a line: what = message (as it came), begin and end (of the work on it), done.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mind_work import Log, cgroup, spin  # type: ignore[import-not-found]  # a script: from its own folder

PRESETS = ("normal", "silent", "dies", "refuses", "slow", "spawns", "all", "claude", "pi")
SLOW_S = 0.4
WORK = str(Path(__file__).with_name("mind_work.py"))


class Session:
    """Works on the session's messages, one after another; those that come meanwhile fold into the turn."""

    def __init__(self, mind: Mind, name: str) -> None:
        self._mind, self._name = mind, name
        self._lock = threading.Lock()
        self._waiting: deque[dict[str, Any]] = deque()
        self._busy = False
        self.came = threading.Event()  # a message folded into the turn
        argv = [sys.executable, "-S", WORK, mind.args.log, f"{mind.args.log}.{mind.args.name}"]
        self._argv = [*argv, "restless"] if mind.args.preset == "claude" else argv
        self._started = False
        if mind.args.preset != "pi":
            self._start()

    def _start(self) -> None:
        # A variable of the whole mind: it has none before the first message.
        volute = {"VOLUTE_MIND": self._mind.args.name} if self._mind.args.preset == "claude" else {}
        if volute and self._mind.current is not None:
            volute["VOLUTE_SESSION"] = self._mind.current
        self._child = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **volute}
        )
        self._ready = False
        if volute:
            self.tell("session_start")

    def take(self, job: dict[str, Any]) -> None:
        with self._lock:
            self._waiting.append(job)
            self.came.set()
            if not self._busy:
                self._busy = True
                self.came.clear()
                threading.Thread(target=self._turn, daemon=True).start()
            elif job["interrupt"] and self._mind.args.preset != "pi" and self._ready:
                self._child.send_signal(signal.SIGUSR1)

    def _turn(self) -> None:
        if self._mind.args.preset == "claude":
            self._runs()
            return
        if self._mind.args.preset == "pi" and not self._started:
            self._started = True
            self.tell("session_start")
        silent = False
        while True:
            with self._lock:
                if not self._waiting:
                    self._busy = False
                    break
                job = self._waiting.popleft()
            silent = job["silent"]
            self._work(job)
        if not silent:
            self._mind.tell_done(self._name)

    def _runs(self) -> None:
        """Runs of the model, as long as messages wait: each takes all of them, and tells its own done."""
        while True:
            with self._lock:
                run, self._waiting = self._waiting, deque()
                self._busy = bool(run)
            if not run:
                return
            while run:
                job = run.popleft()
                self._work(job)
                if any(other["interrupt"] for other in self._waiting):
                    break
                if job["tool"]:
                    with self._lock:
                        run.extend(self._waiting)
                        self._waiting.clear()
            threading.Thread(target=self.tell, args=("text",)).start()  # nothing keeps the order of events
            self._mind.tell_done(self._name)

    def tell(self, type_: str) -> None:
        self._mind.post("events", {"type": type_, "session": self._name}, self._name)

    def _work_here(self, job: dict[str, Any]) -> None:
        """In the server, as pi does; only its tools are processes."""
        self._mind.log.write("begin", session=self._name, id=job["id"], cgroup=cgroup(), turn=job["turn"])
        end = time.monotonic() + job["work"]
        while time.monotonic() < end:
            spin()
            time.sleep(0.02)
        if job["tool"]:
            self.tell("tool_use")
            tool = subprocess.Popen(["sleep", str(job["tool"])])
            self._mind.log.write("tool", session=self._name, id=job["id"], tool=tool.pid)
            tool.wait()
        self._mind.log.write("end", session=self._name, id=job["id"], cgroup=cgroup(), turn=job["turn"])
        self.tell("text")

    def _work(self, job: dict[str, Any]) -> None:
        if self._mind.args.preset == "pi":
            self._work_here(job)
            return
        if self._child.poll() is not None:
            self._start()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        if not self._ready:
            self._child.stdout.readline()
            self._ready = True
        if (
            not job["mute"] and self._mind.args.preset != "claude"
        ):  # Volute's standard preset leaves thinking out
            self.tell("thinking")
        if job["die"]:
            threading.Timer(job["work"] / 2, os._exit, (3,)).start()
        self._child.stdin.write(json.dumps(job) + "\n")
        self._child.stdin.flush()
        for said in job["say"]:
            to, _, text = said.partition(":")
            self._mind.send(to, text, self._name)
        if job["wait"]:
            self._mind.log.write("waited", session=self._name, came=self.came.wait(job["wait"]))
        stop = threading.Event()
        if job["tell"]:
            threading.Thread(target=self._tell, args=(job["tell"], stop), daemon=True).start()
        while (line := self._child.stdout.readline()) == "tool\n":
            self.tell("tool_use")
        if not line:
            self._child.wait()  # it was killed: the next message gets another one
        stop.set()

    def _tell(self, seconds: float, stop: threading.Event) -> None:
        while not stop.wait(seconds):
            self.tell("thinking")


class Mind:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.log = args, Log(args.log)
        self.lock = threading.Lock()
        self.control: dict[str, Any] = {
            "refuse": 0,
            "close": 0,
            "lose": 0,
            "delay": 0.0,
            "preset": args.preset,
        }
        self.count = 0
        self.current: str | None = None  # the session of the last message
        self._sessions: dict[str, Session] = {}
        # What an earlier process took counts as taken: the mind honours keys for good.
        lines = [json.loads(line) for line in Path(args.log).read_text().splitlines()]
        self._keys = {line["key"] for line in lines if line.get("taken") and line["mind"] == args.name}
        if args.preset == "claude":
            self._sessions["main"] = Session(self, "main")

    def spend(self, name: str) -> bool:
        with self.lock:
            if self.control[name] <= 0:
                return False
            self.control[name] -= 1
            return True

    def take(self, body: dict[str, Any], key: str | None, turn: str | None) -> int:
        """Log the message and begin with it; the status of the answer."""
        preset, session = self.control["preset"], body.get("session") or "main"
        if str(body.get("content")).endswith(" keyless"):
            key = None
        with self.lock:
            self.count += 1
            count = self.count
            repeat = key is not None and key in self._keys
            refused = self.control["refuse"] > 0 or (preset == "refuses" and count % 4 == 1)
            if self.control["refuse"] > 0:
                self.control["refuse"] -= 1
            taken = not refused and not repeat
            if taken and key is not None:
                self._keys.add(key)
            content = body.get("content")
            self.log.write(
                "message", mind=self.args.name, session=session, content=content, key=key, turn=turn,
                interrupt=body.get("interrupt"), batch=body.get("batch"), sender=body.get("sender"),
                channel=body.get("channel"), body=sorted(body), repeat=repeat, taken=taken,
            )  # fmt: skip
            if taken:
                self.current = session
                if session not in self._sessions:
                    self._sessions[session] = Session(self, session)
                self._sessions[session].take(
                    self._job(content, session, turn, count, bool(body.get("interrupt")))
                )
        return 500 if refused else 200

    def _job(
        self, content: Any, session: str, turn: str | None, count: int, interrupt: bool
    ) -> dict[str, Any]:
        preset = self.control["preset"]
        text = content if isinstance(content, str) else ""
        words = text.rpartition("!")[2].split() if "!" in text else []
        given = dict(word.partition("=")[::2] for word in words)
        return {
            "id": count, "session": session, "turn": turn, "interrupt": interrupt,
            "work": float(given.get("work") or self.args.work),
            "die": "die" in given or (preset == "dies" and count % 3 == 0),
            "quit": "quit" in given, "mute": "mute" in given,
            "silent": "silent" in given or "quit" in given or preset == "silent",
            "spawns": "spawns" in given or preset == "spawns",
            "spin": float(given.get("spin") or 0.002), "tell": float(given.get("tell") or 0), "tool": float(given.get("tool") or 0),
            "wait": float(given.get("wait") or 0),
            "say": [given["say"]] if "say" in given else [],
            "exec": given.get("exec", "").split("_"),
        }  # fmt: skip

    def tell_done(self, session: str) -> None:
        """Three tries, never again after a 4xx."""
        body: dict[str, Any] = {"type": "done"}
        if self.control["preset"] != "all":
            body["session"] = session
        for attempt in range(1, 4):
            status = self.post("events", body, None if self.control["preset"] == "all" else session)
            self.log.write("done", mind=self.args.name, session=session, status=status)
            if status is not None and (status < 300 or 400 <= status < 500):
                return
            if attempt < 3:
                time.sleep(0.5 * attempt)

    def send(self, to: str, text: str, session: str) -> None:
        to, _, other = to.partition("/")
        body = {"content": text.replace("_", " "), "session": other or None}
        status = self.post("message", body, session, to)
        self.log.write("sent", to=to, status=status)

    def post(
        self, what: str, body: dict[str, Any], session: str | None, name: str | None = None
    ) -> int | None:
        """The answer's status, None if there is none."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.args.token}"}
        if session is not None:
            headers["X-Volute-Session"] = session
        connection = http.client.HTTPConnection("127.0.0.1", self.args.daemon_port, timeout=10)
        try:
            path = f"/api/minds/{name or self.args.name}/{what}"
            connection.request("POST", path, json.dumps(body), headers)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


def handler(mind: Mind) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/health":
                self._answer(200, {"status": "ok", "name": mind.args.name, "version": "0.39.0"})
            else:
                self._answer(404, {"error": "Not found"})

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                body = json.loads(raw)
                assert isinstance(body, dict)
            except (ValueError, AssertionError):
                self._answer(400, {"error": "Bad Request"})
                return
            if self.path == "/control":
                with mind.lock:
                    mind.control.update(body)
                self._answer(200, mind.control)
            elif self.path == "/message":
                self._message(body)
            else:
                self._answer(404, {"error": "Not found"})

        def _message(self, body: dict[str, Any]) -> None:
            if mind.spend("close"):
                self.close_connection = True
                return
            status = mind.take(
                body, self.headers.get("Idempotency-Key"), self.headers.get("X-Hostguard-Turn")
            )
            time.sleep(mind.control["delay"] or (SLOW_S if mind.control["preset"] == "slow" else 0))
            if mind.spend("lose"):
                self.close_connection = True
                return
            self._answer(status, {"ok": True} if status == 200 else {"error": "refused by preset"})

        def _answer(self, status: int, body: object) -> None:
            raw = json.dumps(body).encode()
            with contextlib.suppress(OSError):  # the guard was killed meanwhile
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--preset", choices=PRESETS, default="normal")
    parser.add_argument("--log", required=True)
    parser.add_argument("--daemon-port", type=int, required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--work", type=float, default=0.1, help="seconds of work per message")
    args = parser.parse_args()
    Server(("127.0.0.1", args.port), handler(Mind(args))).serve_forever()


if __name__ == "__main__":
    main()
