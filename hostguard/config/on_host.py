"""What minds need of this host: users, programs, sandboxes. A mind without them is `broken`. Blocks."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hostguard.config import users
from hostguard.config.toml import quoted
from hostguard.core import paths
from hostguard.core.model import Config, Mind
from hostguard.core.units import HOLDER

GROUPS = Path("/etc/group")
HOST = Path("/proc/1/root")  # the guard has a /tmp of its own; turns have the host's


def with_user(mind: Mind) -> Mind:
    """The mind with the ids and the folders of its user, if it has one; broken if there is no such user."""
    if not mind.user:
        return mind
    try:
        entry = pwd.getpwnam(mind.user)
    except KeyError:
        return replace(mind, broken=f"there is no user {quoted(mind.user)} on this host")
    if entry.pw_uid == HOLDER:
        return replace(
            mind, broken=f"user {quoted(mind.user)} has the number {HOLDER}, which is hostguard's own"
        )
    if paths.USER and entry.pw_uid != os.getuid():
        return replace(mind, broken="under a user's own service manager all minds are that user")
    # getgrouplist holds Python's lock while it reads the file: on a stalled disk that would stop all threads.
    with suppress(OSError):
        GROUPS.read_bytes()
    groups = [*os.getgrouplist(mind.user, entry.pw_gid)]
    if mind.strict:
        groups = [group for group in groups if group not in users.container_groups()]
    return replace(
        mind, uid=entry.pw_uid, gid=entry.pw_gid, groups=tuple(groups),
        home=entry.pw_dir, directory=mind.directory or entry.pw_dir or "/", shell=entry.pw_shell or "/bin/sh",
        broken="",
    )  # fmt: skip


def with_program(mind: Mind) -> Mind:
    """The mind, broken if its command's program is gone. One that cannot be looked for is not."""
    if mind.broken or not mind.command:
        return mind
    program = mind.command[0]
    gone = _gone(Path(program)) and _gone(HOST / program.lstrip("/"))
    return replace(mind, broken=f"there is no program {quoted(program)}") if gone else mind


def with_sandbox(mind: Mind) -> Mind:
    """The mind, broken if it is to have a strict sandbox and this host does not keep it."""
    if mind.broken or not mind.strict:
        return mind
    return replace(mind, broken=users.confinement_fault(mind) or "")


def with_programs(config: Config) -> Config:
    """The configuration, in which the minds without their program or their sandbox are broken."""
    minds = {name: with_sandbox(with_program(mind)) for name, mind in config.minds.items()}
    return replace(config, minds=minds)


def again(mind: Mind) -> Mind:
    """A broken mind as it is now."""
    return with_sandbox(with_program(with_user(replace(mind, broken=""))))


def _gone(program: Path) -> bool:
    try:
        program.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except PermissionError:
        return program.is_relative_to(HOST)  # not root: what this process sees is what there is
    except OSError:
        return False
    return False
