"""What can go wrong for a caller, as the API tells it (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus


class SystemdFailed(Exception):
    """systemd cannot be reached, or refused what a command asked for. The text is for people."""


class Problem(Exception):
    """A request that is not done. `code` is stable; `retry_after` is in seconds."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after = retry_after


def bad_request(detail: str) -> Problem:
    """The request itself is wrong."""
    return Problem(HTTPStatus.BAD_REQUEST, "bad_request", detail)


def not_allowed(detail: str) -> Problem:
    """The caller may not do this."""
    return Problem(HTTPStatus.FORBIDDEN, "not_allowed", detail)


def unknown(kind: str, name: object, mend: str) -> Problem:
    """There is no such mind, channel, delivery or turn."""
    return Problem(HTTPStatus.NOT_FOUND, f"unknown_{kind}", f"there is no {kind} {name}: {mend}")


def conflict(detail: str) -> Problem:
    """It is not in a state in which this can be done."""
    return Problem(HTTPStatus.CONFLICT, "conflict", detail)


def too_large(detail: str) -> Problem:
    """Above a size limit."""
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", detail)


def queue_full(detail: str) -> Problem:
    """The mind has as many rows as it may have."""
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, "queue_full", detail, retry_after=60)


def unavailable(detail: str, retry_after: int = 10) -> Problem:
    """Not now; nothing was done."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", detail, retry_after)


def internal(error: Exception) -> Problem:
    """A fault of ours."""
    return Problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "internal", f"{error!r}: journalctl -u hostguard has the details"
    )
