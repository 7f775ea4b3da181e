"""Builds a Config from the values of all keys, with the checks that need several keys or the host."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hostguard.config.on_host import with_user
from hostguard.config.schema import MIND
from hostguard.config.toml import KeyPath, dotted, quoted
from hostguard.core.model import Channel, Config, Limits, Mind, Schedule, Volute, WakeOn
from hostguard.core.payload import compact, scheduled
from hostguard.core.settings import Settings, settings_fault

SCRIPT_MAX = 100_000  # bytes; Linux takes 131,071 as one argument


@dataclass(slots=True)
class Reading:
    """Collected while the files are read. `at_boot`: what only this host lacks is not refused."""

    at_boot: bool = False
    problems: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    origin: dict[KeyPath, str] = field(default_factory=dict)

    def refuse(self, path: KeyPath, text: str) -> None:
        """Note a problem with a key."""
        self.problems.append(f"{self.origin[path]}: {dotted(path)}: {text}")


def build(values: dict[str, Any], reading: Reading) -> Config:
    """The configuration from values that are valid each by itself; notes problems. Blocks: looks up users."""
    turn = values.get("turn", {})
    minds = {name: _mind(name, table, turn, reading) for name, table in values.get("minds", {}).items()}
    _refuse_shared(minds, reading)
    _refuse_half_confined(minds, reading)
    channels = {name: Channel(name, **table) for name, table in values.get("channels", {}).items()}
    for name, channel in channels.items():
        for mind in channel.minds:
            if mind not in minds:
                close = difflib.get_close_matches(mind, minds, n=1)
                hint = f" Did you mean {quoted(close[0])}?" if close else ""
                reading.refuse(("channels", name, "minds"), f"no mind {quoted(mind)} is configured.{hint}")
        if ("channels", name, "minds") not in reading.origin:
            reading.refuse(("channels", name), "minds is missing: a list of names of configured minds")
    limits, web = values.get("limits", {}), values.get("web", {})
    if (events := values.get("events", {}).get("listen")) and events == web.get("listen"):
        reading.refuse(("web", "listen"), "the minds' endpoint listens there (events.listen)")
    pressure = Settings(**values.get("pressure", {}))
    if fault := settings_fault(pressure):
        reading.refuse(("pressure",), fault)
    most = limits.get("payload_max", Config().payload_max)
    return Config(
        **limits,
        schedules=_schedules(values.get("schedules", {}), minds, most, reading),
        events_listen=values.get("events", {}).get("listen"),
        web_listen=web.get("listen"),
        web_token=web.get("token"),
        volute=_volute(values.get("volute"), reading),
        device_path=values.get("device", {}).get("path", "auto"),
        turn=Limits(**turn),
        pressure=pressure,
        minds=minds,
        channels=channels,
        sources=tuple(reading.sources),
    )


def _volute(table: dict[str, Any] | None, reading: Reading) -> Volute | None:
    if table is None:
        return None
    if "home" not in table and ("volute", "home") not in reading.origin:
        reading.refuse(("volute",), "home is missing: the folder that Volute calls VOLUTE_HOME")
    return Volute(**{"home": "", **table})


def _refuse_shared(minds: Mapping[str, Mind], reading: Reading) -> None:
    """A server and its unit belong to one mind: a message does not say which mind it is for."""
    seen: dict[str, str] = {}
    for name, mind in minds.items():
        for key, value in (("url", mind.url), ("unit", mind.unit)):
            if value is not None and seen.setdefault(value, name) != name:
                reading.refuse(("minds", name, key), f"{quoted(value)} belongs to {quoted(seen[value])}")


def _refuse_half_confined(minds: Mapping[str, Mind], reading: Reading) -> None:
    """Processes of one user reach one another: a sandbox holds for all minds of a user, or for none."""
    open_minds = {mind.uid: name for name, mind in minds.items() if not mind.strict and mind.user}
    for name, mind in minds.items():
        if not mind.strict or not mind.user or mind.broken:
            continue
        place = ("minds", name, "sandbox")
        if mind.uid == 0:
            reading.refuse(place, "root can leave any sandbox: the mind needs a user of its own")
        elif mind.uid in open_minds:
            other = quoted(open_minds[mind.uid])
            reading.refuse(place, f"the mind {other} has the same user, and no sandbox")


def _schedules(
    tables: dict[str, Any], minds: Mapping[str, Mind], payload_max: int, reading: Reading
) -> dict[str, Schedule]:
    schedules = {}
    for name, table in tables.items():
        place = ("schedules", name)
        if fault := schedule_fault(table, minds):
            reading.refuse(place, fault)
            continue
        schedule = schedules[name] = Schedule(name, **table)
        size = len(compact(scheduled(schedule)))
        if size > payload_max:
            text = f"its message has {size} bytes as JSON, at most {payload_max} are allowed"
            reading.refuse(place, f"{text} (limits.payload_max)")
    return schedules


def schedule_fault(table: Mapping[str, Any], minds: Mapping[str, Mind]) -> str | None:
    """Why a schedule is invalid whose keys are valid each by itself; None if it is not."""
    mind = minds.get(table.get("mind", ""))
    if mind is None:
        return f"mind must name a configured mind: {', '.join(sorted(minds)) or 'there is none'}"
    if ("cron" in table) == ("at" in table):
        return "it needs either cron or at"
    if ("message" in table) == ("script" in table):
        return "it needs either message or script"
    if len(table.get("script", "").encode()) > SCRIPT_MAX:
        return f"script has more than {SCRIPT_MAX} bytes, the most that a shell can be given"
    if "script" in table and not mind.user:
        return f"{mind.name} has no user to run the script"
    if "message" in table and not (mind.command or mind.url):
        return f"{mind.name} has no command and no url: it accepts no messages"
    return None


def _mind(name: str, table: dict[str, Any], turn: dict[str, Any], reading: Reading) -> Mind:
    own = {key: value for key, value in table.items() if key not in ("user", "turn", "wake_on")}
    own["wake_on"] = WakeOn(**table.get("wake_on", {}))
    own["limits"] = Limits(**{**turn, **table.get("turn", {})})
    place = ("minds", name)
    if "command" in table and "url" in table:
        reading.refuse((*place, "url"), "a mind has a command or a url, not both")
    for key, known in MIND.items():
        if key in table and known.needs and known.needs not in table:
            reading.refuse((*place, key), f"only a mind with a {known.needs} can have it")
    if "routes" in table and "user" not in table:
        text = "a mind with routes needs a user, to write the files that routes name"
        reading.refuse((*place, "routes"), text)
    if own.get("sandbox") == "strict" and "user" not in table:
        reading.refuse((*place, "sandbox"), "a mind with a sandbox needs a user")
    if "command" in table and ("minds", name, "user") not in reading.origin:
        reading.refuse(("minds", name), "user is missing: the user of this host that runs the command")
    if "user" not in table:
        return Mind(name, **own)
    mind = with_user(Mind(name, user=table["user"], **{"directory": "", **own}))
    if mind.broken and not reading.at_boot:
        reading.refuse((*place, "user"), mind.broken)
    return mind
