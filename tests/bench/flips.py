"""Flips random single bits of a queue's files, and reports what becomes of them.

python -m tests.bench.flips [COUNT [SEED]]
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.rig.flips import DB, WAL, closed_queue, killed_queue, try_flips


def main() -> None:
    """Prints a line for each file: database after a stop; database and WAL after a kill."""
    count, seed = int((sys.argv[1:2] or ["4000"])[0]), int((sys.argv[2:3] or ["12"])[0])
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        closed, killed = closed_queue(folder / "closed"), killed_queue(folder / "killed")
        for what, queue, file in (("stopped", closed, DB), ("killed", killed, DB), ("killed", killed, WAL)):
            begun = time.monotonic()
            tally = try_flips(queue, file, count, seed, folder)
            took = (time.monotonic() - begun) / count * 1000
            print(
                f"{what}, {file}, {len(queue.files[file])} bytes: {count} bits, seed {seed}: harmless"
                f" {tally.harmless}, rows set aside {tally.rows}, file {tally.file}, WAL repaired {tally.repaired},"
                f" not replayed {tally.unreplayed}, WRONG {len(tally.wrong)}; {took:.1f} ms each"
            )
            for line in tally.wrong[:20]:
                print("   ", line)


if __name__ == "__main__":
    main()
