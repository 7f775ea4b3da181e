"""What the API shows, as JSON values. Reads memory only, so that it answers while the disk does not."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from hostguard import __version__
from hostguard.api.views_pressure import pressed
from hostguard.core import outcome
from hostguard.core.clock import now_ms
from hostguard.core.model import Delivery, Hold, Mind, MindView, Reason, Row, State
from hostguard.core.outcome import Usage
from hostguard.core.settings import Level
from hostguard.core.units import parse_turn_unit, turn_unit
from hostguard.gate.dispatcher import Dispatcher
from hostguard.linux.limits import Verdict
from hostguard.turns.live import Phase, Turn

Json = dict[str, Any]

# Each takes some 0.1 ms of the event loop's, in which all else waits.
USAGES = 64
NOTHING = Usage(None, None, None, None)


def delivery(manager: Dispatcher, row: Delivery, payload: bytes | None = None) -> Json:
    """One row; `hold` says why it waits, `state` is in_turn once its scope is up."""
    state: str = row.state
    live = manager.runner.live.by_id(row.turn or outcome.turn_id(row.id, row.attempts))
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
        "hold": _hold(manager, row) if live is None else None,
    }
    if payload is not None:
        view["payload"] = json.loads(payload)
    return view


def _hold(manager: Dispatcher, row: Delivery) -> Json | None:
    if row.state is not State.QUEUED:
        return None
    hold = manager.verdict(row.row)
    if hold is None or hold.reason is Reason.NOT_DUE:
        return None
    return {"reason": hold.reason, "blocker": hold.blocker, "since": max(row.created_at, row.not_before)}


def why(manager: Dispatcher, row: Delivery) -> Json:
    """Why a row waits: reason, blocker, since when, place in line (1 = next), and a sentence."""
    view: Json = dict.fromkeys(("reason", "blocker", "since", "place", "ahead", "due"))
    view |= {"id": row.id, "mind": row.mind, "state": row.state}
    if row.state is not State.QUEUED:
        turn = f", turn {row.turn}" if row.turn else ""
        return view | {"text": f"{row.id} does not wait: it is {row.state}{turn}"}
    hold = manager.verdict(row.row)
    if hold is None:
        return view | {"text": f"{row.id} starts now"}
    view |= {"reason": hold.reason, "blocker": hold.blocker}
    if hold.reason is Reason.NOT_DUE:
        text = f"{row.id} is not held: it is due in {span(row.not_before - now_ms())}"
        if row.attempts:
            text += f" (attempt {row.attempts + 1}); the last one failed: {row.result.get('reason')}"
        return view | {"since": row.created_at, "due": row.not_before, "text": text}
    place = manager.backlog.place(row.id, row.mind)
    since = max(row.created_at, row.not_before)
    text = (
        f"{row.id} has waited {span(now_ms() - since)}: {_sentence(manager, hold)};"
        f" it is number {place} in line for {row.mind}"
    )
    return view | {"since": since, "place": place, "ahead": place - 1, "text": text}


_SENTENCES = {
    Reason.PAUSED: "the guard is paused (hostguard resume)",
    Reason.MIND_PAUSED: "{blocker} (hostguard resume MIND)",
    Reason.SESSION_BUSY: "its session is busy{behind}",
    Reason.MIND_BUSY: "the mind is busy, no slot of its own cap is free{behind}",
    Reason.GLOBAL_CAP: "no slot of the global cap is free{behind}",
    Reason.PRESSURE: "the disk is {level} ({evidence}), and fewer turns may run{behind}",
    Reason.ASLEEP: "{blocker} (hostguard wake MIND)",
    Reason.NO_SYSTEMD: "systemd does not answer, and nothing is started unseen",
    Reason.NO_WRITES: "{blocker}, and what ended could not be stored",
}


def _sentence(manager: Dispatcher, hold: Hold) -> str:
    state, blocker = manager.watcher.state, hold.blocker
    text = _SENTENCES.get(hold.reason, "{blocker}")
    if ours := parse_turn_unit(blocker):
        behind = f", behind turn {ours[1]}"
    else:
        behind = f": {blocker}" if " " in blocker else f", behind {blocker}"  # units have no space in them
    return text.format(blocker=blocker, behind=behind, level=state.level, evidence=state.evidence)


def live_turns(manager: Dispatcher) -> list[Json]:
    """Every live turn, oldest first; what it has used is read for USAGES of them only."""
    return [turn(manager, live, at < USAGES) for at, live in enumerate(manager.runner.live)]


def turn(manager: Dispatcher, live: Turn, with_usage: bool = True) -> Json:
    """One live turn."""
    used = manager.runner.usage(live) if with_usage else NOTHING
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
        "description": live.description,
        **asdict(used),
    }


def ended_turn(row: Delivery) -> Json:
    """What is stored of a turn that is over, in the shape of a live one."""
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


def minds(manager: Dispatcher) -> list[Json]:
    """Every configured mind, and those that only have rows or scopes."""
    names = [*manager.policy.config.minds]
    others = {*manager.backlog.mind_names(), *(turn.live.mind for turn in manager.runner.live)} - {*names, ""}
    return [mind(manager, name) for name in [*names, *sorted(others)]]


def mind(manager: Dispatcher, name: str) -> Json:
    """One mind."""
    mind = manager.policy.config.minds.get(name)
    view = manager.view(name)
    held = manager.backlog.count(name)
    first = manager.backlog.first(name)
    hold = _first_hold(manager, first)
    batching, gated = manager.kept(name)
    sleep = "asleep" if view.asleep else "falls_asleep" if manager.policy.sleepy(name) else "awake"
    return {
        "name": name,
        "state": _mind_state(mind, view),
        "sessions": [
            {"session": live.session, "turn": live.id, "since": manager.runner.live.turns[live.unit].since}
            for live in view.live
        ],
        "sleep": sleep,
        "asleep_until": manager.policy.asleep_until(name),
        "cap": view.cap,
        "live": len(view.live),
        "queued": manager.backlog.total(name),
        "batching": batching,
        "gated": gated,
        "held": held,
        "hold": hold,
        "oldest_wait_ms": now_ms() - hold["since"] if hold and hold["since"] else None,
        "write_bytes": manager.ledger.written[name],
        "command": list(mind.command) if mind else [],
        "user": mind.user if mind else None,
        "url": mind.url if mind else None,
        "unit": mind.unit if mind else None,
    }


def _first_hold(manager: Dispatcher, row: Row | None) -> Json | None:
    """Why a mind's first row waits. `since` is None if that began before the guard was started."""
    hold = manager.verdict(row) if row is not None else None
    if row is None or hold is None:
        return None
    since = manager.ledger.held_since(row.id)
    told = {"delivery": row.id, "session": row.session}
    return told | {"reason": hold.reason, "blocker": hold.blocker, "since": since}


def _mind_state(mind: Mind | None, view: MindView) -> str:
    if mind is None:
        return "unknown"
    if view.paused:
        return "paused"
    if view.live:
        return "in_turn"
    if view.asleep:
        return "asleep"
    return "idle" if view.down is None else "down"


def status(
    manager: Dispatcher,
    started_at: int,
    pid: int,
    device: Json,
    problems: list[Json],
    enforcement: list[Verdict],
) -> Json:
    """The whole guard on one page."""
    trouble = manager.queue.trouble
    if trouble is not None:
        text = (
            f"{manager.queue.path} cannot be written to: {trouble}; nothing is accepted or started meanwhile"
        )
        problems = [*problems, {"code": "no_writes", "text": text}]
    state = (
        "no_systemd" if not manager.runner.connected else "paused" if manager.policy.paused() else "running"
    )
    return {
        "version": __version__,
        "pid": pid,
        "started_at": started_at,
        "state": state,
        "turns": len(manager.runner.live),
        "cap": manager.policy.global_cap(),
        "effective_cap": effective_cap(manager),
        "pressure": pressed(manager),
        "queued": len(manager.backlog) + manager.backlog.later,
        "held": len(manager.backlog),
        "due_later": manager.backlog.later,
        "paused_minds": manager.policy.paused_minds(),
        "minds": minds(manager),
        "live": live_turns(manager),
        "device": device,
        "problems": problems,
        "enforcement": [asdict(verdict) for verdict in enforcement],
    }


def effective_cap(manager: Dispatcher) -> int | None:
    """How many turns may run now: the lower of the configured cap and what pressure allows."""
    host = manager.host()
    return min((cap for cap in (host.cap, host.effective_cap) if cap is not None), default=None)


def pressure(manager: Dispatcher) -> Json:
    """What the disk and the kernel say, how many turns that allows and why, and the last changes of that."""
    watcher = manager.watcher
    device, sampler = watcher.device, watcher.sampler
    return {
        **pressed(manager),
        "configured": manager.policy.global_cap(),
        "effective_cap": effective_cap(manager),
        "psi": sampler.psi_reason,
        "disk": sampler.disk_reason,
        "device": {"node": device.node, "name": device.name, "reason": device.reason},
        "live": len(manager.runner.live),
        "samples": [asdict(sample) for sample in watcher.samples],
    }


def status_line(manager: Dispatcher) -> str:
    """One line for sd_notify: what `systemctl status` shows."""
    cap, allowed, level = manager.policy.global_cap(), effective_cap(manager), manager.watcher.state.level
    told = "unlimited" if cap is None else str(cap)
    live = len(manager.runner.live)
    line = f"{live}{'' if cap is None else f'/{cap}'} turns, {len(manager.backlog)} held, cap {told}"
    if level is not Level.CALM or allowed != cap:
        line += f"; {level}" + (f", {allowed} may run" if allowed != cap else "")
    if not manager.runner.connected:
        return f"{line}; no connection to systemd, nothing is started"
    if manager.queue.trouble is not None:
        return f"{line}; the queue cannot be written to, nothing is started: {manager.queue.trouble}"
    return f"{line}; paused" if manager.policy.paused() else line


def span(ms: int) -> str:
    """A length of time in words."""
    seconds = max(0, ms) // 1000
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    parts = [f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes)
    return " ".join([*parts, f"{seconds} s"])
