"""Checks what callers send, and what schedules do. Pure: JSON in, a Message or a Problem out."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hostguard.config.authorised import schedule_refusal
from hostguard.config.schema import TIME_MAX
from hostguard.core import payload as payloads
from hostguard.core.errors import (
    Problem,
    bad_request,
    conflict,
    not_allowed,
    too_large,
    unavailable,
    unknown,
)
from hostguard.core.model import Config, Kind, LiveTurn, Schedule, Target
from hostguard.core.names import (
    MAIN_SESSION,
    NEW_PREFIX,
    NEW_SESSION,
    OWN_SESSION,
    SCRIPT_SESSION,
    SESSION_MAX,
    own_session,
)
from hostguard.core.payload import compact
from hostguard.gate.policy import known_mind
from hostguard.store.deliveries import New
from hostguard.store.keys import RUN, SCHEDULE, SENDER

T = TypeVar("T")

# Limits of the text fields, in characters. They go into the environment of a turn and into the journal.
SENDER_MAX = 200
KEY_MAX = 200
MIND_KEYS = "mind:"  # keys that begin so are of messages that minds send
DESCRIPTION_MAX = 200

TEXT_MAX = 4000  # of instructions
NAMES_MAX = 1000  # participants of a conversation
SYSTEM = "#system"  # every mind, unless the configuration says otherwise

WHILE_SLEEPING = ("skip", "queue", "trigger-wake")
KINDS = (Kind.MESSAGE, Kind.SYSTEM, Kind.NOTICE, Kind.LIFECYCLE)
# What a message may tell the mind in addition to its content, as Volute defines it.
MIND_FIELDS = {
    "conversationId", "platform", "isDM", "participants", "participantCount", "typing", "instructions",
}  # fmt: skip
SEND_FIELDS = {
    "to", "content", "session", "sender", "key", "not_before", "expires_at", "interrupt", "kind", "channel",
    "whileSleeping", *MIND_FIELDS,
}  # fmt: skip
# Of a payload, with a meaning that only hostguard may give them. Others may be sent along, see `message`.
OWN_FIELDS = {*SEND_FIELDS, "batch", "held", "script"}
PAUSE_FIELDS = {"mind"}
LIMIT_FIELDS = {"name", "mind", "value", "runtime"}
STOP_FIELDS = {"interrupt_s"}
STOP_MAX_S = 86_400.0
# For the end of a turn in the gentle way: a mind that is killed in mid-turn loses the conversation.
STOP_TEXT = "[hostguard] You are asked to stop: end this turn now, without further tool calls."
RUN_FIELDS = {"mind", "session", "key", "max_wait_s", "description", "argv0"}


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was sent, not yet planned for each of its minds. Times in ms, 0 = unset."""

    minds: tuple[str, ...]
    session: str | None  # None: as the mind's routes say
    payload: Mapping[str, Any]
    raw: bytes  # the payload as JSON
    kind: Kind = Kind.MESSAGE
    key: str | None = None
    not_before: int = 0
    expires_at: int = 0
    while_sleeping: str = ""
    owner: str = SENDER  # whose key it is
    uid: int | None = None  # the user for whom a script was authorised
    by: str = ""  # who sent it, as quota.py counts; "": nobody whose limits apply

    def new(self, targets: tuple[Target, ...], now: int) -> New:
        """What is stored of it."""
        sender, channel = self.payload.get("sender"), self.payload.get("channel")
        request = {
            **self.payload, "kind": self.kind, "not_before": self.not_before or None,
            "expires_at": self.expires_at or None, "whileSleeping": self.while_sleeping or None,
        }  # fmt: skip
        return New(
            targets, self.raw, now, self.key, sender, channel, self.not_before, self.expires_at, request,
            self.owner, late=0 < self.expires_at <= now, by=self.by,
        )  # fmt: skip


def message(
    body: Any, config: Config, now: int, by: str = "", more: Mapping[str, Any] | None = None
) -> Message:
    """A `POST /v1/deliveries`; `by`: whose limits apply. Raises Problem.

    `more`: fields that hostguard does not know, none of OWN_FIELDS; the mind gets them as they are.
    """
    known_fields(body, SEND_FIELDS)
    if "content" not in body:
        raise bad_request("content is missing: the message, any JSON value")
    sender = text(body, "sender", SENDER_MAX)
    channel, minds = _target(body.get("to"), config, sender)
    not_before, expires_at = time(body, "not_before"), time(body, "expires_at")
    key = _key(body)
    # With a key it may be sent again, and be known: only the queue can tell.
    if expires_at and expires_at <= max(now if key is None else 0, not_before):
        raise never_starts()
    session = text(body, "session", SESSION_MAX)
    if session is not None and own_session(session):
        raise bad_request(f'session must not begin with "{OWN_SESSION}": only {NEW_SESSION} does')
    payload = {
        **(more or {}),
        "content": body["content"],
        "channel": text(body, "channel", SENDER_MAX) or channel,
        "sender": sender,
        "interrupt": flag(body, "interrupt"),
        **_mind_fields(body),
    }
    if session is not None:
        payload["session"] = session
    raw = encode(payload, config)
    kind = _one_of(body, "kind", KINDS, Kind.SYSTEM if channel == SYSTEM else Kind.MESSAGE)
    asleep = _one_of(body, "whileSleeping", WHILE_SLEEPING, "")
    return Message(minds, session, payload, raw, kind, key, not_before, expires_at, asleep, by=by)


def never_starts() -> Problem:
    """The message expires before it could start."""
    return bad_request("expires_at must be later than now and not_before: the message could never start")


def _key(body: Mapping[str, Any]) -> str | None:
    if body.get("key") == "":
        raise bad_request("key is empty: name the message, or omit the key")
    return text(body, "key", KEY_MAX)


def _mind_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {
        "conversationId": text(body, "conversationId", KEY_MAX),
        "platform": text(body, "platform", KEY_MAX),
        "instructions": _words(body, "instructions", TEXT_MAX),
        "participants": _names(body, "participants"),
        "typing": _names(body, "typing"),
    }
    if "isDM" in body:
        given["isDM"] = flag(body, "isDM")
    count = body.get("participantCount")
    if count is not None and not (type(count) is int and 0 <= count <= 1_000_000):
        raise bad_request("participantCount must be a number, 0 or more")
    return {name: value for name, value in {**given, "participantCount": count}.items() if value is not None}


def flag(body: Mapping[str, Any], name: str) -> bool:
    """True or false; false if it is missing. Raises Problem."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false")
    return value


def _words(body: Mapping[str, Any], name: str, most: int) -> str | None:
    value = body.get(name)
    if value is None or (isinstance(value, str) and len(value) <= most):
        return value
    raise bad_request(f"{name} must be a string of at most {most} characters")


def _names(body: Mapping[str, Any], name: str) -> list[str] | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > NAMES_MAX:
        raise bad_request(f"{name} must be a list of at most {NAMES_MAX} names")
    return [text({name: one}, name, SENDER_MAX) or "" for one in value]


def _one_of(body: Mapping[str, Any], name: str, allowed: Sequence[T], default: T) -> T:
    value = body.get(name)
    if value is None:
        return default
    if value in allowed:
        return allowed[allowed.index(value)]
    raise bad_request(f"{name} must be one of {', '.join(str(one) for one in allowed)}")


def run(body: Any, config: Config, now: int, uid: int) -> New:
    """A `POST /v1/run` of this user. Raises Problem."""
    known_fields(body, RUN_FIELDS)
    name = body.get("mind")
    known_mind(name, config)
    key = text(body, "key", KEY_MAX)
    if key is None:
        raise bad_request("key is missing: a random text that names this run")
    wait = body.get("max_wait_s")
    if wait is not None and not (type(wait) in (int, float) and 0 <= wait < 1e9):
        raise bad_request("max_wait_s must be a number of seconds, 0 or more")
    session = text(body, "session", SESSION_MAX) or MAIN_SESSION
    payload = {name: text(body, name, DESCRIPTION_MAX) for name in ("description", "argv0")}
    expires_at = now + int(wait * 1000) if wait is not None else 0
    target = Target(name, session, kind=Kind.RUN, uid=uid)
    request = {"session": session, **payload}
    return New(
        (target,), encode(payload, config), now, key, expires_at=expires_at, request=request, owner=RUN
    )


def stop(turn: LiveTurn, now: int, expires_at: int) -> New:
    """The message that asks a mind to end its turn."""
    target = Target(turn.mind, turn.session or MAIN_SESSION, kind=Kind.LIFECYCLE)
    raw = payloads.system_payload((turn.mind,), STOP_TEXT, interrupt=True)
    return New((target,), raw, now, None, payloads.SENDER, payloads.CHANNEL, expires_at=expires_at)


def interrupt_s(value: Any) -> float:
    """How long a mind has to end its turn, in seconds. Raises Problem."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= STOP_MAX_S:
        raise bad_request(f"interrupt_s must be a number of seconds, at most {STOP_MAX_S:.0f}")
    return value


def scheduled(schedule: Schedule, key: str | None, config: Config) -> Message:
    """What a schedule of a configured mind sends. Raises Problem if its script must not run."""
    kind, session, uid, payload = Kind.SCHEDULE, schedule.session, None, payloads.scheduled(schedule)
    if schedule.script is not None:
        if broken := config.minds[schedule.mind].broken:  # its user may not be known now
            raise unavailable(f"{schedule.mind} is held: {broken}")
        if why := schedule_refusal(schedule, config.minds):
            raise not_allowed(f"{schedule.name}: {why}")
        kind, uid = Kind.SCRIPT, schedule.uid
        session = f"{SCRIPT_SESSION}{schedule.name}:{named(session)}"
    return Message(
        (schedule.mind,), session, payload, encode(payload, config), kind, key,
        while_sleeping=schedule.while_sleeping, owner=SCHEDULE, uid=uid,
    )  # fmt: skip


def named(session: str) -> str:
    """The session; in place of "$new" a new name."""
    return f"{NEW_PREFIX}{secrets.token_hex(4)}" if session == NEW_SESSION else session


def _target(to: Any, config: Config, sender: Any) -> tuple[str | None, tuple[str, ...]]:
    """(channel or None, minds). The sender of a message to a channel does not get it back."""
    if not isinstance(to, str) or not to:
        raise bad_request('to is missing: "@mind" or "#channel"')
    if to.startswith("#"):
        if to == SYSTEM and to not in config.channels:
            members = tuple(name for name, mind in config.minds.items() if mind.command or mind.url)
        elif to in config.channels:
            members = config.channels[to].minds
        else:
            known = ", ".join(sorted(config.channels)) or "none is configured"
            raise unknown("channel", to, f"channels: {known}")
        minds = tuple(mind for mind in members if mind != sender)
        if not minds:
            raise conflict(f"{to} has no mind except the sender")
        return to, minds
    name = to.removeprefix("@")
    mind = known_mind(name, config)
    if not (mind.command or mind.url):
        raise conflict(f"{name} has no command and no url: only `hostguard run` starts its turns")
    return None, (name,)


def one_or_all(body: Mapping[str, Any]) -> str | None:
    """The mind of a request; None: it is about all minds. Raises Problem."""
    name = body.get("mind")
    if name is not None and not isinstance(name, str):
        raise bad_request("mind must be a string")
    if name == "":
        raise bad_request("mind is empty: name one, or omit it for all minds")
    return name


def known_fields(body: Any, fields: set[str]) -> None:
    """Refuse unknown fields: ignored, the request would mean something else. Raises Problem."""
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
        raise bad_request(f"{name} must be a string")
    if len(value) > most:
        raise bad_request(f"{name} has {len(value)} characters, at most {most} are allowed")
    if not value.isprintable():
        raise bad_request(f"{name} must not contain control characters")
    return value


def time(body: Mapping[str, Any], name: str) -> int:
    """A time in ms since the epoch, 0 if there is none. Raises Problem."""
    value = body.get(name)
    if value is None:
        return 0
    if not (type(value) is int and 0 <= value <= TIME_MAX):
        raise bad_request(f"{name} must be a time in ms since the epoch")
    return value


def encode(payload: Mapping[str, Any], config: Config) -> bytes:
    """A payload as it is stored. Raises Problem."""
    try:
        raw = compact(payload)
    except UnicodeEncodeError:
        raise bad_request("the message contains an unpaired surrogate: it is not valid text") from None
    except ValueError:
        raise bad_request("the message contains a number that JSON cannot represent") from None
    if len(raw) > config.payload_max:
        raise too_large(
            f"the message has {len(raw)} bytes as JSON, at most {config.payload_max} are allowed"
            " (limits.payload_max)"
        )
    return raw
