"""How fast a disk takes writes: a short measurement, bounded in bytes and in time.

It writes as the turns of the incident did (facts.md): 512 KiB, synced, again and again. `python -I rate.py
FOLDER BYTES SECONDS` is the process that writes, so that a disk that hangs holds up nobody else: after each
block it prints how many bytes it has written, and in how many seconds.
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
PATIENCE_S = 5.0  # for a last block on its way; then what was written so far counts


def measure(folder: Path) -> float | None:
    """Bytes/s that the disk under `folder` takes, synced; None: it took not one block. Blocks, at most 10 s.

    Raises OSError: the folder cannot be written to.
    """
    argv = [sys.executable, "-I", __file__, str(folder), str(BYTES_MAX), str(SECONDS_MAX)]
    writer = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stderr is not None
    said, end = b"", time.monotonic() + SECONDS_MAX + PATIENCE_S
    while select.select([writer.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(writer.stdout.fileno(), 4096)
        if not part:
            if writer.wait() != 0:
                reason = writer.stderr.read().decode(errors="replace").strip().splitlines()
                raise OSError(f"{folder}: {reason[-1] if reason else 'the measurement failed'}")
            break
        said += part
    else:
        writer.kill()  # not waited for: it may hang in the kernel
    if not said:
        return None
    written, seconds = said.splitlines()[-1].split()
    return int(written) / float(seconds)


def main(folder: str, most: int, seconds: float) -> None:
    """Be the process that writes."""
    block = os.urandom(BLOCK)  # a controller that compresses would look fast
    with tempfile.TemporaryFile(dir=folder) as file:
        written, began = 0, time.monotonic()
        while written < most and time.monotonic() - began < seconds:
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            written += BLOCK
            print(written, time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
