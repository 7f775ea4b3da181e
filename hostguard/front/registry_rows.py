"""Reads Volute's registry, as the user whose it is: a script that runs apart, without hostguard's modules.

usage: python3 -I -S - HOME
Prints JSON: the minds, as [name, port], and what daemon.json says, or null.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import sqlite3
import sys
from contextlib import closing
from typing import Any
from urllib.parse import quote

WAIT_S = 5.0  # for a lock on the database
LIFE_S = 15  # after this it is killed, whatever it waits for
MINDS_MAX = 1000
FILE_MAX = 64 << 10  # bytes of daemon.json


def owner(*way: str) -> tuple[int, int]:
    """(uid, gid) of the first on the way whose owner is not root: that one can lead the rest anywhere."""
    found = [os.lstat(path) for path in way]
    info = next((info for info in found if info.st_uid), found[-1])
    return info.st_uid, info.st_gid


def become(uid: int, gid: int) -> None:
    """Be this user from now on."""
    if os.geteuid() or not uid:
        return
    try:
        entry = pwd.getpwuid(uid)
        os.initgroups(entry.pw_name, entry.pw_gid)
        gid = entry.pw_gid
    except KeyError:
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def minds(database: str) -> list[list[Any]]:
    """The name and the port of each mind. Raises sqlite3.Error."""
    with closing(sqlite3.connect(f"file:{quote(database)}?mode=ro", uri=True, timeout=WAIT_S)) as db:
        return [list(row) for row in db.execute("SELECT name, port FROM minds LIMIT ?", (MINDS_MAX,))]


def daemon(file: str) -> Any:
    """What daemon.json says; None while there is none."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            return json.loads(opened.read(FILE_MAX))
    except (OSError, ValueError):
        return None


def main() -> None:
    """Entry point."""
    signal.alarm(LIFE_S)
    system = f"{sys.argv[1]}/system"
    try:
        become(*owner(sys.argv[1], system, f"{system}/volute.db"))
        print(json.dumps([minds(f"{system}/volute.db"), daemon(f"{system}/daemon.json")]))
    except (OSError, sqlite3.Error) as error:
        print(json.dumps(str(error)))


if __name__ == "__main__":
    main()
