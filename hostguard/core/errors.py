"""Errors that a caller gets: those of the API are problem details (RFC 9457).

Their status is a number: importing http would take a seventh of the start time of `hostguard status`.
"""

from __future__ import annotations


class SystemdFailed(Exception):
    """systemd cannot be reached, or refused what a command asked for. The text is for people."""


class Problem(Exception):
    """A request that was refused. `code` is stable; `retry_after` is in seconds."""

    def __init__(self, status: int, code: str, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after = retry_after


def bad_request(detail: str) -> Problem:
    """The request is invalid."""
    return Problem(400, "bad_request", detail)


def not_allowed(detail: str) -> Problem:
    """The caller lacks the permission."""
    return Problem(403, "not_allowed", detail)


def unknown(kind: str, name: object, hint: str) -> Problem:
    """There is no such mind, channel, delivery or turn. `hint`: what the caller can do."""
    return Problem(404, f"unknown_{kind}", f"there is no {kind} {name}: {hint}")


def conflict(detail: str) -> Problem:
    """Its state does not allow this."""
    return Problem(409, "conflict", detail)


def too_large(detail: str) -> Problem:
    """The request is above a size limit."""
    return Problem(413, "too_large", detail)


def queue_full(detail: str) -> Problem:
    """The mind has the most rows that it may have."""
    return Problem(429, "queue_full", detail, retry_after=60)


def unavailable(detail: str, retry_after: int = 10) -> Problem:
    """Not possible now; nothing was done."""
    return Problem(503, "unavailable", detail, retry_after)


def internal(error: Exception) -> Problem:
    """An error in hostguard itself."""
    return Problem(500, "internal", f"{error!r}: journalctl -u hostguard has the details")
