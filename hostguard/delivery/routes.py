"""A mind's routes.json, as Volute defines it: which session a message goes to, and how. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hostguard.core.names import (
    MAIN_SESSION,
    NEW_PREFIX,
    NEW_SESSION,
    OWN_SESSION,
    SESSION_MAX,
    matches,
    says,
)
from hostguard.core.payload import parsed
from hostguard.delivery.wake_rules import text_of

ROUTES_MAX = 256 << 10  # bytes of a routes.json
RULES_MAX = 1_000  # rules, and patterns of sessions
PATH_MAX = 1_000  # characters of a file's path
# Triggers are stored with each message of a batch, and each is searched for in it.
TRIGGERS_MAX, TRIGGER_MAX = 100, 100  # of a batch; characters of one
# Volute's own defaults.
DEBOUNCE_S = 5.0
MAX_WAIT_S = 120.0
SECONDS_MAX = 86_400.0
OTHER_KEYS = {"session", "destination", "path", "mode", "batch"}  # of a rule; all others have to match

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """How messages of a session are batched. Triggers are substrings; case does not matter."""

    debounce_s: float = DEBOUNCE_S
    max_wait_s: float = MAX_WAIT_S
    triggers: tuple[str, ...] = ()


Mode = Batch | Literal["immediate"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `match` has the keys of the file; an unknown one never matches."""

    match: Fields
    session: str | None = None
    file: bool = False
    path: str | None = None
    mention: bool = False
    batch: Batch | None = None


@dataclass(frozen=True, slots=True)
class SessionRule:
    """Settings of the sessions that match a pattern; they override those of the rule."""

    pattern: str
    mode: Mode = "immediate"
    instructions: str | None = None


@dataclass(frozen=True, slots=True)
class Routes:
    """A routes.json. `owner`: the uid of the file's owner, who says which files it writes."""

    rules: tuple[Rule, ...] = ()
    sessions: tuple[SessionRule, ...] = ()
    default: str = MAIN_SESSION
    quarantine_unmatched: bool = True
    owner: int = 0


@dataclass(frozen=True, slots=True)
class Unread:
    """A mind has routes, but they could not be read yet: `why`."""

    why: str


@dataclass(frozen=True, slots=True)
class Routed:
    """Where a message goes. `rule` counts from 1; `session` may be "$new"; `text` explains the choice."""

    action: Literal["deliver", "file", "filtered", "gated", "held"]
    text: str
    session: str | None = None
    path: str | None = None
    rule: int | None = None
    mode: Mode = "immediate"


# -- reading


def parse_routes(text: str) -> Routes:
    """Parse a routes.json of at most ROUTES_MAX bytes. Raises ValueError, which names the wrong key."""
    try:
        data = parsed(text)
    except ValueError as error:
        raise ValueError(f"it is {error}") from None
    if not isinstance(data, dict):
        raise ValueError('it must be an object, such as {"rules": [...]}')
    rules, sessions = data.get("rules", []), data.get("sessions", {})
    if not isinstance(rules, list) or len(rules) > RULES_MAX:
        raise ValueError(f"rules must be a list of at most {RULES_MAX}")
    if not isinstance(sessions, dict) or len(sessions) > RULES_MAX:
        raise ValueError(f"sessions must be an object of at most {RULES_MAX} patterns")
    default, gate = data.get("default", MAIN_SESSION), data.get("gateUnmatched", True)
    if not isinstance(default, str) or not default:
        raise ValueError("default must be the name of a session")
    if not isinstance(gate, bool):
        raise ValueError("gateUnmatched must be true or false")
    return Routes(
        tuple(_rule(rule, f"rules[{number}]") for number, rule in enumerate(rules)),
        tuple(_session_rule(name, value, f'sessions["{name}"]') for name, value in sessions.items()),
        default,
        gate,
    )


def _rule(rule: Any, where: str) -> Rule:
    if not isinstance(rule, dict):
        raise ValueError(f"{where} must be an object")
    session, path, mode = rule.get("session"), rule.get("path"), rule.get("mode", "all")
    destination = rule.get("destination", "mind")
    if session is not None and not isinstance(session, str):
        raise ValueError(f"{where}.session must be a string")
    if destination not in ("mind", "file"):
        raise ValueError(f'{where}.destination must be "mind" or "file"')
    if path is not None and not (isinstance(path, str) and path.isprintable() and len(path) <= PATH_MAX):
        raise ValueError(
            f"{where}.path must be the path of a file, of at most {PATH_MAX} printable characters"
        )
    if mode not in ("all", "mention"):
        raise ValueError(f'{where}.mode must be "all" or "mention"')
    match = {key: value for key, value in rule.items() if key not in OTHER_KEYS}
    batch = _batch(rule["batch"], f"{where}.batch") if rule.get("batch") is not None else None
    return Rule(match, session or None, destination == "file", path or None, mode == "mention", batch)


def _session_rule(pattern: str, value: Any, where: str) -> SessionRule:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object")
    instructions, delivery = value.get("instructions"), value.get("delivery")
    if instructions is not None and not _is_text(instructions):
        raise ValueError(f"{where}.instructions must be a string")
    mode: Mode = "immediate"
    if isinstance(delivery, dict):
        mode = _mode(delivery.get("mode", "batch"), delivery, f"{where}.delivery")
    elif delivery is not None:
        mode = _mode(delivery, {} if value.get("batch") is None else value["batch"], f"{where}.delivery")
    elif value.get("batch") is not None:
        mode = _batch(value["batch"], f"{where}.batch")
    return SessionRule(pattern, mode, instructions)


def _is_text(value: Any) -> bool:
    """True for a text without half a surrogate pair, which could not be sent on."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _mode(kind: Any, settings: Any, where: str) -> Mode:
    if kind == "immediate":
        return "immediate"
    if kind == "batch":
        return _batch(settings, where)
    raise ValueError(f'{where} must be "immediate" or "batch"')


def _batch(value: Any, where: str) -> Batch:
    """A number is the longest wait in minutes; an object has debounce and maxWait in seconds."""
    if not isinstance(value, dict):
        if type(value) not in (int, float) or not 0 <= value * 60 <= SECONDS_MAX:
            raise ValueError(
                f"{where} must be minutes, at most {SECONDS_MAX / 60:.0f}, or an object with debounce,"
                " maxWait and triggers"
            )
        return Batch(max_wait_s=value * 60.0)
    triggers = value.get("triggers", [])
    if (
        not isinstance(triggers, list)
        or len(triggers) > TRIGGERS_MAX
        or not all(_is_text(one) and 0 < len(one) <= TRIGGER_MAX for one in triggers)
    ):
        each = f"at most {TRIGGER_MAX} characters"
        raise ValueError(f"{where}.triggers must be a list of at most {TRIGGERS_MAX} texts of {each}")
    return Batch(
        _seconds(value.get("debounce", DEBOUNCE_S), f"{where}.debounce"),
        _seconds(value.get("maxWait", MAX_WAIT_S), f"{where}.maxWait"),
        tuple(triggers),
    )


def _seconds(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= SECONDS_MAX:
        raise ValueError(f"{where} must be a number of seconds, at most {SECONDS_MAX:.0f}")
    return float(value)


# -- routing


def route(routes: Routes, mind: str, payload: Fields) -> Routed:
    """Where a message for the mind goes. `payload` has a channel (payload.told)."""
    named = payload.get("session")
    if isinstance(named, str) and named:
        return _deliver(routes, named, None, None, f"the message names its session, {named}")
    for number, rule in enumerate(routes.rules, 1):
        matched = all(_fits(key, wanted, payload) for key, wanted in rule.match.items())
        if (rule.file and rule.path is None) or not matched:
            continue
        text = f"rule {number} matches"
        if rule.file:
            return Routed("file", f"{text}: written to the file {rule.path}", path=rule.path, rule=number)
        if rule.mention and payload.get("sender") and not says(mind, text_of(payload.get("content"))):
            return Routed("filtered", f"{text}, but only for messages that mention {mind}", rule=number)
        session = expand(rule.session or routes.default, payload)
        return _deliver(routes, session, rule.batch, number, f"{text}: session {session}")
    if routes.quarantine_unmatched:
        return Routed("gated", "no rule matches, so it is kept until one does")
    session = expand(routes.default, payload)
    return _deliver(routes, session, None, None, f"no rule matches: session {session}")


def _deliver(routes: Routes, session: str, batch: Batch | None, rule: int | None, text: str) -> Routed:
    settings = _settings(routes, session)
    mode: Mode = batch or "immediate"
    if settings is not None:
        mode = settings.mode
        text += f", delivered as sessions[{json.dumps(settings.pattern)}] says"
    return Routed("deliver", text, session, rule=rule, mode=mode)


def instructions(routes: Routes, session: str) -> str | None:
    """The instructions that go with each message of the session."""
    settings = _settings(routes, session)
    return settings.instructions if settings is not None else None


def _settings(routes: Routes, session: str) -> SessionRule | None:
    name = NEW_PREFIX if session == NEW_SESSION else session
    return next((rule for rule in routes.sessions if matches(rule.pattern, name)), None)


def _fits(key: str, wanted: Any, payload: Fields) -> bool:
    if key in ("channel", "sender"):
        return isinstance(wanted, str) and matches(wanted, str(payload.get(key) or ""))
    if key == "isDM":
        return isinstance(wanted, bool) and (payload.get("isDM") is True) == wanted
    if key == "participants":
        return type(wanted) is int and _participants(payload) == wanted
    return False


def _participants(payload: Fields) -> int:
    names = payload.get("participants")
    count = payload.get("participantCount", len(names) if isinstance(names, list) else 0)
    return count if isinstance(count, int) else 0


def expand(template: str, payload: Fields) -> str:
    """A safe session name with ${sender} and ${channel} filled in. "$new" stays."""
    if template == NEW_SESSION:
        return template
    values = {"sender": payload.get("sender") or "unknown", "channel": payload.get("channel") or "unknown"}
    return safe_session(re.sub(r"\$\{(sender|channel)\}", lambda found: str(values[found[1]]), template))


def safe_session(name: str) -> str:
    """A name that is safe in a path: "/", "\\", ".." and NUL become "-"; never one of the guard's own."""
    safe = re.sub(r"[/\\\0]|\.\.", "-", name)
    safe = "".join(char if char.isprintable() else "-" for char in safe)[:SESSION_MAX]
    return f"-{safe[1:]}" if safe.startswith(OWN_SESSION) else safe
