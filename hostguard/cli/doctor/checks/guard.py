"""The guard itself: its configuration, its service, and whether what it guards is in its reach."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

from hostguard.cli.doctor.checks import Check, Host, Level, ok
from hostguard.core.units import SLICE
from hostguard.linux.cgroup import MOUNT
from hostguard.linux.limits import Label, Verdict, configured, judge, worst

SHOWN = 3  # processes that are named


def config(host: Host) -> Check:
    """The configuration can be used."""
    if not host.faults:
        sources = host.config.sources
        return ok("config", f"read {', '.join(sources)}" if sources else "no file: the defaults apply")
    unread = [fault for fault in host.faults if fault.endswith(os.strerror(errno.EACCES))]
    if unread:  # root may read everything
        why = "What follows is of the defaults."
        return Check(
            "config", Level.WARNING, f"you may not read it: {unread[0]}", why, ("sudo hostguard doctor",)
        )
    return Check(
        "config",
        Level.PROBLEM,
        host.faults[0] + (f" (and {len(host.faults) - 1} more)" if len(host.faults) > 1 else ""),
        "The guard does not start with it, and does not take it over. What follows is of the defaults.",
        ("hostguard config check",),
    )


def minds(host: Host) -> Check:
    """There is somebody to guard: else this is the first run, or the wrong host."""
    if host.config.minds or host.faults:
        return ok("minds", ", ".join(host.config.minds) or "not known")
    steps = (
        "hostguard setup    # limits that suit this host",
        "hostguard mind add NAME ...    # a command, a server, or a mind of Volute's",
        "hostguard reload",
    )
    return Check("minds", Level.WARNING, "no mind is configured", "So there is nothing to guard yet.", steps)


def daemon(host: Host) -> Check:
    """The guard runs, and comes back after a reboot."""
    status = host.daemon
    if status is None:
        if host.denied:
            return Check("daemon", Level.WARNING, host.daemon_fault, "", ("sudo hostguard doctor",))
        unit = "--user-unit" if host.user else "--unit"
        log = f"journalctl {unit} hostguard -n 20"
        if host.daemon_fault:
            why = "It runs, but does not work: nothing is accepted or started."
            return Check("daemon", Level.PROBLEM, host.daemon_fault, why, (log,))
        start = (f"{host.systemctl} enable --now hostguard", f"{log}    # if it fails")
        return Check("daemon", Level.PROBLEM, "it does not run", "Nothing holds turns back.", start)
    if status["state"] == "no_systemd":
        mend = (f"{host.systemctl} status dbus; {host.systemctl} restart hostguard",)
        return Check("daemon", Level.PROBLEM, "it cannot reach systemd", "It starts no turn unseen.", mend)
    if status["problems"]:
        text = "; ".join(problem["text"] for problem in status["problems"])
        return Check("daemon", Level.PROBLEM, text, "", ("journalctl -t hostguardd -p warning -b",))
    if not host.user and not any(
        host.exists(f"{place}/multi-user.target.wants/hostguard.service") for place in _WANTS
    ):
        mend = ("systemctl enable hostguard",)
        return Check("daemon", Level.WARNING, "it runs, but does not after a reboot", "", mend)
    return ok("daemon", f"{status['state']}, version {status['version']}")


_WANTS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/run/systemd/system")


def place(host: Host) -> Check:
    """The guard is not among what it limits."""
    if not host.exists(f"{MOUNT}/{SLICE}/hostguard.service"):
        return ok("place", f"outside {SLICE}")
    why = "The limits of the turns bind it, too: it cannot act just when it must."
    mend = ("systemctl edit hostguard    # take Slice= out", "systemctl restart hostguard")
    return Check("place", Level.PROBLEM, f"hostguard.service is in {SLICE}", why, mend)


def cap(host: Host) -> Check:
    """On a slow disk there is a cap."""
    limit = host.config.global_concurrent_turns if host.daemon is None else host.daemon["cap"]
    if limit is not None or not host.slow:
        return ok("cap", "unlimited" if limit is None else f"{limit} turns")
    return Check(
        "cap",
        Level.WARNING,
        f"any number of turns may start at once on {host.device.name}",
        "Pressure lowers the cap only once the disk is slow already. A cap costs no throughput on a card: it"
        " is the bottleneck either way (24 turns: 18 s at once, 17 s by two).",
        ("hostguard limit set global_concurrent_turns=2",),
    )


def limits(host: Host) -> Check:
    """The limits that are configured act: as the daemon read them back, else as far as can be told."""
    if host.daemon is not None:
        verdicts = [
            Verdict(item["limit"], Label(item["label"]), item["why"])
            for item in host.daemon.get("enforcement", [])
        ]
    else:
        kinds = sorted(configured(host.config), key=repr)
        verdicts = worst(verdict for kind in kinds for verdict in judge(kind, host.kernel, None))
    weak = [verdict for verdict in verdicts if verdict.label in (Label.INERT, Label.PARTIAL)]
    if not weak:
        names = ", ".join(verdict.limit for verdict in verdicts)
        sure = all(verdict.label is Label.ENFORCED for verdict in verdicts)
        return ok("limits", f"{names}{'' if sure else ', not read back yet'}" if names else "none set")
    inert = any(verdict.label is Label.INERT for verdict in weak)
    groups: dict[tuple[Label, str], list[str]] = {}
    for verdict in weak:
        groups.setdefault((verdict.label, verdict.why), []).append(verdict.limit)
    acts = {Label.INERT: "without effect", Label.PARTIAL: "in part"}
    return Check(
        "limits",
        Level.PROBLEM if inert else Level.WARNING,
        "; ".join(f"{', '.join(names)} {acts[label]} ({why})" for (label, why), names in groups.items()),
        "A limit that does not act is worse than none: somebody relies on it.",
        ("# mend what is found of the controllers, the scheduler or the device; or remove the limit",),
    )


def strays(host: Host) -> Check:
    """What minds run is in the slice, where it is limited and counted."""
    found = [f"{pid} {name} in {unit}" for pid, name, unit in _strays(host)]
    if not found:
        return ok("strays", f"no process of a mind outside {SLICE}")
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return Check(
        "strays",
        Level.WARNING,
        f"processes of minds outside {SLICE}: {', '.join(found[:SHOWN])}{more}",
        "No limit binds them, and no slot is taken while they write. They were started by a service, cron, or"
        " with systemd-run. A resident mind's own server belongs outside; its service is the mind's unit.",
        ("hostguard run --mind NAME -- COMMAND    # instead, for work of a mind",),
    )


def _strays(host: Host) -> Iterator[tuple[str, str, str]]:
    """Pid, name and unit of each process that left its turn, or is a mind's user's in some service."""
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
