"""The connection to the bus, against a bus that is none."""

from __future__ import annotations

import asyncio
import signal

import pytest

from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdLost


def test_a_bus_that_hangs_up_at_once_is_a_lost_bus(tmp_path, monkeypatch):
    """It does not stop the event loop."""

    async def connect():
        async def hang_up(reader, writer):
            await reader.read(1)
            writer.close()

        async with await asyncio.start_unix_server(hang_up, tmp_path / "bus"):
            with pytest.raises(SystemdLost, match="cannot reach the system bus"):
                await Systemd().start(None)

    def stuck(*_):
        raise AssertionError("the event loop does not go on")

    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/bus")
    before = signal.signal(signal.SIGALRM, stuck)
    signal.alarm(10)
    try:
        asyncio.run(connect())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
