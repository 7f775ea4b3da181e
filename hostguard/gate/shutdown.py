"""What one guard leaves for the next about the host's way down: which turns it cut short.

An orderly way down stops the guard first, then hostguard-shutdown.service, then the turns. The service leaves
a mark on the disk, and so does the guard if it can, also when no unit is stopped (`systemctl --force`). What
ended after the mark was ended by the host: it runs again, and no attempt is counted. Without a mark the power
failed, or the kernel did. The exit records of turns end with a boot, but for a soft reboot, which keeps /run.
The service copies them first, since turns go on, and may end, while the guard is being stopped.
"""

from __future__ import annotations

import logging
import os
import shutil

from hostguard.core import paths
from hostguard.core.outcome import Record

log = logging.getLogger(__name__)


def leave_mark() -> None:
    """Note that the host is going down. Blocks. Logged if that is impossible."""
    try:
        fd = os.open(paths.WENT_DOWN, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.utime(fd)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        log.error("%s cannot be written: %s; the shutdown counts as an attempt", paths.WENT_DOWN, error)


def mark_time() -> float | None:
    """When the mark was left, in s since the epoch; None if there is none. Blocks."""
    try:
        return paths.WENT_DOWN.stat().st_mtime
    except FileNotFoundError:
        return None


def forget_mark() -> None:
    """Remove the mark: what it says of turns is in the queue now. Blocks. Logged if that is impossible."""
    try:
        if paths.WENT_DOWN_TURNS.exists():
            shutil.rmtree(paths.WENT_DOWN_TURNS)
        paths.WENT_DOWN.unlink(missing_ok=True)
    except OSError as error:
        again = "turns that end while the guard is down may run again until you remove it"
        log.error("%s cannot be removed: %s; %s", paths.WENT_DOWN, error, again)


def cut_short(mark: float | None, record: Record | None, written: float) -> bool:
    """True if the host's way down ended a turn with this record. Pure.

    `mark` and `written`, when the record was last written to, are in s since the epoch.
    """
    if mark is None:
        return False
    if record is None:  # it ended with the boot
        return True
    own = (record.exit, record.signal, record.not_started) != (None, None, None)
    return written >= mark or not own
