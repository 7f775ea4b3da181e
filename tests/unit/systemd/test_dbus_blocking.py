"""The blocking connection to systemd, where there is none; tests/system has it with one."""

from __future__ import annotations

import pytest

from hostguard.core.errors import SystemdFailed
from hostguard.systemd.dbus_blocking import Bus


def test_a_host_without_systemd_is_an_error_in_words(monkeypatch):
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nowhere")
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    with (
        pytest.raises(
            SystemdFailed, match=r"^systemd cannot be reached over D-Bus: .+; hostguard needs a host"
        ),
        Bus(),
    ):
        pass
