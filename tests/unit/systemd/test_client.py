"""The connection to the bus, against buses that are none."""

from __future__ import annotations

import asyncio
import gc
import signal
import warnings

import pytest

from hostguard.systemd import dbus
from hostguard.systemd.client import Systemd
from hostguard.systemd.dbus import SystemdLost

GREETINGS = {
    "it hangs up": b"",
    "it refuses us": b"REJECTED EXTERNAL\r\n",
    "it is no bus": b"x" * 10_001,
    "it hangs up after its greeting": b"OK 1\r\n",
    "it hangs up within a line": b"OK 1\r\nAGREE_UN",
    "it says nothing": None,
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
def test_a_bus_that_does_not_greet_as_one_is_lost(tmp_path, monkeypatch, greeting):
    """The event loop goes on: left alone, dbus-next reads for ever from a bus that hung up."""

    async def greet(reader, writer):
        await reader.read(1)
        if greeting is None:
            await asyncio.sleep(1)
        else:
            writer.write(greeting)
        writer.close()

    async def connect():
        async with await asyncio.start_unix_server(greet, tmp_path / "bus"):
            with pytest.raises(SystemdLost, match="cannot reach the system bus"):
                await Systemd().start(None)

    def stuck(*_):
        raise AssertionError("the event loop does not go on")

    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/bus")
    monkeypatch.setattr(dbus, "CALL_S", 0.3)
    handler = signal.getsignal(signal.SIGPROF)
    before = signal.signal(signal.SIGVTALRM, stuck)
    signal.setitimer(signal.ITIMER_VIRTUAL, 5)  # seconds of CPU
    try:
        asyncio.run(connect())
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()  # dbus-next leaves the closing of its sockets to it
    assert signal.getsignal(signal.SIGPROF) == handler
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
