"""The exit record of a turn: the file in which its stub writes how its command started and ended.

It begins with the turn's session, for a guard that finds the turn, but no row of it.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress

from hostguard.core import paths
from hostguard.core.model import LiveTurn
from hostguard.core.outcome import ACCOUNT, Record
from hostguard.core.paths import record_path

log = logging.getLogger(__name__)

RECORD_MAX = 128 << 10  # bytes of a record that are read
OUTPUT = "output"  # the line of a record that a script's output follows
TICKS = re.compile(rb"^(started|ended) \d+$", re.MULTILINE)
OUTPUT_MAX = 64 << 10  # bytes of a script's output that are kept: a message that a mind can read


def prepare(turn: LiveTurn) -> bool:
    """Make the record of a turn that is about to start. False if it cannot be made."""
    assert turn.id is not None
    try:
        paths.TURNS.mkdir(mode=0o700, exist_ok=True)  # somebody may have tidied up
        record = os.open(record_path(turn.id), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(record, "w") as file:
            file.write(f"session {json.dumps(turn.session)}\n")
    except OSError as error:
        log.error("%s: its record cannot be made: %s", turn.unit, error)
        return False
    return True


def forget(turn: str) -> None:
    """Remove the turn's record, once its end is in the database."""
    try:
        record_path(turn).unlink(missing_ok=True)
    except OSError as error:
        log.error("%s cannot be removed: %s", record_path(turn), error)


def bring_back() -> None:
    """Put the records that a shutdown left (paths.WENT_DOWN_TURNS) beside those of this boot.

    Their ticks are those of another boot, and are left out. Records of /run, after a soft reboot, are newer.
    Blocks. Failures are logged.
    """
    try:
        for left in paths.WENT_DOWN_TURNS.iterdir() if paths.WENT_DOWN_TURNS.is_dir() else ():
            here = record_path(left.name)
            if not here.exists():
                head, *output = left.read_bytes().partition(f"\n{OUTPUT}\n".encode())
                here.touch(0o600)
                here.write_bytes(b"".join((TICKS.sub(rb"\1", head), *output)))
                os.utime(here, ns=(left.stat().st_atime_ns, left.stat().st_mtime_ns))
    except OSError as error:
        log.error("%s cannot be read: %s; turns that ended then run again", paths.WENT_DOWN_TURNS, error)


def read_record(turn: str) -> Record | None:
    """The turn's record; None if there is none (the host was restarted) or it cannot be read."""
    try:
        with record_path(turn).open("rb") as file:
            text = file.read(RECORD_MAX).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        log.error("%s cannot be read: %s", record_path(turn), error)
        return None
    return parse_record(text)


def written(turn: str) -> float:
    """When the turn's record was written to last, in s since the epoch; 0 if there is none."""
    try:
        return record_path(turn).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def parse_record(text: str) -> Record:
    """Read a record. The mind's user could have written to it: lines that make no sense are ignored."""
    released, not_started, session = False, None, None
    numbers: dict[str, int] = {}
    lines, _, output = text.partition(f"\n{OUTPUT}\n")
    for line in lines[:4096].splitlines():
        key, _, value = line.partition(" ")
        released = released or key == "started"
        if key == "not_started":
            not_started = value
        elif key == "session" and session is None:
            with suppress(ValueError):
                session = str(json.loads(value))
        elif value.isdecimal() and len(value) < 20:
            numbers[key] = int(value)
    account = {key: numbers[key] for key in ACCOUNT if key in numbers}
    ended, anchor = (numbers.get("exit"), numbers.get("signal")), numbers.get("anchor")
    times = numbers.get("started"), numbers.get("ended")
    return Record(released, not_started, *ended, account, anchor, output[:OUTPUT_MAX], session, *times)
