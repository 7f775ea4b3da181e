"""The results of the demo's phases, and which promises failed. Pure. Times are in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from hostguard.cli.demo.plan import CAP

TOLD_S = 3.0  # the guard reports a stall within 2 s, on a busy machine a little later
ANSWER_S = 1.0


@dataclass(frozen=True, slots=True)
class Held:
    """A hold: its first reason and blocker, and its length. `seconds` None: it has not ended."""

    reason: str
    blocker: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: due, running or ended. Times count from the start of the phase."""

    mind: str
    cause: str
    due: float
    started: float | None = None
    ended: float | None = None
    exit: int | None = None
    outcome: str = "did not end"  # in words
    held: Held | None = None
    id: int = 0  # of the delivery

    @property
    def name(self) -> str:
        """The name in output."""
        return f"{self.mind} {self.cause}"


@dataclass(frozen=True, slots=True)
class Write:
    """One write and fsync of the bystander: its start and its duration."""

    at: float
    took: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase. `scopes` is the largest number of live scopes that was seen."""

    name: str
    turns: tuple[Turn, ...]
    writes: tuple[Write, ...]
    scopes: int = 0

    @property
    def total(self) -> float:
        """From the start to the last end."""
        return max((turn.ended or 0.0 for turn in self.turns), default=0.0)

    @property
    def felt(self) -> Felt:
        """The bystander's figures until the last end."""
        return felt(write.took for write in self.writes if write.at <= self.total)


@dataclass(frozen=True, slots=True)
class Felt:
    """Figures of the durations of the bystander's writes."""

    count: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Stop:
    """The guard's response to a card that stopped `at` and continued at `going`, since the phase's start.

    `told`: from the stop to the guard's report, None if there was none. `cap`: the cap after that. `started`:
    the number of turns that started before the card continued. `answers`: the durations of its status answers
    in that time. `back`: from there to the full cap, None if it did not come back.
    """

    at: float
    going: float
    told: float | None
    cap: int | None
    started: int
    answers: Felt
    back: float | None

    @property
    def seconds(self) -> float:
        """How long the card was stopped."""
        return self.going - self.at


def felt(took: Iterable[float]) -> Felt:
    """The figures of durations; all 0 if there are none."""
    ordered = sorted(took)
    return Felt(len(ordered), percentile(ordered, 50), percentile(ordered, 99), percentile(ordered, 100))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of sorted values; 0 if there are none."""
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def most_at_once(turns: Iterable[Turn]) -> int:
    """The largest number of turns at a time. One that starts as another ends does not overlap it."""
    steps = [
        step
        for turn in turns
        if turn.started is not None
        for step in ((turn.started, 1), *([(turn.ended, -1)] if turn.ended is not None else []))
    ]
    live = most = 0
    for _, change in sorted(steps):
        live += change
        most = max(most, live)
    return most


def failures(unguarded: Phase, *guarded: Phase) -> list[str]:
    """A sentence for each promise that failed."""
    phases = (unguarded, *guarded)
    turns = [(phase, turn) for phase in phases for turn in phase.turns]
    broken = [f"{phase.name}: {turn.name}: {turn.outcome}" for phase, turn in turns if turn.exit != 0]
    broken += [f"{phase.name}: the bystander wrote nothing" for phase in phases if not phase.felt.count]
    for phase in guarded:
        if (at_once := most_at_once(phase.turns)) > CAP:
            broken.append(f"{phase.name}: {at_once} turns ran at once, the cap was {CAP}")
        if phase.scopes > CAP:
            broken.append(f"{phase.name}: {phase.scopes} scopes lived at once, the cap was {CAP}")
        broken += [
            f"{phase.name}: {late.name} ({late.id}) started before {early.name} ({early.id})"
            for early, late in overtakings(phase.turns)
        ]
    return broken


def stop_failures(stop: Stop) -> list[str]:
    """A sentence for each promise about a stopped card that failed."""
    broken = []
    if stop.told is None:
        broken.append("the guard did not report the stall")
    elif stop.told > TOLD_S:
        broken.append(f"the guard reported the stall only after {stop.told:.1f} s")
    elif stop.cap != CAP // 2:
        broken.append(f"the cap was {stop.cap} while the card stalled, not {CAP // 2}")
    if stop.started:
        broken.append(f"{stop.started} turns started while the card stalled")
    if stop.answers.p99 > ANSWER_S:
        broken.append(f"the status took {stop.answers.p99:.1f} s while the card stalled")
    if stop.back is None:
        broken.append("the cap did not come back")
    return [f"stopped: {text}" for text in broken]


def overtakings(turns: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """(early, late) for each turn that started before an earlier one whose mind was not busy."""
    return [
        (early, late)
        for early in turns
        for late in turns
        if early.id < late.id
        and late.started is not None
        and early.due <= late.started
        and (early.started is None or late.started < early.started)
        and not any(
            other.mind == early.mind and runs_at(other, late.started)
            for other in turns
            if other is not early and other is not late
        )
    ]


def runs_at(turn: Turn, at: float) -> bool:
    """Whether the turn ran at a time, its start and end included."""
    return turn.started is not None and turn.started <= at and (turn.ended is None or at <= turn.ended)
