"""A mind's routes: which session a message goes to, and how. Pure.

The keys and their meaning are those of a mind's routes.json: volute.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hostguard.globs import matches, says
from hostguard.keys import SESSION_MAX
from hostguard.sleep import text_of

ROUTES_MAX = 256 << 10  # bytes of a routes.json
RULES_MAX = 1_000  # rules, and patterns of sessions
# Volute's own defaults.
DEBOUNCE_S = 5.0
MAX_WAIT_S = 120.0
SECONDS_MAX = 86_400.0
MATCH_KEYS = ("channel", "sender", "isDM", "participants")
RULE_KEYS = {*MATCH_KEYS, "session", "destination", "path", "mode", "batch"}

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """How messages of a session are gathered. Triggers are substrings, in any case."""

    debounce_s: float = DEBOUNCE_S
    max_wait_s: float = MAX_WAIT_S
    triggers: tuple[str, ...] = ()


Mode = Batch | Literal["immediate"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `match` has the keys of the file; one that is not known never matches."""

    match: Fields
    session: str | None = None
    file: bool = False
    path: str | None = None
    mention: bool = False
    batch: Batch | None = None


@dataclass(frozen=True, slots=True)
class SessionRule:
    """What the sessions that fit a pattern have. `mode` None: the rule that led there says."""

    pattern: str
    mode: Mode | None = None
    instructions: str | None = None


@dataclass(frozen=True, slots=True)
class Routes:
    """A routes.json."""

    rules: tuple[Rule, ...] = ()
    sessions: tuple[SessionRule, ...] = ()
    default: str = "main"
    gate_unmatched: bool = True


@dataclass(frozen=True, slots=True)
class Routed:
    """Where a message goes. `rule` counts from 1; `session` may be "$new"; `text` explains it."""

    action: Literal["deliver", "file", "filtered", "gated"]
    text: str
    session: str | None = None
    path: str | None = None
    rule: int | None = None
    mode: Mode = "immediate"
    instructions: str | None = field(default=None)


# -- reading


def parse_routes(text: str) -> Routes:
    """Read a routes.json. Raises ValueError, which names the key and what it may be."""
    if len(text.encode()) > ROUTES_MAX:
        raise ValueError(f"it is larger than {ROUTES_MAX} bytes")
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("its nesting is too deep") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError('it must be an object, as {"rules": [...]}')
    rules, sessions = data.get("rules", []), data.get("sessions", {})
    if not isinstance(rules, list) or len(rules) > RULES_MAX:
        raise ValueError(f"rules must be a list of at most {RULES_MAX}")
    if not isinstance(sessions, dict) or len(sessions) > RULES_MAX:
        raise ValueError(f"sessions must be an object of at most {RULES_MAX} patterns")
    default, gate = data.get("default", "main"), data.get("gateUnmatched", True)
    if not isinstance(default, str) or not safe_session(default):
        raise ValueError("default must be the name of a session")
    if not isinstance(gate, bool):
        raise ValueError("gateUnmatched must be true or false")
    return Routes(
        tuple(_rule(rule, f"rules[{number}]") for number, rule in enumerate(rules)),
        tuple(_session_rule(name, value, f'sessions["{name}"]') for name, value in sessions.items()),
        safe_session(default),
        gate,
    )


def _rule(rule: Any, where: str) -> Rule:
    if not isinstance(rule, dict):
        raise ValueError(f"{where} must be an object")
    session, path, mode = rule.get("session"), rule.get("path"), rule.get("mode", "all")
    destination = rule.get("destination", "mind")
    if session is not None and not isinstance(session, str):
        raise ValueError(f"{where}.session must be a text")
    if destination not in ("mind", "file"):
        raise ValueError(f'{where}.destination must be "mind" or "file"')
    if path is not None and (not isinstance(path, str) or not path or "\0" in path):
        raise ValueError(f"{where}.path must be the path of a file")
    if mode not in ("all", "mention"):
        raise ValueError(f'{where}.mode must be "all" or "mention"')
    keys = rule.keys() - (RULE_KEYS - {*MATCH_KEYS})
    match = {key: rule[key] for key in keys}
    batch = _batch(rule["batch"], f"{where}.batch") if rule.get("batch") is not None else None
    return Rule(match, session, destination == "file", path, mode == "mention", batch)


def _session_rule(pattern: str, value: Any, where: str) -> SessionRule:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object")
    instructions, delivery = value.get("instructions"), value.get("delivery")
    if instructions is not None and not isinstance(instructions, str):
        raise ValueError(f"{where}.instructions must be a text")
    mode: Mode | None = None
    if isinstance(delivery, dict):
        kind = delivery.get("mode", "immediate")
        mode = _mode(kind, delivery, f"{where}.delivery")
    elif delivery is not None:
        beside = value.get("batch")
        mode = _mode(delivery, beside if beside is not None else {}, f"{where}.delivery")
    elif value.get("batch") is not None:
        mode = _batch(value["batch"], f"{where}.batch")
    return SessionRule(pattern, mode, instructions)


def _mode(kind: Any, settings: Any, where: str) -> Mode:
    if kind == "immediate":
        return "immediate"
    if kind == "batch":
        return _batch(settings, where)
    raise ValueError(f'{where} must be "immediate" or "batch"')


def _batch(value: Any, where: str) -> Batch:
    """A number is the longest wait in minutes; an object has debounce and maxWait in seconds."""
    if isinstance(value, bool) or not isinstance(value, dict | int | float):
        raise ValueError(f"{where} must be minutes, or an object with debounce, maxWait and triggers")
    if not isinstance(value, dict):
        return Batch(max_wait_s=_seconds(value * 60, where))
    triggers = value.get("triggers", [])
    if not isinstance(triggers, list) or not all(isinstance(one, str) and one for one in triggers):
        raise ValueError(f"{where}.triggers must be a list of texts")
    return Batch(
        _seconds(value.get("debounce", DEBOUNCE_S), f"{where}.debounce"),
        _seconds(value.get("maxWait", MAX_WAIT_S), f"{where}.maxWait"),
        tuple(triggers),
    )


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        raise ValueError(f"{where} must be a number of seconds, at most {SECONDS_MAX:.0f}")
    return float(value)


# -- routing


def route(routes: Routes, mind: str, payload: Fields) -> Routed:
    """Where a message for the mind goes. `payload` has a channel (payload.told)."""
    named = payload.get("session")
    if isinstance(named, str) and named:
        return _deliver(routes, named, None, None, f"the message names its session, {named}")
    for number, rule in enumerate(routes.rules, 1):
        if (rule.file and rule.path is None) or not _matches(rule.match, payload):
            continue
        text = f"rule {number} matches"
        if rule.mention and payload.get("sender") and not says(f"@{mind}", text_of(payload.get("content"))):
            return Routed("filtered", f"{text}, and takes only what mentions @{mind}", rule=number)
        if rule.file:
            return Routed("file", f"{text}: it goes into the file {rule.path}", path=rule.path, rule=number)
        session = expand(rule.session, payload) if rule.session else routes.default
        return _deliver(routes, session, rule.batch, number, f"{text}: session {session}")
    if routes.gate_unmatched:
        return Routed("gated", "no rule matches, so it is kept until one does")
    return _deliver(routes, routes.default, None, None, f"no rule matches: session {routes.default}")


def _deliver(routes: Routes, session: str, batch: Batch | None, rule: int | None, text: str) -> Routed:
    settings = _settings(routes, session)
    mode: Mode = batch or "immediate"
    if settings is not None and settings.mode is not None:
        mode = settings.mode
        text += f", delivered as sessions[{json.dumps(settings.pattern)}] says"
    return Routed(
        "deliver", text, session, None, rule, mode, settings.instructions if settings is not None else None
    )


def instructions(routes: Routes, session: str) -> str | None:
    """What a mind is to be told beside each message of the session."""
    settings = _settings(routes, session)
    return settings.instructions if settings is not None else None


def _settings(routes: Routes, session: str) -> SessionRule | None:
    return next((rule for rule in routes.sessions if matches(rule.pattern, session)), None)


def _matches(match: Fields, payload: Fields) -> bool:
    return all(_fits(key, wanted, payload) for key, wanted in match.items())


def _fits(key: str, wanted: Any, payload: Fields) -> bool:
    if key in ("channel", "sender"):
        value = payload.get(key)
        return isinstance(wanted, str) and isinstance(value, str) and matches(wanted, value)
    if key == "isDM":
        return isinstance(wanted, bool) and (payload.get("isDM") is True) == wanted
    if key == "participants":
        return type(wanted) is int and _participants(payload) == wanted
    return False


def _participants(payload: Fields) -> int | None:
    count = payload.get("participantCount")
    if count is None and isinstance(payload.get("participants"), list):
        return len(payload["participants"])
    return count


def expand(template: str, payload: Fields) -> str:
    """The session's name with ${sender} and ${channel} filled in, made safe. "$new" stays."""
    if template == "$new":
        return template
    values = {"sender": payload.get("sender") or "unknown", "channel": payload.get("channel") or "unknown"}
    return safe_session(re.sub(r"\$\{(sender|channel)\}", lambda found: str(values[found[1]]), template))


def safe_session(name: str) -> str:
    """A name that can stand in a path: "/", "\\", "..", NUL become "-"; of the guard's own ones none."""
    safe = re.sub(r"[/\\\0]|\.\.", "-", name)
    safe = "".join(char if char.isprintable() else "-" for char in safe)[:SESSION_MAX]
    return f"-{safe[1:]}" if safe.startswith("$") else safe
