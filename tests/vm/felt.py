"""Runs in the guest: what somebody who is no mind feels on the card, until /run/felt-enough is there.

Four times a second 4 KiB are written to a file and fsynced; once a second something like a login over ssh happens: a
shell is forked and executed from the card, reads a file that is not in memory, and writes a line to a log. Prints
{"fsync": [S, ...], "login": [S, ...]}, how long each took.

  felt.py FOLDER      the folder, on the card, gets what is needed
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ENOUGH = Path("/run/felt-enough")
COLD = 64 << 10  # bytes


def every(seconds: float, do: Callable[[], None]) -> list[float]:
    """Do it at these times, or as soon as the last one is over; how long each took."""
    took = []
    while not ENOUGH.exists():
        began = time.monotonic()
        do()
        took.append(time.monotonic() - began)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
    return took


def forget(path: Path) -> None:
    """Have the kernel drop a clean file from memory."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    shell, cold, log = folder / "sh", folder / "cold", folder / "log"
    shutil.copy2("/bin/dash", shell)
    cold.write_bytes(os.urandom(COLD))
    os.sync()
    script = f"read x <{cold}; echo login of somebody >>{log}"

    def fsync() -> None:
        os.pwrite(small, os.urandom(4096), 0)
        os.fsync(small)

    def login() -> None:
        forget(shell)
        forget(cold)
        subprocess.run([shell, "-c", script], check=True)

    small = os.open(folder / "small", os.O_RDWR | os.O_CREAT)
    login()
    print("ready", file=sys.stderr, flush=True)
    felt: dict[str, list[float]] = {}
    logins = threading.Thread(target=lambda: felt.update(login=every(1, login)))
    logins.start()
    felt["fsync"] = every(0.25, fsync)
    logins.join()
    print(json.dumps(felt))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
