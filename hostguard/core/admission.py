"""The gate's rule: may this row start a turn now? In core, as `hostguard run` needs no daemon. Pure."""

from __future__ import annotations

from hostguard.core.clock import Now
from hostguard.core.model import Fold, Hold, HostView, Kind, MindView, Row, Start, Verdict
from hostguard.core.reasons import Reason


def decide(host: HostView, mind: MindView, row: Row, now: Now) -> Verdict:
    """Start, fold or hold `row`.

    A message that is due for a live turn that takes input folds into it, whatever is paused or full: it
    starts no process. Of several reasons to hold a due row, the one that waiting helps least comes first.
    """
    if host.stopping:
        return Hold(Reason.SHUTDOWN, "the host is shutting down")
    same_session = [turn for turn in mind.live if turn.session == row.session]
    unread = mind.unread or (row.kind is Kind.UNROUTED and f"the routes of {mind.name} were read just now")
    if row.kind.delivers and not row.later(now) and mind.down is None and not unread:
        for turn in same_session:
            if turn.takes_input:
                return Fold(turn)
    if row.later(now):
        return Hold(Reason.NOT_DUE, "it is not due yet")
    if mind.broken:
        return Hold(Reason.MIND_BROKEN, mind.broken)
    if unread:
        return Hold(Reason.ROUTES_UNREAD, unread)
    if host.paused:
        return Hold(Reason.PAUSED, "the guard is paused")
    if mind.paused:
        return Hold(Reason.MIND_PAUSED, f"{mind.name} is paused")
    if mind.asleep:
        return Hold(Reason.ASLEEP, f"{mind.name} sleeps")
    if mind.restarting:
        first = tuple(turn.unit for turn in mind.live) or None
        return Hold(Reason.MIND_RESTARTING, f"the service of {mind.name} is restarted between turns", first)
    if not host.systemd:
        return Hold(Reason.NO_SYSTEMD, "systemd does not answer")
    if not host.writes:
        return Hold(Reason.NO_WRITES, "the queue cannot be written to")
    if mind.down is not None:
        return Hold(Reason.MIND_DOWN, mind.down)
    if same_session or len(mind.live) >= mind.cap:
        if same_session:
            units = tuple(turn.unit for turn in same_session)
            return Hold(Reason.SESSION_BUSY, units[0], units)
        units = tuple(turn.unit for turn in mind.live)
        return Hold(Reason.MIND_BUSY, units[0] if units else f"the cap of {mind.name} is 0", units)
    if host.cap is not None and host.live >= host.cap:
        return Hold(Reason.GLOBAL_CAP, host.units[0] if host.units else "the global cap is 0", host.units)
    if host.effective_cap is not None and host.live >= host.effective_cap:
        return Hold(Reason.PRESSURE, host.units[0] if host.units else "the device is stalled")
    return Start()
