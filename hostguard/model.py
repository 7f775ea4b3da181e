"""The values that hostguard's parts hand to each other. All are frozen; none does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """Where a delivery is in its life, as stored. A held row is QUEUED: a hold is never stored."""

    QUEUED = "queued"
    DELIVERING = "delivering"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def final(self) -> bool:
        """True once nothing more happens to the row by itself."""
        return self not in (State.QUEUED, State.DELIVERING)


class Reason(StrEnum):
    """Why a row does not start now."""

    PAUSED = "paused"
    MIND_PAUSED = "mind_paused"
    ASLEEP = "asleep"
    NOT_DUE = "not_due"
    CALLER_AWAY = "caller_away"
    UNKNOWN_MIND = "unknown_mind"
    SESSION_BUSY = "session_busy"
    MIND_BUSY = "mind_busy"
    GLOBAL_CAP = "global_cap"
    PRESSURE = "pressure"
    NO_SYSTEMD = "no_systemd"
    RESTART = "restart"  # held since before the guard was started: the reason of then is not stored


class Kind(StrEnum):
    """What a row starts."""

    MESSAGE = "message"  # the mind's own command, payload on its stdin
    RUN = "run"  # the process of a waiting `hostguard run`


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one turn's scope, of a slice, or of a mind's own table. None = no limit of this kind.

    Units: weights 1..10000 (cgroup v2 io.weight), bandwidth bytes/s, IOPS operations/s, memory bytes,
    max_turn seconds.
    """

    io_weight: int | None = None
    read_bandwidth: int | None = None
    write_bandwidth: int | None = None
    read_iops: int | None = None
    write_iops: int | None = None
    memory_high: int | None = None
    memory_max: int | None = None
    tasks_max: int | None = None
    max_turn: float | None = None


@dataclass(frozen=True, slots=True)
class Mind:
    """A configured mind. `user` is resolved once, when the configuration is read."""

    name: str
    command: tuple[str, ...] = ()
    user: str = ""
    directory: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)
    concurrent_turns: int | None = None  # None: limits.mind_concurrent_turns
    limits: Limits = Limits()  # already merged over [turn]
    uid: int = 65534  # nobody, for a mind without a command
    gid: int = 65534
    groups: tuple[int, ...] = ()
    home: str = "/"
    shell: str = "/bin/sh"


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration, after defaults. `sources` lists the files read, in order."""

    mind_concurrent_turns: int = 1
    global_concurrent_turns: int | None = None  # None = unlimited, 0 = start nothing
    device_path: str = "auto"
    payload_max: int = 1 << 20  # bytes
    rows_per_mind: int = 10_000
    history_rows: int = 10_000  # finished rows kept
    turn: Limits = Limits()
    minds: Mapping[str, Mind] = field(default_factory=dict)
    channels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "#name" -> minds
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """What the gate needs of a queued delivery. Times are ms since the epoch, UTC."""

    id: int
    mind: str
    session: str
    not_before: int = 0
    kind: Kind = Kind.MESSAGE


@dataclass(frozen=True, slots=True)
class Delivery:
    """One durable row, without its payload. Times are ms since the epoch, UTC; 0 = unset."""

    id: int
    mind: str
    session: str
    state: State
    kind: Kind
    key: str | None
    sender: str | None
    channel: str | None
    created_at: int
    not_before: int
    expires_at: int
    attempts: int
    turn: str | None
    started_at: int
    ended_at: int
    result: Mapping[str, Any]

    @property
    def row(self) -> Row:
        """The part the gate sees."""
        return Row(self.id, self.mind, self.session, self.not_before, self.kind)


@dataclass(frozen=True, slots=True)
class LiveTurn:
    """A slot in use: a scope that is live, or a start in flight. `id` is None for a scope not ours."""

    unit: str
    mind: str
    session: str | None = None
    id: str | None = None
    takes_input: bool = False  # a resident mind's turn: more messages of its session fold into it


@dataclass(frozen=True, slots=True)
class MindView:
    """What the gate knows of one mind."""

    name: str
    cap: int
    paused: bool = False
    asleep: bool = False
    live: tuple[LiveTurn, ...] = ()


@dataclass(frozen=True, slots=True)
class HostView:
    """What the gate knows of the host. `cap` None = unlimited; `effective_cap` is what pressure allows."""

    live: int
    oldest: str | None = None  # the longest-running live unit, named as the blocker of a full cap
    cap: int | None = None
    effective_cap: int | None = None
    paused: bool = False
    systemd: bool = True  # False while the bus is lost: nothing is started unseen


@dataclass(frozen=True, slots=True)
class Start:
    """The row starts a turn now."""


@dataclass(frozen=True, slots=True)
class Fold:
    """The row goes into a live turn of its session; it starts no process."""

    turn: LiveTurn


@dataclass(frozen=True, slots=True)
class Hold:
    """The row waits. `blocker` names what it waits for, in words a person can act on."""

    reason: Reason
    blocker: str


Verdict = Start | Fold | Hold
