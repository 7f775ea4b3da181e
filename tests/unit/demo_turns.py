"""Turns and phases of a demo, for tests of what is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hostguard.cli.demo.results import Held, Phase, Stop, Turn, Write, felt


def turn(id_: int, mind: str, started: float | None, ended: float | None, **more: Any) -> Turn:
    exit_ = None if ended is None else 0
    return replace(Turn(mind, "message", 0.0, started, ended, exit_, id=id_), **more)


# A small story: mimsy's message waits behind her heartbeat, pip waits for the cap, wabe has not begun.
STORY = (
    turn(1, "mimsy", 0.0, 4.0, cause="heartbeat"),
    turn(2, "whorl", 0.0, 5.0, cause="heartbeat"),
    turn(3, "pip", 4.0, 8.0, cause="heartbeat", held=Held("global_cap", "a.scope", 4.0)),
    turn(4, "mimsy", 5.0, None, due=1.0, held=Held("mind_busy", "mimsy-1.scope", 4.0)),
    turn(5, "wabe", None, None, due=1.0, held=Held("global_cap", "a.scope")),
)


def phase(name: str, *turns: Turn, scopes: int = 0, writes: tuple[Write, ...] = (Write(0.0, 0.1),)) -> Phase:
    return Phase(name, turns, writes, scopes)


GOOD = (turn(1, "a", 0, 1), turn(2, "b", 0, 1), turn(3, "c", 1, 2))


STOP = Stop(1.0, 11.0, 1.7, 1, 0, felt([0.002, 0.03]), 25.2)
