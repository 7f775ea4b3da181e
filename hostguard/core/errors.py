"""Errors that a caller gets: those of the API are problem details (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus


class SystemdFailed(Exception):
    """systemd cannot be reached, or refused what a command asked for. The text is for people."""


class Problem(Exception):
    """A request that was refused. `code` is stable; `retry_after` is in seconds."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after = retry_after


def bad_request(detail: str) -> Problem:
    """The request is invalid."""
    return Problem(HTTPStatus.BAD_REQUEST, "bad_request", detail)


def not_allowed(detail: str) -> Problem:
    """The caller lacks the permission."""
    return Problem(HTTPStatus.FORBIDDEN, "not_allowed", detail)


def unknown(kind: str, name: object, hint: str) -> Problem:
    """There is no such mind, channel, delivery or turn. `hint`: what the caller can do."""
    return Problem(HTTPStatus.NOT_FOUND, f"unknown_{kind}", f"there is no {kind} {name}: {hint}")


def conflict(detail: str) -> Problem:
    """Its state does not allow this."""
    return Problem(HTTPStatus.CONFLICT, "conflict", detail)


def too_large(detail: str) -> Problem:
    """The request is above a size limit."""
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", detail)


def queue_full(detail: str) -> Problem:
    """The mind has the most rows that it may have."""
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, "queue_full", detail, retry_after=60)


def unavailable(detail: str, retry_after: int = 10) -> Problem:
    """Not possible now; nothing was done."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", detail, retry_after)


def internal(error: Exception) -> Problem:
    """An error in hostguard itself."""
    return Problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "internal", f"{error!r}: journalctl -u hostguard has the details"
    )
