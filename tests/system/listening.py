"""Listens as a stranger or a mind would, and writes all it gets to a file: a script for users of the guest.

usage: listening.py HOST PORT FILE MODE [SECONDS]
HOST may be "fd": the socket that systemd passes. It says so once it listens. Modes:
  answer   reads a request and answers with 200
  late     accepts SECONDS after the first connection came
  half     says that it sends no more, and reads on
  100      100 Continue without end; 103: early hints; head: a head without end
  drip     reads, and sends a 100 Continue each second, at most seven; notes that the client left
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from contextlib import suppress

ENDLESS = {
    "100": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "103": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"),
    "head": (b"HTTP/1.1 200 OK\r\n", b"X-Line: more\r\n"),
}
LATE_S = 2.0


def listening(host: str, port: int) -> socket.socket:
    if host == "fd":
        return socket.socket(fileno=3)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")


def serve(client: socket.socket, mode: str, file: str) -> None:
    with client, suppress(OSError), open(file, "ab", buffering=0) as log:
        if mode in ENDLESS:
            first, more = ENDLESS[mode]
            client.sendall(first)
            while True:
                client.sendall(more * 1000)
        if mode == "half":
            client.shutdown(socket.SHUT_WR)
        got = b""
        while data := client.recv(65536):
            log.write(data)
            got += data
            if mode == "answer" and b"}" in got:
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                return
            if mode == "drip" and b"}" in got:
                for _ in range(7):
                    client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    if select.select([client], [], [], 1)[0]:
                        log.write(b"the client left")
                        return


def main() -> None:
    host, port, file, mode = sys.argv[1:5]
    with listening(host, int(port)) as sock:
        print("listens", flush=True)
        if address := os.environ.get("NOTIFY_SOCKET"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
                notify.sendto(b"READY=1", address)
        while True:
            if mode == "late":
                select.select([sock], [], [])
                time.sleep(LATE_S)
            client, _ = sock.accept()
            threading.Thread(target=serve, args=(client, mode, file), daemon=True).start()


if __name__ == "__main__":
    main()
