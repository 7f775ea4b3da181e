"""The connection to a bus, on a real dbus-daemon of the test's own, and on ones that fail."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from jeepney import MatchRule, new_error, new_method_return
from jeepney.io.blocking import open_dbus_connection
from until import until

from hostguard.systemd import dbus
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdLost
from hostguard.systemd.dbus_connection import BUS_NAME, BUS_PATH, Call, CallFailed, Connection, connect

Work = Callable[[Connection, list[Any]], Awaitable[None]]


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    command = ["dbus-daemon", "--session", "--nofork", "--nopidfile", "--print-address"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", daemon.stdout.readline().strip())
        yield daemon
        daemon.kill()


def ask(member: str, signature: str = "", *body: Any) -> Call:
    return Call(BUS_NAME, BUS_PATH, BUS_NAME, member, signature, body)


def on_bus(work: Work) -> None:
    async def main() -> None:
        signals: list[Any] = []

        def hear(member: str, body: list[Any]) -> None:
            signals.append((member, body))
            if member == "NameLost":
                raise RuntimeError("a fault of the subscriber")

        connection = await connect(True, hear)
        await asyncio.wait_for(work(connection, signals), 20)
        connection.close()
        await connection.lost.wait()
        with pytest.raises(EOFError):
            await connection.call(ask("GetId"))

    asyncio.run(main())


def test_calls_and_their_answers(bus: subprocess.Popen[str]) -> None:
    async def work(connection: Connection, signals: list[Any]) -> None:
        assert await connection.call(ask("NameHasOwner", "s", BUS_NAME)) == [True]
        found = await asyncio.gather(*(connection.call(ask("GetId")) for _ in range(200)))
        assert len({one for [one] in found}) == 1
        large = "x" * (1 << 20)  # more than a socket takes at once
        both = [connection.call(ask("NameHasOwner", "s", large)) for _ in range(2)]
        assert await asyncio.gather(*both) == [[False], [False]]
        [[kind, value]] = await connection.call(
            Call(BUS_NAME, BUS_PATH, f"{BUS_NAME}.Properties", "Get", "ss", [BUS_NAME, "Interfaces"])
        )
        assert (kind, type(value)) == ("as", list)

    on_bus(work)


def test_an_error_has_its_name(bus: subprocess.Popen[str]) -> None:
    async def work(connection: Connection, signals: list[Any]) -> None:
        with pytest.raises(CallFailed, match="NoSuch") as caught:
            await connection.call(ask("NoSuch"))
        assert caught.value.name == f"{BUS_NAME}.Error.UnknownMethod"

    on_bus(work)


def test_signals_are_heard_and_a_fault_in_that_ends_nothing(bus: subprocess.Popen[str]) -> None:
    async def work(connection: Connection, signals: list[Any]) -> None:
        await connection.call(ask("RequestName", "su", "org.example.Test", 0))
        await connection.call(ask("ReleaseName", "s", "org.example.Test"))
        await until(lambda: len(signals) >= 3)
        assert [member for member, _ in signals[-2:]] == ["NameAcquired", "NameLost"]
        assert signals[-1][1] == ["org.example.Test"]
        assert await connection.call(ask("NameHasOwner", "s", "org.example.Test")) == [False]

    on_bus(work)


def test_a_descriptor_goes_along(bus: subprocess.Popen[str], tmp_path: Any) -> None:
    got: list[str] = []

    def serve(ready: threading.Event, name: list[str]) -> None:
        with (
            open_dbus_connection("SESSION", enable_fds=True) as server,
            server.filter(MatchRule(type="method_call")) as calls,
        ):
            name.append(server.unique_name)
            ready.set()
            message = server.recv_until_filtered(calls, timeout=10)
            with message.body[1].to_file("r") as file:
                got.append(file.read())
            server.send(new_method_return(message, "s", ("taken",)))
            server.send(new_error(message, "org.example.Late"))  # nobody waits for it any more

    async def work(connection: Connection, signals: list[Any]) -> None:
        ready, name = threading.Event(), []  # type: ignore[var-annotated]
        serving = asyncio.create_task(asyncio.to_thread(serve, ready, name))
        await asyncio.to_thread(ready.wait, 10)
        (tmp_path / "file").write_text("hello")
        fd = os.open(tmp_path / "file", os.O_RDONLY)
        call = Call(name[0], "/x", "org.example.Test", "Take", "sh", ["x" * (1 << 20), fd])
        assert await connection.call(call) == ["taken"]
        os.fstat(fd)  # it is the caller's
        os.close(fd)
        await serving
        assert len(await connection.call(ask("GetId"))) == 1

    on_bus(work)
    assert got == ["hello"]


def test_a_bus_that_dies_ends_every_call(bus: subprocess.Popen[str]) -> None:
    async def work(connection: Connection, signals: list[Any]) -> None:
        bus.send_signal(19)  # SIGSTOP
        calls = [asyncio.create_task(connection.call(ask("GetId"))) for _ in range(3)]
        given_up = asyncio.create_task(connection.call(ask("NameHasOwner", "s", "x" * (4 << 20))))
        await asyncio.sleep(0.1)
        assert not any(call.done() for call in calls)
        bus.kill()
        for call in (*calls, given_up):
            with pytest.raises((EOFError, OSError)):
                await call
        await connection.lost.wait()

    on_bus(work)


def test_a_call_that_is_given_up_halfway_gives_up_the_connection(bus: subprocess.Popen[str]) -> None:
    async def work(connection: Connection, signals: list[Any]) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.call(ask("GetId")), 0)
        assert await connection.call(ask("GetId"))  # nothing of it was sent, or all
        bus.send_signal(19)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.call(ask("NameHasOwner", "s", "x" * (4 << 20))), 0.2)
        await connection.lost.wait()

    on_bus(work)


@pytest.mark.parametrize(
    "greeting", [b"", b"REJECTED EXTERNAL\r\n", b"x" * 10_000, b"OK 1\r\nOK 2\r\n", None]
)
def test_a_bus_that_does_not_greet_as_one_is_lost(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, greeting: bytes | None
) -> None:
    async def main() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            if greeting is not None:
                writer.write(greeting)
                writer.write_eof()
            with suppress(ConnectionResetError):
                await reader.read()  # until the caller hangs up
            writer.close()
            closed.set()

        closed = asyncio.Event()

        async with await asyncio.start_unix_server(greet, tmp_path / "bus") as server:
            with pytest.raises(SystemdLost, match="cannot reach the system bus"):
                await asyncio.wait_for(Systemd().start(None), 3)  # type: ignore[arg-type]
            server.close()
            await closed.wait()

    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/bus")
    monkeypatch.setattr(dbus, "CALL_S", 0.3)
    asyncio.run(main())
