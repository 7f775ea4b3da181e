"""Messages that the end of a row brings about. Pure."""

from __future__ import annotations

import re

from hostguard.core.model import Config, Delivery, Kind, Target
from hostguard.core.names import MAIN_SESSION
from hostguard.core.outcome import Ending
from hostguard.core.payload import CHANNEL, SENDER, system_payload
from hostguard.store.deliveries import New


def dead_letter(row: Delivery, ending: Ending, config: Config, now: int) -> New | None:
    """The one notice of a dead letter, to its mind and its sender. A notice itself, or a run, has none."""
    if row.kind in (Kind.NOTICE, Kind.RUN):
        return None
    names = dict.fromkeys((row.mind, row.sender or ""))
    minds = tuple(
        name for name in names if (mind := config.minds.get(name)) is not None and (mind.command or mind.url)
    )
    if not minds:
        return None
    channel = f" in {row.channel}" if row.channel else ""
    # Not what a mind answered: another would read that as the guard's own words.
    reason = re.sub(r"(HTTP [0-9]+): .*", r"\1", ending.reason)
    text = (
        f"[hostguard] message {row.id} from {row.sender or 'nobody'}{channel} to {row.mind} could not be"
        f" delivered: {reason}. It is kept as a dead letter"
    )
    if not ending.hopeless:
        text += f"; hostguard dead retry {row.id} tries it again"
    targets = tuple(Target(mind, MAIN_SESSION, kind=Kind.NOTICE) for mind in minds)
    return New(targets, system_payload(minds, text), now, sender=SENDER, channel=CHANNEL)


def script_message(row: Delivery, output: str, ending: Ending, now: int) -> New | None:
    """What a schedule's script printed, as a message to its mind; None if it printed nothing.

    The row's session is "$script:NAME:SESSION", with the schedule's name and the session the message is for.
    """
    _, name, session = row.session.split(":", 2)
    text = output.strip()
    if ending.exit != 0:
        text = f"[script error] {ending.reason}{f': {text}' if text else ''}"
    if not text:
        return None
    target = Target(row.mind, session, kind=Kind.SCHEDULE)
    payload = system_payload((row.mind,), f"[{name}] {text}")
    return New((target,), payload, now, sender=SENDER, channel=CHANNEL)
