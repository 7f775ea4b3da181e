"""The phases of the demo: the turns as plain processes, under the guard, and on a card that stops."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hostguard.cli import client
from hostguard.cli.demo.host import Host, Signals
from hostguard.cli.demo.plan import CAP, CHANNEL, HEARTBEATS, STOP_AFTER_S, WAKES, command, configured, shown
from hostguard.cli.demo.results import Held, Phase, Stop, Turn, felt
from hostguard.cli.demo.view import View
from hostguard.cli.demo.watch import Bystander, Events, Scopes
from hostguard.cli.errors import CliError
from hostguard.core.names import MAIN_SESSION

# Without the end of a plain turn, or an event of the guard's: cards stall, and other turns may fill the cap.
STUCK_S = 300.0
POLL_S = 0.02
LOOK_S = 0.1
SEND_S = 0.5  # enough to queue the heartbeats
FINAL_S = 60  # for the end of a row to be stored on a busy device
BACK_S = 120.0  # for the full cap; after that, the summary reports that it did not come back


def plain(host: Host, view: View, signals: Signals) -> Phase:
    """The first phase: all turns at once as plain processes. Raises CliError, OSError."""
    bystander = Bystander(host.folder / "bystander")
    children: list[subprocess.Popen[bytes]] = []
    turns: list[Turn] = []
    try:
        view.phase("unguarded", f"{len(WAKES)} turns start in the same second")
        start = time.time()
        with signals.held():
            for mind, cause in WAKES:
                file = host.folder / f"{mind}-{cause}"
                children.append(
                    subprocess.Popen(
                        command(file, host.size), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL, start_new_session=True,
                    )
                )  # fmt: skip
                now = time.time() - start
                turns.append(Turn(mind, cause, now, started=now))
        bystander.begin()
        for turn in turns:
            view.line(turn.started or 0.0, "start", turn.name)
        while any(turn.ended is None for turn in turns):
            now = time.time() - start
            if now > STUCK_S:
                raise CliError(f"{host.folder}: not all turns ended in {STUCK_S:g} s: use a smaller --size")
            for i, (turn, child) in enumerate(zip(turns, children, strict=True)):
                if turn.ended is None and (status := child.poll()) is not None:
                    turns[i] = replace(turn, ended=now, exit=status, outcome=f"exit status {status}")
                    view.line(now, "end", f"{turn.name}: exit status {status}")
            view.frame(turns, now, bystander.delay(start + now))
            time.sleep(POLL_S)
        phase = Phase("unguarded", tuple(turns), bystander.end(start))
        view.over(phase)
        return phase
    finally:
        with signals.held():
            for child in children:
                child.kill()
            for child in children:
                child.wait()
            bystander.kill()


def guarded(
    host: Host,
    view: View,
    signals: Signals,
    name: str = "guarded",
    said: str = f"{len(WAKES)} turns start in the same second, with a global cap of {CAP}",
    meanwhile: Callable[[float], bool] = lambda at: True,
) -> Phase:
    """The second phase: the same turns under the guard, with a global cap. Raises CliError, OSError.

    `meanwhile` is called often, with the seconds since the start, at least until it returns True.
    """
    with signals.held():
        host.set_cap()
    bystander = Bystander(host.folder / "bystander")
    try:
        view.phase(name, said)
        events = Events()
        with Scopes() as scopes:
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


def stopped(host: Host, view: View, signals: Signals, stop_file: Path, seconds: float) -> tuple[Phase, Stop]:
    """The third phase: the second again, and the card stops meanwhile, as long as `stop_file` exists.

    Raises CliError, OSError.
    """
    card = _Card(stop_file, seconds, view)
    said = f"{len(WAKES)} turns again; after {STOP_AFTER_S:g} s the card stops for {seconds:g} s"
    try:
        phase = guarded(host, view, signals, "stopped", said, card.look)
    finally:
        stop_file.unlink(missing_ok=True)
    return phase, card.result(phase)


class _Card:
    """Stops the card and watches the guard's response. Times are in seconds since the phase's start."""

    def __init__(self, stop_file: Path, seconds: float, view: View) -> None:
        self._file, self._seconds, self._view = stop_file, seconds, view
        self._stopped: float | None = None
        self._going: float | None = None
        self._told: float | None = None
        self._back: float | None = None
        self._cap: int | None = None
        self._answers: list[float] = []

    def look(self, at: float) -> bool:
        """Do what is due; True if all is done. Call it about ten times a second. Raises CliError."""
        if self._stopped is None:
            if at >= STOP_AFTER_S:
                self._file.touch()
                self._stopped = at
                self._view.line(at, "stop", "the card stops: no request completes")
            return False
        if self._going is None and at >= self._stopped + self._seconds:
            self._file.unlink()
            self._going = at
            self._view.line(at, "go", "the card continues")
        began = time.monotonic()
        pressure = client.call("GET", "/v1/status")["pressure"]
        took = time.monotonic() - began
        if self._going is None:
            self._answers.append(took)
            if self._told is None and pressure["level"] == "stalled":
                self._told = at + took
                self._cap = client.call("GET", "/v1/pressure")["cap"]
            return False
        if self._back is None and client.call("GET", "/v1/pressure")["admit"] is None:
            self._back = at
        return self._back is not None or at > self._going + BACK_S

    def result(self, phase: Phase) -> Stop:
        """The guard's response."""
        assert self._stopped is not None
        assert self._going is not None
        told = self._told if self._told is not None else self._going
        return Stop(
            self._stopped,
            self._going,
            None if self._told is None else self._told - self._stopped,
            self._cap,
            sum(turn.started is not None and told < turn.started < self._going for turn in phase.turns),
            felt(self._answers),
            None if self._back is None else self._back - self._going,
        )
