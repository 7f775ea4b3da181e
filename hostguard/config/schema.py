"""The keys of the configuration, with a parser for each and its allowed values in words. Pure.

A parser takes a value from tomllib and returns it in the unit that model.py states. It raises ValueError,
with a detail if one helps, for anything else. In a key `*` is a name that the user chooses (names.py).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from hostguard.core.names import SESSION_MAX, own_session
from hostguard.core.text import DAY, parse_duration, parse_size
from hostguard.linux.timezones import zones

UNLIMITED = "unlimited"
CHANNEL_MINDS_MAX = 1000
TIME_MAX = 253_402_300_799_000  # 9999-12-31, ms
_INT64 = 2**63 - 1  # D-Bus carries limits as uint64, SQLite stores int64


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `allowed` ends the sentence "allowed: ..."; no message shows the value of a `secret` key.

    The values of one `of_host` depend on what is installed.
    """

    parse: Callable[[Any], Any]
    allowed: str
    secret: bool = False
    needs: str = ""  # another key of the table, without which this one means nothing
    of_host: bool = False


def _quantity(parse: Callable[[str], float], text: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        raise ValueError from None  # the key itself says what is allowed


def _within(value: Any, low: int, high: int) -> int:
    # In Python a bool is an int, but `true` is not a number in TOML.
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError
    return value


def _whole(low: int, high: int) -> Key:
    return Key(lambda value: _within(value, low, high), f"a whole number from {low} to {high}")


def _sized(unit: str, base: int, low: str, high: str | None = None) -> Key:
    least, most = parse_size(low, base), parse_size(high, base) if high else _INT64
    bounds = f"from {low} to {high}" if high else f"at least {low}"

    def parse(value: Any) -> int:
        if isinstance(value, str):
            value = _quantity(lambda text: parse_size(text, base), value)
        return _within(value, least, most)

    return Key(parse, f"{unit}, {bounds}: a number, or a string with K, M, G or T (times {base})")


def _time(low: int, high: int, words: str) -> Key:
    def parse(value: Any) -> int:
        if isinstance(value, str):
            value = _quantity(parse_duration, value)
            value = int(value) if value == int(value) else value
        return _within(value, low, high)

    return Key(parse, f'{words}: whole seconds, or a string such as "90s", "10min", "1.5h", "1h 30min"')


def _seconds(low: float, high: float, words: str) -> Key:
    def parse(value: Any) -> float:
        value = _quantity(parse_duration, value) if isinstance(value, str) else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError
        return float(value)

    return Key(parse, f'{words}: a number of seconds, or a string such as "500ms", "1.5s", "10min"')


def _or_unlimited(key: Key) -> Key:
    return Key(
        lambda value: None if value == UNLIMITED else key.parse(value), f'{key.allowed}, or "{UNLIMITED}"'
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    if "\0" in value:
        raise ValueError("it contains a NUL character")
    if not value.isascii() and value != value.encode(errors="replace").decode():
        raise ValueError("it contains an unpaired surrogate: it is not valid text")
    if not value:
        raise ValueError("it is empty")
    return value


def _absolute(value: Any) -> str:
    if not _text(value).startswith("/"):
        raise ValueError("it does not begin with /")
    return str(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError
    for i, item in enumerate(value):
        try:
            _text(item)
        except ValueError as error:
            raise ValueError(f"item {i + 1}: {str(error) or 'not a string'}") from None
    return tuple(value)


def _command(value: Any) -> tuple[str, ...]:
    words = _texts(value)
    if not words[0].startswith("/"):
        raise ValueError(f"the program {words[0]!r} does not begin with /")
    return words


def _members(value: Any) -> tuple[str, ...]:
    names = _texts(value)
    if len(names) > CHANNEL_MINDS_MAX:
        raise ValueError(f"it names {len(names)} minds")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f'it names "{twice[0]}" twice')
    return names


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError
    # Values may be secrets: no message shows one.
    for name, text in value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is not a valid name of a variable")
        if name.startswith("HOSTGUARD_"):
            raise ValueError(f"hostguard itself sets {name}")
        if not isinstance(text, str) or "\0" in text:
            raise ValueError(f"the value of {name} is not a string without NUL")
    return value


def _device(value: Any) -> str:
    return value if value in ("auto", "none") else _absolute(value)


def _url(value: Any) -> str:
    match = re.fullmatch(r"(http://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+))(:[0-9]{1,5})?(/.*)?", _text(value))
    if match is None:
        raise ValueError
    address, host, port, path = match.groups()
    if path not in (None, "/"):
        raise ValueError("it has a path: the guard adds /message itself")
    if port is None or not 0 < int(port[1:]) < 65536:
        raise ValueError("it has no port")
    if host.startswith("["):
        ipaddress.IPv6Address(host[1:-1])  # raises ValueError by itself
    # A name would be looked up, and ::1 be tried first, where somebody else may listen.
    return f"http://127.0.0.1{port}" if host.lower() == "localhost" else f"{address}{port}"


def _unit(value: Any) -> str:
    if not re.fullmatch(r"[A-Za-z0-9:_.\\@-]{1,247}\.service", _text(value)):
        raise ValueError
    if value.endswith("@.service"):
        raise ValueError("it is a template: name an instance")
    if value == "hostguard.service" or value.startswith("hostguard-turn-"):
        raise ValueError("it is a unit of hostguard itself")
    return str(value)


def _token(value: Any) -> str:
    match = re.fullmatch(r"sha256:([0-9a-f]{64})", _text(value))
    if match is None:
        raise ValueError
    return match[1]


def _listen(value: Any) -> tuple[str, int]:
    match = re.fullmatch(r"(127\.0\.0\.1|localhost|\[::1\]):([0-9]{1,5})", _text(value))
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError
    return ("127.0.0.1" if match[1] == "localhost" else match[1].strip("[]")), int(match[2])


def _ports(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError
    first, last = (_within(port, 1, 65535) for port in value)
    if first > last:
        raise ValueError("the first is greater than the last")
    return first, last


def _globs(value: Any) -> tuple[str, ...]:
    return () if value == [] else _texts(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _one_of(*words: str) -> Key:
    def parse(value: Any) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return Key(parse, f"one of {', '.join(json.dumps(word) for word in words)}")


def _at(value: Any) -> int:
    """ms since the epoch; a time without a zone is in the host's zone."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise ValueError
    return _within(round(value.timestamp() * 1000), 0, TIME_MAX)


def _cron(value: Any) -> str:
    from hostguard.config.cron import cron_fault

    if fault := cron_fault(_text(value)):
        raise ValueError(fault)
    return str(value)


def _zone(value: Any) -> str:
    if zones([_text(value)])[value] is None:
        raise ValueError("unknown on this host")
    return str(value)


def _session(value: Any) -> str:
    name = _text(value)
    if len(name) > SESSION_MAX or not name.isprintable() or own_session(name):
        raise ValueError
    return name


SCHEDULE = {
    "mind": Key(_text, "the name of a configured mind"),
    "cron": Key(_cron, 'minute hour day month weekday, such as "*/15 8-18 * * mon-fri"'),
    "at": Key(
        _at, "a date and time, such as 2026-12-24T18:00:00+01:00; without a zone it is the host's time"
    ),
    "message": Key(_text, "a string"),
    "script": Key(_text, "a string: a command line for the shell of the mind's user"),
    "session": Key(_session, f'a session\'s name of at most {SESSION_MAX} characters, or "$new"'),
    "timezone": Key(_zone, 'the name of a time zone, such as "Europe/Berlin"', of_host=True),
    "catch_up": _one_of("skip", "once", "all"),
    "catch_up_window": _time(0, 30 * DAY, "0 seconds to 30 days"),
    "while_sleeping": _one_of("skip", "queue", "trigger-wake"),
    "overlap": _one_of("skip", "queue"),
    "enabled": Key(_flag, "true or false"),
}

_COUNT = _whole(0, 1_000_000)
_BANDWIDTH = _or_unlimited(_sized("bytes per second", 1000, "1"))
_IOPS = _or_unlimited(_whole(1, 2**32 - 1))  # 32 bits in the kernel
_MEMORY = _or_unlimited(_sized("bytes", 1024, "1M"))

_TURN = {
    "io_weight": _whole(1, 10_000),
    "read_bandwidth": _BANDWIDTH,
    "write_bandwidth": _BANDWIDTH,
    "read_iops": _IOPS,
    "write_iops": _IOPS,
    "memory_high": _MEMORY,
    "memory_max": _MEMORY,
    "tasks_max": _or_unlimited(_whole(1, 2**22)),  # the kernel's PID_MAX_LIMIT
    "max_turn": _or_unlimited(_time(1, 30 * DAY, "1 second to 30 days")),
}

PRESSURE = {
    "floor": _whole(1, 1_000_000),
    "stall_after": _seconds(0.5, 60, "0.5 to 60 seconds"),
    "strained_after": _seconds(1, 600, "1 second to 10 minutes"),
    "strained_await": _seconds(0.002, 60, "2 ms to 60 seconds"),
    "calm_await": _seconds(0.001, 60, "1 ms to 60 seconds"),
    "strained_psi": _whole(1, 100),
    "hold_off": _seconds(1, 3600, "1 second to 1 hour"),
    "calm_window": _seconds(1, 3600, "1 second to 1 hour"),
    "on_stall": _one_of("none", "freeze"),
    "freeze_max": _seconds(1, 60, "1 to 60 seconds"),
    "tighten": _BANDWIDTH,
}

LIMITS = {
    "mind_concurrent_turns": _COUNT,
    "global_concurrent_turns": _or_unlimited(_COUNT),
    "payload_max": _sized("bytes", 1024, "1K", "64M"),
    "rows_per_mind": _whole(1, 1_000_000),
    "history_rows": _whole(0, 1_000_000),
}

MIND = {
    "command": Key(_command, "a list of strings, the first one the absolute path of a program"),
    "url": Key(_url, 'the address of its server, such as "http://127.0.0.1:4100"'),
    "unit": Key(
        _unit,
        'the name of the service that runs its server, such as "hostguard-mind@alice.service"',
        needs="url",
    ),
    "routes": Key(_absolute, "the absolute path of its routes.json"),
    "token": Key(_token, '"sha256:" and the 64 hexadecimal digits of its token\'s SHA-256', secret=True),
    "idle_end": replace(_time(1, 30 * DAY, "1 second to 30 days"), needs="url"),
    "sleep_after": _time(0, 30 * DAY, "0 seconds to 30 days"),
    "wake_on.dm": Key(_flag, "true or false"),
    "wake_on.mention": Key(_flag, "true or false"),
    "wake_on.channels": Key(_globs, "a list of patterns, in which * stands for any characters"),
    "wake_on.senders": Key(_globs, "a list of patterns, in which * stands for any characters"),
    "user": Key(_text, "the name of a user of this host"),
    "sandbox": _one_of("none", "strict"),
    "directory": Key(_absolute, "an absolute path"),
    "environment": Key(_environment, "a table of strings"),
    "concurrent_turns": _COUNT,
}

KEYS: dict[str, Key] = {
    **{f"limits.{name}": key for name, key in LIMITS.items()},
    **{f"turn.{name}": key for name, key in _TURN.items()},
    **{f"pressure.{name}": key for name, key in PRESSURE.items()},
    "device.path": Key(_device, '"auto", "none", or an absolute path'),
    **{f"minds.*.{name}": key for name, key in MIND.items()},
    **{f"minds.*.turn.{name}": key for name, key in _TURN.items()},
    "events.listen": Key(_listen, 'a loopback address and a port, such as "127.0.0.1:4200"'),
    "web.listen": Key(_listen, 'a loopback address and a port, such as "127.0.0.1:4300"'),
    "web.token": Key(_token, '"sha256:" and the 64 hexadecimal digits of a token\'s SHA-256', secret=True),
    "volute.home": Key(_absolute, "the absolute path of Volute's home (VOLUTE_HOME)"),
    "volute.unit": Key(_unit, 'the name of the service that runs Volute, such as "volute.service"'),
    "volute.ports": Key(_ports, "the first and the last port of its minds, such as [4100, 4199]"),
    **{f"schedules.*.{name}": key for name, key in SCHEDULE.items()},
    "channels.*.minds": Key(_members, f"a list of 1 to {CHANNEL_MINDS_MAX} names of configured minds"),
}
