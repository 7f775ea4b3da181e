"""The manager's signals, on a real dbus-daemon, from a manager that may know us already."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from dbus_next import Message, MessageType
from dbus_next.aio import MessageBus
from on_bus import on_bus

from hostguard.core import paths
from hostguard.systemd import dbus
from hostguard.systemd.dbus import Bus, SystemdLost


@pytest.mark.parametrize(("error", "connects"), [("AlreadySubscribed", True), ("NoSuchUnit", False)])
def test_a_manager_that_has_us_subscribed_already_is_no_failure(tmp_path, monkeypatch, error, connects):
    """It takes its name while the connection is made: what hears of that subscribes, too, and may be first."""

    def answer(message):
        if message.message_type is MessageType.METHOD_CALL and message.member == "Subscribe":
            return Message.new_error(
                message, f"org.freedesktop.systemd1.{error}", "Client is already subscribed."
            )
        return None

    async def connected():
        pass

    async def work():
        manager = await MessageBus(bus_address=address).connect()
        manager.add_message_handler(answer)
        await manager.request_name(dbus.NAME)
        bus = Bus(connected, lambda: None, lambda member, body: None)
        if connects:
            await bus.start()
        else:
            with pytest.raises(SystemdLost, match=error):
                await bus.start()
        bus.close()
        manager.disconnect()
        await asyncio.sleep(0)

    command = ["dbus-daemon", "--session", "--nofork", "--nopidfile", "--print-address"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        address = daemon.stdout.readline().strip()
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", address)
        monkeypatch.setattr(paths, "USER", True)
        try:
            on_bus(work())
        finally:
            daemon.kill()
