"""A mind's server that starts and ends processes as a test bids, by one line per connection. No HTTP.
Arguments: its port, and the file FLED.

child [UID]   start a process of a session; answers its pid. With UID it is another user's
fork PID      that process starts one of its own; answers its pid
flee PID      that process is followed by a child of its, and so on, until the file FLED is there: a pid never
                lasts; the last one makes a file named after its
burn PID S    that process uses a CPU for S seconds
end PID       end that process
churn N       start N processes that leave at once, one after another; answers once they are gone
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

FLEE_S = 60.0  # at the most


def ask(port: int, line: str) -> int:
    """Have the server at the port do it; its answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(f"{line}\n".encode())
        return int(sock.makefile().readline())


def child() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        word, *rest = line.split()
        pid = 0
        if word == "fork" and (pid := os.fork()) == 0:
            time.sleep(3600)
        elif word == "flee" and (pid := os.fork()) == 0:
            flee()
        elif word == "burn":
            end = time.monotonic() + float(rest[0])
            while time.monotonic() < end:
                pass
        print(pid, flush=True)
    time.sleep(3600)  # the server died


def flee() -> None:
    os.setsid()
    end = time.monotonic() + FLEE_S
    while time.monotonic() < end and not Path(sys.argv[2]).exists():
        if os.fork():
            os._exit(0)
    Path(f"{sys.argv[2]}.{os.getpid()}").touch()
    time.sleep(3600)


def serve(port: int, fled: str) -> None:
    children: dict[int, subprocess.Popen[str]] = {}
    with socket.create_server(("", port)) as server:
        while True:
            sock, _ = server.accept()
            with sock, sock.makefile("rw") as stream:
                word, *rest = stream.readline().split()
                answer = 0
                if word == "child":
                    process = subprocess.Popen(
                        [sys.executable, "-S", __file__, "child", fled],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                        user=int(rest[0]) if rest else None,
                    )  # fmt: skip
                    children[process.pid] = process
                    answer = process.pid
                elif word == "churn":
                    for _ in range(int(rest[0])):
                        subprocess.run(["/bin/true"], check=True)
                elif word == "end":
                    with children.pop(int(rest[0])) as process:
                        process.kill()
                else:
                    process = children[int(rest[0])]
                    assert process.stdin is not None
                    assert process.stdout is not None
                    process.stdin.write(" ".join([word, *rest[1:]]) + "\n")
                    process.stdin.flush()
                    answer = 0 if word == "burn" else int(process.stdout.readline())
                print(answer, file=stream, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child()
    else:
        serve(int(sys.argv[1]), sys.argv[2])
