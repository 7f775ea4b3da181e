"""Minds, turns and deliveries as JSON values, from memory only: the API answers while the disk does not."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from hostguard.core import outcome
from hostguard.core.clock import now_ms
from hostguard.core.model import Delivery, Hold, HostView, Mind, MindView, Row, State
from hostguard.core.outcome import Usage
from hostguard.core.ports import HeldRows
from hostguard.core.reasons import Reason
from hostguard.core.settings import Level
from hostguard.core.text import span
from hostguard.core.units import parse_turn_unit, turn_unit
from hostguard.gate.backlog import Backlog
from hostguard.gate.gate import Gate
from hostguard.gate.ledger import Ledger
from hostguard.gate.policy import Policy
from hostguard.pressure.monitor import Monitor
from hostguard.store import failures
from hostguard.telemetry.health import Health
from hostguard.turns.availability import Availability
from hostguard.turns.live import Live, Phase, Turn
from hostguard.turns.scopes import Scopes

Json = dict[str, Any]

# Reading one takes some 0.1 ms of the event loop, during which everything else waits.
USAGES = 64
NOTHING = Usage(None, None, None, None)


@dataclass(eq=False)
class Views:
    """What GET answers about deliveries, turns and minds, at this moment."""

    _policy: Policy
    _live: Live
    _scopes: Scopes
    _gate: Gate
    _backlog: Backlog
    _held_back: HeldRows
    _ledger: Ledger
    _monitor: Monitor
    _health: Health
    _availability: Availability

    def delivery(self, row: Delivery, payload: bytes | None = None) -> Json:
        """One row, and its turn: `state` is in_turn once its scope is up. `hold` says why it waits."""
        live = self._live.by_id(row.turn or outcome.turn_id(row.id, row.attempts))
        state: str = row.state
        if live is not None and not row.state.final:
            state = "delivering" if live.phase is Phase.STARTING else "in_turn"
        view: Json = {
            "id": row.id,
            "mind": row.mind,
            "session": row.session,
            "state": state,
            "kind": row.kind,
            "key": row.key,
            "sender": row.sender,
            "channel": row.channel,
            "created_at": row.created_at,
            "not_before": row.not_before or None,
            "expires_at": row.expires_at or None,
            "attempts": row.attempts,
            "turn": row.turn,
            "started_at": row.started_at or None,
            "ended_at": row.ended_at or None,
            "result": dict(row.result),
            "failed": failures.failed(row),
            "hold": None,
        }
        hold = self._gate.hold(row.row) if live is None and row.state is State.QUEUED else None
        since = max(row.created_at, row.not_before)
        if hold is not None and since <= now_ms():
            view["hold"] = {"reason": hold.reason, "blocker": hold.blocker, "since": since}
        if payload is not None:
            view["payload"] = json.loads(payload)
        return view

    def why(self, row: Delivery) -> Json:
        """Why a row waits: reason, blocker, since when, place in line (1 = next), and a sentence."""
        view: Json = dict.fromkeys(("reason", "blocker", "since", "place", "ahead", "due"))
        view |= {"id": row.id, "mind": row.mind, "state": row.state}
        if row.state is not State.QUEUED:
            turn = f", turn {row.turn}" if row.turn else ""
            return view | {"text": f"{row.id} does not wait: it is {row.state}{turn}"}
        hold = self._gate.hold(row.row)
        if hold is None:
            return view | {"text": f"{row.id} starts now"}
        view |= {"reason": hold.reason, "blocker": hold.blocker}
        paused = self._backlog.paused(row.mind, row.session)
        retried = hold.reason is Reason.RETRY and paused is not None and paused.id == row.id
        if retried or hold.reason is Reason.NOT_DUE:
            due = paused.not_before if retried and paused is not None else row.not_before
            what = "is tried again" if retried else "is not held: it is due"
            text = f"{row.id} {what} in {span(due - now_ms())}"
            if row.attempts:
                text += f" (attempt {row.attempts + 1}); the last one failed: {row.result.get('reason')}"
            if retried:
                return view | {"since": row.created_at, "due": due, "text": text}
            if (then := self._gate.hold(replace(row.row, not_before=0))) is not None:
                text += f"; if it were due now, it would wait: {self._sentence(then)}"
            return view | {"blocker": None, "due": due, "text": text}
        since, place = max(row.created_at, row.not_before), self._backlog.place(row.id, row.mind)
        text = (
            f"{row.id} has waited {span(now_ms() - since)}: {self._sentence(hold)};"
            f" it is number {place} in line for {row.mind}"
        )
        return view | {"since": since, "place": place, "ahead": place - 1, "text": text}

    def _sentence(self, hold: Hold) -> str:
        text = sentence(hold, self._monitor.state.level, self._monitor.state.evidence)
        turn = self._live.turns.get(hold.blocker)
        unit = self._scopes.frozen_by(turn) if turn is not None else None
        if unit is None:
            return text
        if unit in self._monitor.frozen:
            return f"{text}, which the guard keeps frozen for a moment"
        return f"{text}, which is frozen (systemctl thaw {unit})"

    def turns(self) -> list[Json]:
        """Every live turn, oldest first; only the first USAGES with what they have used."""
        return [self.turn(live, at < USAGES) for at, live in enumerate(self._live)]

    def turn(self, live: Turn, measured: bool = True) -> Json:
        """One live turn, and what it has used if that is to be `measured`."""
        return {
            "id": live.live.id,
            "unit": live.live.unit,
            "mind": live.live.mind,
            "session": live.live.session,
            "delivery": live.delivery.id if live.delivery else None,
            "started_at": live.since,
            "held_ms": live.waited.ms,
            "state": live.phase,
            "stopping": live.stopped,
            "frozen": self._scopes.frozen(live),
            "description": live.description,
            **asdict(self._scopes.usage(live) if measured else NOTHING),
        }

    def minds(self) -> list[Json]:
        """Every configured mind, and those that only have rows or scopes, or sleep."""
        names = [*self._policy.config.minds]
        others = {*self._backlog.mind_names(), *(turn.live.mind for turn in self._live)}
        others = {*others, *self._policy.sleepy_minds()} - {*names, ""}
        return [self.mind(name) for name in [*names, *sorted(others)]]

    def mind(self, name: str) -> Json:
        """One mind."""
        mind = self._policy.config.minds.get(name)
        view, down, failing = self._gate.view(name), self._availability.down(name), self._health.failing(name)
        turns = [self._live.turns[live.unit] for live in view.live]
        frozen = list(
            dict.fromkeys(unit for turn in turns if (unit := self._scopes.frozen_by(turn)) is not None)
        )
        if mind is not None and self._scopes.frozen_service(mind):
            frozen.append(mind.unit or "")
        hold = self._first_hold(self._backlog.first(name))
        batching, gated = self._held_back.counts(name)
        asleep = "asleep" if view.asleep else "falls_asleep" if self._policy.sleepy(name) else "awake"
        return {
            "name": name,
            "state": mind_state(mind, view, down is not None, bool(frozen)),
            "sessions": [
                {"session": live.session, "turn": live.id, "since": self._live.turns[live.unit].since}
                for live in view.live
            ],
            "sleep": asleep,
            "asleep_until": self._policy.asleep_until(name),
            "cap": view.cap,
            "live": len(view.live),
            "queued": self._backlog.total(name),
            "batching": batching,
            "gated": gated,
            "held": self._backlog.count(name),
            "hold": hold,
            "oldest_wait_ms": now_ms() - hold["since"] if hold and hold["since"] else None,
            "failures": None if failing is None else asdict(failing),
            "dead": self._health.dead(name),
            "down": down,
            "broken": mind.broken or None if mind else None,
            "frozen": frozen,
            "write_bytes": self._ledger.written[name],
            "command": list(mind.command) if mind else [],
            "user": mind.user if mind else None,
            "url": mind.url if mind else None,
            "unit": mind.unit if mind else None,
        }

    def _first_hold(self, row: Row | None) -> Json | None:
        """Why a mind's first row waits. `since` is None if that began before the guard was started."""
        hold = self._gate.hold(row) if row is not None else None
        if row is None or hold is None:
            return None
        found = {"delivery": row.id, "session": row.session}
        since = self._ledger.held_since(row.id)
        return found | {"reason": hold.reason, "blocker": hold.blocker, "since": since}


# -- pure


def sentence(hold: Hold, level: Level, evidence: str) -> str:
    """What a row waits for, in words."""
    blocker = hold.blocker
    if ours := parse_turn_unit(blocker):
        behind = f", behind turn {ours[1]}"
    else:
        behind = f": {blocker}" if " " in blocker else f", behind {blocker}"  # units have no space in them
    return hold.reason.sentence.format(blocker=blocker, behind=behind, level=level, evidence=evidence)


def ended_turn(row: Delivery) -> Json:
    """An ended turn as it is stored, in the shape of a live one."""
    assert row.turn is not None
    return {
        "id": row.turn,
        "unit": turn_unit(row.mind, row.turn),
        "mind": row.mind,
        "session": row.session,
        "delivery": row.id,
        "started_at": row.started_at or None,
        "ended_at": row.ended_at or None,
        "held_ms": row.result.get("held_ms"),
        "state": "ended",
        "result": dict(row.result),
    }


def mind_state(mind: Mind | None, view: MindView, down: bool, frozen: bool) -> str:
    """The state of a mind, None if it is not configured, in one word."""
    if mind is None:
        return "unknown"
    if view.broken:
        return "broken"
    if view.paused:
        return "paused"
    if frozen:
        return "frozen"
    if view.live:
        return "in_turn"
    if view.asleep:
        return "asleep"
    return "down" if down else "idle"


def effective_cap(host: HostView) -> int | None:
    """How many turns may run now: the lower of the configured cap and what pressure allows."""
    return min((cap for cap in (host.cap, host.effective_cap) if cap is not None), default=None)
