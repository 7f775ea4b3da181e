"""A user's own service manager, in a guest without logind and PAM's module of systemd, which would start it."""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from guard import run, systemctl

# What those would do: make the folder and set the variables.
MANAGER = """[Service]
PAMName=
Environment=XDG_RUNTIME_DIR=/run/user/%i
"""
FOLDER = """[Service]
ExecStart=
ExecStart=/usr/bin/install -d -m 700 -o {user} -g {user} /run/user/%i
ExecStop=
"""


@contextmanager
def user_manager(user: str) -> Iterator[int]:
    """The manager of the user runs, as after `loginctl enable-linger`. The user's number."""
    uid = pwd.getpwnam(user).pw_uid
    for unit, text in (("user@", MANAGER), ("user-runtime-dir@", FOLDER.format(user=user))):
        folder = Path(f"/run/systemd/system/{unit}{uid}.service.d")
        folder.mkdir(parents=True)
        (folder / "guest.conf").write_text(text)
    systemctl("daemon-reload")
    systemctl("start", f"user@{uid}.service")
    try:
        yield uid
    finally:
        systemctl("stop", f"user@{uid}.service")
        for unit in ("user@", "user-runtime-dir@"):
            run("rm", "-r", f"/run/systemd/system/{unit}{uid}.service.d")
        systemctl("daemon-reload")


def as_user(user: str, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command as the user, with the variables of its session."""
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"]
    there = ["env", f"XDG_RUNTIME_DIR=/run/user/{pwd.getpwnam(user).pw_uid}", "PATH=/usr/bin:/bin"]
    return subprocess.run(
        [*become, *there, *argv],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
        check=False,
    )
