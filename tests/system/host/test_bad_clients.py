"""Clients that send no HTTP, nonsense, or only half of it: an answer each, and next to nothing in the journal."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from guard import Guard, wait_for
from minds import free_port

from hostguard.core import paths

EVENTS, WEB = free_port(), free_port()
CONFIG = f"""
[minds.ada]
command = ["/bin/true"]
user = "root"
[events]
listen = "127.0.0.1:{EVENTS}"
[web]
listen = "127.0.0.1:{WEB}"
"""
H = b"Host: 127.0.0.1\r\n"
MALFORMED = {
    "binary": b"\x00\x01\x02\xff\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x7f" * 500,
    "one word": b"GET\r\n\r\n",
    "lf": b"\n\n\n\n",
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET /v1/status HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/status HTTP/1.1\r\n" + H + H + b"\r\n",
    "length": b"POST /v1/pause HTTP/1.1\r\n" + H + b"Content-Length: x\r\n\r\n",
    "two lengths": b"POST /v1/pause HTTP/1.1\r\n" + H + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "minus": b"POST /v1/pause HTTP/1.1\r\n" + H + b"Content-Length: -1\r\n\r\n",
    "huge length": b"POST /v1/pause HTTP/1.1\r\n" + H + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "encoding": b"POST /v1/pause HTTP/1.1\r\n" + H + b"Transfer-Encoding: gzip\r\n\r\n",
    "chunk": b"POST /v1/pause HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "chunk end": b"POST /v1/pause HTTP/1.1\r\n"
    + H
    + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX\r\n0\r\n\r\n",
    "header": b"GET /v1/status HTTP/1.1\r\n" + H + b"no colon\r\n\r\n",
    "bare header": b"GET /v1/status HTTP/1.1\r\n" + H + b"A\x00: \x01\r\n\r\n",
    "latin": b"GET /v1/\xe9 HTTP/1.1\r\n" + H + b"\r\n",
    "response": b"HTTP/1.1 200 OK\r\n\r\n",
}
ODD = {
    "bad host": b"GET /v1/nothing HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "odd host": b"GET /v1/nothing HTTP/1.1\r\nHost: \xff\xfe//a@b:99999999\r\n\r\n",
    "no path": b"GET ?x=1 HTTP/1.1\r\n" + H + b"\r\n",
    "absolute": b"GET http://[::1/v1/status HTTP/1.1\r\n" + H + b"\r\n",
    "slashes": b"GET //[::1/v1/status HTTP/1.1\r\n" + H + b"\r\n",
    "connect": b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n" + H + b"\r\n",
    "options": b"OPTIONS * HTTP/1.1\r\n" + H + b"\r\n",
    "upgrade": b"GET /v1/status HTTP/1.1\r\n" + H + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "method": b"BREW /v1/status HTTP/1.1\r\n" + H + b"\r\n",
    "head": b"HEAD /v1/status HTTP/1.1\r\n" + H + b"\r\n",
    "percent": b"GET /v1/turns/%ff%00%zz HTTP/1.1\r\n" + H + b"\r\n",
    "query": b"GET /v1/deliveries?limit=%ff&after=%00&mind=%ed%a0%80&state=%ff HTTP/1.1\r\n" + H + b"\r\n",
    "digits": b"GET /v1/deliveries/" + b"9" * 4301 + b" HTTP/1.1\r\n" + H + b"\r\n",
    "more digits": b"POST /v1/deliveries/" + b"9" * 30_000 + b"/cancel HTTP/1.1\r\n" + H + b"\r\n",
    "19 digits": b"GET /v1/deliveries/9999999999999999999/why HTTP/1.1\r\n" + H + b"\r\n",
    "other digits": "GET /v1/deliveries/²".encode("latin-1", "replace") + b" HTTP/1.1\r\n" + H + b"\r\n",
    "wait": b"GET /v1/deliveries/1?wait_s=1e999 HTTP/1.1\r\n" + H + b"\r\n",
    "since": b"GET /v1/events?follow=0 HTTP/1.1\r\n" + H + b"Last-Event-ID: " + b"9" * 5000 + b"\r\n\r\n",
    "version": b"GET /v1/status HTTP/9.9\r\n" + H + b"\r\n",
    "long head": b"GET /v1/status HTTP/1.1\r\n"
    + H
    + b"A: "
    + b"x" * 100_000
    + b"\r\n\r\n",  # refused, unless all of it came at once
    "old": b"GET /v1/status HTTP/1.0\r\n\r\n",
    "two at once": (b"GET /v1/limits HTTP/1.1\r\n" + H + b"\r\n") * 2,
}


def posted(body: bytes, path: bytes = b"/v1/deliveries", length: int | None = None) -> bytes:
    size = b"%d" % (len(body) if length is None else length)
    return b"POST " + path + b" HTTP/1.1\r\n" + H + b"Content-Length: " + size + b"\r\n\r\n" + body


def nested(depth: int) -> bytes:
    return b'{"to": "@ada", "content": ' + b"[" * depth + b"]" * depth + b"}"


JSON = {
    "971 deep": posted(nested(971)),
    "102 deep": posted(nested(102)),
    "200,000 deep": posted(nested(200_000)),
    "deep objects": posted(b'{"to": "@ada", "content": ' + b'{"a":' * 980 + b"1" + b"}" * 980 + b"}"),
    "digits": posted(b'{"to": "@ada", "content": ' + b"9" * 5000 + b"}"),
    "nan": posted(b'{"to": "@ada", "content": NaN}'),
    "surrogate": posted(b'{"to": "@ada", "content": "\\ud800"}'),
    "surrogate mind": posted(b'{"mind": "\\ud800"}', b"/v1/pause"),
    "surrogate name": posted(
        b'{"name": "a", "mind": "ada", "cron": "@daily", "script": "\\ud800"}', b"/v1/schedules"
    ),
    "surrogate field": posted(b'{"\\ud800": 1}', b"/v1/pause"),
    "no utf-8": posted(b'{"to": "@ada", "content": "\xff"}'),
    "bom": posted(b"\xef\xbb\xbf{}"),
    "a list": posted(b"[]"),
    "time": posted(b'{"to": "@ada", "content": "", "not_before": ' + b"9" * 4000 + b"}"),
    "limit": posted(b'{"name": "global_concurrent_turns", "value": ' + b"9" * 4000 + b"}", b"/v1/pause"),
    "run": posted(b'{"mind": "ada", "key": "k", "max_wait_s": 1e999}', b"/v1/run"),
    "sleep": posted(b'{"until": 1' + b"0" * 400 + b"}", b"/v1/minds/ada/sleep"),
}


def connect(where: int | None) -> socket.socket:
    if where is None:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(20)
        sock.connect(str(paths.SOCKET))
        return sock
    return socket.create_connection(("127.0.0.1", where), timeout=20)


def answer(where: int | None, raw: bytes) -> bytes:
    """All that comes back until the connection ends, or nothing more comes."""
    found = b""
    with connect(where) as sock:
        try:
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(65536):
                found += part
        except (ConnectionResetError, BrokenPipeError):
            pass
    return found


def status(raw: bytes) -> int:
    assert raw.startswith(b"HTTP/1.1 "), raw[:200]
    return int(raw[9:12])


def journal(guard: Guard) -> list[str]:
    return [
        line["MESSAGE"] for line in guard.journal("_SYSTEMD_UNIT=hostguard.service") if line.get("MESSAGE")
    ]


@pytest.fixture
def host(guard: Guard) -> Iterator[Guard]:
    guard.start(CONFIG)
    pid = guard.pid
    said = journal(guard)
    yield guard
    assert guard.pid == pid
    new = journal(guard)[len(said) :]
    assert not [line for line in new if "Traceback" in line], new
    assert guard.json("status")["state"] == "running"


def test_malformed_http_is_a_line_a_minute_in_the_journal(host: Guard) -> None:
    """Some 300 requests of every kind; each of the three sockets has its line."""
    before, began = len(journal(host)), time.monotonic()
    for _ in range(5):
        for where in (None, EVENTS, WEB):
            for name, raw in MALFORMED.items():
                found = answer(where, raw)
                assert found == b"" or 400 <= status(found) < 600, (name, found[:300])
                assert found or name in ("lf", "http 2"), name
    said, minutes = journal(host)[before:], (time.monotonic() - began) / 60
    assert 3 <= len(said) <= 3 * (1 + minutes), said
    assert all("sent what is not HTTP/1.1" in line and len(line) < 120 for line in said)


def test_odd_requests_have_an_answer(host: Guard) -> None:
    before = len(journal(host))
    for where in (None, EVENTS, WEB):
        for name, raw in ODD.items():
            found = answer(where, raw)
            assert 200 <= status(found) < 500, (name, found[:400])
            assert len(found) < 4000 or b" 200 OK" in found, name
    assert len("".join(journal(host)[before:])) < 1000, journal(host)[before:]


def test_json_of_any_kind_has_an_answer(host: Guard) -> None:
    before = len(journal(host))
    for name, raw in JSON.items():
        found = answer(None, raw)
        assert 400 <= status(found) < 500, (name, found[:400])
        problem = json.loads(found.partition(b"\r\n\r\n")[2])
        assert len(problem["detail"]) < 400, name
    assert journal(host)[before:] == []
    # As deep as is allowed: through the queue, and to the mind.
    found = answer(None, posted(nested(97)))
    assert status(found) == 201, found
    row = json.loads(found.partition(b"\r\n\r\n")[2])["deliveries"][0]["id"]
    wait_for(lambda: host.json("queue", str(row))["state"] == "done")


def test_clients_that_leave_in_the_middle_are_quiet(host: Guard) -> None:
    before = len(journal(host))
    chunks = b"POST /v1/deliveries HTTP/1.1\r\n" + H + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"to"'
    waits = posted(b"", length=5000).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    paths_ = (
        b"/v1/deliveries",
        b"/v1/pause",
        b"/v1/run",
        b"/v1/schedules",
        b"/v1/minds/ada/sleep",
        b"/nothing",
    )
    halves = [posted(b'{"to": "@ada",', path, 5000) for path in paths_]
    halves += [posted(b'{"to": "@ada",' + b" " * 300_000, length=900_000), chunks, waits]
    for raw in halves:
        for where in (None, EVENTS, WEB):
            for how in ("close", "reset", "shutdown"):
                sock = connect(where)
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    sock.sendall(raw)
                    if how == "shutdown":
                        sock.shutdown(socket.SHUT_WR)
                        sock.recv(100)
                if how == "reset" and where is not None:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
    for raw in (b"", b"GET /v1/sta", b"GET /v1/events HTTP/1.1\r\n" + H + b"\r\n"):
        with connect(None) as sock:
            sock.sendall(raw)
    token = host.cli("mind", "token", "ada").stdout.strip().encode()
    head = b"Authorization: Bearer " + token + b"\r\nContent-Length: 500\r\n\r\n{"
    for path in (b"events", b"message"):
        with connect(EVENTS) as sock:
            sock.sendall(b"POST /api/minds/ada/" + path + b" HTTP/1.1\r\n" + H + head)
    time.sleep(1)
    assert host.json("queue", "--state", "all")["deliveries"] == []
    said = [
        line for line in journal(host)[before:] if "minds' endpoint refused" not in line
    ]  # no token: one a minute
    assert said == []
