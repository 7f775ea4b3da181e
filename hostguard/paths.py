"""Where hostguard's files are. The three variables serve tests and user managers."""

from __future__ import annotations

import os
from pathlib import Path

CONFIG = Path(os.environ.get("HOSTGUARD_CONFIG", "/etc/hostguard/hostguard.toml"))
STATE = Path(os.environ.get("HOSTGUARD_STATE", "/var/lib/hostguard"))
RUNTIME = Path(os.environ.get("HOSTGUARD_RUNTIME", "/run/hostguard"))

SOCKET = RUNTIME / "hostguard.sock"
LOCK = RUNTIME / "gate.lock"  # flock: its holder, and nobody else, admits turns
TURNS = RUNTIME / "turns"  # one exit record per turn
SESSIONS = RUNTIME / "sessions.json"  # see sessions.py
DATABASE = STATE / "queue.db"

# As in systemd: a drop-in in /etc beats one of the same name in /run.
DROP_INS = (
    (CONFIG.with_name(CONFIG.name + ".d"),)
    if "HOSTGUARD_CONFIG" in os.environ
    else (CONFIG.with_name(CONFIG.name + ".d"), RUNTIME / (CONFIG.name + ".d"))
)
