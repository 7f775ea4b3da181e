"""A stand-in for Volute's daemon, for tests of the guard in front of it: as tests/volute shows the real one.

usage: volute.py HOME PORT
It keeps its registry and daemon.json where Volute has them, and runs its minds (mind.py) as its own children.
It is commanded over HTTP:
  POST /rig/add    {name, port, work}        a new mind, not started
  POST /rig/start  {name}                    as Volute: it asks the port for its health, which must fail
  POST /rig/stop   {name}
  POST /rig/send   {name, ...the message}    POSTs the message; answers {status, body, s}, status 0: no answer
and serves events of minds, and their stream, as Volute does.
"""

from __future__ import annotations

import http.client
import json
import queue
import secrets
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

MIND = str(Path(__file__).with_name("mind.py"))
TOKEN = secrets.token_hex(16)  # new at each start
POST_S = 120.0


class Volute:
    def __init__(self, home: Path, port: int) -> None:
        self.home, self.port = home, port
        self.system = home / "system"
        self.system.mkdir(exist_ok=True)
        self.works: dict[str, float] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.streams: dict[str, list[queue.Queue[dict[str, Any]]]] = defaultdict(list)
        self.lock = threading.Lock()
        with closing(self.db()) as db, db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(
                "CREATE TABLE IF NOT EXISTS minds (name TEXT PRIMARY KEY, port INTEGER NOT NULL UNIQUE, parent TEXT,"
                " running INTEGER NOT NULL DEFAULT 0)"
            )
        self.kept = self.db()  # as Volute: open for good, so that the newest rows are only in the WAL
        (self.system / "daemon.json").write_text(
            json.dumps({"port": port, "token": TOKEN, "hostname": "127.0.0.1"})
        )
        for (name,) in self.kept.execute("SELECT name FROM minds WHERE running").fetchall():
            self.start(name)

    def db(self) -> sqlite3.Connection:
        return sqlite3.connect(self.system / "volute.db", timeout=5, check_same_thread=False)

    def add(self, name: str, port: int, work: float = 0.1) -> None:
        self.works[name] = work
        with closing(self.db()) as db, db:
            db.execute("INSERT OR REPLACE INTO minds (name, port) VALUES (?, ?)", (name, port))

    def of(self, name: str) -> int:
        with closing(self.db()) as db:
            return int(db.execute("SELECT port FROM minds WHERE name = ?", (name,)).fetchone()[0])

    def start(self, name: str) -> None:
        port = self.of(name)
        assert not self.healthy(port), "somebody answers on the mind's port"
        log = self.home / f"{name}.log"
        log.touch()
        argv = [
            sys.executable, "-S", MIND, f"--name={name}", f"--port={port}", f"--log={log}",
            f"--daemon-port={self.port}", f"--token=token-of-{name}", f"--work={self.works.get(name, 0.1)}",
        ]  # fmt: skip
        self.running[name] = subprocess.Popen(argv)
        with closing(self.db()) as db, db:
            db.execute("UPDATE minds SET running = 1 WHERE name = ?", (name,))
        while not self.healthy(port):
            time.sleep(0.02)

    def healthy(self, port: int) -> bool:
        try:
            return ask(port, "GET", "/health")[0] == 200
        except OSError:
            return False

    def stop(self, name: str) -> None:
        with closing(self.db()) as db, db:
            db.execute("UPDATE minds SET running = 0 WHERE name = ?", (name,))
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def send(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        try:
            status, body = ask(self.of(name), "POST", "/message", json.dumps(message))
        except (OSError, http.client.HTTPException) as error:
            status, body = 0, repr(error)
        return {"status": status, "body": body, "s": time.monotonic() - began}


def ask(port: int, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=POST_S)
    with closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def handler(volute: Volute) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            match self.path.split("/")[1:]:
                case ["rig", "send"]:
                    return self._answer(volute.send(body.pop("name"), body))
                case ["rig", what]:
                    getattr(volute, what)(**body)
                case ["api", *_, name, "events"]:
                    with volute.lock:
                        for stream in volute.streams[name]:
                            stream.put({"mind": name, **body})
            self._answer({"ok": True})

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            match url.path.split("/")[1:]:
                case ["api", "v1", "minds", name, "events"] if self._authorized():
                    self._stream(name, parse_qs(url.query)["type"][0].split(","))
                case ["api", "v1", "minds", name, "events"]:
                    self._answer({"error": "Unauthorized"}, 401)
                case _:
                    self._answer({})

        def _authorized(self) -> bool:
            return self.headers.get("Authorization") == f"Bearer {TOKEN}"

        def _stream(self, name: str, types: list[str]) -> None:
            events: queue.Queue[dict[str, Any]] = queue.Queue()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with volute.lock:
                volute.streams[name].append(events)
            try:
                while True:
                    event = events.get()
                    if event["type"] in types:
                        raw = f"data: {json.dumps(event)}\n\n".encode()
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
            except OSError:
                volute.streams[name].remove(events)

        def _answer(self, body: object, status: int = 200) -> None:
            raw = json.dumps(body).encode()
            self.send_response(status)
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
    home, port = Path(sys.argv[1]), int(sys.argv[2])
    server = Server(("127.0.0.1", port), lambda *args: None)  # type: ignore[arg-type]
    server.RequestHandlerClass = handler(Volute(home, port))
    server.serve_forever()


if __name__ == "__main__":
    main()
