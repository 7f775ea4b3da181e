"""The time zones that schedules name."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest

from hostguard.linux import timezones

SUMMER = datetime(2026, 7, 1, 12, tzinfo=UTC)


def test_known_zones_are_found_and_others_are_none():
    found = timezones.zones(["Europe/Berlin", "Mars/Base", "../../etc/passwd", "UTC"])
    assert [name for name, zone in found.items() if zone is None] == ["Mars/Base", "../../etc/passwd"]
    assert SUMMER.astimezone(found["Europe/Berlin"]).utcoffset() == timedelta(hours=2)


def test_no_name_is_the_zone_of_the_host(monkeypatch, tmp_path):
    localtime = tmp_path / "localtime"
    monkeypatch.setattr(timezones, "LOCALTIME", localtime)
    assert timezones.zones([""]) == {"": UTC}, "a host without one has UTC, as glibc"
    localtime.write_text("no zone")
    assert timezones.zones([""]) == {"": UTC}
    localtime.unlink()
    zone = next((f for f in ("/usr/share/zoneinfo/Asia/Kolkata",) if os.path.exists(f)), None)
    if zone is None:
        pytest.skip("this host has no zoneinfo files")
    localtime.symlink_to(zone)
    assert SUMMER.astimezone(timezones.zones([""])[""]).utcoffset() == timedelta(hours=5, minutes=30)
