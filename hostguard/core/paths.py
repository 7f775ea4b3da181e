"""Where hostguard's files are: of the host, or of a user's own service manager. The variables serve tests."""

from __future__ import annotations

import os
from pathlib import Path

USER_MANAGER = "HOSTGUARD_USER_MANAGER"
USER = os.environ.get(USER_MANAGER) == "1"


def _own(variable: str, default: str | Path) -> Path:
    """Our folder in one of the user's. The XDG Base Directory Specification ignores relative ones."""
    folder = os.environ.get(variable, "")
    return (Path(folder) if folder.startswith("/") else Path.home() / default) / "hostguard"


if USER:
    _CONFIG, _STATE = _own("XDG_CONFIG_HOME", ".config"), _own("XDG_STATE_HOME", ".local/state")
    _RUNTIME = _own("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
else:
    _CONFIG, _STATE, _RUNTIME = Path("/etc/hostguard"), Path("/var/lib/hostguard"), Path("/run/hostguard")

CONFIG = Path(os.environ.get("HOSTGUARD_CONFIG", _CONFIG / "hostguard.toml"))
STATE = Path(os.environ.get("HOSTGUARD_STATE", _STATE))
RUNTIME = Path(os.environ.get("HOSTGUARD_RUNTIME", _RUNTIME))

SOCKET = RUNTIME / "hostguard.sock"
LOCK = RUNTIME / "gate.lock"  # flock: its holder, and nobody else, admits turns
TURNS = RUNTIME / "turns"  # one exit record per turn
SESSIONS = RUNTIME / "sessions.json"  # see sessions.py
FROZEN, TIGHTENED = RUNTIME / "frozen.json", RUNTIME / "tightened.json"  # see undo.py
PRESSURE = RUNTIME / "pressure.json"  # see learnt.py
DATABASE = STATE / "queue.db"


def record_path(turn: str) -> Path:
    """The turn's exit record, written by its stub."""
    return TURNS / turn


# As in systemd: a drop-in in /etc beats one of the same name in /run.
DROP_INS = (
    (CONFIG.with_name(CONFIG.name + ".d"),)
    if "HOSTGUARD_CONFIG" in os.environ
    else (CONFIG.with_name(CONFIG.name + ".d"), RUNTIME / (CONFIG.name + ".d"))
)
