"""Measures the write rate of a disk, within a limit of bytes and of time.

It writes as the turns of the incident did (facts.md): blocks of 512 KiB, each synced. The writer is a
separate process, `python -I rate.py FOLDER BYTES SECONDS`, so that a disk that hangs blocks nothing else.
After each block it prints the bytes written so far and the seconds this took.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCK = 512 << 10  # bytes
BYTES_MAX = 32 << 20
SECONDS_MAX = 5.0
PATIENCE_S = 5.0  # for the last block; then the bytes written so far count


def measure(folder: Path) -> float | None:
    """The write rate of the disk under `folder` in bytes/s, synced; None: not one block was written.

    Blocks for at most 10 s. Raises OSError if the folder cannot be written to.
    """
    argv = [sys.executable, "-I", __file__, str(folder), str(BYTES_MAX), str(SECONDS_MAX)]
    writer = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stderr is not None
    output, end = b"", time.monotonic() + SECONDS_MAX + PATIENCE_S
    while select.select([writer.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(writer.stdout.fileno(), 4096)
        if not part:
            if writer.wait() != 0:
                reason = writer.stderr.read().decode(errors="replace").strip().splitlines()
                raise OSError(f"{folder}: {reason[-1] if reason else 'the measurement failed'}")
            break
        output += part
    else:
        writer.kill()  # without waiting: it may hang in the kernel
    if not output:
        return None
    written, seconds = output.splitlines()[-1].split()
    return int(written) / float(seconds)


def main(folder: str, most: int, seconds: float) -> None:
    """Run as the writer."""
    block = os.urandom(BLOCK)  # incompressible: some controllers compress
    with tempfile.TemporaryFile(dir=folder) as file:
        written, began = 0, time.monotonic()
        while written < most and time.monotonic() - began < seconds:
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            written += BLOCK
            print(written, time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
