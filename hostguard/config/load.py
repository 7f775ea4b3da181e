"""Reads the configuration: TOML files in, one model.Config out. Unknown keys are errors."""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hostguard.config.build import Reading, build
from hostguard.config.on_host import with_programs
from hostguard.config.schema import KEYS, Key
from hostguard.config.toml import KeyPath, quoted
from hostguard.core import paths
from hostguard.core.errors import ConfigError
from hostguard.core.model import Config
from hostguard.core.names import NAME_FAULTS

FILE_MAX = 1 << 20  # bytes


def load(files: Sequence[Path] | None = None, *, at_boot: bool = False) -> Config:
    """Read the host's configuration, or only `files`; a later file overrides an earlier one key by key.

    With `at_boot` a mind without its user is broken and a schedule may have an unknown time zone, rather than
    everything be refused. Blocks: reads files and looks up users. Raises ConfigError with all problems of all
    files.
    """
    return load_with_origin(files, at_boot=at_boot)[0]


def load_on_host(*, at_boot: bool) -> Config:
    """As `load`, for the guard: minds that lack something are broken."""
    return with_programs(load(at_boot=at_boot))


def load_with_origin(
    files: Sequence[Path] | None = None, *, at_boot: bool = False
) -> tuple[Config, dict[KeyPath, str]]:
    """As `load`, with the file that set each key."""
    reading = Reading(at_boot)
    merged: dict[str, Any] = {}
    unread = False
    for file in host_files(paths.CONFIG, paths.DROP_INS) if files is None else files:
        reading.sources.append(str(file))
        try:
            table = _read(file)
        except ConfigError as error:
            reading.problems += error.problems
            unread = True
        else:
            _merge(merged, _parse(table, _TREE, (), reading))
    # References into a file that was not read would only look wrong.
    config = Config() if unread else build(merged, reading)
    if reading.problems:
        raise ConfigError(reading.problems, reading.sources)
    return config, reading.origin


def host_files(main: Path, folders: Sequence[Path]) -> list[Path]:
    """The main file, if it exists, then all drop-ins by file name; of the same name the first folder's.

    Raises ConfigError for a folder that cannot be listed: its drop-ins must not be ignored silently.
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
        pass  # reading it fails with the reason
    return [main, *files]


def _read(file: Path) -> dict[str, Any]:
    def refusal(text: str) -> ConfigError:
        return ConfigError([f"{file}: {text}"])

    try:
        info = file.stat()
        # Opening a FIFO would block. /dev/null masks a drop-in, as in systemd.
        if not stat.S_ISREG(info.st_mode) and not file.samefile(os.devnull):
            raise refusal("is not a regular file")
        # The file decides which commands run as which user.
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


def _parse(table: dict[str, Any], tree: dict[str, Any], path: KeyPath, reading: Reading) -> dict[str, Any]:
    """The values of one file's table; invalid ones are left out and noted in `reading`."""
    good: dict[str, Any] = {}
    source = reading.sources[-1]
    for name, value in table.items():
        here = (*path, name)
        reading.origin[here] = source
        below = tree.get("*") or tree.get(name)
        fault = NAME_FAULTS[path[0]](name) if "*" in tree else None
        if below is None:
            reading.refuse(here, _unknown(name, path, tree))
        elif fault:
            reading.refuse(here, fault)
        elif isinstance(below, Key):
            try:
                good[name] = below.parse(value)
                if isinstance(value, dict):
                    reading.origin.update(dict.fromkeys(((*here, item) for item in value), source))
            except ValueError as error:
                if reading.at_boot and below.of_host and value and isinstance(value, str):
                    good[name] = value
                    continue
                detail = f" ({error})" if str(error) else ""
                found = "something else" if below.secret else _found(value)
                reading.refuse(here, f"found {found}{detail}; allowed: {below.allowed}")
        elif isinstance(value, dict):
            good[name] = _parse(value, below, here, reading)
        else:
            reading.refuse(here, f"found {_found(value)}; allowed: a table")
    return good


def _unknown(name: str, path: KeyPath, tree: dict[str, Any]) -> str:
    elsewhere = [key for key in KEYS if key.rpartition(".")[2] == name]
    # The same section first: people often write limits of a mind next to its command.
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
