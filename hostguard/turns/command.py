"""What a turn runs: argv, standard input and environment. Pure."""

from __future__ import annotations

import json

from hostguard.core import payload
from hostguard.core.model import Delivery, Kind, Mind, Waited, Work
from hostguard.core.outcome import turn_id
from hostguard.turns.exit_record import OUTPUT_MAX

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SCRIPT_SESSION = "$script:"  # followed by the schedule's name, ":" and the session for what it prints

FILE_SESSION = "$file:"  # followed by the path: what goes into one file goes in order


def work(mind: Mind, row: Delivery, raw: bytes, waited: Waited) -> Work:
    """What the row runs as the mind's user: its command, a schedule's script, or the append to a file."""
    told = environment(mind, row, turn_id(row.id, row.attempts), waited.ms)
    if row.kind is Kind.SCRIPT:
        return Work(("/bin/sh", "-c", json.loads(raw)["script"]), b"", told, OUTPUT_MAX)
    if row.kind is Kind.FILE:
        path = row.session.removeprefix(FILE_SESSION)
        return Work(("/bin/sh", "-c", 'cat >>"$0"', path), payload.file_line(row, raw), told)
    return Work(mind.command, payload.for_exec(row, raw, waited.ms, waited.behind), told)


def environment(mind: Mind, delivery: Delivery, turn: str, held_ms: int) -> dict[str, str]:
    """The environment of an exec mind's command, documented in packaging/hostguard.toml."""
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "HOME": mind.home,
        "USER": mind.user,
        "LOGNAME": mind.user,
        "SHELL": mind.shell,
        **mind.environment,
        "HOSTGUARD_MIND": mind.name,
        "HOSTGUARD_TURN": turn,
        "HOSTGUARD_DELIVERY": str(delivery.id),
        "HOSTGUARD_SESSION": delivery.session,
        "HOSTGUARD_CHANNEL": delivery.channel or "",
        "HOSTGUARD_SENDER": delivery.sender or "",
        "HOSTGUARD_ATTEMPT": str(delivery.attempts + 1),
        "HOSTGUARD_HELD_MS": str(held_ms),
    }
