"""Reads Volute's registry and the directory of a Volute mind, for `hostguard mind add --volute`.

Source: mimsy/volute, registry.ts. The registry is a table in volute.db, in older versions minds.json, in
Volute's home. The directory of a mind is HOME/minds/NAME, or NAME in $VOLUTE_MINDS_DIR.
"""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from hostguard.cli.errors import CliError

ROUTES = "home/.config/routes.json"
SYSTEM_HOME = Path("/var/lib/volute")  # when Volute runs as a service


def port_of(folder: Path, name: str) -> int | None:
    """The port of the mind's server, or None if no registry lists the mind. Raises CliError."""
    for file in _registries(folder):
        try:
            entries = _database(file) if file.suffix == ".db" else _file(file)
        except (OSError, ValueError, sqlite3.Error) as error:
            raise CliError(f"cannot read Volute's registry {file}: {error}; add --url") from None
        if name in entries:
            return entries[name]
    return None


def owner_of(folder: Path) -> str:
    """The owner of the mind's directory. Raises CliError, also if it is root, and OSError."""
    uid = folder.stat().st_uid
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        raise CliError(f"{folder} belongs to uid {uid}, which has no user on this host; add --user") from None
    if uid == 0:
        raise CliError(f'{folder} belongs to root; add --user, with "root" if that is intended')
    return user


def _registries(folder: Path) -> Iterator[Path]:
    """The existing files that may list the mind, the likeliest first."""
    named = os.environ.get("VOLUTE_HOME")
    homes = [Path(named)] if named else []
    homes += [folder.parent.parent, Path.home() / ".volute", SYSTEM_HOME]
    for home in dict.fromkeys(homes):
        files = (home / "system/volute.db", home / "volute.db", home / "minds.json")
        yield from (file for file in files if file.exists())


def _database(file: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=5)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'minds'").fetchone():
            return {}  # older: the minds are in minds.json
        return {str(name): int(port) for name, port in db.execute("SELECT name, port FROM minds")}


def _file(file: Path) -> dict[str, int]:
    try:
        return {str(entry["name"]): int(entry["port"]) for entry in json.loads(file.read_bytes())}
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a list of minds with name and port ({error})") from None
