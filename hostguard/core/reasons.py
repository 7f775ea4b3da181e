"""Why rows wait. It loads little: `hostguard status` needs it on a slow host."""

from __future__ import annotations

from enum import StrEnum

HOST, MIND, SESSION, ROW = "host", "mind", "session", "row"


class Reason(StrEnum):
    """Why a row does not start now.

    `holds` says whose other rows cannot start either: those of the host, the mind, the session, or none.
    `words` are for tables, `sentence` is for `hostguard why`. One with {behind} has a turn as its cause.
    """

    holds: str
    words: str
    sentence: str

    PAUSED = "paused", HOST, "all are paused: hostguard resume", "the guard is paused (hostguard resume)"
    MIND_PAUSED = "mind_paused", MIND, "paused: hostguard resume {mind}", "{blocker} (hostguard resume MIND)"
    ASLEEP = "asleep", MIND, "asleep: hostguard wake {mind}", "{blocker} (hostguard wake MIND)"
    # A resident mind asked for it. It waits for the ends of the mind's turns.
    MIND_RESTARTING = "mind_restarting", MIND, "its service is restarted"
    NOT_DUE = "not_due", SESSION, "not due yet"
    RETRY = "retry", SESSION, "tried again after a pause"  # the session's first row, and those behind it
    CALLER_AWAY = "caller_away", ROW, "its hostguard run is not connected"
    UNKNOWN_MIND = "unknown_mind", MIND, "not configured"
    MIND_BROKEN = "mind_broken", MIND, "cannot work here"  # its user, program or sandbox is not there
    # Nobody knows yet where its messages go.
    ROUTES_UNREAD = (
        "routes_unread", MIND, "routes not read yet", "the mind's routes are not known yet: {blocker}"
    )  # fmt: skip
    SESSION_BUSY = "session_busy", SESSION, "session busy", "its session is busy{behind}"
    MIND_BUSY = "mind_busy", MIND, "mind busy", "the mind is busy, no slot of its own cap is free{behind}"
    GLOBAL_CAP = "global_cap", HOST, "no slot free", "no slot of the global cap is free{behind}"
    PRESSURE = (
        "pressure", HOST, "disk not calm", "the disk is {level} ({evidence}), and fewer turns may run{behind}"
    )  # fmt: skip
    MIND_DOWN = "mind_down", MIND, "server down"  # a resident mind's server does not take connections
    NO_SYSTEMD = (
        "no_systemd", HOST, "systemd does not answer", "systemd does not answer, and nothing starts uncounted"
    )  # fmt: skip
    # The card is full, read-only, or gone.
    NO_WRITES = (
        "no_writes", HOST, "the disk accepts no writes", "{blocker}, so the ends of turns cannot be stored"
    )  # fmt: skip
    SHUTDOWN = "shutdown", HOST, "the host shuts down"
    RESTART = "restart", ROW, "the guard's restart"  # held since before it: the reason is not stored

    def __new__(cls, value: str, holds: str, words: str, sentence: str = "{blocker}") -> Reason:
        """Make the string with its attributes."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.holds, reason.words, reason.sentence = holds, words, sentence
        return reason


BY_NAME: dict[str, Reason] = {str(reason): reason for reason in Reason}
