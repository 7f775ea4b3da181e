"""Errors that a caller gets: those of the API are problem details (RFC 9457).

Their status is a number: importing http would take a seventh of the start time of `hostguard status`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial


class SystemdFailed(Exception):
    """systemd cannot be reached, or refused what a command asked for. The text is for people."""


class ConfigError(Exception):
    """The configuration is invalid. `problems` are sentences; `sources` are the files that were read."""

    def __init__(self, problems: Sequence[str], sources: Sequence[str] = ()) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
        self.sources = tuple(sources)


class Problem(Exception):
    """A request that was refused. `code` is stable; `retry_after` is in seconds; `more`: for programs."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        retry_after: int | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after = retry_after
        self.more = more or {}


# These take the detail.
bad_request = partial(Problem, 400, "bad_request")  # the request is invalid
unauthorized = partial(Problem, 401, "unauthorized")  # the token is missing or wrong
not_allowed = partial(Problem, 403, "not_allowed")  # the caller lacks the permission
conflict = partial(Problem, 409, "conflict")  # its state does not allow this
too_large = partial(Problem, 413, "too_large")  # the request is above a size limit
queue_full = partial(Problem, 429, "queue_full", retry_after=60)  # the mind may have no more rows
busy = partial(Problem, 429, "busy", retry_after=5)  # the caller, or all, have too much under way
too_fast = partial(Problem, 429, "too_fast")  # the sender sent too much within a minute
no_room = partial(Problem, 507, "no_room", retry_after=60)  # too much of it is stored already
unavailable = partial(Problem, 503, "unavailable", retry_after=10)  # not possible now; nothing was done
standby = partial(Problem, 503, "standby")  # the guard cannot start until somebody corrects the cause


def unknown(kind: str, name: object, hint: str) -> Problem:
    """There is no such mind, channel, delivery or turn, or none is named. `hint`: what the caller can do."""
    if name is None or name == "":
        return bad_request(f"no {kind} is named: {hint}")
    return Problem(404, f"unknown_{kind}", f"there is no {kind} {name!s:.100}: {hint}")


def internal(what: str) -> Problem:
    """An error in hostguard itself; `what` names it."""
    return Problem(500, "internal", f"a bug in hostguard: {what}; journalctl -u hostguard has the details")


def named(error: BaseException) -> str:
    """The type of an error and where it was raised: its text may quote a message."""
    name, trace = getattr(error, "sqlite_errorname", type(error).__name__), error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return str(name)
    code = trace.tb_frame.f_code
    return f"{name} in {code.co_name} ({code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
