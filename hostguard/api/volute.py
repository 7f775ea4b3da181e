"""The minds' endpoint on loopback TCP: minds report events and send messages, as a Volute mind does.

Each request bears the token of a mind. Both forms of Volute's paths are served, and of its header for the
session: before and since its version 1 of the API. Events and messages count as signs of life of their mind.
Who may do what:
  events    a mind reports only about itself
  restart   a mind has only itself restarted
  message   a mind may send to any mind; to another one under its own name only, and without instructions.
            With its own token as a bridge uses it, a message to itself may be from any sender that is neither
            another mind nor the guard.
So a message that bears the name of a mind, or of the guard, is from it, or from a caller of the unix socket.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from hostguard.api.app import make_app
from hostguard.api.http import Budget, Seldom, bearer, body_max, has_left, json_object, on
from hostguard.api.server import Listener, token_shown
from hostguard.core.clock import now_ms
from hostguard.core.errors import Problem, bad_request, conflict, not_allowed, unauthorized, unknown
from hostguard.core.model import Config
from hostguard.core.names import SYSTEM_NAME, guards_name
from hostguard.delivery import message as intake
from hostguard.delivery.acceptor import Acceptor
from hostguard.delivery.mind_services import MindServices
from hostguard.gate.policy import Policy
from hostguard.systemd.notify import Notifier
from hostguard.turns.done_tracker import DoneTracker
from hostguard.turns.drivers.resident_driver import ResidentDriver

log = logging.getLogger(__name__)

EVENT_MAX = 1 << 20  # bytes; events are not stored, so only their type and session matter
BODY_S = 5.0  # how long a body may take on loopback
FD_NAME = "minds"  # of the socket, while the service manager keeps it
# What the mind is told of the context of a restart: field and label.
CONTEXT = {"name": "Name", "summary": "Changes", "justification": "Why", "memory": "Context"}
RESTART_MAX = 64 << 10  # bytes of the body of a restart
CONTEXT_MAX = 4000  # characters of each text that is handed on to a mind after its restart
SESSION_HEADERS = ("x-volute-session", "x-volute-thread")
# Fields of a message with a meaning of their own here. All others go to the mind as they are: what a newer
# Volute or a bridge sends, the mind may understand.
FIELDS = {"content", "channel", "session", "interrupt", "whileSleeping", *intake.MIND_FIELDS}
# By the first word of a path below /api, or below /api/minds/NAME, of what Volute's daemon serves.
NOT_SERVED = {
    "history": "hostguard keeps no conversations, so it cannot tell what other sessions did",
    "keys": "hostguard keeps no keys: signatures of messages are not verified",
    "chat": "conversations are those of Volute's daemon; POST /api/minds/NAME/message sends a message",
    "channels": "channels are in hostguard.toml, [channels]",
    "schedules": "schedules are in hostguard.toml, or made by: hostguard schedule add",
    "sleep": "a mind is put to sleep by: hostguard sleep NAME",
    "wake": "a mind is woken by: hostguard wake NAME",
    "start": "minds are started by systemctl and by: hostguard wake NAME",
    "stop": "minds are stopped by systemctl and by: hostguard sleep NAME",
    "notices": "hostguard keeps no notices for the next prompt of a mind",
    "files": "hostguard sends no files",
    "skills": "skills are Volute's",
    "variants": "variants are Volute's",
}


def token_hash(token: str) -> str:
    """SHA-256 in hex: enough for a token, which is random and long."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


class Endpoint(Listener):
    """The endpoint on loopback TCP, while `events.listen` is configured.

    The service manager keeps its socket during a restart: a mind tries to send its `done` for 1.5 s only, and
    without it the turn keeps its slot until it is idle.
    """

    def __init__(
        self,
        policy: Policy,
        residents: ResidentDriver,
        done_tracker: DoneTracker,
        acceptor: Acceptor,
        services: MindServices,
        notifier: Notifier,
        budget: Budget,
    ) -> None:
        what, loss = "the minds' endpoint", "events of minds are lost"
        app = make_app(budget, self, missing=_not_served)
        super().__init__(app, what, "events.listen", loss, FD_NAME, notifier)
        self._policy, self._residents, self._done_tracker = policy, residents, done_tracker
        self._acceptor, self._services = acceptor, services
        self._refusals = Seldom(log)

    @on("POST", "/api/minds/{name}/events", "/api/v1/minds/{name}/events")
    async def _events(self, request: Request) -> JSONResponse:
        mind = self._itself(request, "report only its own events")
        residents, session = self._residents, _header_session(request)
        try:
            event = await json_object(request, EVENT_MAX, owner=_owner(mind), within=BODY_S)
            type_ = event.get("type")
            if not isinstance(type_, str) or not type_:
                raise bad_request("type is missing: the kind of event, such as done")
            # The header is the sending process's guess, the body the session that the event is about.
            session = _text(event, "session") or session
            message_id = _text(event, "messageId")
        except BaseException:
            residents.heard(mind, session)
            raise
        if type_ == "done" and event.get("endsTurn") is not False:
            turn = request.headers.get("x-hostguard-turn") or None
            ended = residents.done(mind, session, message_id, turn)
            # If the guard is killed first, there is no answer, and the mind tries again.
            await self._done_tracker.stored(ended)
            answered = not await has_left(request)
            for done in ended:
                done.answered = answered
        else:
            residents.heard(mind, session, type_)
        return JSONResponse({"ok": True})

    @on("POST", "/api/minds/{name}/restart", "/api/v1/minds/{name}/restart")
    async def _restart(self, request: Request) -> JSONResponse:
        # Answered before the restart, which waits for the ends of the mind's turns.
        mind = self._itself(request, "have only itself restarted")
        body = await json_object(request, RESTART_MAX, optional=True, owner=_owner(mind), within=BODY_S)
        await self._services.restart(mind, _restart_text(body.get("context")))
        return JSONResponse({"ok": True, "deferred": True})

    @on("POST", "/api/minds/{name}/message", "/api/v1/minds/{name}/message")
    async def _message(self, request: Request) -> JSONResponse:
        mind, name = self._authenticate(request)
        self._residents.heard(mind, _header_session(request))
        config = self._policy.config
        body = await json_object(request, body_max(config.payload_max), owner=_owner(mind), within=BODY_S)
        given = {field: value for field, value in body.items() if field in FIELDS and value is not None}
        given |= {"to": f"@{name}", "sender": _sender(mind, name, body.get("sender"), config)}
        more = {field: value for field, value in body.items() if field not in intake.OWN_FIELDS}
        _check_claims(mind, name, given, config)
        key = request.headers.get("idempotency-key")
        if key == "":
            raise bad_request("Idempotency-Key is empty: name the message, or omit the header")
        if key is not None:
            # In a namespace of its own: a mind must not use up the key of somebody else's message. The second
            # colon ends the mind's name.
            given["key"] = f"{intake.MIND_KEYS}{mind.replace('%', '%25').replace(':', '%3A')}:{key}"
        accepted = await self._acceptor.send(intake.message(given, config, now_ms(), _owner(mind), more))
        return JSONResponse({"ok": True, "deliveries": [row.id for row in accepted.rows]})

    def _itself(self, request: Request, may: str) -> str:
        """The mind that the path names, if the token is its own. Raises Problem."""
        mind, name = self._authenticate(request)
        if mind != name:
            raise self._refused(name, not_allowed(f"this is the token of {mind}: a mind can {may}"))
        return mind

    def _authenticate(self, request: Request) -> tuple[str, str]:
        """(the mind whose token it is, the mind that the path names). Raises Problem."""
        name = str(request.path_params["name"])
        token = bearer(request)
        if not token:
            raise self._refused(name, unauthorized("a mind's token is missing: Authorization: Bearer TOKEN"))
        given = token_hash(token)
        minds = self._policy.config.minds
        known = [mind for mind in minds if hmac.compare_digest(given, self._policy.token(mind) or "")]
        if not known:
            detail = "unknown token: hostguard mind token NAME makes a new one"
            raise self._refused(name, unauthorized(detail))
        token_shown(request)
        if name not in minds:
            raise unknown("mind", name, "see [minds] in the configuration")
        return name if name in known else known[0], name

    def _refused(self, name: str, error: Problem) -> Problem:
        """The problem; a mind with a wrong token is not heard, so the journal has it too."""
        self._refusals.warn(f"the minds' endpoint refused a request for {name!r:.66}: {error.detail}")
        return error


def _sender(mind: str, to: str, claimed: Any, config: Config) -> Any:
    """Who the message is from. Raises Problem for a claim that the token does not cover."""
    if mind != to:
        if claimed not in (None, "", mind):
            raise not_allowed(f"this is the token of {mind}: it can send only under that name")
        return mind
    if isinstance(claimed, str) and claimed.removeprefix("@") in config.minds.keys() - {mind}:
        raise not_allowed(f"this is the token of {mind}: it cannot send under the name of another mind")
    return claimed


def _check_claims(mind: str, to: str, given: Mapping[str, Any], config: Config) -> None:
    """Refuse a message that the mind would read as another's, or as the guard's. Raises Problem."""
    sender, channel = given["sender"], given.get("channel")
    direct = channel if isinstance(channel, str) and not channel.startswith("#") else ""
    if guards_name(direct) or (isinstance(sender, str) and guards_name(sender)):
        raise not_allowed(f"only the guard itself writes to minds as {SYSTEM_NAME}")
    if direct.startswith("@") and direct[1:] in config.minds.keys() - {mind, to}:
        raise not_allowed(f"this is the token of {mind}: {direct} is the channel of another mind")
    if mind != to and given.get("instructions"):
        raise not_allowed(f"instructions are {to}'s own to give: {mind} can send it a message without any")


def _owner(mind: str) -> str:
    return f"the mind {mind}"


def _header_session(request: Request) -> str | None:
    return next((given for name in SESSION_HEADERS if (given := request.headers.get(name))), None)


def _not_served(path: str) -> str:
    """Why a path of Volute's daemon is not there."""
    words = path.removeprefix("/api/").removeprefix("v1/").split("/")
    why = NOT_SERVED.get("".join(words[2:3]) if words[0] == "minds" else words[0])
    served = "hostguard serves only events, message and restart of Volute's API, see hostguard-api(7)"
    return f"{why}; {served}" if why is not None else served


def _restart_text(context: Any) -> str:
    """What the mind is told after its restart; "" after one that only has it read its files again.

    Raises Problem.
    """
    if context is None:
        return "[hostguard] You were restarted."
    if not isinstance(context, dict) or not isinstance(context.get("type"), str):
        raise bad_request("context must be an object with a type, such as reload")
    kind = context["type"]
    if kind == "reload":
        return ""
    if kind == "merge":
        raise conflict("hostguard merges no variants: merge it, then ask for a restart of another type")
    given = {label: _text(context, name) for name, label in CONTEXT.items()}
    lines = [f"{label}: {text[:CONTEXT_MAX]}" for label, text in given.items() if text]
    return "\n".join([f"[hostguard] You were restarted ({kind[:CONTEXT_MAX]}).", *lines])


def _text(event: Mapping[str, Any], name: str) -> str | None:
    value = event.get(name)
    if value is None or isinstance(value, str):
        return value or None
    raise bad_request(f"{name} must be a string")
