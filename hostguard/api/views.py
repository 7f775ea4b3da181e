"""Minds, turns and deliveries as JSON values, from memory only: the API answers while the disk does not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hostguard.core import outcome
from hostguard.core import payload as payloads
from hostguard.core.clock import Clock, Now
from hostguard.core.model import Delivery, Hold, HostView, Mind, MindView, Row, State
from hostguard.core.outcome import Usage
from hostguard.core.ports import HeldRows
from hostguard.core.reasons import Reason
from hostguard.core.settings import Level
from hostguard.core.text import span
from hostguard.core.units import outside_id, parse_turn_unit, turn_unit
from hostguard.gate.backlog import Backlog
from hostguard.gate.gate import Gate
from hostguard.gate.ledger import Ledger
from hostguard.gate.policy import Policy
from hostguard.gate.times import queued
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
    _clock: Clock

    def delivery(self, row: Delivery, payload: bytes | None = None) -> Json:
        """One row, and its turn: `state` is in_turn once its scope is up. `hold` says why it waits."""
        live, now = self._live.by_id(row.turn or outcome.turn_id(row.id, row.attempts)), self._clock.now()
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
            "age_ms": now.since(now.known(row.accepted, row.created_at)),
            "uid": row.uid,
            "result": dict(row.result),
            "failed": failures.failed(row),
            "hold": None,
        }
        waiting = self._waiting(row, now)
        hold = self._gate.hold(waiting) if live is None and row.state is State.QUEUED else None
        if hold is not None and not waiting.later(now):
            view["hold"] = _hold(hold, waiting, now)
        if payload is not None:
            view["payload"] = payloads.shown(payload)
        return view

    def why(self, row: Delivery) -> Json:
        """Why a row waits: reason, blocker, for how long, place in line (1 = next), and a sentence."""
        names = "reason", "blocker", "since", "waited_ms", "measured", "place", "ahead", "due"
        view: Json = dict.fromkeys(names)
        view |= {"id": row.id, "mind": row.mind, "state": row.state}
        if row.state is not State.QUEUED:
            turn = f", turn {row.turn}" if row.turn else ""
            return view | {"text": f"{row.id} does not wait: it is {row.state}{turn}"}
        now = self._clock.now()
        waiting = self._waiting(row, now)
        hold = self._gate.hold(waiting)
        if hold is None:
            return view | {"text": f"{row.id} starts now"}
        retried = hold.reason is Reason.RETRY and waiting.later(now)
        if retried or hold.reason is Reason.NOT_DUE:
            due = now.date_again(waiting.due, waiting.not_before) if waiting.due else waiting.not_before
            what = "is tried again" if retried else "is not held: it is due"
            text = f"{row.id} {what} in {span(due - now.date)}"
            if row.attempts:
                text += f" (attempt {row.attempts + 1}); the last one failed: {row.result.get('reason')}"
            view |= {"reason": hold.reason, "due": due}
            if retried:
                return view | {"blocker": hold.blocker, "since": row.created_at, "text": text}
            if (then := self._gate.hold(waiting.as_if_due())) is not None:
                text += f"; if it were due now, it would wait: {self._sentence(then)}"
            return view | {"text": text}
        view |= _hold(hold, waiting, now)
        place = self._backlog.place(row.id, row.mind)
        by_dates = "" if view["measured"] else " (by the clock: the host was restarted since)"
        text = (
            f"{row.id} has waited {span(view['waited_ms'])}{by_dates}: {self._sentence(hold)};"
            f" it is number {place} in line for {row.mind}"
        )
        return view | {"place": place, "ahead": place - 1, "text": text}

    def _waiting(self, row: Delivery, now: Now) -> Row:
        """The row as it waits, in the backlog or on its way there."""
        return self._backlog.known(row.row) or queued(row, now)

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
            "ran_ms": live.ran_ms(self._clock.now()),
            "held_ms": live.waited.ms,
            "state": live.phase,
            "stopping": live.stopped,
            "frozen": self._scopes.frozen(live),
            "description": live.description,
            **asdict(self._scopes.usage(live) if measured else NOTHING),
        }

    def minds(self) -> list[Json]:
        """Every configured mind, and those that only have rows, scopes or dead letters, or sleep."""
        names = [*self._policy.config.minds]
        others = {*self._backlog.mind_names(), *(turn.live.mind for turn in self._live)}
        others = {*others, *self._policy.sleepy_minds(), *self._health.with_dead()} - {*names, ""}
        return [self.mind(name) for name in [*names, *sorted(others)]]

    def mind(self, name: str) -> Json:
        """One mind."""
        mind = self._policy.config.minds.get(name)
        view, down, failing = self._gate.view(name), self._availability.down(name), self._health.failing(name)
        now, turns = self._clock.now(), [self._live.turns[live.unit] for live in view.live]
        frozen = list(
            dict.fromkeys(unit for turn in turns if (unit := self._scopes.frozen_by(turn)) is not None)
        )
        if mind is not None and self._scopes.frozen_service(mind):
            frozen.append(mind.unit or "")
        hold = self._first_hold(self._backlog.first(name), now)
        batching, gated = self._held_back.counts(name)
        asleep = "asleep" if view.asleep else "falls_asleep" if self._policy.sleepy(name) else "awake"
        return {
            "name": name,
            "state": mind_state(mind, view, down is not None, bool(frozen)),
            "sessions": [
                {
                    "session": live.session,
                    "turn": live.id,
                    "since": self._live.turns[live.unit].since,
                    "ran_ms": self._live.turns[live.unit].ran_ms(now),
                }
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
            "oldest_wait_ms": hold["waited_ms"] if hold else None,
            "failures": None if failing is None else asdict(failing),
            "dead": self._health.dead(name),
            "down": down,
            "port_taken": self._availability.taken(name),
            "broken": mind.broken or None if mind else None,
            "frozen": frozen,
            "outside": [
                f"{turn.description} keep a slot until they end: hostguard stop {turn.live.id} frees it"
                for turn in turns
                if outside_id(turn.live.unit)
            ],
            "write_bytes": self._ledger.written[name],
            "command": list(mind.command) if mind else [],
            "user": mind.user if mind else None,
            "url": mind.url if mind else None,
            "unit": mind.unit if mind else None,
        }

    def _first_hold(self, row: Row | None, now: Now) -> Json | None:
        """Why a mind's first row waits."""
        hold = self._gate.hold(row) if row is not None else None
        if row is None or hold is None:
            return None
        return {"delivery": row.id, "session": row.session, **_hold(hold, row, now)}


# -- pure


def _hold(hold: Hold, row: Row, now: Now) -> Json:
    """Why a due row waits, and for how long: `since` is the date for that by the clock as it is set now.

    `measured`: False if it waits since before the host was started, so that only the dates say how long.
    """
    ms = now.since(row.since)
    return {
        "reason": hold.reason, "blocker": hold.blocker, "since": now.date - ms, "waited_ms": ms,
        "measured": row.since > 0,
    }  # fmt: skip


def sentence(hold: Hold, level: Level, evidence: str) -> str:
    """What a row waits for, in words."""
    blocker = hold.blocker
    if ours := parse_turn_unit(blocker):
        behind = f", behind turn {ours[1]}"
    elif outside := outside_id(blocker):
        behind = f": what a turn left outside of its scope, {outside}, keeps it"
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
