"""One connection to a message bus, on asyncio, for which jeepney reads and writes the messages."""

from __future__ import annotations

import asyncio
import logging
import socket
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from jeepney import DBusAddress, Message, MessageType, find_session_bus, find_system_bus, new_method_call
from jeepney.auth import BEGIN, Authenticator
from jeepney.low_level import HeaderFields, Parser

from hostguard.core.tasks import Tasks

log = logging.getLogger(__name__)

AGAIN_S = 0.01  # until a bus that takes no descriptors is tried again
BUS_NAME = "org.freedesktop.DBus"
BUS_PATH = "/org/freedesktop/DBus"


@dataclass(frozen=True, slots=True)
class Call:
    """A method call. Structs of the body are tuples, arrays lists, and a variant is (signature, value)."""

    destination: str
    path: str
    interface: str
    member: str
    signature: str = ""
    body: Sequence[Any] = ()


class CallFailed(Exception):
    """The answer to a call is an error. `name` is the D-Bus error name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class Connection:
    """Made by `connect`. `lost` is set once the bus, or we, have closed it."""

    def __init__(self, sock: socket.socket, on_signal: Callable[[str, list[Any]], None]) -> None:
        self.lost = asyncio.Event()
        self._sock = sock
        self._on_signal = on_signal
        self._serials = count(1)
        self._replies: dict[int, asyncio.Future[Message]] = {}
        self._sending = asyncio.Lock()
        self._tasks = Tasks()
        self._tasks.start(self._read())

    async def call(self, call: Call) -> list[Any]:
        """The body of the answer. Raises CallFailed; EOFError and OSError if the connection is lost."""
        if self.lost.is_set():
            raise EOFError("the bus is gone")
        address = DBusAddress(call.path, call.destination, call.interface)
        message = new_method_call(address, call.member, call.signature or None, tuple(call.body))
        serial, fds = next(self._serials), array("i")
        data = message.serialise(serial, fds)
        self._replies[serial] = asyncio.get_running_loop().create_future()
        try:
            async with self._sending:
                await self._send(data, fds)
            reply = await self._replies[serial]
        finally:
            del self._replies[serial]
        if reply.header.message_type is MessageType.error:
            text = str(reply.body[0]) if reply.body else call.member
            raise CallFailed(reply.header.fields[HeaderFields.error_name], text)
        return list(reply.body)

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # which ends `_read`

    async def _send(self, data: bytes, fds: array[int]) -> None:
        sent = 0
        try:
            while fds and not sent:
                try:
                    sent = self._sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
                except BlockingIOError:
                    await asyncio.sleep(AGAIN_S)
            await asyncio.get_running_loop().sock_sendall(self._sock, data[sent:])
        except BaseException:
            self.close()  # half of a message may be on its way
            raise

    async def _read(self) -> None:
        loop, parser = asyncio.get_running_loop(), Parser()
        try:
            while data := await loop.sock_recv(self._sock, 1 << 16):
                parser.add_data(data)
                while (message := parser.get_next_message()) is not None:
                    self._take(message)
        except OSError as error:
            log.debug("bus: %s", error)
        finally:
            self.lost.set()
            self.close()
            for reply in self._replies.values():
                if not reply.done():
                    reply.set_exception(EOFError("the bus is gone"))
            async with self._sending:  # nobody sends any more
                self._sock.close()

    def _take(self, message: Message) -> None:
        fields = message.header.fields
        if message.header.message_type is MessageType.signal:
            try:
                self._on_signal(fields[HeaderFields.member], list(message.body))
            except Exception:
                log.exception("cannot handle the signal %s", fields[HeaderFields.member])
        elif (reply := self._replies.get(fields.get(HeaderFields.reply_serial))) and not reply.done():
            reply.set_result(message)


async def connect(user: bool, on_signal: Callable[[str, list[Any]], None]) -> Connection:
    """Connect to the system bus, or to the `user` manager's. `on_signal` gets member and body of signals.

    Raises OSError, EOFError, ValueError, KeyError.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await _greet(sock, find_session_bus() if user else find_system_bus())
        connection = Connection(sock, on_signal)
    except BaseException:
        sock.close()
        raise
    try:
        await connection.call(Call(BUS_NAME, BUS_PATH, BUS_NAME, "Hello"))
    except BaseException:
        connection.close()
        raise
    return connection


async def _greet(sock: socket.socket, address: str) -> None:
    loop, authenticator = asyncio.get_running_loop(), Authenticator(enable_fds=True)
    await loop.sock_connect(sock, address)
    for line in authenticator:
        await loop.sock_sendall(sock, line)
        answer = await loop.sock_recv(sock, 1024)
        if not answer:
            raise EOFError("the bus hung up")
        authenticator.feed(answer)
    await loop.sock_sendall(sock, BEGIN)
