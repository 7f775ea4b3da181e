"""The paths of hostguard's files, for the host or for a user's service manager. Tests set the variables."""

from __future__ import annotations

import os
from pathlib import Path

USER_MANAGER = "HOSTGUARD_USER_MANAGER"
USER = os.environ.get(USER_MANAGER) == "1"


def _own(variable: str, default: str | Path) -> Path:
    """Our folder in one of the user's. Relative ones are ignored (XDG Base Directory Specification)."""
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
UNITS = Path(os.environ.get("HOSTGUARD_UNITS", "/etc/systemd/system"))  # drop-ins that hostguard writes

SOCKET = RUNTIME / "hostguard.sock"
LOCK = RUNTIME / "gate.lock"  # flock: only its holder admits turns
TURNS = RUNTIME / "turns"  # one exit record per turn
SESSIONS = RUNTIME / "sessions.json"  # turns/process_sessions.py
FROZEN, TIGHTENED = RUNTIME / "frozen.json", RUNTIME / "tightened.json"  # pressure/
MIND_USERS = RUNTIME / "users"  # config/users.py; packaging/polkit reads it
CONFINED = STATE / "confined"  # config/users.py; packaging/pam-configs reads it
WENT_DOWN = STATE / "went-down"  # gate/shutdown.py
WENT_DOWN_TURNS = STATE / "went-down-turns"  # copies of TURNS, by hostguard-shutdown.service
PRESSURE = RUNTIME / "pressure.json"  # pressure/saved_state.py
VOLUTE = RUNTIME / "volute.json"  # front/registry.py
DATABASE = STATE / "queue.db"


def record_path(turn: str) -> Path:
    """The exit record of a turn, written by its stub."""
    return TURNS / turn


# As in systemd: a drop-in in /etc beats one of the same name in /run.
_DROP_INS = CONFIG.with_name(CONFIG.name + ".d")
DROP_INS = (_DROP_INS,) if "HOSTGUARD_CONFIG" in os.environ else (_DROP_INS, RUNTIME / _DROP_INS.name)
