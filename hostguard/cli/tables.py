"""Minds and live turns as tables. Pure."""

from __future__ import annotations

from hostguard.core.names import MAIN_SESSION
from hostguard.core.text import clock, ms, safe, size, table
from hostguard.telemetry.headlines import hold_text, turn_state, waits

TYPE_CHECKING = False  # typing's own costs its import, which `hostguard status` can do without
if TYPE_CHECKING:
    from typing import Any


def mind_table(minds: list[Any], width: int | None) -> str:
    """The minds, one per line, cut to `width` columns."""
    rows = [
        (
            mind["name"], _state(mind), f"{mind['live']}/{mind['cap']}", _sessions(mind),
            mind["queued"], mind["held"], ms(mind.get("oldest_wait_ms")), _kept(mind),
            mind.get("user"), mind.get("url") or _command(mind.get("command")),
        )
        for mind in minds
    ]  # fmt: skip
    headers = (
        "NAME", "STATE", "TURNS", "SESSION", "QUEUED", "HELD", "OLDEST", "KEPT", "USER", "COMMAND OR URL",
    )  # fmt: skip
    return table(headers, rows, width)


def turn_table(turns: list[Any], width: int | None) -> str:
    """The live turns, one per line, cut to `width` columns."""
    rows = [(*_turn(turn), turn["unit"], turn.get("description")) for turn in turns]
    return table(("ID", "MIND", "SESSION", "STATE", "RUNS", "UNIT", "DESCRIPTION"), rows, width)


def turns_used(turns: list[Any], width: int | None) -> str:
    """The live turns with their resource use, one per line, cut to `width` columns."""
    rows = [
        (
            *_turn(turn, turn["unit"]), ms(turn.get("cpu_ms")),
            size(turn.get("read_bytes")), size(turn.get("write_bytes")),
        )
        for turn in turns
    ]  # fmt: skip
    return table(("TURN", "MIND", "SESSION", "STATE", "RUNS", "CPU", "READ", "WRITTEN"), rows, width)


def _turn(turn: Any, without_id: str = "-") -> tuple[str, ...]:
    return (
        turn.get("id") or without_id,
        turn.get("mind") or "-",
        turn.get("session") or "-",
        turn_state(turn),
        ms(turn.get("ran_ms")) or "",
    )


def minds_waiting(minds: list[Any], width: int | None) -> str:
    """Minds of a status with the reason for waiting, one per line, cut to `width` columns."""
    rows = [
        (
            mind["name"], _state(mind), f"{mind['live']}/{mind['cap']}", mind["held"],
            waits(mind), hold_text(mind.get("hold"), mind["name"]),
        )
        for mind in minds
    ]  # fmt: skip
    return table(("MIND", "STATE", "TURNS", "HELD", "OLDEST", "WHY"), rows, width)


def mind_session(item: Any) -> str:
    """ "mind", or "mind/session" if it is not the main session; safe to print."""
    session, mind = item.get("session"), item.get("mind") or "-"
    return safe(mind if session in (None, "", MAIN_SESSION) else f"{mind}/{session}")


def row_line(row: Any, state: str = "") -> str:
    """A delivery in one line: its id, its mind, and its state or `state`; safe to print."""
    return f"{row['id']} {mind_session(row)} {state or row['state']}"


def _state(mind: Any) -> str:
    text, sleep, until = str(mind["state"]), mind.get("sleep", "awake"), clock(mind.get("asleep_until"))
    text += f", {sleep}" if sleep not in ("awake", text) else ""
    text += f" until {until}" if until else ""
    text += f", {len(mind['outside'])} outside" if mind.get("outside") else ""
    failures, dead = mind.get("failures"), mind.get("dead")
    text += f", {failures['in_a_row']} failed" if failures else ""
    return text + (f", {dead} dead" if dead else "")


def _kept(mind: Any) -> str:
    return ", ".join(f"{mind[name]} {name}" for name in ("batching", "gated") if mind.get(name))


def _sessions(mind: Any) -> str:
    return ", ".join(f"{one['session'] or '-'} {ms(one['ran_ms'])}" for one in mind.get("sessions", []))


def _command(command: Any) -> str:
    if not isinstance(command, list):
        return str(command or "")
    from shlex import join

    return join(command)
