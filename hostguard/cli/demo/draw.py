"""The results of the demo as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hostguard.cli.demo.plan import CAP, MINDS
from hostguard.cli.demo.results import Phase, Stop, Turn, most_at_once
from hostguard.core.text import cut, table

NARROWEST = 20  # the least columns of a timeline's bars
WIDTH = 100  # without a terminal
_TICK = 10  # the least columns between ticks of the axis


@dataclass(frozen=True, slots=True)
class Ink:
    """The characters of bars."""

    runs: str
    held: str
    more: str  # replaces text that was cut off


UNICODE, ASCII = Ink("█", "░", "…"), Ink("#", ".", "~")


def ink(encoding: str | None) -> Ink:
    """The characters for an encoding."""
    return UNICODE if (encoding or "").lower().replace("-", "") == "utf8" else ASCII


def timeline(turns: Sequence[Turn], now: float, scale: float, width: int, with_: Ink) -> list[str]:
    """One row per mind, then the axis, in at most `width` columns.

    `scale` is the length of the axis in seconds; turns that have not ended end at `now`.
    """
    label = max(map(len, MINDS)) + 2
    room = max(NARROWEST, width - label)
    scale = max(scale, 0.001)
    rows = [mind.ljust(label) + _bar(turns, mind, now, scale, room, with_) for mind in MINDS]
    legend = " " * label + f"{with_.runs} runs   2 two turns at once   {with_.held} held"
    return [
        cut_with(line.rstrip(), width, with_) for line in (*rows, " " * label + _axis(scale, room), legend)
    ]


def _bar(turns: Sequence[Turn], mind: str, now: float, scale: float, room: int, with_: Ink) -> str:
    running, held = [0] * room, [False] * room

    def cells(start: float, end: float) -> range:
        first = min(int(start / scale * room), room - 1)
        # The cell in which a turn ends is free for the next turn, unless it is the only cell.
        return range(first, min(max(first + 1, int(end / scale * room)), room))

    for turn in turns:
        if turn.mind != mind:
            continue
        if turn.started is None or turn.started > turn.due:
            for cell in cells(turn.due, min(now, turn.started or now)) if turn.due <= now else ():
                held[cell] = True
        if turn.started is not None:
            for cell in cells(turn.started, now if turn.ended is None else turn.ended):
                running[cell] += 1
    return "".join(
        str(count) if count > 1 else with_.runs if count else with_.held if waits else " "
        for count, waits in zip(running, held, strict=True)
    )


def _axis(scale: float, room: int) -> str:
    steps = (size * 10**power for power in range(-3, 7) for size in (1, 2, 5))
    step = next((step for step in steps if step / scale * room >= _TICK), scale)
    line = ""
    for count in range(int(scale / step) + 1):
        tick = f"|{count * step:g}s"
        column = round(count * step / scale * room)
        if column + len(tick) <= room:
            line = line.ljust(column) + tick
    return line


def seconds(value: float | None) -> str:
    """A measured time, in ms below a second."""
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.2f} s"


def times(more: float, less: float) -> str:
    """The ratio of `more` to `less`."""
    if not less:
        return "-"
    ratio = more / less
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def holds(turns: Iterable[Turn], width: int, with_: Ink) -> str:
    """A table of all holds, with reason, blocker and length."""
    rows = [
        (turn.mind, turn.cause, turn.held.reason, seconds(turn.held.seconds), turn.held.blocker)
        for turn in turns
        if turn.held is not None
    ]
    headers = ("MIND", "TURN", "REASON", "HELD", "AT FIRST BEHIND")
    return _table(headers, rows, width, with_) if rows else "nothing was held"


def compared(unguarded: Phase, guarded: Phase, width: int, with_: Ink) -> str:
    """A table that compares the two phases."""
    before, after = unguarded.felt, guarded.felt
    rows = [
        ("turns at once", str(most_at_once(unguarded.turns)), str(most_at_once(guarded.turns)), ""),
        ("live scopes at once", str(unguarded.scopes), str(guarded.scopes), ""),
        ("all turns done after", seconds(unguarded.total), seconds(guarded.total), ""),
        ("bystander's writes", str(before.count), str(after.count), ""),
    ]
    for name in ("p50", "p99", "max"):
        was, became = getattr(before, name), getattr(after, name)
        rows.append((f"  {name}", seconds(was), seconds(became), times(was, became)))
    return _table(("", "UNGUARDED", "GUARDED", "RATIO"), rows, width, with_)


def stood(stop: Stop, phase: Phase) -> list[tuple[str, str]]:
    """The facts about the phase with the stopped card."""
    completed = sum(turn.exit == 0 for turn in phase.turns)
    return [
        ("the guard reported it after", seconds(stop.told)),
        ("turns allowed at a time", "-" if stop.cap is None else f"{stop.cap}, before that {CAP}"),
        ("turns that started meanwhile", str(stop.started)),
        ("status was answered", f"{stop.answers.count} times, p99 {seconds(stop.answers.p99)}"),
        ("the full cap was back after", seconds(stop.back)),
        ("turns that ran to their end", f"{completed} of {len(phase.turns)}"),
    ]


def summary(
    unguarded: Phase, guarded: Phase, width: int, with_: Ink, third: tuple[Phase, Stop] | None = None
) -> str:
    """The summary at the end of the demo."""
    phases = [(unguarded, "all at once"), (guarded, f"a global cap of {CAP}")]
    if third is not None:
        stopped, stop = third
        phases.append((stopped, f"the card is stopped from {stop.at:.1f} s to {stop.going:.1f} s"))
    scale = max(phase.total for phase, _ in phases)
    parts = []
    for phase, said in phases:
        rows = timeline(phase.turns, phase.total, scale, width, with_)
        parts.append("\n".join([f"{phase.name.capitalize()}: {len(phase.turns)} turns, {said}", *rows]))
    parts.append("Holds under the guard\n" + holds(guarded.turns, width, with_))
    parts.append(
        "Delay of a bystander that writes and syncs 4 KiB four times a second\n"
        + compared(unguarded, guarded, width, with_)
    )
    if third is not None:
        facts = stood(stop, stopped)
        wide = max(len(name) for name, _ in facts)
        lines = [f"{name:{wide}}  {value}" for name, value in facts]
        parts.append("\n".join([f"While the card was stopped for {seconds(stop.seconds)}", *lines]))
    return "\n\n".join(parts)


def as_dict(
    unguarded: Phase,
    guarded: Phase,
    failures: Sequence[str],
    folder: str,
    size: int,
    third: tuple[Phase, Stop] | None = None,
) -> dict[str, Any]:
    """The summary as JSON. Times are in seconds."""
    before, after = unguarded.felt, guarded.felt
    return {
        "folder": folder,
        "bytes_per_turn": size,
        "cap": CAP,
        "unguarded": _phase(unguarded),
        "guarded": _phase(guarded),
        "stopped": None if third is None else {**_phase(third[0]), "stop": asdict(third[1])},
        "ratio": {
            name: getattr(before, name) / getattr(after, name) if getattr(after, name) else None
            for name in ("p50", "p99", "max")
        },
        "failures": list(failures),
    }


def _phase(phase: Phase) -> dict[str, Any]:
    return {
        "seconds": phase.total,
        "turns_at_once": most_at_once(phase.turns),
        "scopes_at_once": phase.scopes,
        "turns": [asdict(turn) for turn in phase.turns],
        "bystander": {**asdict(phase.felt), "writes": [asdict(write) for write in phase.writes]},
    }


def cut_with(line: str, width: int, with_: Ink) -> str:
    """`line` in at most `width` columns."""
    return cut(line, width).replace(UNICODE.more, with_.more)


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], width: int, with_: Ink) -> str:
    return table(headers, rows, width).replace(UNICODE.more, with_.more)
