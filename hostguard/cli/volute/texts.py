"""The files that put the guard in front of Volute, and what nft says of the table. Pure."""

from __future__ import annotations

import json

from hostguard.config.toml import toml_value
from hostguard.core.model import Volute
from hostguard.linux.sockets import MARK

TABLE = "inet hostguard"
FRONT_PORT = 4301  # of hostguard-front.socket
SOCKET, LOADER = "hostguard-front.socket", "hostguard-volute.service"
HEAD = "# Written by `hostguard volute guard`; `hostguard volute unguard` removes it.\n"

# As units/hostguard-volute.service has it. Connections that are redirected go on: their chain stays.
STRAIGHT = (
    "add table inet hostguard;"
    " add chain inet hostguard output { type nat hook output priority -101; policy accept; };"
    " flush table inet hostguard;"
    " add rule inet hostguard output ct state new return"
)


def table(ports: tuple[int, int], daemon: int | None, drop_remote: bool) -> str:
    """The rules, for nft -f, which loads all or none. `daemon`: the port of Volute's daemon."""
    first, last = ports
    own = daemon is not None and first <= daemon <= last
    rules = [
        '# Also what goes to other addresses of this host leaves by "lo".',
        'oifname != "lo" return',
        "# The guard's own connections to the minds.",
        f"meta mark {MARK:#x} return",
        "# Connections that are open stay as they are.",
        "tcp flags & (fin | syn | rst | ack) != syn return",
        *([f"tcp dport {daemon} return"] if own else []),
        f"tcp dport {first}-{last} redirect to :{FRONT_PORT}",
    ]
    # At -100, where Docker's rules are, the chain that was added last would go first.
    chains = [_chain("output", "nat hook output priority -101", rules)]
    if drop_remote:
        drop = [f'iifname != "lo" tcp dport {first}-{last} drop']
        chains.append(_chain("input", "filter hook input priority 0", drop))
    body = "\n".join(chains)
    return f"{HEAD}table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n{body}\n}}\n"


def _chain(name: str, kind: str, rules: list[str]) -> str:
    lines = "".join(f"        {rule}\n" for rule in rules)
    return f"    chain {name} {{\n        type {kind}; policy accept;\n{lines}    }}"


def drop_in(redirected: bool = True) -> str:
    """For the unit of Volute. It stays while turns of minds run, after nothing is redirected any more."""
    units = f"[Unit]\nWants={SOCKET} {LOADER}\nAfter={SOCKET} {LOADER}\n" if redirected else ""
    reason = "# The guard moves the processes of a turn into its scope, and back.\n"
    return f"{HEAD}{units}[Service]\n{reason}Delegate=yes\n"


def configuration(volute: Volute) -> str:
    """The section [volute], as a drop-in of the guard's configuration."""
    keys = {"home": toml_value(volute.home), "unit": toml_value(volute.unit), "ports": [*volute.ports]}
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return f"{HEAD}[volute]\n{lines}"


def redirects(listed: str) -> tuple[bool, bool]:
    """Of `nft --json list ruleset`: whether our table redirects to the guard, and drops what is not local."""
    rules = [one["rule"] for one in json.loads(listed)["nftables"] if "rule" in one]
    ours = [rule for rule in rules if f"{rule['family']} {rule['table']}" == TABLE]
    parts = [(rule["chain"], part) for rule in ours for part in rule["expr"]]
    return (
        any(chain == "output" and "redirect" in part for chain, part in parts),
        any(chain == "input" and "drop" in part for chain, part in parts),
    )
