"""Names of units."""

import pytest
from dbus_next import Variant

from hostguard.core.model import Limits
from hostguard.core.units import (
    outside_id,
    outside_unit,
    parse_turn_unit,
    scope_properties,
    spawner_properties,
    turn_unit,
    unit_of_cgroup,
)

CGROUPS = [
    ("/system.slice/x.service", "", ("x.service", "")),
    ("/system.slice/x.service", "/", ("x.service", "")),
    (
        "/hostguard.slice/hostguard-m.slice/hostguard-mind@m.service/a/b",
        "",
        ("hostguard-mind@m.service", "/a/b"),
    ),
    (
        "/user.slice/user-7.slice/user@7.service/app.slice/x.service",
        "",
        ("user@7.service", "/app.slice/x.service"),
    ),
    (
        "/user.slice/user-7.slice/user@7.service/app.slice/x.service",
        "/user.slice/user-7.slice/user@7.service",
        ("x.service", ""),
    ),
    ("/user.slice/user-7.slice/session-3.scope", "", ("session-3.scope", "")),
    ("/user.slice/user-7.slice/session-3.scope", "/user.slice/user-7.slice/user@7.service", None),
    ("/user.slice", "", None),
    ("/lxc/x", "", None),
    ("/", "", None),
]


@pytest.mark.parametrize(("cgroup", "root", "unit"), CGROUPS)
def test_unit_of_cgroup(cgroup, root, unit):
    assert unit_of_cgroup(cgroup, root) == unit


@pytest.mark.parametrize("mind", ["m", "a-b", "a:b.c", "ä", "outside-00000000"])
def test_the_scope_of_what_is_outside(mind):
    unit = outside_unit(mind, "0123abcd")
    assert (outside_id(unit), parse_turn_unit(unit)) == ("outside-0123abcd", None)
    assert outside_id(turn_unit(mind, "7")) is None


ALWAYS = {
    "Description": ("s", "what it is"),
    "Slice": ("s", "hostguard-m.slice"),
    "CollectMode": ("s", "inactive-or-failed"),
    "PIDs": ("au", [1, 2]),
    "CPUAccounting": ("b", True),
    "MemoryAccounting": ("b", True),
    "TasksAccounting": ("b", True),
    "IOAccounting": ("b", True),
}
LIMITS = {
    "IOReadBandwidthMax": ("a(st)", [["/dev/x", 20]]),
    "IOWriteBandwidthMax": ("a(st)", [["/dev/x", 30]]),
    "IOReadIOPSMax": ("a(st)", [["/dev/x", 40]]),
    "IOWriteIOPSMax": ("a(st)", [["/dev/x", 50]]),
    "IOWeight": ("t", 10),
    "MemoryHigh": ("t", 60),
    "MemoryMax": ("t", 70),
    "TasksMax": ("t", 80),
    "RuntimeMaxUSec": ("t", 90_500_000),
}


@pytest.mark.parametrize("with_device", [True, False])
@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("delegate", [True, False])
def test_a_scopes_properties(with_device, limited, delegate):
    limits = Limits(10, 20, 30, 40, 50, 60, 70, 80, 90.5) if limited else Limits()
    given = scope_properties("m", "what it is", limits, "/dev/x" if with_device else None, [1, 2], delegate)
    expected = dict(ALWAYS)
    if limited:
        expected |= {name: form for name, form in LIMITS.items() if with_device or form[0] != "a(st)"}
    if delegate:
        expected["Delegate"] = ("b", True)
    assert sorted(name for name, _, _ in given) == sorted(expected)
    assert {name: (signature, value) for name, signature, value in given} == expected


def test_every_property_can_be_sent():
    limits = Limits(10, 20, 30, 40, 50, 60, 70, 80, 90.0)
    scope = scope_properties("m", "", limits, "/dev/x", [1], delegate=True)
    for name, signature, value in scope + spawner_properties(["/bin/x", "y"]):
        assert Variant(signature, value).value == value, name  # refused if its form is another
