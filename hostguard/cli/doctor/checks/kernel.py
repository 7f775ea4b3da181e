"""Checks of the kernel and systemd."""

from __future__ import annotations

from hostguard.cli.doctor.checks import Check, Host, boot_option, ok, problem, warning
from hostguard.linux.cgroup import CONTROLLERS, MOUNT
from hostguard.linux.disk import read_mounts
from hostguard.linux.limits import FILES, IO_MAX, configured

NOT_INSIDE = "# run the guard on the host, not in a container"
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
        options = ("systemd.unified_cgroup_hierarchy", "systemd.legacy_systemd_cgroup_controller")
        given = [word for word in host.text("/proc/cmdline").split() if word.split("=")[0] in options]
        remove = f"# remove {' '.join(given)} from the kernel's command line, then reboot"
        mend = (remove,) if given else boot_option(host, "systemd.unified_cgroup_hierarchy=1")
        found = "mounted next to version 1, without controllers" if beside else "not mounted"
        return problem(f"version 2 is {found}", why, *mend)
    if "ro" in top.options:
        return problem("version 2 is mounted read-only", why, NOT_INSIDE)
    return ok("version 2")


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
    given = configured(host.config)
    inert = [limit for limit in limits if any(getattr(one, limit) is not None for one in given)]
    report = problem if inert else warning
    found = missing + (f": {', '.join(inert)} cannot take effect" if inert else "")
    return report(found, why, *_enable(host, name, build))


def psi(host: Host) -> Check:
    """The kernel reports how long tasks wait for I/O."""
    if host.text("/proc/pressure/io"):
        return ok("available")
    given = "psi=1" in host.text("/proc/cmdline").split()
    return warning(
        "/proc/pressure/io does not exist or cannot be read",
        "Pressure is judged by the disk alone: a slow disk counts even if no task waits for it.",
        *(("# this needs a kernel with CONFIG_PSI",) if given else boot_option(host, "psi=1")),
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
    if host.exists("/run/.containerenv") or host.exists("/.dockerenv"):
        return (NOT_INSIDE,)
    cmdline = host.text("/proc/cmdline").split()
    if host.user and controller in host.text(CONTROLLERS).split():
        folder = "/etc/systemd/system/user@.service.d"
        return (
            f"mkdir -p {folder}; printf '[Service]\\nDelegate=cpu io memory pids\\n' >{folder}/delegate.conf",
            "systemctl daemon-reload    # then log out and in again",
        )
    firmware = host.exists("/boot/firmware/cmdline.txt") or host.exists("/boot/cmdline.txt")
    if controller == "memory" and firmware:
        # cmdline.txt comes after the firmware's own options and overrides them (raspberrypi/linux#6980).
        return boot_option(host, "cgroup_enable=memory")
    if f"cgroup_disable={controller}" in cmdline:
        return (f"# remove cgroup_disable={controller} from the kernel's command line, then reboot",)
    return (f"# this needs a kernel with {build}",)
