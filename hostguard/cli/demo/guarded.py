"""The second and the third phase: the same turns under the guard, with a global cap."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hostguard.cli import client
from hostguard.cli.demo.bystander import Bystander
from hostguard.cli.demo.host import Host
from hostguard.cli.demo.plan import CAP, CHANNEL, HEARTBEATS, WAKES, configured, shown
from hostguard.cli.demo.results import Held, Phase, Turn
from hostguard.cli.demo.signals import Signals
from hostguard.cli.demo.view import View
from hostguard.cli.demo.watch import Events, Scopes
from hostguard.cli.errors import CliError
from hostguard.core.names import MAIN_SESSION

NAME = "guarded"
SAID = f"{len(WAKES)} turns start in the same second, with a global cap of {CAP}"
STUCK_S = 300.0  # without an event; other turns may fill the cap for a while
LOOK_S = 0.1
SEND_S = 0.5  # enough to queue the heartbeats
FINAL_S = 60  # for the end of a row to be stored on a busy device


def run(
    host: Host,
    view: View,
    signals: Signals,
    name: str = NAME,
    said: str = SAID,
    meanwhile: Callable[[float], bool] = lambda at: True,
) -> Phase:
    """Run the phase. Raises CliError, OSError.

    `meanwhile` is called often, with the seconds since the start, at least until it returns True.
    """
    with signals.held():
        host.set_cap()
    bystander = Bystander(host.folder / "bystander")
    try:
        view.phase(name, said)
        with Events() as events, Scopes() as scopes:
            start = math.ceil(time.time() + SEND_S)
            turns = {
                row["id"]: Turn(shown(row["mind"]), "heartbeat", 0.0, id=row["id"])
                for mind in HEARTBEATS
                for row in _send(f"@{configured(mind)}", "heartbeat", not_before=start * 1000)
            }
            time.sleep(max(0.0, start - time.time()))
            bystander.begin()
            for row in _send(CHANNEL, MAIN_SESSION):
                due = max(0.0, row["created_at"] / 1000 - start)
                turns[row["id"]] = Turn(shown(row["mind"]), "message", due, id=row["id"])
            _follow(turns, events, start, view, bystander, meanwhile)
            over = tuple(_stored(turn, start) for turn in turns.values())
        phase = Phase(name, over, bystander.end(start), scopes.most)
        view.over(phase)
        return phase
    finally:
        bystander.kill()


def _send(to: str, session: str, not_before: int | None = None) -> list[dict[str, Any]]:
    body = {
        "to": to, "content": "hostguard demo", "session": session, "sender": "demo", "not_before": not_before,
    }  # fmt: skip
    rows: list[dict[str, Any]] = client.call("POST", "/v1/deliveries", body=body)["deliveries"]
    return rows


def _follow(
    turns: dict[int, Turn],
    events: Events,
    start: float,
    view: View,
    bystander: Bystander,
    meanwhile: Callable[[float], bool],
) -> None:
    """Update `turns` from events until all have ended and `meanwhile` returns True. Raises CliError."""
    heard = time.monotonic()
    while not meanwhile(time.time() - start) or any(turn.ended is None for turn in turns.values()):
        event = events.next(LOOK_S)
        if event is not None and event["type"] == "pressure":
            view.line(event["at"] / 1000 - start, "disk", event["text"])
        elif event is not None and event.get("delivery") in turns:
            heard = time.monotonic()
            at = event["at"] / 1000 - start
            turn, word, said = after(turns[event["delivery"]], event, at)
            turns[turn.id] = turn
            if word:
                view.line(at, word, said)
        elif time.monotonic() - heard > STUCK_S:
            raise CliError(f"no turn of the demo started or ended for {STUCK_S:g} s: see hostguard status")
        now = time.time()
        view.frame(list(turns.values()), now - start, bystander.delay(now))


def after(turn: Turn, event: Mapping[str, Any], at: float) -> tuple[Turn, str, str]:
    """The turn after an event of its delivery, `at` seconds from the start; a word and a text to show."""
    reason, blocker = str(event.get("reason")), str(event.get("blocker"))
    match event["type"]:
        case "held":
            held = replace(turn, held=Held(reason, blocker))
            return held, "held", f"{turn.name}: {reason}, behind {blocker}"
        case "hold_ended":
            return replace(turn, held=Held(reason, blocker, event["waited_ms"] / 1000)), "", ""
        case "started":
            waited = f" after {turn.held.seconds:.1f} s" if turn.held and turn.held.seconds else ""
            return replace(turn, started=at), "start", turn.name + waited
        case "failed":  # the guard would retry it, for minutes
            raise CliError(f"a turn failed: {event['text']}")
        case "ended" | "cancelled" | "expired" | "dead" as word:
            return replace(turn, ended=at), word.removesuffix("ed") if word == "ended" else word, turn.name
    return turn, "", ""


def _stored(turn: Turn, start: float) -> Turn:
    """The turn as the guard stored it; its start is when it got its slot."""
    row = client.call("GET", f"/v1/deliveries/{turn.id}", params={"wait_s": FINAL_S})
    result = row["result"]
    return replace(
        turn,
        started=row["started_at"] / 1000 - start if row["started_at"] else None,
        ended=row["ended_at"] / 1000 - start if row["ended_at"] else None,
        exit=result.get("exit"),
        outcome=result.get("reason", row["state"]),
    )
