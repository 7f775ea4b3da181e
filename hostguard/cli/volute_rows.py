"""Reads Volute's registry and the directory of a Volute mind, for `hostguard mind add --volute`.

Source: mimsy/volute, registry.ts. The registry is a table in volute.db, in older versions minds.json, in
Volute's home. The directory of a mind is HOME/minds/NAME, or NAME in $VOLUTE_MINDS_DIR.

The files are other users': each is read by a process that is the owner of its folder. So a link leads nowhere
that this user may not go, and what SQLite makes of the file it makes without rights.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NoReturn

from hostguard.cli.errors import CliError

ROUTES = "home/.config/routes.json"
SYSTEM_HOME = Path("/var/lib/volute")  # when Volute runs as a service
FILE_MAX = 1 << 20  # bytes of minds.json, and of a reader's answer
READ_S = 10  # for one file, also if it never answers


def port_of(folder: Path, name: str) -> int | None:
    """The port of the mind's server, or None if no registry lists the mind. Raises CliError."""
    for file in _registries(folder):
        try:
            entries = _entries(file)
        except (OSError, ValueError) as error:
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


def _entries(file: Path) -> dict[str, int]:
    """The ports by mind, as a process reads them that is the folder's owner. Raises OSError, ValueError."""
    uid = _owner(file) if os.geteuid() == 0 else None
    source, sink = os.pipe()
    reader = os.fork()
    if reader == 0:
        _report(file, uid, sink)
    os.close(sink)
    with open(source, "rb") as answers:
        answer = answers.read(FILE_MAX)
    _, status = os.waitpid(reader, 0)
    if os.waitstatus_to_exitcode(status) == -signal.SIGALRM:
        raise OSError(f"no answer within {READ_S} s")
    try:
        found = json.loads(answer)
        fault = found.get("fault")
        entries = {str(name): int(port) for name, port in found["minds"].items()} if fault is None else {}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise OSError("its reader failed") from None
    if fault is not None:
        raise ValueError(fault)
    return entries


def _owner(file: Path) -> int:
    """The owner of the file's folder. Raises OSError if that is root, but others can change what is there."""
    folder = file.parent.resolve()
    uid = folder.stat().st_uid
    for place in (folder / file.name, folder, *folder.parents) if uid == 0 else ():
        found = place.lstat()
        shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or shared or stat.S_ISLNK(found.st_mode):
            raise OSError(f"it is in a folder of root, but users other than root can change {place}")
    return uid


def _report(file: Path, uid: int | None, sink: int) -> NoReturn:
    """In a process of its own: become the user, read the file, and write the answer."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(READ_S)
        os.setsid()  # no way back to the terminal
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        if uid:
            gid = -1
            with suppress(KeyError):
                entry = pwd.getpwuid(uid)
                os.initgroups(entry.pw_name, gid := entry.pw_gid)
            if gid < 0:
                os.setgroups([])
                gid = uid
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        try:
            answer: dict[str, object] = {"minds": _database(file) if file.suffix == ".db" else _file(file)}
        except (OSError, ValueError, sqlite3.Error) as error:
            answer = {"fault": str(error)}
        os.write(sink, json.dumps(answer).encode()[:FILE_MAX])
    finally:
        os._exit(0)


def _database(file: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=5)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'minds'").fetchone():
            return {}  # older: the minds are in minds.json
        return {str(name): int(port) for name, port in db.execute("SELECT name, port FROM minds")}


def _file(file: Path) -> dict[str, int]:
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        raw = opened.read(FILE_MAX)
    try:
        return {str(entry["name"]): int(entry["port"]) for entry in json.loads(raw)}
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a list of minds with name and port ({error})") from None
