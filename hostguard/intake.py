"""What callers send, checked at the edge. Pure: JSON in, a deliveries.New or a Problem out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hostguard.deliveries import New
from hostguard.model import Config, Kind
from hostguard.problems import Problem, bad_request, conflict, too_large, unknown

# Limits of the text fields, in characters. They go into the environment of a turn and into the journal.
SESSION_MAX = 100  # the length that Volute cuts sessions to
SENDER_MAX = 200
KEY_MAX = 200
DESCRIPTION_MAX = 200
TIME_MAX = 253_402_300_799_000  # 9999-12-31, ms

SEND_FIELDS = {"to", "content", "session", "sender", "key", "not_before", "expires_at", "interrupt"}
PAUSE_FIELDS = {"mind"}
LIMIT_FIELDS = {"name", "mind", "value", "runtime"}
RUN_FIELDS = {"mind", "session", "key", "max_wait_s", "description", "argv0"}


def message(body: Any, config: Config, now: int) -> New:
    """A `POST /v1/deliveries`. Raises Problem."""
    known_fields(body, SEND_FIELDS)
    if "content" not in body:
        raise bad_request("content is missing: the message, any JSON value")
    channel, minds = _target(body.get("to"), config, body.get("sender"))
    not_before, expires_at = _time(body, "not_before"), _time(body, "expires_at")
    if expires_at and expires_at <= max(now, not_before):
        raise bad_request("expires_at is not after now and not_before: the message could never start")
    interrupt = body.get("interrupt", False)
    if not isinstance(interrupt, bool):
        raise bad_request("interrupt must be true or false")
    session = text(body, "session", SESSION_MAX) or "main"
    sender = text(body, "sender", SENDER_MAX)
    payload = {
        "content": body["content"],
        "channel": channel,
        "sender": sender,
        "session": session,
        "interrupt": interrupt,
    }
    return New(
        minds,
        session,
        _encode(payload, config),
        now,
        key=text(body, "key", KEY_MAX),
        sender=sender,
        channel=channel,
        not_before=not_before,
        expires_at=expires_at,
    )


def run(body: Any, config: Config, now: int) -> New:
    """A `POST /v1/run`. Raises Problem."""
    known_fields(body, RUN_FIELDS)
    name = body.get("mind")
    if not isinstance(name, str) or name not in config.minds:
        raise _unknown_mind(name, config)
    key = text(body, "key", KEY_MAX)
    if key is None:
        raise bad_request("key is missing: a random text that names this run")
    wait = body.get("max_wait_s")
    if wait is not None and (
        isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < 1e9
    ):
        raise bad_request("max_wait_s must be a number of seconds, 0 or more")
    session = text(body, "session", SESSION_MAX) or "main"
    payload = {
        "description": text(body, "description", DESCRIPTION_MAX),
        "argv0": text(body, "argv0", DESCRIPTION_MAX),
    }
    expires_at = now + int(wait * 1000) if wait is not None else 0
    return New((name,), session, _encode(payload, config), now, Kind.RUN, key, expires_at=expires_at)


def _target(to: Any, config: Config, sender: Any) -> tuple[str | None, tuple[str, ...]]:
    """(channel or None, minds). The sender of a message to a channel does not get it back."""
    if not isinstance(to, str) or not to:
        raise bad_request('to is missing: "@mind" or "#channel"')
    if to.startswith("#"):
        if to not in config.channels:
            known = ", ".join(sorted(config.channels)) or "none is configured"
            raise unknown("channel", to, f"channels: {known}")
        minds = tuple(mind for mind in config.channels[to] if mind != sender)
        if not minds:
            raise conflict(f"{to} has nobody but the sender")
        return to, minds
    name = to.removeprefix("@")
    if name not in config.minds:
        raise _unknown_mind(name, config)
    if not config.minds[name].command:
        raise conflict(f"{name} has no command: only `hostguard run` starts its turns")
    return None, (name,)


def _unknown_mind(name: Any, config: Config) -> Problem:
    return unknown("mind", name, f"minds: {', '.join(sorted(config.minds)) or 'none is configured'}")


def one_or_all(body: Mapping[str, Any]) -> str | None:
    """The mind of a request that without one is about all of them. Raises Problem."""
    if body.get("mind") == "":
        raise bad_request("mind is empty: name one, or leave it out to mean all")
    return text(body, "mind", KEY_MAX)


def known_fields(body: Any, fields: set[str]) -> None:
    """Refuse what a request does not have: passed over, it would mean something else. Raises Problem."""
    if not isinstance(body, Mapping):
        raise bad_request("the body must be a JSON object")
    other = sorted(set(body) - fields)
    if other:
        raise bad_request(f"unknown field {other[0]}; known: {', '.join(sorted(fields))}")


def text(body: Mapping[str, Any], name: str, most: int) -> str | None:
    """A short text without control characters, or None. Raises Problem."""
    value = body.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a text")
    if len(value) > most:
        raise bad_request(f"{name} has {len(value)} characters, at most {most} are allowed")
    if not value.isprintable():
        raise bad_request(f"{name} must not contain control characters")
    return value


def _time(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TIME_MAX:
        raise bad_request(f"{name} must be a time in ms since the epoch")
    return value


def _encode(payload: Mapping[str, Any], config: Config) -> bytes:
    try:
        raw = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        raise bad_request("the message has half of a surrogate pair: it is not text") from None
    except ValueError:
        raise bad_request("the message has a number that JSON cannot hold") from None
    if len(raw) > config.payload_max:
        raise too_large(
            f"the message has {len(raw)} bytes as JSON, at most {config.payload_max} are allowed"
            " (limits.payload_max)"
        )
    return raw
