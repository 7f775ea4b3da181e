"""A model server that speaks Anthropic's Messages API, so that real minds work without a real model.

A message steers it by a line of its text, words after "!!", see `line`:
  id=X       the line's own name: each mind obeys it once
  work=S     think for S seconds, which the mind sees as a stream (default 0)
  bash=B     then ask for a Bash call of this command, in base64 of the URL kind, and end after its result
Lines that came together are obeyed in order: those with a Bash call in a model call each, the rest in the last one.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

MIND = "You are the mind called {}."  # in each mind's system prompt
LINE = re.compile(r"!!id=([\w-]+) work=([\d.]+)(?: bash=([\w-]+=*))?")
_COUNT = itertools.count(1)


def line(*, work: float = 0, bash: str = "") -> str:
    """The line that steers the model; it must be in a message only once."""
    words = [f"!!id={next(_COUNT)}-{time.time_ns():x}", f"work={work}"]
    if bash:
        words.append(f"bash={base64.urlsafe_b64encode(bash.encode()).decode()}")
    return " ".join(words)


@dataclass
class Call:
    """One model call that had a line to obey, or a result of a tool."""

    mind: str
    began: float  # time.time()
    lines: list[str]  # ids
    bash: str  # what it asked for, if it did
    result: str  # of the tool that ran before it
    ended: float | None = None  # None: it runs, or was cut
    cut: bool = False


@dataclass(frozen=True)
class Order:
    """A line, read."""

    id: str
    work: float
    bash: str


@dataclass
class FakeModel:
    """A context manager: the server, on a free port of 127.0.0.1, in a thread."""

    calls: list[Call] = field(default_factory=list)
    _obeyed: set[tuple[str, str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> FakeModel:
        self._server = Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def next_call(self, body: dict[str, Any], bash: str) -> tuple[Call, float]:
        """What this call does, and how long it thinks first. `bash`: the tool's name."""
        messages = body.get("messages", [])
        found = re.search(MIND.format(r"(\S+)"), json.dumps(body.get("system", "")))
        mind = found[1] if found else ""
        if not bash:  # a call beside the conversation
            return Call(mind, time.time(), [], "", ""), 0
        texts = "\n".join(_text(one.get("content")) for one in messages if one.get("role") == "user")
        orders = [
            Order(id, float(work), base64.urlsafe_b64decode(command).decode())
            for id, work, command in LINE.findall(texts)
        ]
        with self._lock:
            new = [order for order in orders if (mind, order.id) not in self._obeyed]
            first = next((order for order in new if order.bash), None)
            chosen = [first] if first else new
            self._obeyed |= {(mind, order.id) for order in chosen}
            asks = first.bash if first else ""
            call = Call(mind, time.time(), [order.id for order in chosen], asks, _result(messages))
            self.calls.append(call)
        return call, sum(order.work for order in chosen)


def _text(content: Any) -> str:
    """The text of a message or a tool's result: a mind may put a message that folds in with either."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or _text(part.get("content")) for part in content or [])


def _result(messages: list[dict[str, Any]]) -> str:
    """The text of the tool's result that the last message has, or ""."""
    content = messages[-1].get("content") if messages else None
    parts = content if isinstance(content, list) else []
    return "\n".join(_text(part.get("content")) for part in parts if part.get("type") == "tool_result")


class Server(ThreadingHTTPServer):
    """Serves many clients at once, and ends with its process."""

    daemon_threads = True
    request_queue_size = 128


def _handler(model: FakeModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._json({"data": []})

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            if "/v1/messages" not in self.path:
                self._json({})
            elif "count_tokens" in self.path:
                self._json({"input_tokens": 100})
            else:
                self._call(body)

        def _call(self, body: dict[str, Any]) -> None:
            names = [tool["name"] for tool in body.get("tools", [])]
            bash = next((name for name in names if name.lower() == "bash"), "")
            call, work = model.next_call(body, bash)
            message: dict[str, Any] = {
                "id": f"msg_{time.time_ns()}", "type": "message", "role": "assistant", "model": body.get("model"),
                "content": [], "stop_reason": None, "stop_sequence": None,
                "usage": {"input_tokens": 10, "output_tokens": 1},
            }  # fmt: skip
            if not body.get("stream"):
                time.sleep(work)
                text = [{"type": "text", "text": "fake answer"}]
                self._json({**message, "content": text, "stop_reason": "end_turn"})
                return
            try:
                self._stream(message, call, work, bash)
                call.ended = time.time()
            except OSError:
                call.cut = True

        def _stream(self, message: dict[str, Any], call: Call, work: float, tool: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            self._event("message_start", message=message)
            self._event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            self._event("content_block_delta", index=0, delta={"type": "text_delta", "text": "fake answer"})
            end = time.monotonic() + work
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(left, 0.1))
                self._event("ping")
            self._event("content_block_stop", index=0)
            if call.bash:
                use = {"type": "tool_use", "id": f"toolu_{time.time_ns()}", "name": tool, "input": {}}
                given = json.dumps({"command": call.bash, "description": "run"})
                self._event("content_block_start", index=1, content_block=use)
                self._event(
                    "content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": given}
                )
                self._event("content_block_stop", index=1)
            reason = "tool_use" if call.bash else "end_turn"
            self._event(
                "message_delta",
                delta={"stop_reason": reason, "stop_sequence": None},
                usage={"output_tokens": 5},
            )
            self._event("message_stop")

        def _event(self, kind: str, **fields: Any) -> None:
            self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode())
            self.wfile.flush()

        def _json(self, answer: object) -> None:
            raw = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
