"""Names of units."""

import pytest

from hostguard.units import unit_of_cgroup

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
