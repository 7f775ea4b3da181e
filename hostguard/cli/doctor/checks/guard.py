"""Checks of the guard itself: its configuration, its service, and whether the turns are in its reach."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

from hostguard.cli.doctor.checks import Check, Host, Level, ok, problem, warning
from hostguard.core.units import SLICE
from hostguard.linux.cgroup import MOUNT
from hostguard.linux.limits import Label, Verdict, configured, judge, worst

UNIT_FILES = ("/etc", "/usr/lib", "/run")
OWN_CHECKS = ("no_systemd", "no_disk", "not_durable")  # problems of the daemon that other findings are about
SHOWN = 3  # processes to name


def config(host: Host) -> Check:
    """The configuration is valid."""
    if not host.faults:
        sources = host.config.sources
        return ok(f"read {', '.join(sources)}" if sources else "no file: the defaults apply")
    unread = [fault for fault in host.faults if fault.endswith(os.strerror(errno.EACCES))]
    if unread:  # root can read everything
        why = "The other checks use the defaults."
        return warning(f"no permission to read it: {unread[0]}", why, "sudo hostguard doctor")
    return problem(
        host.faults[0] + (f" (and {len(host.faults) - 1} more)" if len(host.faults) > 1 else ""),
        "The guard rejects it on reload, and a guard that starts may only be on standby. The other checks use"
        " the defaults.",
        "hostguard config check",
    )


def minds(host: Host) -> Check:
    """At least one mind is configured; otherwise this is the first run, or the wrong host."""
    if host.config.minds or host.faults:
        return ok(", ".join(host.config.minds) or "unknown")
    steps = (
        "hostguard setup    # limits that suit this host",
        "hostguard mind add NAME ...    # a command, a server or a Volute mind",
        "hostguard reload",
    )
    return warning("no mind is configured", "There is nothing to guard yet.", *steps)


def ports(host: Host) -> Check:
    """The guard can tell a resident mind's server from others that listen on its port."""
    resident = [mind for mind in host.config.minds.values() if mind.url is not None]
    unknown = [mind.name for mind in resident if mind.unit is None and not mind.user]
    if not unknown or host.user:
        return ok("each resident mind has a unit or a user" if resident else "no resident mind")
    more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
    return warning(
        f"neither unit nor user is set: {', '.join(unknown[:SHOWN])}{more}",
        "While such a mind is down, any process that listens on its port gets its messages.",
        "# in the configuration, under [minds.NAME]: set unit or user, the one that runs its server",
        "hostguard reload",
    )


def daemon(host: Host) -> Check:
    """The guard runs, and starts at boot."""
    status = host.daemon
    if status is None:
        if host.denied:
            return warning(host.daemon_fault, "", "sudo hostguard doctor")
        unit = "--user-unit" if host.user else "--unit"
        log = f"journalctl {unit} hostguard -n 20"
        if host.daemon_fault:
            why = "It runs but does not work: no message is accepted and no turn starts."
            return problem(host.daemon_fault, why, log)
        start = (f"{host.systemctl} enable --now hostguard", f"{log}    # if it fails")
        return problem("it is not running", "No turn is limited.", *start)
    if status["state"] == "no_systemd":
        mend = f"{host.systemctl} status dbus; {host.systemctl} restart hostguard"
        return problem("it cannot reach systemd", "It starts no turn that it cannot count.", mend)
    reported = [one for one in status["problems"] if one["code"] not in OWN_CHECKS]
    broken = [one["text"] for one in reported if one["severity"] == Level.PROBLEM]
    if broken:
        return problem("; ".join(broken), "", "journalctl -t hostguardd -p warning -b")
    if reported:
        return warning("; ".join(one["text"] for one in reported), "", "hostguard status")
    links = [f"{place}/systemd/system/multi-user.target.wants/hostguard.service" for place in UNIT_FILES]
    if not host.user and not any(map(host.exists, links)):
        return warning("it runs, but will not start at boot", "", "systemctl enable hostguard")
    return ok(f"{status['state']}, version {status['version']}")


def place(host: Host) -> Check:
    """The guard is outside the slice that it limits."""
    if not host.exists(f"{MOUNT}/{SLICE}/hostguard.service"):
        return ok(f"outside {SLICE}")
    why = "The limits of the turns apply to it too: it cannot act when it must."
    mend = ("systemctl edit hostguard    # remove Slice=", "systemctl restart hostguard")
    return problem(f"hostguard.service is in {SLICE}", why, *mend)


def cap(host: Host) -> Check:
    """There is a cap if the disk is slow."""
    limit = host.config.global_concurrent_turns if host.daemon is None else host.daemon["cap"]
    if limit is not None or not host.slow:
        return ok("unlimited" if limit is None else f"{limit} turns")
    return warning(
        f"no cap is set, and {host.device.name} is slow",
        "Without a cap, the guard acts only after the disk has become slow. A cap costs no throughput on an"
        " SD card, which is the bottleneck either way (24 turns: 18 s all at once, 17 s two at a time).",
        "hostguard limit set global_concurrent_turns=2",
    )


def limits(host: Host) -> Check:
    """The configured limits take effect, as the daemon read them back, or as far as is known."""
    if host.daemon is not None:
        items = host.daemon.get("enforcement", [])
        verdicts = [Verdict(item["limit"], Label(item["label"]), item["why"]) for item in items]
    else:
        kinds = sorted(configured(host.config), key=repr)
        verdicts = worst(verdict for kind in kinds for verdict in judge(kind, host.kernel, None))
    weak = [verdict for verdict in verdicts if verdict.label in (Label.INERT, Label.PARTIAL)]
    if not weak:
        names = ", ".join(verdict.limit for verdict in verdicts)
        sure = all(verdict.label is Label.ENFORCED for verdict in verdicts)
        return ok(f"{names}{'' if sure else ', not read back yet'}" if names else "none set")
    inert = any(verdict.label is Label.INERT for verdict in weak)
    groups: dict[tuple[Label, str], list[str]] = {}
    for verdict in weak:
        groups.setdefault((verdict.label, verdict.why), []).append(verdict.limit)
    acts = {Label.INERT: "without effect", Label.PARTIAL: "in part"}
    found = "; ".join(f"{', '.join(names)} {acts[label]} ({why})" for (label, why), names in groups.items())
    why = "A limit without effect is worse than none, because somebody relies on it."
    mend = "# fix the findings about controllers, scheduler or device, or remove the limit"
    return (problem if inert else warning)(found, why, mend)


def strays(host: Host) -> Check:
    """The processes of minds are in the slice, where they are limited and counted."""
    found = [f"{pid} {name} in {unit}" for pid, name, unit in _strays(host)]
    if not found:
        return ok(f"no process of a mind outside {SLICE}")
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return warning(
        f"processes of minds outside {SLICE}: {', '.join(found[:SHOWN])}{more}",
        "They are not limited, and take no slot while they write. A service, cron or systemd-run started"
        " them. The server of a resident mind belongs outside: set its service as the unit of the mind.",
        "hostguard run --mind NAME -- COMMAND    # use this for work of a mind",
    )


def _strays(host: Host) -> Iterator[tuple[str, str, str]]:
    """Pid, name and unit of each process that left its turn, or runs as a mind's user in another service."""
    minds = host.config.minds.values()
    users = {str(mind.uid) for mind in minds if mind.user and mind.uid}
    units = {mind.unit for mind in minds if mind.unit}
    for folder in sorted((host.root / "proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
        path = re.search(r"^0::(.*)$", host.text(f"/proc/{folder.name}/cgroup"), re.MULTILINE)
        parts = path[1].split("/") if path else []
        unit = next((part for part in reversed(parts) if part.endswith((".service", ".scope"))), "")
        if not unit or SLICE in parts or units & {*parts} or unit == "hostguard.service":
            continue
        status = host.text(f"/proc/{folder.name}/status")
        uid = re.search(r"^Uid:\s+([0-9]+)", status, re.MULTILINE)
        service = parts[1] == "system.slice" or unit.startswith("run-")
        turn = "HOSTGUARD_TURN=" in host.text(f"/proc/{folder.name}/environ")
        if turn or (service and uid is not None and uid[1] in users):
            yield folder.name, status.partition("\n")[0].removeprefix("Name:").strip(), unit
