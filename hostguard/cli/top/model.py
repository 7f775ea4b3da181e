"""The data that `hostguard top` shows, from a status and an earlier one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hostguard.telemetry.headlines import busy_minds, hold_text, news, running, turn_state, waits
from hostguard.telemetry.problems import Line

SLOT_MS = 2_000  # one column of the level's history: 60 columns are two minutes
FRESH_MS = 5_000  # an older sample of the disk says nothing about now
SHOWN_ELSEWHERE = ("running", "daemon")  # news that have their own place on the screen


@dataclass(frozen=True, slots=True)
class Look:
    """The live turns of a status, by unit; `at` is in seconds of a monotonic clock."""

    at: float
    turns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One live turn. Rates are bytes/s and % of one CPU since the earlier look; None: unknown."""

    id: str | None
    unit: str
    mind: str
    session: str | None
    state: str
    age_s: float
    cpu_percent: float | None
    cpu_ms: int | None
    read_rate: float | None
    write_rate: float | None
    read_bytes: int | None
    write_bytes: int | None
    counted: str | None


@dataclass(frozen=True, slots=True)
class MindRow:
    """One mind, and why its first held delivery waits."""

    name: str
    state: str
    live: int
    cap: int
    held: int
    oldest: str
    why: str


@dataclass(frozen=True, slots=True)
class View:
    """All data on the screen. `at` is ms since the epoch; `levels` has one per slot, the latest last."""

    at: int
    cap: int | None
    paused: bool
    paused_minds: tuple[str, ...]
    summary: str
    news: tuple[Line, ...]
    device: str
    levels: tuple[str, ...]
    turns: tuple[TurnRow, ...]
    minds: tuple[MindRow, ...]
    idle: int  # number of minds that are not shown
    live: int  # number of turns, shown or not


def view(status: Any, at: int, mono: float, before: Look | None, wanted: str = "", slots: int = 60) -> View:
    """The view of GET /v1/status of the date `at` (ms since the epoch), read at `mono` (seconds, monotonic).

    With `wanted`, only turns and minds with this text in a name are shown.
    """
    turns = [_turn(turn, mono, before) for turn in status["live"] if _is_wanted(wanted, turn)]
    # Sorted by bytes written: that order seldom changes, so lines do not jump.
    turns.sort(key=lambda turn: (-(turn.write_bytes or 0), -turn.age_s))
    busy = busy_minds(status)
    shown = [mind for mind in status["minds"] if wanted in mind["name"]] if wanted else busy
    pressure = status["pressure"]
    return View(
        at, status["cap"], status["state"] == "paused", tuple(status["paused_minds"]), running(status),
        tuple(line for line in news(status, at) if line[1] not in SHOWN_ELSEWHERE), _device(status),
        levels(pressure["changes"], pressure["level"], status["started_at"], at, slots), tuple(turns),
        tuple(_mind(mind) for mind in shown),
        len(status["minds"]) - len(shown), len(status["live"]),
    )  # fmt: skip


def look(status: Any, mono: float) -> Look:
    """The part of a status that the rates of a later one need."""
    return Look(mono, {turn["unit"]: turn for turn in status["live"]})


def levels(changes: Sequence[Any], now_level: str, started: int, at: int, slots: int) -> tuple[str, ...]:
    """The worst level of each slot, the latest last; "" before the first change that is known."""
    known = [(change["at"], change["level"]) for change in changes]
    begin = [(started, "calm")] if len(known) < 20 else []  # the guard keeps 20 changes
    spans = [*begin, *known]
    # Slots begin at multiples of SLOT_MS, so the line moves by whole columns.
    last = at // SLOT_MS
    found = []
    for slot in range(last - slots + 1, last + 1):
        first, end = slot * SLOT_MS, (slot + 1) * SLOT_MS
        before = [level for when, level in spans if when <= first][-1:]
        found.append(_worst([*before, *(level for when, level in spans if first < when < end)]))
    if found:
        found[-1] = _worst([found[-1], now_level])
    return tuple(found)


def _worst(names: Iterable[str]) -> str:
    order = ("", "calm", "strained", "stalled")
    return max(names, key=order.index, default="")


def _turn(turn: Any, mono: float, before: Look | None) -> TurnRow:
    old = None if before is None else before.turns.get(turn["unit"])
    span = 0.0 if before is None else mono - before.at

    def rate(name: str) -> float | None:
        was, became = None if old is None else old[name], turn[name]
        # Where bytes are counted by process, those of a process that ended are lost.
        return None if was is None or became is None or span <= 0 else max(0, became - was) / span

    cpu = rate("cpu_ms")
    return TurnRow(
        turn["id"], turn["unit"], turn["mind"], turn["session"],
        turn_state(turn),
        turn["ran_ms"] / 1000,
        None if cpu is None else cpu / 10, turn["cpu_ms"],
        rate("read_bytes"), rate("write_bytes"), turn["read_bytes"], turn["write_bytes"], turn["counted"],
    )  # fmt: skip


def _mind(mind: Any) -> MindRow:
    return MindRow(
        mind["name"], mind["state"], mind["live"], mind["cap"], mind["held"],
        waits(mind), hold_text(mind["hold"], mind["name"]),
    )  # fmt: skip


def _is_wanted(wanted: str, turn: Any) -> bool:
    return any(wanted in (text or "") for text in (turn["mind"], turn["session"], turn["id"] or turn["unit"]))


def _device(status: Any) -> str:
    device, pressure = status["device"] or {}, status["pressure"]
    if not device.get("node"):
        return f"none: {device.get('reason')}"
    named, looked = f"{device['node']}, {pressure['level']}", pressure["looked_ms"]
    if looked is None or looked > FRESH_MS:
        return f"{named}: idle, nothing runs"
    took, busy, in_flight = pressure["await_ms"], pressure["busy_percent"], pressure["in_flight"]
    done = "-" if took is None else f"{took:.0f} ms a request" if took or not in_flight else "none completed"
    busy_for = "-" if busy is None else f"{busy} % busy"
    return f"{named}: {done}, {busy_for}, {'-' if in_flight is None else f'{in_flight} in flight'}"
