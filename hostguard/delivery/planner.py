"""Plans which row a message becomes for one mind, when it is accepted: sleep, routes and batches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from hostguard.core.model import Kind, Mind, State, Target
from hostguard.core.names import FILE_SESSION, MAIN_SESSION
from hostguard.core.payload import told
from hostguard.delivery import wake_rules
from hostguard.delivery.message import Message, named
from hostguard.delivery.routes import Batch, Routes, Unread, route


class Plan(NamedTuple):
    """The row to store, and whether it wakes the mind."""

    target: Target
    wake: bool = False


def plan(mind: Mind, asleep: bool, routes: Routes | Unread | None, message: Message) -> Plan:
    """Plan a message for one mind. `routes` is None for a mind without a routes.json.

    If they could not be read yet, the row gets its place once they are, and may wake the mind then.
    """
    name, payload = mind.name, told(message.payload)
    wake = False
    if asleep:
        answer = wake_rules.on_message(message.while_sleeping, mind.wake_on, name, payload)
        if answer == "skip":
            session = message.session or MAIN_SESSION
            return Plan(_skipped(name, session, "asleep", f"{name} was asleep, and the message says skip"))
        wake = answer == "wake"
    if message.kind is not Kind.MESSAGE or routes is None:
        session = named(message.session or MAIN_SESSION)
        return Plan(Target(name, session, kind=message.kind, uid=message.uid), wake)
    if isinstance(routes, Unread):
        session = named(message.session or MAIN_SESSION)
        return Plan(Target(name, session, result={Kind.UNROUTED: wake}, uid=message.uid))
    target = place(mind, routes, payload)
    if target.state is State.BATCHING and (message.not_before or message.expires_at):
        target = Target(name, target.session)  # a batch has no times of its own
    return Plan(target, wake and wakes(target))


def wakes(target: Target) -> bool:
    """True if the row is for the mind itself, so that it may wake it."""
    return target.state in (State.QUEUED, State.BATCHING) and target.kind.delivers


def place(mind: Mind, routes: Routes | None, payload: Mapping[str, Any]) -> Target:
    """The row that the mind's routes make of a message. `payload` has a channel (payload.told).

    A line of a file is authorised by the owner of the routes, for himself; by root, for the mind's user.
    """
    name = mind.name
    if routes is None:
        return Target(name, named(payload.get("session") or MAIN_SESSION))
    routed = route(routes, name, payload)
    if routed.action == "filtered":
        return _skipped(name, MAIN_SESSION, "filtered", routed.text)
    if routed.action == "gated":
        return Target(name, MAIN_SESSION, State.QUARANTINED)
    if routed.action == "file":
        return Target(name, f"{FILE_SESSION}{routed.path}", kind=Kind.FILE, uid=routes.owner or mind.uid)
    session = named(routed.session or MAIN_SESSION)
    if isinstance(routed.mode, Batch):
        batch = asdict(routed.mode) | {"triggers": list(routed.mode.triggers)}
        return Target(name, session, State.BATCHING, result={"batch": batch})
    return Target(name, session)


def _skipped(mind: str, session: str, outcome: str, reason: str) -> Target:
    return Target(mind, session, State.SKIPPED, result={"outcome": outcome, "reason": reason})
