"""The values that the packages exchange. All are frozen; none does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

from hostguard.core.clock import Now
from hostguard.core.names import MAIN_SESSION
from hostguard.core.reasons import Reason
from hostguard.core.settings import Settings


class State(StrEnum):
    """Where a delivery is in its life, as stored. A held row is QUEUED: a hold is never stored."""

    QUEUED = "queued"
    DELIVERING = "delivering"
    BATCHING = "batching"  # in a batch's buffer, until it is flushed
    QUARANTINED = "gated"  # no route of the mind matches its channel
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    BATCHED = "batched"  # went out in a batch: result["delivery"] is its row
    SKIPPED = "skipped"  # not for the mind (filtered, asleep, archived): result["reason"] says why

    @property
    def final(self) -> bool:
        """True once nothing more happens to the row by itself."""
        return self not in PENDING


PENDING = (State.QUEUED, State.DELIVERING, State.BATCHING, State.QUARANTINED)


class Kind(StrEnum):
    """What a row starts."""

    MESSAGE = "message"  # from somebody: the mind gets the payload
    SCHEDULE = "schedule"  # of a schedule; this and the following are payloads, too
    SYSTEM = "system"
    WAKE = "wake"
    LIFECYCLE = "lifecycle"
    NOTICE = "notice"
    BATCH = "batch"  # messages that were gathered
    RUN = "run"  # the process of a waiting `hostguard run`
    SCRIPT = "script"  # a schedule's script, as the mind's user; what it prints becomes a row
    FILE = "file"  # a route's file, as the mind's user: the message is appended to it
    # A message, until the routes of its mind are read and give it its place. Not stored: see Delivery.row.
    UNROUTED = "unrouted"

    @property
    def delivers(self) -> bool:
        """True if the mind itself gets the payload."""
        return self not in (Kind.RUN, Kind.SCRIPT, Kind.FILE)

    @property
    def counted_apart(self) -> bool:
        """True if the guard makes such rows by itself: they take none of the room of what others send."""
        return self in (Kind.SCHEDULE, Kind.SCRIPT, Kind.NOTICE)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a turn or a slice, in bytes/s, operations/s, bytes, seconds (max_turn); None = no limit."""

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
class WakeOn:
    """What wakes a sleeping mind, in addition to a message that asks for it. Globs: `*` only."""

    dm: bool = True
    mention: bool = True  # @name
    channels: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """A message or a script at set times: `cron`, or once `at` (ms since the epoch)."""

    name: str
    mind: str
    cron: str | None = None
    at: int | None = None
    message: str | None = None
    script: str | None = None
    session: str = MAIN_SESSION  # "$new": one of its own each time
    timezone: str = ""  # IANA name; "" = the host's
    catch_up: str = "once"  # of times missed while the guard was away: skip, once or all
    catch_up_window: int = 86_400  # seconds: what was missed longer ago is only logged
    while_sleeping: str = ""  # "" (by the mind's wake triggers), skip, queue or trigger-wake
    overlap: str = "skip"  # of a cron time, while the row of an earlier one has not begun: skip or queue
    enabled: bool = True
    # Of one that was added at run time: its script may run as this user only. None: an older guard kept it.
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    """A configured channel. A message to it goes to each of its minds."""

    name: str  # with its "#"
    minds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mind:
    """A configured mind. `user` is resolved once, when the configuration is read.

    Exec: `command` is run once per turn. Resident: `url` is that of its HTTP server, http://host:port, and
    `unit` the service that runs it. `idle_end` and `sleep_after` are seconds.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    unit: str | None = None
    routes: str | None = None  # path of its routes.json
    token: str | None = None  # SHA-256 of its token, hex; None: one made by `hostguard mind token`, if any
    idle_end: float = 600  # a turn without `done` ends after its processes were idle this long
    wake_on: WakeOn = WakeOn()
    sleep_after: float = 60  # a mind that a message woke sleeps again after this long without a turn
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
    volute: str | None = None  # the service of the Volute that runs its server, behind the guard: see front/
    sandbox: str = "none"  # or "strict": nothing of the host runs anything for its user outside of turns
    broken: str = ""  # why it cannot work on this host now: its user, program or sandbox is not there

    @property
    def strict(self) -> bool:
        """True if it has the strict sandbox."""
        return self.sandbox == "strict"


@dataclass(frozen=True, slots=True)
class Work:
    """What a stub runs. `capture`: bytes of output to keep in the record; 0 = all goes to the journal."""

    argv: tuple[str, ...]
    stdin: bytes
    environment: Mapping[str, str]
    capture: int = 0


@dataclass(frozen=True, slots=True)
class Volute:
    """A Volute on this host, behind the guard. `ports`: the first and the last port of its minds."""

    home: str  # its VOLUTE_HOME
    unit: str = "volute.service"
    ports: tuple[int, int] = (4100, 4199)


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration, after defaults. `sources` lists the files read, in order."""

    mind_concurrent_turns: int = 1
    global_concurrent_turns: int | None = None  # None = unlimited, 0 = start nothing
    device_path: str = "auto"
    payload_max: int = 1 << 20  # bytes
    rows_per_mind: int = 10_000  # and as many that the guard makes: Kind.counted_apart
    history_rows: int = 10_000  # finished rows kept
    turn: Limits = Limits()
    pressure: Settings = field(default_factory=Settings)
    minds: Mapping[str, Mind] = field(default_factory=dict)
    channels: Mapping[str, Channel] = field(default_factory=dict)
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    events_listen: tuple[str, int] | None = None  # loopback address and port of the minds' endpoint
    web_listen: tuple[str, int] | None = None  # and of the pages and metrics for people and their tools
    web_token: str | None = None  # SHA-256, hex, of the token to act there; None: they are only to be read
    volute: Volute | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A queued delivery, as the gate sees it. `since` and `due` are stamps, see core/clock.py; 0 = unset.

    It is due at the date `not_before`, in ms, or at `due`, when its pause after a failure is over. `since`:
    from when on it has waited; only rows of the backlog have it.
    """

    id: int
    mind: str
    session: str
    not_before: int = 0
    kind: Kind = Kind.MESSAGE
    due: int = 0
    since: int = field(default=0, compare=False)

    def later(self, now: Now) -> bool:
        """True if it is not due yet."""
        return now.until(self.due) > 0 if now.of_this_boot(self.due) else self.not_before > now.date

    def as_if_due(self) -> Row:
        """The row without the times before which it is not due."""
        return replace(self, not_before=0, due=0)


# id, mind, session, not_before, kind, due, created_at and accepted of a Delivery, as the database has them
StoredRow = tuple[int, str, str, int, str, int, int, int]
_row_values = attrgetter("id", "mind", "session", "not_before", "kind", "due")


@dataclass(frozen=True, slots=True)
class Target:
    """One row of a message to store: its mind and session, its first state, and what it starts."""

    mind: str
    session: str
    state: State = State.QUEUED  # QUEUED, BATCHING, QUARANTINED or SKIPPED
    kind: Kind = Kind.MESSAGE
    # Of SKIPPED: {"outcome", "reason"}. {"unrouted": whether it wakes the mind}: see Delivery.unrouted.
    result: Mapping[str, Any] = field(default_factory=dict)
    uid: int | None = None  # as in Delivery


@dataclass(frozen=True, slots=True)
class Delivery:
    """One durable row, without its payload. Times are ms since the epoch, UTC; 0 = unset.

    `accepted`, `due` and `started` are stamps, see core/clock.py: how long ago something was. `uid`: for whom
    a script, a line of a file or a run was authorised; it runs as nobody else. None: the row runs nothing of
    its sender's, or an older guard stored it.
    """

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
    posted_at: int = 0  # when a resident mind confirmed it
    accepted: int = 0
    due: int = 0  # the end of its pause after a failure, of which `not_before` is the date
    started: int = 0
    uid: int | None = None

    @property
    def row(self) -> Row:
        """The part that the gate sees."""
        row = Row(*_row_values(self))
        return replace(row, kind=Kind.UNROUTED) if self.unrouted else row

    @property
    def unrouted(self) -> bool:
        """True until the mind's routes are read. The result says so, and whether it may wake the mind."""
        return self.state is State.QUEUED and Kind.UNROUTED in self.result


class Waited(NamedTuple):
    """How long a row waited since it was due, in ms, and behind what; None if it was not held.

    `since` is the stamp of the wait's beginning.
    """

    ms: int
    behind: str | None
    reason: Reason | None = None
    since: int = 0


NOT_HELD = Waited(0, None)


@dataclass(frozen=True, slots=True)
class LiveTurn:
    """A slot in use: a scope that is live, or a start in flight. `id` is None for a scope not ours."""

    unit: str
    mind: str
    session: str | None = None
    id: str | None = None
    takes_input: bool = False  # a resident mind's turn: more messages of its session fold into it

    @staticmethod
    def of(row: Row, unit: str, id_: str | None, takes_input: bool = False) -> LiveTurn:
        """The turn that the row begins."""
        return LiveTurn(unit, row.mind, row.session, id_, takes_input)


@dataclass(frozen=True, slots=True)
class MindView:
    """One mind, as the gate sees it."""

    name: str
    cap: int
    paused: bool = False
    asleep: bool = False
    live: tuple[LiveTurn, ...] = ()
    down: str | None = None  # why a resident mind takes no connections
    broken: str = ""
    unread: str = ""  # why its routes could not be read yet
    restarting: bool = False  # its service is to be restarted, once it has no turn


@dataclass(frozen=True, slots=True)
class HostView:
    """The host, as the gate sees it. `cap` None = unlimited; `effective_cap` is what pressure allows."""

    live: int
    units: tuple[str, ...] = ()  # that are live; the first, which runs longest, is the blocker of a full cap
    cap: int | None = None
    effective_cap: int | None = None
    paused: bool = False
    systemd: bool = True  # False while the bus is lost: nothing starts uncounted
    writes: bool = True  # False while the database is not: turns that end would run again after a boot
    stopping: bool = False  # it shuts down


@dataclass(frozen=True, slots=True)
class Start:
    """The row starts a turn now."""


@dataclass(frozen=True, slots=True)
class Fold:
    """The row goes into a live turn of its session; it starts no process."""

    turn: LiveTurn


@dataclass(frozen=True, slots=True)
class Hold:
    """The row waits. `blocker` names what for, in words that a person can act on."""

    reason: Reason
    blocker: str
    units: tuple[str, ...] | None = None  # the turns of which one must end; None: it waits for something else


Verdict = Start | Fold | Hold
