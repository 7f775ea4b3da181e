"""Whether it is a mind that listens on its port, so that nobody else gets its messages.

The rule for the other end of a connection:
  root's           is the mind's: it is systemd's, or docker-proxy's, and root can read everything anyway
  mind with unit   its process is in that unit; one that Volute runs, in Volute's
  only with user   it is of that user, under a user's service manager always of that one
  with neither     nobody knows: it is the mind's
  another host's, or in a container with an address of its own: cannot be seen: it is the mind's
One that was not accepted yet belongs to those that listen. The kernel lets only one user listen at an address
and port at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from hostguard.core import paths
from hostguard.core.model import Mind
from hostguard.core.units import unit_of_cgroup
from hostguard.linux import cgroup as cgroups
from hostguard.linux.process import home_of, members
from hostguard.linux.sockets import Address, SockDiag, Socket, described, holders, is_near


class Manager(Protocol):
    """systemd, as far as it is needed here."""

    control_group: str  # of the manager itself


class Unseen(Exception):
    """It is not seen who has the other end of the connection: why, in words."""


def of_its_user(mind: Mind, uid: int) -> bool:
    """True if this may be the user of a mind without a unit."""
    if uid == 0:
        return True
    return uid == (os.getuid() if paths.USER else mind.uid) or not (mind.user or paths.USER)


class MindListeners:
    """Tells minds from others that listen on their ports."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._homes: dict[str, Path] = {}  # the cgroup in which a unit's listening process was last

    def stranger(self, mind: Mind, local: Address, peer: Address) -> str | None:
        """Who else has the other end of a connection to the mind, in words; None: nobody else.

        Raises Unseen. Blocks: call it in a thread.
        """
        known = mind.unit is not None or mind.user or paths.USER
        if not known or not is_near(local, peer):
            return None
        try:
            with SockDiag() as diag:
                ends = diag.other_end(local, peer)
        except OSError as error:
            raise Unseen(f"the kernel does not tell who listens there: {error}") from None
        if ends is None:
            raise Unseen("it is left before it is known who listens there")
        for found in ends:
            if not self._is_mind(mind, found):
                return described(found, holders([found]))
        return None

    def _is_mind(self, mind: Mind, found: Socket) -> bool:
        unit = mind.unit or mind.volute
        if unit is not None:
            return found.uid == 0 or self._in_unit(unit, found)
        return of_its_user(mind, found.uid)

    def _in_unit(self, unit: str, found: Socket) -> bool:
        if unit in self._homes and holders([found], _below(self._homes[unit])):
            return True
        for pid in holders([found]):
            home = home_of(pid)
            if home is not None and self._unit_of(home) == unit:
                self._homes[unit] = home
                return True
        return False

    def _unit_of(self, home: Path) -> str | None:
        """The system's unit of a cgroup: a user's own manager may have one of the same name."""
        known = unit_of_cgroup(f"/{home.relative_to(cgroups.ROOT)}", self._manager.control_group)
        return known[0] if known is not None else None


def _below(home: Path) -> Iterator[int]:
    """The processes in a cgroup and below it."""
    for folder, _, _ in os.walk(home):
        yield from members(Path(folder))
