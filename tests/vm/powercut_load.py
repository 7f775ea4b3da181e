#!/usr/bin/python3
"""Clients that send until the power is cut, in the virtual machine; test_powercut.py starts them.

  powercut_load.py LIMIT NAME:TO:FIRST...

Each client NAME sends to TO messages with the keys NAME-FIRST, NAME-(FIRST + 1), ..., LIMIT at most, and follows
each until it is done, one behind. What is known is written to a port of the machine, in lines that outlive it:

  sent KEY ID...        the message was acknowledged, with these rows
  done ID               the guard said that the row is done
  begin ID ATTEMPT, end ID ATTEMPT     a turn's own words, which come through the pipe TURNS

All is one process: the port can be opened once, and Python starts slowly there.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any

API = "/run/hostguard/hostguard.sock"
PORT = "/dev/virtio-ports/records"
TURNS = "/run/turns"

lock = threading.Lock()
port = os.open(PORT, os.O_WRONLY)


def record(line: str) -> None:
    with lock:
        os.write(port, line.encode() + b"\n")


def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """A request to the API: its status and JSON. Raises OSError, ValueError if there is no whole answer."""
    raw = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    answer = b""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(API)
        link.sendall(head.encode() + raw)
        while came := link.recv(1 << 16):
            answer += came
    top, _, text = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(text)


def insist(method: str, path: str, body: Any = None) -> Any:
    """As people do: again, until it works."""
    while True:
        try:
            status, answer = ask(method, path, body)
        except (OSError, ValueError, IndexError):
            pass  # the guard is not up yet
        else:
            if status < 300:
                return answer
            if status != 503:
                record(f"wrong {method} {path} {status} {answer}")
        time.sleep(0.1)


def follow(id_: int) -> None:
    while insist("GET", f"/v1/deliveries/{id_}?wait_s=60")["state"] != "done":
        pass
    record(f"done {id_}")


def client(name: str, to: str, first: int, limit: int) -> None:
    before: int | None = None
    for number in range(first, first + limit):
        key = f"{name}-{number}"
        message = {"to": to, "content": key, "key": key}
        ids = [row["id"] for row in insist("POST", "/v1/deliveries", message)["deliveries"]]
        record(f"sent {key} {' '.join(map(str, ids))}")
        if before is not None:
            follow(before)
        before = ids[-1]
    if before is not None:
        follow(before)


def main() -> None:
    limit = int(sys.argv[1])
    for argument in sys.argv[2:]:
        name, to, first = argument.split(":")
        threading.Thread(target=client, args=(name, to, int(first), limit), daemon=True).start()
    with open(os.open(TURNS, os.O_RDWR)) as told:  # open for writing, too: it never ends
        while line := told.readline():
            record(line.rstrip("\n"))


if __name__ == "__main__":
    main()
