"""/v1/schedules: list, add, remove and run schedules, as hostguard-api(7) describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hostguard.api.http import body_max, json_object, on
from hostguard.api.server import peer
from hostguard.api.views import Views
from hostguard.config.build import schedule_fault
from hostguard.config.schema import SCHEDULE, TIME_MAX
from hostguard.core.clock import now_ms
from hostguard.core.errors import bad_request, conflict, no_room, not_allowed, unknown
from hostguard.core.model import Config, Schedule
from hostguard.core.names import schedule_name_fault
from hostguard.delivery import message
from hostguard.delivery.schedules import Scheduler
from hostguard.gate.policy import Policy, known_mind
from hostguard.store import requests

KEPT_MAX = 1000  # schedules added at run time
KEPT_BYTES = 4 << 20  # of their messages and scripts, which are in memory


def parse(body: Mapping[str, Any], config: Config) -> Schedule:
    """The schedule in a request's body. Blocks: looks for its time zone. Raises Problem."""
    message.known_fields(body, {"name", *SCHEDULE})
    name = body.get("name")
    if not isinstance(name, str) or (fault := schedule_name_fault(name)):
        raise bad_request(f"name: {fault}" if isinstance(name, str) else "name is missing")
    table: dict[str, Any] = {}
    for field, key in SCHEDULE.items():
        value = body.get(field)
        if value is None or value == "":
            continue
        try:
            table[field] = _moment(value) if field == "at" and isinstance(value, int) else key.parse(value)
        except (ValueError, OverflowError) as error:
            why = f": {error}" if str(error) else ""
            raise bad_request(f"{field}{why}; allowed: {key.allowed}") from None
    if fault := schedule_fault(table, config.minds):
        raise bad_request(f"schedule {name}: {fault}")
    # Root may run anything as anybody, but does so here for the user that the mind has now, as others do.
    uid = config.minds[table["mind"]].uid if "script" in table else None
    return Schedule(name, **table, uid=uid)


def _moment(value: int) -> int:
    if isinstance(value, bool) or not 0 <= value <= TIME_MAX:
        raise ValueError("as a number it is ms since the epoch")
    return value


def _size(schedule: Schedule) -> int:
    return len(f"{schedule.message}{schedule.script or ''}".encode(errors="replace"))


class Schedules:
    """The handlers of this module."""

    def __init__(self, policy: Policy, scheduler: Scheduler, views: Views) -> None:
        self._policy, self._scheduler, self._views = policy, scheduler, views

    @on("GET", "/v1/schedules")
    async def _list(self, request: Request) -> Response:
        found = sorted(self._scheduler.all().items())
        return JSONResponse({"schedules": [self._shown(one, kept) for _, (one, kept) in found]})

    @on("POST", "/v1/schedules")
    async def _add(self, request: Request) -> Response:
        # The same schedule again changes nothing.
        config = self._policy.config
        body = await json_object(request, body_max(config.payload_max))
        known_mind(body.get("mind"), config)
        schedule = await requests.in_thread(parse, body, config)
        known = self._scheduler.all()
        if known.get(schedule.name) == (schedule, True):
            return JSONResponse(self._shown(schedule, True))
        if schedule.name in known:
            why = "remove it first" if known[schedule.name][1] else "it is in the configuration"
            raise conflict(f"the schedule {schedule.name} already exists: {why}")
        if sum(kept for _, kept in known.values()) >= KEPT_MAX:
            raise conflict(f"there are {KEPT_MAX} schedules; remove one first")
        if sum(_size(one) for one in [schedule, *(one for one, kept in known.values() if kept)]) > KEPT_BYTES:
            raise no_room(
                f"the added schedules have {KEPT_BYTES} bytes of text, which is the most; remove one first"
            )
        if schedule.at is not None and schedule.at <= now_ms():
            raise bad_request("at is in the past")
        uid, mind = peer(request)[1], config.minds[schedule.mind]
        if schedule.script is not None and uid not in (0, mind.uid):
            raise not_allowed(f"a script runs as {mind.user}: only root and {mind.user} may schedule one")
        await self._scheduler.add(schedule)
        return JSONResponse(self._shown(schedule, True), 201)

    @on("DELETE", "/v1/schedules/{name}")
    async def _remove(self, request: Request) -> Response:
        schedule, kept = self._known(request)
        if not kept:
            raise conflict(f"{schedule.name} is in the configuration: remove it there, and reload")
        await self._scheduler.remove(schedule.name)
        return JSONResponse({})

    @on("POST", "/v1/schedules/{name}/run")
    async def _run(self, request: Request) -> Response:
        schedule, _ = self._known(request)
        if schedule.mind not in self._policy.config.minds:
            raise conflict(f"its mind {schedule.mind} is no longer configured")
        accepted = await self._scheduler.run_now(schedule)
        return JSONResponse({"deliveries": [self._views.delivery(row) for row in accepted.rows]}, 201)

    def _known(self, request: Request) -> tuple[Schedule, bool]:
        name, known = request.path_params["name"], self._scheduler.all()
        if name not in known:
            raise unknown("schedule", name, f"schedules: {', '.join(sorted(known)) or 'there is none'}")
        return known[name]

    def _shown(self, schedule: Schedule, kept: bool) -> dict[str, Any]:
        next_at, last_at = self._scheduler.times(schedule.name)
        row, skipped = self._scheduler.unbegun(schedule.name)
        source, held = "kept" if kept else "config", self._scheduler.held().get(schedule.name)
        times = {"next_at": next_at, "last_at": last_at, "last_delivery": row, "skipped": skipped}
        return {**asdict(schedule), "source": source, **times, "held": held}
