"""Names and properties of hostguard's units, for both D-Bus libraries. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hostguard.core.model import Limits

SLICE = "hostguard.slice"
HOLDER = 65533  # the user of the stubs in the scopes, as in systemd/fork_server.py
UNASKED = "w"  # the first letter of the id of a turn that no message began; "x": `hostguard run` alone
_TURN = re.compile(r"hostguard-turn-(?P<mind>.+)-(?P<turn>[0-9]+(?:\.[0-9]+)?|[wx][0-9a-f]{8})\.scope")
_OUTSIDE = re.compile(r"hostguard-outside-.+-([0-9a-f]{8})\.scope")

Property = tuple[str, str, Any]


def escape(text: str) -> str:
    r"""As systemd-escape(1), but "/" becomes \x2f, so that no two texts share a name."""
    raw = re.sub(rb"^\.|[^A-Za-z0-9:_.]", lambda match: b"\\x%02x" % ord(match[0]), text.encode())
    return raw.decode()


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), text.encode())
    return raw.decode(errors="replace")


def turn_unit(mind: str, turn: str) -> str:
    """The name of a turn's scope."""
    return f"hostguard-turn-{escape(mind)}-{turn}.scope"


def mind_slice(mind: str) -> str:
    """The name of the slice of a mind's turns."""
    return f"hostguard-{escape(mind)}.slice"


def outside_unit(mind: str, id_: str) -> str:
    """The scope that keeps a slot for what a turn left outside, by a hexadecimal number."""
    return f"hostguard-outside-{escape(mind)}-{id_}.scope"


def outside_id(unit: str) -> str | None:
    """The id of such a scope as that of a turn, "outside-..."; None for any other unit."""
    match = _OUTSIDE.fullmatch(unit)
    return f"outside-{match[1]}" if match else None


def parse_turn_unit(unit: str) -> tuple[str, str] | None:
    """(mind, turn id) of a turn's scope, or None for any other unit."""
    match = _TURN.fullmatch(unit)
    return (unescape(match["mind"]), match["turn"]) if match else None


def slice_mind(name: str) -> str | None:
    """The mind whose slice this is; "" for hostguard.slice itself; None for any other slice."""
    if name == SLICE:
        return ""
    if name.startswith("hostguard-") and name.endswith(".slice"):
        return unescape(name.removeprefix("hostguard-").removesuffix(".slice").split("-")[0])
    return None


def unit_of_cgroup(cgroup: str, root: str) -> tuple[str, str] | None:
    """The unit of a cgroup, and the path below the unit's own, "" or "/..."; `root` is the manager's."""
    prefix = root.rstrip("/") + "/"
    if not cgroup.startswith(prefix):
        return None
    parts = cgroup.removeprefix(prefix).split("/")
    while parts and parts[0].endswith(".slice"):
        del parts[0]
    if not parts or not parts[0].endswith((".service", ".scope")):
        return None
    return parts[0], "".join(f"/{part}" for part in parts[1:])


def scope_properties(
    mind: str,
    description: str,
    limits: Limits,
    device: str | None,
    pids: Sequence[int],
    delegate: bool = False,
) -> list[Property]:
    """Properties for StartTransientUnit as (name, D-Bus signature, value).

    `device`: the node for I/O limits; without it they are left out. `delegate`: processes can be attached.
    """
    props: list[Property] = [
        ("Description", "s", description),
        ("Slice", "s", mind_slice(mind)),
        # Without it failed scopes pile up (bigbluebutton#24088: 130,786 units).
        ("CollectMode", "s", "inactive-or-failed"),
        ("PIDs", "au", list(pids)),
        ("CPUAccounting", "b", True),
        ("MemoryAccounting", "b", True),
        ("TasksAccounting", "b", True),
        ("IOAccounting", "b", True),
    ]
    for name, value in (
        ("IOWeight", limits.io_weight),
        ("MemoryHigh", limits.memory_high),
        ("MemoryMax", limits.memory_max),
        ("TasksMax", limits.tasks_max),
    ):
        if value is not None:
            props.append((name, "t", value))
    if device is not None:
        for name, value in (
            ("IOReadBandwidthMax", limits.read_bandwidth),
            ("IOWriteBandwidthMax", limits.write_bandwidth),
            ("IOReadIOPSMax", limits.read_iops),
            ("IOWriteIOPSMax", limits.write_iops),
        ):
            if value is not None:
                props.append((name, "a(st)", [[device, value]]))  # dbus-next takes lists alone
    if delegate:
        props.append(("Delegate", "b", True))
    if limits.max_turn is not None:
        props.append(("RuntimeMaxUSec", "t", int(limits.max_turn * 1_000_000)))
    return props


def spawner_properties(argv: Sequence[str]) -> list[Property]:
    """Properties of the fork server's service, protected as hostguard.service, but without its sandbox."""
    return [
        ("Description", "s", "Starts the turns of AI minds for hostguard"),
        ("Type", "s", "exec"),
        ("ExecStart", "a(sasb)", [[argv[0], list(argv), False]]),
        ("Environment", "as", ["LANG=C.UTF-8"]),
        ("CollectMode", "s", "inactive-or-failed"),
        ("OOMScoreAdjust", "i", -900),
        ("CPUWeight", "t", 1000),
        ("IOWeight", "t", 1000),
    ]
