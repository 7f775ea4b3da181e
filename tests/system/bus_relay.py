"""A relay between the guard and the system bus, which a test cuts, or holds up in either direction.

The bus itself cannot be killed in a guest: the command that the guest runs is on it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from types import TracebackType

SYSTEM = "/run/dbus/system_bus_socket"
RELAY = Path("/run/relayed-bus")
SETTING = f"Environment=DBUS_SYSTEM_BUS_ADDRESS=unix:path={RELAY}"  # for hostguard.service


class Bus:
    """A context manager: a guard with SETTING speaks to the bus through the relay."""

    def __init__(self) -> None:
        self._asks, self._answers = threading.Event(), threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Bus:
        self.mend()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()

    def hold_asks(self) -> None:
        """From now on nothing that the guard says gets through."""
        self._asks.clear()

    def hold_answers(self) -> None:
        """From now on the guard hears nothing."""
        self._answers.clear()

    def go(self) -> None:
        """The end of both: what was held up is passed on."""
        self._asks.set()
        self._answers.set()

    def cut(self) -> None:
        """The connection is lost, with what is held up in it, and no other can be made."""
        RELAY.unlink(missing_ok=True)
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self.go()
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()
        self._sockets, self._threads = [], []

    def mend(self) -> None:
        """The end of `cut`."""
        self.go()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(RELAY))
        listener.listen()
        self._sockets.append(listener)
        self._run(self._serve, listener)

    def _run(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # cut
            while True:
                guard, _ = listener.accept()
                bus = socket.socket(socket.AF_UNIX)
                self._sockets += [guard, bus]
                bus.connect(SYSTEM)
                self._run(_pass_on, guard, bus, self._asks)
                self._run(_pass_on, bus, guard, self._answers)


def _pass_on(source: socket.socket, target: socket.socket, flow: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while (told := socket.recv_fds(source, 65536, 8))[0]:
            data, fds, _, _ = told
            flow.wait()
            sent = socket.send_fds(target, [data], fds) if fds else 0
            target.sendall(data[sent:])
            for fd in fds:
                os.close(fd)
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
