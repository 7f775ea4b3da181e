"""What a phase of the demo came to, and whether the guard kept its word. Pure. Times are seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from hostguard.demo.plan import CAP


@dataclass(frozen=True, slots=True)
class Held:
    """A hold: why it began, what it waited for, and how long it was. `seconds` None: it goes on."""

    reason: str
    blocker: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, wanted or begun or over. Times count from the start of the phase."""

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
        """For a line about it."""
        return f"{self.mind} {self.cause}"


@dataclass(frozen=True, slots=True)
class Write:
    """One write + fsync of the bystander: when it began, and how long it took."""

    at: float
    took: float


@dataclass(frozen=True, slots=True)
class Phase:
    """All turns of a phase. `scopes` is the most live scopes that were seen at once."""

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
        """What the bystander felt until the last end."""
        return felt(write.took for write in self.writes if write.at <= self.total)


@dataclass(frozen=True, slots=True)
class Felt:
    """How long the bystander's writes took."""

    count: int
    p50: float
    p99: float
    max: float


def felt(took: Iterable[float]) -> Felt:
    """The figures of these times; all 0 if there are none."""
    ordered = sorted(took)
    return Felt(len(ordered), percentile(ordered, 50), percentile(ordered, 99), percentile(ordered, 100))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of sorted values, so always one of them; 0 of none."""
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def most_at_once(turns: Iterable[Turn]) -> int:
    """The most turns that ran at one time. One that starts as another ends does not run beside it."""
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


def failures(unguarded: Phase, guarded: Phase) -> list[str]:
    """A sentence for each promise that was broken; none if all were kept."""
    broken = [
        f"{phase.name}: {turn.name}: {turn.outcome}"
        for phase in (unguarded, guarded)
        for turn in phase.turns
        if turn.exit != 0
    ]
    broken += [
        f"{phase.name}: the bystander wrote nothing" for phase in (unguarded, guarded) if not phase.felt.count
    ]
    if (at_once := most_at_once(guarded.turns)) > CAP:
        broken.append(f"{guarded.name}: {at_once} turns ran at once, the cap was {CAP}")
    if guarded.scopes > CAP:
        broken.append(f"{guarded.name}: {guarded.scopes} scopes lived at once, the cap was {CAP}")
    return broken + [
        f"{guarded.name}: {late.name} ({late.id}) started before {early.name} ({early.id})"
        for early, late in overtakings(guarded.turns)
    ]


def overtakings(turns: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """(early, late) for each turn that started before one accepted earlier, whose mind was not busy."""
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
    """Whether the turn ran then; its first and its last moment count."""
    return turn.started is not None and turn.started <= at and (turn.ended is None or at <= turn.ended)
