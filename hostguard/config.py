"""The configuration: TOML files in, one model.Config out. What it does not know it refuses."""

from __future__ import annotations

import difflib
import os
import pwd
import stat
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostguard import paths
from hostguard.keys import KEYS, Key
from hostguard.model import Config, Limits, Mind, Schedule, WakeOn
from hostguard.names import NAME_FAULTS
from hostguard.payload import compact, scheduled
from hostguard.pressure import Settings, settings_fault
from hostguard.toml_text import KeyPath, dotted, quoted

FILE_MAX = 1 << 20  # bytes
GROUPS = Path("/etc/group")
SCRIPT_MAX = 100_000  # bytes; Linux takes 131,071 as one argument


class ConfigError(Exception):
    """The configuration cannot be used. `problems` has a sentence each; `sources` are the files tried."""

    def __init__(self, problems: Sequence[str], sources: Sequence[str] = ()) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
        self.sources = tuple(sources)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and the file that each key in it came from."""

    config: Config
    origin: Mapping[KeyPath, str]


@dataclass(slots=True)
class _Reading:
    """What is gathered while the files are read."""

    problems: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    origin: dict[KeyPath, str] = field(default_factory=dict)

    def refuse(self, path: KeyPath, text: str, source: str | None = None) -> None:
        self.problems.append(f"{source or self.origin[path]}: {dotted(path)}: {text}")


def load(files: Sequence[Path] | None = None) -> Config:
    """Read the host's configuration, or just `files`, later ones over earlier ones, key by key.

    Blocks: reads files and asks for users. Raises ConfigError with every problem of every file.
    """
    return load_with_origin(files).config


def load_with_origin(files: Sequence[Path] | None = None) -> Loaded:
    """As `load`, and tells where each key came from."""
    reading = _Reading()
    merged: dict[str, Any] = {}
    unread = False
    for file in host_files(paths.CONFIG, paths.DROP_INS) if files is None else files:
        source = str(file)
        reading.sources.append(source)
        try:
            table = _read(file)
        except ConfigError as error:
            reading.problems += error.problems
            unread = True
        else:
            _merge(merged, _parse(table, _TREE, (), source, reading))
    # What refers to a file that was not read would only look wrong.
    config = Config() if unread else _build(merged, reading)
    if reading.problems:
        raise ConfigError(reading.problems, reading.sources)
    return Loaded(config, reading.origin)


def host_files(main: Path, folders: Sequence[Path]) -> list[Path]:
    """The main file, if there is one, then all drop-ins by file name; of one name, the first folder's.

    Raises ConfigError for a folder that cannot be listed: its drop-ins must not be passed over in silence.
    """
    drop_ins: dict[str, Path] = {}
    for folder in folders:
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError([f"{folder}: cannot be listed: {error.strerror}"]) from None
        for name in names:
            if name.endswith(".toml") and not name.startswith("."):  # not an editor's lock or swap file
                drop_ins.setdefault(name, folder / name)
    files = [drop_ins[name] for name in sorted(drop_ins)]
    try:
        main.lstat()
    except FileNotFoundError:
        return files
    except OSError:
        pass  # reading it will tell
    return [main, *files]


def _read(file: Path) -> dict[str, Any]:
    def refusal(text: str) -> ConfigError:
        return ConfigError([f"{file}: {text}"])

    try:
        info = file.stat()
        # Opening a FIFO would wait for ever. /dev/null masks a drop-in, as in systemd.
        if not stat.S_ISREG(info.st_mode) and not file.samefile(os.devnull):
            raise refusal("is not a regular file")
        # It says which commands run as which user.
        if os.geteuid() == 0 and stat.S_ISREG(info.st_mode) and info.st_mode & stat.S_IWOTH:
            raise refusal(f"is writable by everyone; run: chmod o-w {file}")
        with file.open("rb") as stream:
            raw = stream.read(FILE_MAX + 1)
    except OSError as error:
        raise refusal(f"cannot be read: {error.strerror}") from None
    if len(raw) > FILE_MAX:
        raise refusal(f"is larger than {FILE_MAX} bytes")
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise refusal(f"is not UTF-8 (line {line})") from None
    except tomllib.TOMLDecodeError as error:
        raise refusal(f"is not TOML: {error}") from None
    except (ValueError, RecursionError):  # tomllib's own limits: digits of a number, depth of nesting
        raise refusal("is not usable TOML: a number is too long, or the nesting too deep") from None


def _tree() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, key in KEYS.items():
        *tables, last = name.split(".")
        node = tree
        for table in tables:
            node = node.setdefault(table, {})
        node[last] = key
    return tree


_TREE = _tree()


def _parse(
    table: dict[str, Any], tree: dict[str, Any], path: KeyPath, source: str, reading: _Reading
) -> dict[str, Any]:
    """The values of one file's table; what is wrong in it goes to `reading` and is left out."""
    good: dict[str, Any] = {}
    for name, value in table.items():
        here = (*path, name)
        below = tree.get("*") or tree.get(name)
        fault = NAME_FAULTS[path[0]](name) if "*" in tree else None
        if below is None:
            reading.refuse(here, _unknown(name, path, tree), source)
        elif fault:
            reading.refuse(here, fault, source)
        elif isinstance(below, Key):
            reading.origin[here] = source
            try:
                good[name] = below.parse(value)
                if isinstance(value, dict):
                    reading.origin.update(dict.fromkeys(((*here, item) for item in value), source))
            except ValueError as error:
                detail = f" ({error})" if str(error) else ""
                found = "something else" if below.secret else _found(value)
                reading.refuse(here, f"found {found}{detail}; allowed: {below.allowed}", source)
        elif isinstance(value, dict):
            reading.origin[here] = source
            good[name] = _parse(value, below, here, source, reading)
        else:
            reading.refuse(here, f"found {_found(value)}; allowed: a table", source)
    return good


def _unknown(name: str, path: KeyPath, tree: dict[str, Any]) -> str:
    elsewhere = [key for key in KEYS if key.rpartition(".")[2] == name]
    # Best in the same section: limits of one mind are often looked for beside its command.
    elsewhere.sort(key=lambda key: not path or key.partition(".")[0] != path[0])
    guess = [key.replace("*", "NAME") for key in elsewhere] or difflib.get_close_matches(name, tree, n=1)
    hint = f" Did you mean {guess[0]}?" if guess else ""
    return f"unknown key.{hint} Allowed here: {', '.join(tree)}"


def _found(value: Any) -> str:
    match value:
        case bool():
            return f"{str(value).lower()}, a boolean"
        case int():
            return str(value) if value.bit_length() <= 64 else "a number beyond 64 bits"
        case float():
            return f"{value}, a float"
        case str():
            return quoted(value if len(value) <= 60 else value[:60] + "...")
        case list():
            return "an empty list" if not value else "a list"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def _merge(base: dict[str, Any], over: dict[str, Any]) -> None:
    for name, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            _merge(base[name], value)
        else:
            base[name] = value


def _build(values: dict[str, Any], reading: _Reading) -> Config:
    turn = values.get("turn", {})
    minds = {name: _mind(name, table, turn, reading) for name, table in values.get("minds", {}).items()}
    _refuse_shared(minds, reading)
    channels = {name: table.get("minds", ()) for name, table in values.get("channels", {}).items()}
    for name, members in channels.items():
        for mind in members:
            if mind not in minds:
                close = difflib.get_close_matches(mind, minds, n=1)
                hint = f" Did you mean {quoted(close[0])}?" if close else ""
                reading.refuse(("channels", name, "minds"), f"no mind {quoted(mind)} is configured.{hint}")
        if ("channels", name, "minds") not in reading.origin:
            reading.refuse(("channels", name), "minds is missing: a list of names of configured minds")
    limits, web = values.get("limits", {}), values.get("web", {})
    if (events := values.get("events", {}).get("listen")) and events == web.get("listen"):
        reading.refuse(("web", "listen"), "that is where the minds' endpoint listens (events.listen)")
    most = limits.get("payload_max", Config().payload_max)
    return Config(
        **limits,
        schedules=_schedules(values.get("schedules", {}), minds, most, reading),
        events_listen=values.get("events", {}).get("listen"),
        web_listen=web.get("listen"),
        web_token=web.get("token"),
        device_path=values.get("device", {}).get("path", "auto"),
        turn=Limits(**turn),
        pressure=_pressure(values.get("pressure", {}), reading),
        minds=minds,
        channels=channels,
        sources=tuple(reading.sources),
    )


def _pressure(table: dict[str, Any], reading: _Reading) -> Settings:
    settings = Settings(**table)
    if fault := settings_fault(settings):
        reading.refuse(("pressure",), fault)
    return settings


def _refuse_shared(minds: Mapping[str, Mind], reading: _Reading) -> None:
    """A server, and what runs it, is of one mind: a message does not say for whom it is."""
    seen: dict[str, str] = {}
    for name, mind in minds.items():
        for key, value in (("url", mind.url), ("unit", mind.unit)):
            if value is not None and seen.setdefault(value, name) != name:
                reading.refuse(("minds", name, key), f"{quoted(value)} is that of {quoted(seen[value])}")


def _schedules(
    tables: dict[str, Any], minds: Mapping[str, Mind], payload_max: int, reading: _Reading
) -> dict[str, Schedule]:
    schedules = {}
    for name, table in tables.items():
        place = ("schedules", name)
        fault = schedule_fault(table, minds)
        if fault is not None:
            reading.refuse(place, fault)
            continue
        schedule = schedules[name] = Schedule(name, **table)
        size = len(compact(scheduled(schedule)))
        if size > payload_max:
            text = f"its message has {size} bytes as JSON, at most {payload_max} are allowed"
            reading.refuse(place, f"{text} (limits.payload_max)")
    return schedules


def schedule_fault(table: Mapping[str, Any], minds: Mapping[str, Mind]) -> str | None:
    """What is wrong with a schedule whose keys are right, each by itself; None if nothing is."""
    mind = minds.get(table.get("mind", ""))
    if mind is None:
        return f"mind must name a configured mind: {', '.join(sorted(minds)) or 'there is none'}"
    if ("cron" in table) == ("at" in table):
        return "it has either cron or at"
    if ("message" in table) == ("script" in table):
        return "it has either message or script"
    if len(table.get("script", "").encode()) > SCRIPT_MAX:
        return f"script has more than {SCRIPT_MAX} bytes, which a shell cannot be given"
    if "script" in table and not mind.user:
        return f"{mind.name} has no user, who runs the script"
    if "message" in table and not (mind.command or mind.url):
        return f"{mind.name} has no command and no url: it takes no messages"
    return None


def _mind(name: str, table: dict[str, Any], turn: dict[str, Any], reading: _Reading) -> Mind:
    own = {key: value for key, value in table.items() if key not in ("user", "turn", "wake_on")}
    own["wake_on"] = WakeOn(**table.get("wake_on", {}))
    place = ("minds", name)
    if "command" in table and "url" in table:
        reading.refuse((*place, "url"), "a mind has a command or a url, not both")
    for key in ("unit", "idle_end"):
        if key in table and "url" not in table:
            reading.refuse((*place, key), "only a mind with a url has it")
    if "routes" in table and "user" not in table:
        reading.refuse(
            (*place, "routes"), "a mind with routes needs a user, who writes the files that routes name"
        )
    limits = Limits(**{**turn, **table.get("turn", {})})
    user = table.get("user")
    if user is None:
        if "command" in table and ("minds", name, "user") not in reading.origin:
            reading.refuse(("minds", name), "user is missing: the user of this host that runs the command")
        return Mind(name, limits=limits, **own)
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        reading.refuse(("minds", name, "user"), f"there is no user {quoted(user)} on this host")
        return Mind(name, limits=limits, **own)
    if paths.USER and entry.pw_uid != os.getuid():
        reading.refuse(("minds", name, "user"), "under a user's own service manager all minds are that user")
    return Mind(
        name,
        user=user,
        limits=limits,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        groups=_groups(user, entry.pw_gid),
        home=entry.pw_dir,
        shell=entry.pw_shell or "/bin/sh",
        **{"directory": entry.pw_dir or "/", **own},
    )


def _groups(user: str, gid: int) -> tuple[int, ...]:
    # getgrouplist holds Python's lock while it reads the file: on a stalled disk that would stop all threads.
    with suppress(OSError):
        GROUPS.read_bytes()
    return tuple(os.getgrouplist(user, gid))
