"""The transparent gate: its sockets, and what the rest of the guard does with it."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from dataclasses import dataclass, field

from hostguard.api.http import Budget, Seldom
from hostguard.api.server import all_handed_over
from hostguard.core.model import Config
from hostguard.core.signals import Redrive, Signal, UnitStarted
from hostguard.core.tasks import Tasks
from hostguard.delivery.acceptor import Acceptor
from hostguard.front.event_streams import EventStreams
from hostguard.front.messages import Messages
from hostguard.front.registry import Forks, Known, Registry
from hostguard.front.relay import Relay
from hostguard.gate.policy import Policy
from hostguard.linux.sockets import Marked, meant
from hostguard.turns.done_tracker import DoneTracker
from hostguard.turns.drivers.resident_driver import ResidentDriver

log = logging.getLogger(__name__)

FD_NAME = "front"  # of the sockets of hostguard-front.socket
NO_SOCKETS = (
    "the guard has no sockets in front of Volute, whose minds get no messages:"
    " systemctl stop hostguard; systemctl start hostguard-front.socket hostguard"
)
BACKLOG = 4096  # clients wait there while the guard restarts
CONNECTIONS = 1000  # each takes two descriptors
AT_ONCE = 32  # are accepted in one turn of the event loop
ACCEPT_AGAIN_S = 1.0  # after the host had no more descriptors
SETTLE_S = 5.0  # for messages that are being stored when the guard stops


@dataclass(eq=False)
class Front:
    """Accepts what is redirected, and serves each client by a Relay."""

    _policy: Policy
    _residents: ResidentDriver
    _marked: Marked
    _registry: Registry
    _streams: EventStreams
    _messages: Messages
    _missing: bool = field(default=False, init=False)  # systemd gave no sockets
    _sockets: list[socket.socket] = field(default_factory=list, init=False)
    _relays: dict[Relay, asyncio.Task[None]] = field(default_factory=dict, init=False)  # the oldest first
    _waits: bool = field(default=False, init=False)  # all places are taken
    _tasks: Tasks = field(default_factory=Tasks, init=False)
    _full: Seldom = field(default_factory=lambda: Seldom(log), init=False)

    @staticmethod
    def make(
        policy: Policy,
        forks: Forks,
        residents: ResidentDriver,
        done_tracker: DoneTracker,
        acceptor: Acceptor,
        marked: Marked,
        redrive: Signal[Redrive],
        budget: Budget,
    ) -> Front:
        """The front with its parts. Blocks: reads what an earlier guard left."""
        registry = Registry(policy, forks, redrive, Signal[Known]())
        registry.recall()
        streams = EventStreams(registry, residents, done_tracker)
        registry.changed.subscribe(streams.follow)
        messages = Messages(policy, registry, acceptor, budget)
        return Front(policy, residents, marked, registry, streams, messages)

    @property
    def problem(self) -> str | None:
        """Why messages of Volute do not come through."""
        if self._missing:
            return NO_SOCKETS
        return self._registry.fault and f"the registry of Volute cannot be read: {self._registry.fault}"

    def joined(self, config: Config) -> Config:
        """The configuration with Volute's minds."""
        return self._registry.joined(config)

    async def know(self) -> None:
        """Read the registry."""
        await self._registry.read()
        await self._residents.use(self._policy.config)

    def start(self) -> None:
        """Serve from now on."""
        if self._sockets:
            return
        self._sockets = [*all_handed_over(FD_NAME)]
        self._missing = not self._sockets
        if self._missing:
            log.error("%s", NO_SOCKETS)
        for sock in self._sockets:
            sock.setblocking(False)
            sock.listen(BACKLOG)
        self._listen()

    async def close(self) -> None:
        """Take no more clients, and let messages that are being stored be answered."""
        self._ignore()
        self._streams.close()
        keeping = [task for relay, task in self._relays.items() if relay.keeping]
        if keeping:
            await asyncio.wait(keeping, timeout=SETTLE_S)
        tasks = [*self._relays.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    def unit_started(self, started: UnitStarted) -> None:
        """A service was started, perhaps Volute's: its daemon has a new token soon."""
        volute = self._policy.config.volute
        if volute is not None and started.unit == volute.unit:
            self._streams.stir()

    # -- clients

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.add_reader(sock, self._accept, sock)

    def _ignore(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.remove_reader(sock)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if len(self._relays) >= CONNECTIONS and not self._make_room():
                return
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors or no memory: it stays readable
                self._full.warn(f"cannot accept connections to minds of Volute: {error.strerror}")
                self._ignore()
                asyncio.get_running_loop().call_later(ACCEPT_AGAIN_S, self._listen)
                return
            self._enter(sock, peer)

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest. If none is, clients wait in the queues."""
        for relay, task in self._relays.items():
            if relay.idle:
                del self._relays[relay]
                task.cancel()
                return True
        self._full.warn(f"all {CONNECTIONS} connections to minds of Volute are in use: others wait")
        self._ignore()
        self._waits = True
        return False

    def _enter(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        to = meant(sock)
        if to is None or self._marked.take_back(peer[:2]):
            # It was meant for the guard itself; or the table does not know the mark, and it is our own.
            if to is not None:
                self._full.warn(f"the guard's own connection to port {to[1]} was redirected to it: check nft")
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        relay = Relay(sock, to, self._messages, self._marked, self._reached)
        task = self._relays[relay] = self._tasks.start(relay.serve())
        task.add_done_callback(lambda _: self._left(relay))

    def _left(self, relay: Relay) -> None:
        self._relays.pop(relay, None)
        if self._waits:
            self._waits = False
            self._listen()

    def _reached(self, port: int, listens: bool) -> None:
        """A connection was passed on to a port: its mind is up; or refused: a mind may start there soon."""
        name = self._registry.known.names.get(port)
        if name is not None and listens:
            self._residents.up(name)
        if not listens:
            with suppress(RuntimeError):
                self._tasks.start(self._registry.read())
