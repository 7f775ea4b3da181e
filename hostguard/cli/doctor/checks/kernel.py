"""Checks of the kernel and systemd."""

from __future__ import annotations

from hostguard.cli.doctor.checks import OUTSIDE, Check, Host, ok, problem, warning
from hostguard.cli.doctor.checks.boot import FIRMWARE, add_option, remove_options
from hostguard.linux.cgroup import CONTROLLERS, MOUNT
from hostguard.linux.limits import FILES, IO_MAX, configured
from hostguard.linux.mounts import Mount, read_mounts

LEGACY = ("systemd.unified_cgroup_hierarchy", "systemd.legacy_systemd_cgroup_controller")
V1_NAMES = {"io": "blkio"}  # controllers with another name in version 1
TESTED = 252  # the oldest systemd that hostguard is tested with, that of Debian 12


def systemd(host: Host) -> Check:
    """systemd runs, in a version that is tested."""
    if host.systemd is None:
        why = "Every turn is a systemd scope. hostguard cannot work in a container."
        return problem("this host does not run systemd", why)
    if host.systemd < TESTED:
        why = f"hostguard is tested with {TESTED} and newer; older versions support fewer limits for scopes."
        return warning(f"version {host.systemd}", why, "# upgrade to Debian 12 or newer")
    return ok(f"version {host.systemd}")


def cgroup(host: Host) -> Check:
    """cgroup version 2 is mounted alone, and writable."""
    places = {mount.place: mount for mount in read_mounts(host.root)}
    top = places.get(MOUNT)
    why = "Limits and the detection of a turn's end need cgroup version 2."
    if top is None or top.kind != "cgroup2":
        beside = any(mount.kind == "cgroup2" for mount in places.values())
        given = _legacy(host)
        mend = (
            remove_options(host, *given) if given else add_option(host, "systemd.unified_cgroup_hierarchy=1")
        )
        found = "mounted next to version 1, without controllers" if beside else "not mounted"
        return problem(f"version 2 is {found}", why, *mend)
    if "ro" in top.options:
        return problem("version 2 is mounted read-only", why, f"mount -o remount,rw {MOUNT}")
    return ok("version 2")


def _legacy(host: Host) -> list[str]:
    """Options on the kernel's command line that select cgroup version 1."""
    return [word for word in host.text("/proc/cmdline").split() if word.split("=")[0] in LEGACY]


def io_controller(host: Host) -> Check:
    """The io controller is available."""
    missing = f"{'the user manager' if host.user else 'cgroup version 2'} has no io controller"
    why = "Limits on reading, writing and the share of the disk have no effect. Caps and pressure still work."
    build = "CONFIG_BLK_CGROUP and CONFIG_BLK_DEV_THROTTLING"
    return _controller(host, "io", ["io_weight", *IO_MAX], missing, why, build)


def memory_controller(host: Host) -> Check:
    """The memory controller is available."""
    off = "cgroup_disable=memory" in host.text("/proc/cmdline").split()
    missing = "cgroup_disable=memory disables it" if off else "not available"
    why = (
        "Memory limits have no effect, and write limits miss the data that the kernel writes later from its"
        " cache, which is most of what a turn writes."
    )
    limits = [name for name in FILES if name.startswith("memory")]
    return _controller(host, "memory", limits, missing, why, "CONFIG_MEMCG")


def _controller(host: Host, name: str, limits: list[str], missing: str, why: str, build: str) -> Check:
    if name in host.kernel.controllers:
        return ok("available")
    if _held_by_v1(host, name):
        missing = "cgroup version 1 holds it"
        places = [mount.place for mount in read_mounts(host.root) if _holds(mount, name)]
        missing += f" (mounted at {', '.join(places)})" if places else ""
    given = configured(host.config)
    inert = [limit for limit in limits if any(getattr(one, limit) is not None for one in given)]
    report = problem if inert else warning
    found = missing + (f": {', '.join(inert)} cannot take effect" if inert else "")
    return report(found, why, *_enable(host, name, build))


def _held_by_v1(host: Host, name: str) -> bool:
    """Whether the controller is in a hierarchy of version 1: no other one can have it then (cgroups(7))."""
    if name in host.text(CONTROLLERS).split():
        return False
    for line in host.text("/proc/cgroups").splitlines():
        subsystem, hierarchy, *_ = line.split("\t")
        if subsystem == V1_NAMES.get(name, name):
            return hierarchy != "0"
    return False


def _holds(mount: Mount, name: str) -> bool:
    return mount.kind == "cgroup" and V1_NAMES.get(name, name) in mount.options


def psi(host: Host) -> Check:
    """The kernel reports how long tasks wait for I/O."""
    if host.text("/proc/pressure/io"):
        return ok("available")
    given = "psi=1" in host.text("/proc/cmdline").split()
    return warning(
        "/proc/pressure/io does not exist or cannot be read",
        "Pressure is judged by the disk alone: a slow disk counts even if no task waits for it.",
        *(("# this needs a kernel with CONFIG_PSI",) if given else add_option(host, "psi=1")),
    )


def hung_task(host: Host) -> Check:
    """A stalled disk does not make the kernel panic."""
    seconds = host.text("/proc/sys/kernel/hung_task_timeout_secs").strip() or "120"
    if host.text("/proc/sys/kernel/hung_task_panic").strip() not in ("1", "2"):
        return ok("no panic")
    return warning(
        f"hung_task_panic is on: a task that waits {seconds} s for the disk makes the kernel panic",
        "Some SD cards stall for more than two minutes and then continue. The guard can handle that.",
        "sysctl -w kernel.hung_task_panic=0    # and remove it from /etc/sysctl.d",
    )


def _enable(host: Host, controller: str, build: str) -> tuple[str, ...]:
    cmdline = host.text("/proc/cmdline").split()
    if host.user and controller in host.text(CONTROLLERS).split():
        folder = "/etc/systemd/system/user@.service.d"
        return (
            f"mkdir -p {folder}; printf '[Service]\\nDelegate=cpu io memory pids\\n' >{folder}/delegate.conf",
            "systemctl daemon-reload    # then log out and in again",
        )
    if host.container:
        return (OUTSIDE,)
    if _held_by_v1(host, controller):
        given = _legacy(host)
        return remove_options(host, *given) if given else add_option(host, "cgroup_no_v1=all")
    if controller == "memory" and any(map(host.exists, FIRMWARE)):
        # cmdline.txt comes after the firmware's own options and overrides them (raspberrypi/linux#6980).
        return add_option(host, "cgroup_enable=memory")
    if (off := f"cgroup_disable={controller}") in cmdline:
        return remove_options(host, off)
    return (f"# this needs a kernel with {build}",)
