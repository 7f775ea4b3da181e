"""The work of a session of mind.py: its subprocess, which writes. Standard library only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

WRITER = """
import os, sys, time
end = time.monotonic() + float(sys.argv[2])
with open(sys.argv[1], "ab", 0) as file:
    while time.monotonic() < end:
        file.write(bytes(4096))
        time.sleep(0.01)
"""


class Log:
    """Appends whole lines, from any process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, what: str, **fields: Any) -> None:
        line = {"what": what, "at": time.time(), "pid": os.getpid(), **fields}
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def spin(seconds: float = 0.002) -> None:
    """Use a CPU: some of one is used all the time while something works."""
    spun = time.monotonic() + seconds
    while time.monotonic() < spun:
        pass


def rest(every: float = 0.3) -> None:
    """What `claude` does at rest, measured: 1.3 % of a CPU."""
    while True:
        time.sleep(every)
        spin(0.004)


def child(log_path: str, scratch: str, restless: bool) -> None:
    """Do one job a line of standard input, and say so with one line. Leaves with its mind."""
    if restless:
        threading.Thread(target=rest, daemon=True).start()
    log, jobs, ready = Log(log_path), deque[dict[str, Any]](), threading.Semaphore(0)
    interrupted = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: interrupted.set())

    def read() -> None:
        for line in sys.stdin:
            jobs.append(json.loads(line))
            ready.release()
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    print("ready", flush=True)
    while True:
        ready.acquire()
        job = jobs.popleft()
        interrupted.clear()
        log.write("begin", session=job["session"], id=job["id"], cgroup=cgroup(), turn=job["turn"])
        end, seconds = time.monotonic() + job["work"], job["work"]
        writers = [start_writer(scratch, i, seconds) for i in range(2)] if job["spawns"] else []
        with Path(scratch).open("ab", buffering=0) as file:
            while (left := end - time.monotonic()) > 0 and not interrupted.is_set():
                file.write(bytes(512))
                spin(job["spin"])
                time.sleep(min(left, 0.02))
                if job["spawns"] and len(writers) == 2 and left < seconds / 2:
                    writers.append(start_writer(scratch, 2, left))
        for writer in writers:
            writer.wait()
        if job["tool"] and not interrupted.is_set():
            print("tool", flush=True)
            tool = subprocess.Popen(["sleep", str(job["tool"])])
            log.write("tool", session=job["session"], id=job["id"], tool=tool.pid)
            while tool.poll() is None and not interrupted.wait(0.05):
                pass
            tool.kill()
            tool.wait()
        if job["exec"][0]:
            done = subprocess.run(["hostguard", *job["exec"]], capture_output=True, text=True, check=False)
            log.write("ran", status=done.returncode, text=done.stdout + done.stderr)
        log.write("end", session=job["session"], id=job["id"], cgroup=cgroup(), turn=job["turn"])
        if job["quit"]:
            os._exit(0)
        print(job["id"], flush=True)


def start_writer(scratch: str, number: int, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", WRITER, f"{scratch}.{number}", str(seconds)])


def cgroup() -> str:
    return Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], sys.argv[3:] == ["restless"])
