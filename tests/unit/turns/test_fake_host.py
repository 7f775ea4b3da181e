"""The host that the unit tests of turns and gate run on does what the real one does: tests/system/turns/test_port.py."""

from __future__ import annotations

import asyncio

import pytest
from fake_host import FakeHost
from host_contract import CONTRACT


@pytest.mark.parametrize("holds", CONTRACT)
def test_contract(holds, monkeypatch):
    host = FakeHost()
    host.use(monkeypatch)
    asyncio.run(holds(host, host))
