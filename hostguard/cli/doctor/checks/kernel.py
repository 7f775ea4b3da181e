"""Checks of the kernel and systemd."""

from __future__ import annotations

from hostguard.cli.doctor.checks import Check, Host, Level, boot_option, ok, problem, warning
from hostguard.linux.cgroup import CONTROLLERS, MOUNT
from hostguard.linux.limits import FILES, IO_MAX, configured
from hostguard.linux.mounts import read

TESTED = 252  # the oldest systemd that hostguard is tested with, that of Debian 12


def systemd(host: Host) -> Check:
    """systemd runs, in a version that is tested."""
    if host.systemd is None:
        return problem(
            "systemd",
            "this host does not run systemd",
            "Every turn is a systemd scope. hostguard cannot work in a container.",
        )
    if host.systemd < TESTED:
        why = f"hostguard is tested with {TESTED} and newer; older versions support fewer limits for scopes."
        return warning("systemd", f"version {host.systemd}", why, "# upgrade to Debian 12 or newer")
    return ok("systemd", f"version {host.systemd}")


def cgroup(host: Host) -> Check:
    """cgroup version 2 is mounted alone, and writable."""
    places = {mount.place: mount for mount in read(host.root)}
    top = places.get(MOUNT)
    why = "Limits and the detection of a turn's end need cgroup version 2."
    if top is None or top.kind != "cgroup2":
        beside = any(mount.kind == "cgroup2" for mount in places.values())
        options = ("systemd.unified_cgroup_hierarchy", "systemd.legacy_systemd_cgroup_controller")
        given = [word for word in host.text("/proc/cmdline").split() if word.split("=")[0] in options]
        mend = (f"# remove {' '.join(given)} from the kernel's command line, then reboot",) if given else ()
        return problem(
            "cgroup",
            "version 2 is mounted next to version 1, without controllers"
            if beside
            else "version 2 is not mounted",
            why,
            *(mend or boot_option(host, "systemd.unified_cgroup_hierarchy=1")),
        )
    if "ro" in top.options:
        mend = ("# run the guard on the host, not in a container",)
        return problem("cgroup", "version 2 is mounted read-only", why, *mend)
    return ok("cgroup", "version 2")


def io_controller(host: Host) -> Check:
    """The io controller is available."""
    if "io" in host.kernel.controllers:
        return ok("io_controller", "available")
    set_ = _set(host, ("io_weight", *IO_MAX))
    return Check(
        "io_controller",
        Level.PROBLEM if set_ else Level.WARNING,
        f"{'the user manager' if host.user else 'cgroup version 2'} has no io controller{_so(set_)}",
        "Limits on reading, writing and the share of the disk have no effect. Caps and pressure still work.",
        _enable(host, "io", "CONFIG_BLK_CGROUP and CONFIG_BLK_DEV_THROTTLING"),
    )


def memory_controller(host: Host) -> Check:
    """The memory controller is available."""
    if "memory" in host.kernel.controllers:
        return ok("memory_controller", "available")
    set_ = _set(host, [name for name in FILES if name.startswith("memory")])
    off = "cgroup_disable=memory" in host.text("/proc/cmdline").split()
    return Check(
        "memory_controller",
        Level.PROBLEM if set_ else Level.WARNING,
        f"{'cgroup_disable=memory disables it' if off else 'not available'}{_so(set_)}",
        "Memory limits have no effect, and write limits miss the data that the kernel writes later from its"
        " cache, which is most of what a turn writes.",
        _enable(host, "memory", "CONFIG_MEMCG"),
    )


def psi(host: Host) -> Check:
    """The kernel reports how long tasks wait for I/O."""
    if host.text("/proc/pressure/io"):
        return ok("psi", "available")
    given = "psi=1" in host.text("/proc/cmdline").split()
    return warning(
        "psi",
        "/proc/pressure/io does not exist or cannot be read",
        "Pressure is judged by the disk alone: a slow disk counts even if no task waits for it.",
        *(("# this needs a kernel with CONFIG_PSI",) if given else boot_option(host, "psi=1")),
    )


def hung_task(host: Host) -> Check:
    """A stalled disk does not make the kernel panic."""
    seconds = host.text("/proc/sys/kernel/hung_task_timeout_secs").strip() or "120"
    if host.text("/proc/sys/kernel/hung_task_panic").strip() not in ("1", "2"):
        return ok("hung_task", "no panic")
    return warning(
        "hung_task",
        f"hung_task_panic is on: a task that waits {seconds} s for the disk makes the kernel panic",
        "Some SD cards stall for more than two minutes and then continue. The guard can handle that.",
        "sysctl -w kernel.hung_task_panic=0    # and remove it from /etc/sysctl.d",
    )


def _set(host: Host, names: list[str] | tuple[str, ...]) -> list[str]:
    """The limits among `names` that are configured."""
    limits = configured(host.config)
    return [name for name in names if any(getattr(one, name) is not None for one in limits)]


def _so(set_: list[str]) -> str:
    return f": {', '.join(set_)} cannot take effect" if set_ else ""


def _enable(host: Host, controller: str, build: str) -> tuple[str, ...]:
    if host.exists("/run/.containerenv") or host.exists("/.dockerenv"):
        return ("# run the guard on the host, not in a container",)
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
