"""Events of Volute's minds, from its daemon's own streams (server-sent events), one for each mind."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import h11

from hostguard.core.tasks import Tasks
from hostguard.front.registry import DaemonAddress, Known, Registry
from hostguard.front.request import session_of
from hostguard.turns.done_tracker import DoneTracker
from hostguard.turns.drivers.resident_driver import ResidentDriver

log = logging.getLogger(__name__)

# Those that show work, or its end.
TYPES = "session_start,context,thinking,text,tool_use,tool_result,usage,done"
SILENT_S = 60.0  # the daemon sends a ping each 15 s
# Between two attempts; each pause is twice the one before. After the longest one it waits to be stirred.
AGAIN_S, AGAIN_MAX_S = 0.5, 60.0
READ = 16 << 10  # bytes
LINE_MAX = 1 << 20  # bytes of an event; a longer one is left out


class Refused(Exception):
    """The daemon does not know the token, or the mind."""


class Lines:
    """The events of a stream that comes in pieces. Pure."""

    def __init__(self) -> None:
        self._line, self._long = bytearray(), False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The events that this piece completes."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            line, long = bytes(self._line + part), self._long
            self._line.clear()
            self._long = False
            if not long and line.startswith(b"data:"):
                with suppress(ValueError, RecursionError):
                    event = json.loads(line[5:])
                    if isinstance(event, dict):
                        yield event
        self._long = self._long or len(self._line) + len(rest) > LINE_MAX
        if self._long:
            self._line.clear()
        else:
            self._line += rest


@dataclass(eq=False)
class EventStreams:
    """Follows the stream of each mind, and passes on what it says."""

    _registry: Registry
    _residents: ResidentDriver
    _done_tracker: DoneTracker
    _streams: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _stirred: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _tasks: Tasks = field(default_factory=Tasks, init=False)

    def follow(self, known: Known) -> None:
        """Follow the minds that are known now."""
        minds = set(known.names.values())
        for name in self._streams.keys() - minds:
            self._streams.pop(name).cancel()
        for name in minds - self._streams.keys():
            self._streams[name] = self._tasks.start(self._follow(name))
        self.stir()

    def stir(self) -> None:
        """The daemon may answer now: streams that wait try at once."""
        self._stirred.set()
        self._stirred.clear()

    def close(self) -> None:
        """Follow nobody."""
        self._tasks.cancel()
        self._streams.clear()

    async def _follow(self, mind: str) -> None:
        pause = AGAIN_S
        while True:
            daemon = self._registry.known.daemon
            try:
                if daemon is not None:
                    await self._read(mind, daemon)
                pause = AGAIN_S
            except Refused as error:
                log.info("events of %s: %s", mind, error)
            except (OSError, h11.RemoteProtocolError):  # TimeoutError is one
                pass
            stirred = asyncio.ensure_future(self._stirred.wait())
            await asyncio.wait([stirred], timeout=pause if pause < AGAIN_MAX_S else None)
            pause = min(2 * pause, AGAIN_MAX_S) if stirred.cancel() else AGAIN_S
            await self._registry.read()  # one for all streams: a new daemon has a new token

    async def _read(self, mind: str, daemon: DaemonAddress) -> None:
        """Read until the stream ends. Raises Refused, OSError, h11.RemoteProtocolError."""
        reader, writer = await asyncio.open_connection(daemon.host, daemon.port)
        try:
            http = h11.Connection(h11.CLIENT)
            headers = [("Host", daemon.host), ("Authorization", f"Bearer {daemon.token}")]
            target = f"/api/v1/minds/{quote(mind)}/events?type={TYPES}"
            asked = http.send(h11.Request(method="GET", target=target, headers=headers))
            writer.write((asked or b"") + (http.send(h11.EndOfMessage()) or b""))
            lines = Lines()
            while True:
                event = http.next_event()
                if isinstance(event, h11.Response) and event.status_code != 200:
                    raise Refused(f"the daemon answers {event.status_code}")
                if isinstance(event, h11.Response):  # what came before is not told again
                    self._residents.missed(mind)
                if isinstance(event, h11.Data):
                    for found in lines.feed(bytes(event.data)):
                        await self._take(mind, found)
                elif event is h11.NEED_DATA:
                    async with asyncio.timeout(SILENT_S):
                        http.receive_data(await reader.read(READ))
                elif not isinstance(event, h11.Response):
                    return
        finally:
            writer.close()

    async def _take(self, mind: str, event: dict[str, Any]) -> None:
        type_, message_id = event.get("type"), event.get("messageId")
        session = session_of(event) if event.get("session") or event.get("thread") else None
        if type_ != "done":
            self._residents.heard(mind, session, str(type_))
            return
        for done in self._residents.done(
            mind, session, message_id if isinstance(message_id, str) else None, None
        ):
            done.answered = True  # the daemon sends each event once
