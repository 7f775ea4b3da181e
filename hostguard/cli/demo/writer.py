"""The bystander's process: writes and syncs 4 KiB four times a second, and prints how long that took.

`python -I writer.py FILE` begins at the first line on its stdin and ends with its stdin. It prints a line for
each write: its start (seconds since the epoch) and its duration (seconds).
"""

import os
import select
import signal
import sys
import time

EVERY_S = 0.25
BYTES = 4096


def main() -> None:
    """Run as the bystander."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end if the reader is gone
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    block = b"\0" * BYTES
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    due = time.monotonic()
    while True:
        at, began = time.time(), time.monotonic()
        os.write(fd, block)
        os.fsync(fd)
        now = time.monotonic()
        print(f"{at:.6f} {now - began:.6f}", flush=True)
        due = max(due + EVERY_S, now)
        if select.select([sys.stdin], [], [], due - now)[0]:
            return


if __name__ == "__main__":
    main()
