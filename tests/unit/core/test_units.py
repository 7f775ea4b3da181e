"""Names of units."""

import pytest
from dbus_next import Variant

from hostguard.core.model import Limits
from hostguard.core.units import scope_properties, unit_of_cgroup

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


def test_every_limit_has_its_form():
    limits = Limits(10, 20, 30, 40, 50, 60, 70, 80, 90.0)
    given = scope_properties("m", "", limits, "/dev/x", [1], delegate=True)
    made = {name: Variant(signature, value).value for name, signature, value in given}  # as systemd.py does
    assert made["IOWriteBandwidthMax"] == [["/dev/x", 30]]
    assert made["RuntimeMaxUSec"] == 90_000_000
