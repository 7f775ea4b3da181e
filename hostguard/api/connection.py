"""HTTP/1.1 on one connection, for an ASGI app, with h11, which itself does no I/O."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import h11

from hostguard.api.http import UID, Seldom, problem
from hostguard.api.places import Fair, Limits, Place, Places
from hostguard.core.errors import Problem, bad_request
from hostguard.core.tasks import Tasks

Address = tuple[str, int]  # as ASGI's "client"
log = logging.getLogger(__name__)

# Bytes that any client can make the guard keep, so they are few: of a request's head, read at once, and sent
# ahead of what the app reads. A head may have 16 KiB, as for node.
HEAD_MAX = READ_MAX = UNREAD_MAX = 16 << 10
HEADERS_MAX = 100  # each takes ten times its bytes
DISCARD_MAX = 8 << 20  # bytes of a refused body that are read and dropped, so that the client sees the answer
REST_S = 1.0  # seconds that it may take for the rest, on a connection for one request
KEEP = "hostguard.keep"  # in an ASGI scope: what to call once the request has shown a token
READS = (b"GET", b"HEAD")  # requests that change nothing, so that they can be broken off
_READ = memoryview(bytearray(READ_MAX))  # for all connections: nothing else runs until it was used


class Connection(asyncio.BufferedProtocol):
    """Passes the requests of one client to the app, one after another.

    It has no transport until the client sends something: so those who send nothing cost little time.
    """

    def __init__(
        self,
        app: Any,
        limits: Limits,
        sock: socket.socket,
        client: Address,
        places: Places[Connection],
        fair: Fair,
        tasks: Tasks,
        malformed: Seldom,
        whose: Callable[[Connection], int | None] | None,
    ) -> None:
        self.place = Place(self)
        self.client, self._whose = client, whose
        self._app, self._limits, self._sock, self._malformed = app, limits, sock, malformed
        self._places, self._fair, self._tasks = places, fair, tasks
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._late: asyncio.TimerHandle | None = None
        self._handed = self._served = False  # it gets a transport; it has one
        self._left = False  # the client sends no more
        self._lost = False  # and takes no more
        self._refused = False  # nothing that it sends is of use
        self._busy = self._answered = self._ending = self._ousted = False
        self._task: asyncio.Task[None] | None = None

    def wait(self) -> None:
        """Serve the client as soon as it sends something."""
        self._loop.add_reader(self._sock.fileno(), self._first)
        if self._limits.head_s is not None:
            self._late = self._loop.call_later(self._limits.head_s, self._shut)

    def _first(self) -> None:
        try:
            sent = self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            sent = b""
        if sent:
            self._forget()
            self._task = self._tasks.start(self._begin())
        else:
            self._shut()

    async def _begin(self) -> None:
        await self._fair.wait(self.place.owner)
        self._handed = True
        await self._loop.connect_accepted_socket(lambda: self, self._sock)
        await self._serve()

    def _forget(self) -> None:
        self._loop.remove_reader(self._sock.fileno())
        if self._late is not None:
            self._late.cancel()

    def _shut(self) -> None:
        """Close a connection without a transport."""
        self._forget()
        self._cancel()
        self._places.leave(self.place)
        self._sock.close()

    # -- for asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It has a transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._served = transport, True
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX)
        self._unread = 0  # bytes that h11 may still hold
        self._news = asyncio.Event()  # data came, or the client left
        self._writable = asyncio.Event()
        self._writable.set()
        self._method = b""
        transport.set_write_buffer_limits(0)
        if self._ousted:
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read to."""
        return _READ

    def buffer_updated(self, nbytes: int) -> None:
        """Keep the data until it is read."""
        if self._refused:
            return
        self._http.receive_data(bytes(_READ[:nbytes]))
        self._unread += nbytes
        if self._unread > UNREAD_MAX:
            self._transport.pause_reading()
        self._news.set()

    def eof_received(self) -> bool:
        """The client sends no more, but may still read."""
        self._left = True
        self._news.set()
        if self._gone():
            self._break_off()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake up whatever waits for the client."""
        self._places.leave(self.place)
        self._left = self._lost = True
        self._news.set()
        self._writable.set()
        self._break_off()

    def pause_writing(self) -> None:
        """The client is slow to read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client has read."""
        self._writable.set()

    # -- requests

    def end(self) -> None:
        """Close the connection after the request that is being answered."""
        self._ending = True
        if self._served and not self._busy:
            self._transport.close()
        elif not self._handed:
            self._shut()

    def oust(self, answer: bytes) -> None:
        """Close at once: it has no place. `answer` says so to a client of whose request nothing was done."""
        self._ousted = True
        if not self._served:
            with suppress(OSError):
                self._sock.send(answer)
            if not self._handed:
                self._shut()
            return
        http = self._http
        if http.our_state is h11.IDLE:
            told = not self._answered or bool(http.trailing_data[0])
        else:
            told = http.our_state is h11.SEND_RESPONSE and http.their_state is h11.SEND_BODY
        if told and not self._lost:
            self._transport.write(answer)
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()
        self._left = self._lost = True
        self._news.set()
        self._writable.set()
        if self._busy:
            self._break_off()
        else:
            self._cancel()

    def _break_off(self) -> None:
        """End a request that only reads, before its answer begins: there is nobody to read that."""
        if self._busy and self._method in READS and self._http.our_state is h11.SEND_RESPONSE:
            self._cancel()

    def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _serve(self) -> None:
        try:
            wait = self._limits.head_s
            if wait is not None:
                wait -= self._loop.time() - self._began
            while (request := await self._head(wait)) is not None and not self._gone():
                await self._fair.wait(self.place.owner)
                self._busy = True
                self._places.busy(self.place)
                await self._answer(request)
                self._busy, self._answered = False, True
                self._places.idle(self.place)
                if self._ending or not await self._next_cycle():
                    break
                wait = self._limits.idle_s
            self._transport.close()
        except TimeoutError:
            self._transport.abort()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            fault = Problem(status, bad_request("").code, f"this is not HTTP/1.1: {error}")
            self._not_http()
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await problem(fault)({"type": "http", "method": "GET"}, self._receive, self._send)
                await self._let_read()
            self._transport.close()
        except BaseException:
            self._transport.abort()
            raise

    def _not_http(self) -> None:
        # Without h11's text: it quotes what was sent, perhaps a part of a message.
        host, number = self.client
        who = f"a process (pid {number}, {host})" if host.startswith("uid=") else f"{host} port {number}"
        self._malformed.warn(f"{who} sent what is not HTTP/1.1")

    async def _let_read(self) -> None:
        """Let the client read the last answer: to close while it sends would reset the connection."""
        self._refused = True
        if self._lost:
            return
        self._transport.write_eof()
        self._transport.resume_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_S):
                while not self._left:
                    self._news.clear()
                    await self._news.wait()

    def _gone(self) -> bool:
        """True if a local client gave up: it closed the connection, rather than only its own direction.

        Its request may have waited for the guard's start, and it said since that nothing was done. How a TCP
        client closed is not known: the report of a mind counts in any case.
        """
        if self._sock.family != socket.AF_UNIX:
            return False
        if self._lost:
            return True
        closed = select.poll()
        closed.register(self._sock, 0)  # POLLHUP is always reported
        return bool(closed.poll(0))

    async def _head(self, wait: float | None) -> h11.Request | None:
        async with asyncio.timeout(wait):
            event = await self._event()
        if isinstance(event, h11.Request) and len(event.headers) > HEADERS_MAX:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise h11.RemoteProtocolError(f"more than {HEADERS_MAX} headers", error_status_hint=status)
        return event if isinstance(event, h11.Request) else None

    async def _next_cycle(self) -> bool:
        """True if the connection can take another request."""
        # A body that the app did not read. It may come after the answer: clients send it apart from the head.
        most = DISCARD_MAX
        async with asyncio.timeout(self._limits.idle_s or REST_S):
            while self._http.their_state is h11.SEND_BODY and most > 0 and not self._left:
                event = await self._event()
                most -= len(event.data) if isinstance(event, h11.Data) else 0
        if not self._http.our_state is self._http.their_state is h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _answer(self, request: h11.Request) -> None:
        path, _, query = request.target.partition(b"?")
        self._method = request.method
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode("ascii"),
            "method": request.method.decode("ascii"),
            "scheme": "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": self.client,
            KEEP: partial(self._places.keep, self.place),
            **({} if self._whose is None else {UID: partial(self._whose, self)}),
        }
        try:
            await self._app(scope, self._receive, self._send)
        except Exception:
            if not self._left:
                log.exception("cannot answer %.20s %.200s", scope["method"], path.decode("ascii"))

    async def _event(self) -> Any:
        """The next event of h11; ConnectionClosed if the client left. Raises RemoteProtocolError."""
        while (event := self._next_event()) is h11.NEED_DATA:
            self._unread = 0
            self._transport.resume_reading()
            if self._left:
                return h11.ConnectionClosed()
            self._news.clear()
            await self._news.wait()
        return event

    def _next_event(self) -> Any:
        if self._ousted:
            return h11.ConnectionClosed()
        try:
            return self._http.next_event()
        except ValueError:  # from int(), which takes no Content-Length of more than 4300 digits
            raise h11.RemoteProtocolError("a number has too many digits") from None

    async def _receive(self) -> dict[str, Any]:
        """ASGI's receive: the body in parts, then http.disconnect once the client left."""
        if self._http.they_are_waiting_for_100_continue:
            await self._write(h11.InformationalResponse(status_code=100, headers=[]))
        if self._http.their_state is h11.SEND_BODY:
            try:
                event = await self._event()
            except h11.RemoteProtocolError as error:
                self._not_http()
                raise bad_request(f"the body is not HTTP/1.1: {error}") from error
            if isinstance(event, h11.ConnectionClosed):
                raise bad_request("the client left before the end of the body")
            more = isinstance(event, h11.Data)
            return {"type": "http.request", "body": bytes(event.data) if more else b"", "more_body": more}
        while not self._left:
            self._news.clear()
            await self._news.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message["headers"])
            if not self._limits.idle_s:
                headers.append((b"connection", b"close"))
            reason = HTTPStatus(status).phrase
            await self._write(h11.Response(status_code=status, headers=headers, reason=reason))
            return
        if (body := message.get("body", b"")) and self._method != b"HEAD":
            await self._write(h11.Data(data=body))
        if not message.get("more_body", False):
            await self._write(h11.EndOfMessage())

    async def _write(self, event: Any) -> None:
        if self._lost:
            return
        if data := self._http.send(event):
            self._transport.write(data)
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(self._limits.stall_s):
                await self._writable.wait()
        except TimeoutError:
            self._left = self._lost = True
            self._transport.abort()
