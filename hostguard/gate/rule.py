"""The gate: may this row start a turn now? Pure; the one place where that is decided."""

from __future__ import annotations

from hostguard.core.model import Fold, Hold, HostView, MindView, Reason, Row, Start, Verdict


def decide(host: HostView, mind: MindView, row: Row, now: int) -> Verdict:
    """Start, fold or hold `row`. `now` is ms since the epoch.

    Rule 1 stands before everything else, pause and caps too: a message for a live turn that takes input
    starts no process. Of several reasons to hold, the one that a person can do least about by waiting
    comes first.
    """
    same_session = [turn for turn in mind.live if turn.session == row.session]
    for turn in same_session:
        if turn.takes_input:
            return Fold(turn)
    if host.paused:
        return Hold(Reason.PAUSED, "the guard is paused")
    if mind.paused:
        return Hold(Reason.MIND_PAUSED, f"{mind.name} is paused")
    if mind.asleep:
        return Hold(Reason.ASLEEP, f"{mind.name} sleeps")
    if row.not_before > now:
        return Hold(Reason.NOT_DUE, "its time has not come")
    if not host.systemd:
        return Hold(Reason.NO_SYSTEMD, "systemd does not answer")
    if not host.writes:
        return Hold(Reason.NO_WRITES, "the queue cannot be written to")
    if mind.down is not None:
        return Hold(Reason.MIND_DOWN, mind.down)
    if same_session:
        return Hold(Reason.SESSION_BUSY, same_session[0].unit)
    if len(mind.live) >= mind.cap:
        blocker = mind.live[0].unit if mind.live else f"the cap of {mind.name} is 0"
        return Hold(Reason.MIND_BUSY, blocker)
    if host.cap is not None and host.live >= host.cap:
        return Hold(Reason.GLOBAL_CAP, host.oldest or "the global cap is 0")
    if host.effective_cap is not None and host.live >= host.effective_cap:
        return Hold(Reason.PRESSURE, host.oldest or "the device is stalled")
    return Start()
