"""What tests of schedules and sleep ask of a host."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from typing import Any

from resident_host import ResidentHost

from hostguard.core import paths
from hostguard.store.sums import maintain
from hostguard.telemetry.events import MESSAGE_IDS, Event

HOUR = 3_600_000


def now() -> int:
    return int(time.time() * 1000)


def journal(host: ResidentHost, event: Event) -> list[str]:
    return [line["MESSAGE"] for line in host.guard.journal(f"MESSAGE_ID={MESSAGE_IDS[event]}")]


def settings(name: str, value: Any = None) -> Any:
    """Of the database: read one, or set it while the guard is down."""
    with closing(sqlite3.connect(paths.DATABASE, timeout=10)) as db, db:
        maintain(db)
        if value is not None:
            db.execute("REPLACE INTO settings (name, value) VALUES (?, ?)", (name, json.dumps(value)))
        found = db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return json.loads(found[0]) if found else None
