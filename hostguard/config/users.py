"""Keeps the services of this host from running anything for minds' users outside of turns. Blocks.

Two lists of users are written for others to read. polkit gives none of MIND_USERS a service manager that
outlives a login (packaging/polkit). PAM refuses everything to those of CONFINED, the users of strict minds:
logins, ssh, cron, at and the user's service manager all ask it (packaging/pam-configs). In addition, turns of
strict minds gain no privileges (systemd/fork_server.py) and are in no group that controls containers.
"""

from __future__ import annotations

import grp
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hostguard.core import paths
from hostguard.core.errors import ConfigError
from hostguard.core.model import Config, Mind
from hostguard.linux.files import written_beside

# Members of these have a service of root start programs, which are then in no turn.
CONTAINER_GROUPS = ("docker", "incus", "incus-admin", "libvirt", "lxd")
COMMON_ACCOUNT = Path("/etc/pam.d/common-account")
PASSWD = Path("/etc/passwd")


def container_groups() -> frozenset[int]:
    """The ids of the groups that control containers, as far as this host has them."""
    found = set()
    for name in CONTAINER_GROUPS:
        with suppress(KeyError):
            found.add(grp.getgrnam(name).gr_gid)
    return frozenset(found)


def confined_by(pam: str) -> bool:
    """Whether these rules of PAM (common-account) refuse the users of CONFINED."""
    rules = (line.partition("#")[0] for line in pam.splitlines())
    return any(f"file={paths.CONFINED}" in rule.split() for rule in rules)


def confinement_fault(mind: Mind) -> str | None:
    """Why this host does not keep the mind's sandbox, and what to do; None: it does."""
    if paths.USER:
        return "its sandbox needs a guard that runs as root"
    try:
        rules = COMMON_ACCOUNT.read_text(errors="replace")
    except OSError:
        rules = ""
    if not confined_by(rules):
        return "its sandbox needs a rule of PAM: run pam-auth-update --enable hostguard"
    if mind.gid in container_groups():
        return f"its sandbox needs another primary group: usermod --gid GROUP {mind.user}"
    from hostguard.linux.cgroup import has_login  # with asyncio, which the command line does not need

    if has_login(mind.uid):
        where = "is logged in, or has a service manager, outside its sandbox"
        return f"{mind.user} {where}: run {end_of_logins(mind.user)}"
    return None


def end_of_linger(user: str) -> str:
    """The command by which a user has no service manager without being logged in."""
    return f"loginctl disable-linger {user}"


def end_of_logins(user: str) -> str:
    """The commands that end all of a user's logins, and its service manager."""
    return f"{end_of_linger(user)}; loginctl terminate-user {user}"


def publish(config: Config) -> None:
    """Write the lists of the configuration's users. Raises ConfigError: they cannot be written."""
    if paths.USER:
        return
    minds = [mind for mind in config.minds.values() if mind.user and mind.uid]  # root may do anything
    strict = [mind for mind in minds if mind.strict]
    try:
        _write(paths.MIND_USERS, _names(minds), 0o644)
        _write(paths.CONFINED, _names(strict), 0o600)
    except OSError as error:
        raise ConfigError([f"{error.filename}: cannot be written: {error.strerror}"]) from None


def _names(minds: Iterable[Mind]) -> str:
    """All names of the minds' users, one a line: an id may have several."""
    names = {mind.user for mind in minds}
    entries = [line.split(":") for line in PASSWD.read_text(errors="replace").splitlines()]
    ids = {entry[2] for entry in entries if entry[0] in names}
    names |= {entry[0] for entry in entries if entry[2:] and entry[2] in ids}
    return "".join(f"{name}\n" for name in sorted(names))


def _write(file: Path, text: str, mode: int) -> None:
    try:
        if file.read_text() == text:
            return
    except FileNotFoundError:
        if not text:
            return
    with written_beside(file, text, mode, durable=True) as new:
        new.replace(file)
