"""The configuration as the values of a file. Pure."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

from hostguard.config.schema import LIMITS, MIND, UNLIMITED
from hostguard.core.model import Channel, Config, Limits, Mind, Schedule, WakeOn

HIDDEN = "(hidden)"


def as_dict(config: Config, *, secrets: bool = False) -> dict[str, Any]:
    """The configuration in the form of a file, with defaults; with `secrets`, reading it gives the same.

    A mind's `turn` has only what differs from [turn]. Without `secrets` tokens and the values of
    `environment` are hidden: the daemon answers users who may not read the files.
    """
    turn = _limits(config.turn)
    return {
        "limits": {name: _or_unlimited(getattr(config, name)) for name in LIMITS},
        "turn": turn,
        "pressure": {**asdict(config.pressure), "tighten": _or_unlimited(config.pressure.tighten)},
        "device": {"path": config.device_path},
        "minds": {name: _mind_dict(mind, turn, secrets) for name, mind in config.minds.items()},
        "channels": {name: _changed(channel, Channel(name)) for name, channel in config.channels.items()},
        "schedules": {name: _schedule_dict(schedule) for name, schedule in config.schedules.items()},
        "events": {"listen": _address(config.events_listen)} if config.events_listen else {},
        "web": _web_dict(config, secrets),
        "volute": {**asdict(config.volute), "ports": [*config.volute.ports]} if config.volute else {},
    }


def _or_unlimited(value: int | float | None) -> int | float | str:
    return UNLIMITED if value is None else int(value) if value == int(value) else value


def _limits(limits: Limits) -> dict[str, Any]:
    shown = {item.name: _or_unlimited(getattr(limits, item.name)) for item in fields(limits)}
    if limits.io_weight is None:  # a weight is a share: it can be unset but not unlimited
        del shown["io_weight"]
    return shown


def _mind_dict(mind: Mind, turn: dict[str, Any], secrets: bool) -> dict[str, Any]:
    own = {key: value for key, value in _limits(mind.limits).items() if value != turn.get(key)}
    known = {path.partition(".")[0]: key for path, key in MIND.items()}
    shown = {
        name: getattr(mind, name) for name, key in known.items() if not key.needs or getattr(mind, key.needs)
    }
    shown |= {
        "command": list(mind.command),
        "token": (f"sha256:{mind.token}" if secrets else HIDDEN) if mind.token else None,
        "sleep_after": mind.sleep_after if mind.sleep_after != Mind(mind.name).sleep_after else None,
        "wake_on": _changed(mind.wake_on, WakeOn()),
        "sandbox": mind.sandbox if mind.strict else None,
        "environment": {name: value if secrets else HIDDEN for name, value in mind.environment.items()},
        "turn": own,
    }
    return {key: value for key, value in shown.items() if value not in ("", None, [], {})}


def _changed(given: WakeOn | Channel, default: WakeOn | Channel) -> dict[str, Any]:
    changed = {name: value for name, value in asdict(given).items() if value != getattr(default, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}


def _schedule_dict(schedule: Schedule) -> dict[str, Any]:
    shown = asdict(schedule)
    del shown["name"]
    if schedule.at is not None:
        shown["at"] = datetime.fromtimestamp(schedule.at / 1000, UTC).isoformat()
    return {name: value for name, value in shown.items() if value not in ("", None)}


def _web_dict(config: Config, secrets: bool) -> dict[str, Any]:
    shown = {
        "listen": _address(config.web_listen) if config.web_listen else None,
        "token": (f"sha256:{config.web_token}" if secrets else HIDDEN) if config.web_token else None,
    }
    return {key: value for key, value in shown.items() if value}


def _address(listen: tuple[str, int]) -> str:
    host, port = listen
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
