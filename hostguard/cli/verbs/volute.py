"""hostguard volute: stand in front of a Volute on this host."""

from __future__ import annotations

import shlex

import click

from hostguard.cli.errors import FAILED, HELD, CliError, NotRunning
from hostguard.cli.options import json_option, show
from hostguard.core.text import safe

dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be done.")


@click.group()
def command() -> None:
    """Put the guard in front of a Volute that runs on this host.

    Every message to a mind of Volute then passes the gate, and runs as a turn in a scope. Nothing of Volute
    is configured, and its chat, web page, schedules and sleep go on as before.

    \b
    Examples:
      hostguard volute guard --dry-run
      sudo hostguard volute guard
      hostguard volute status
    """


@command.command()
@click.option("--drop-remote", is_flag=True, help="Also drop what reaches the minds' ports from the network.")
@dry_run_option
@json_option
def guard(drop_remote: bool, dry_run: bool, as_json: bool) -> None:
    """Lead every new connection to a mind of Volute through the guard.

    It finds the service that runs Volute, its home, and the ports of its minds; writes a section [volute] for
    the guard, a drop-in for that service, and rules for nftables in a table of its own; and starts what loads
    them, now and at each boot before Volute. Volute is not restarted. No other rule of nftables is changed.

    Connections that are open stay as they are: until they close, messages on them go past the gate. So does
    what the network sends to the minds, which listen on all addresses: --drop-remote drops that. A call
    without it no longer does.

    \b
    Examples:
      hostguard volute guard --dry-run
      sudo hostguard volute guard
      sudo hostguard volute guard --drop-remote
    """
    from hostguard.cli.volute import find, host, texts

    if not dry_run:
        host.need_root("guard")
    service = host.service()
    if service is None:
        raise find.not_found(find.local_owner())
    known = find.registry(service.home)
    volute = find.installation(service, known)
    rules = texts.table(volute.ports, known.daemon, drop_remote)
    files = {
        host.SECTION: texts.configuration(volute),
        host.drop_in_file(volute.unit): texts.drop_in(),
        host.RULES: rules,
    }
    # The guard gets its sockets as it starts.
    again = "reload-or-restart" if host.active(texts.SOCKET) else "restart"
    steps = [
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", texts.SOCKET],
        ["systemctl", again, host.GUARD],
        # Here the guard is asked whether it serves.
        ["systemctl", "enable", texts.LOADER],
        ["systemctl", "reload-or-restart", texts.LOADER],
    ]
    commands = [shlex.join(step) for step in steps]
    answer = {
        "unit": volute.unit, "home": volute.home, "ports": [*volute.ports], "drop_remote": drop_remote,
        "minds": sorted(known.minds), "files": {str(file): text for file, text in files.items()},
        "commands": commands, "done": not dry_run,
    }  # fmt: skip
    if dry_run:
        text = "".join(f"{safe(file)}:\n\n{_indented(text)}\n" for file, text in files.items())
        show(answer, as_json, f"{text}and:\n\n{_indented(chr(10).join(commands))}\nnothing was done")
        return
    host.need_nft(rules)
    before = 0 if host.redirected()[0] else host.connections(volute.ports, None, None).to_minds
    host.configure(texts.configuration(volute))
    host.write(host.RULES, rules)
    host.write(host.drop_in_file(volute.unit), texts.drop_in())
    for step in steps[:3]:
        host.run(step)
    if fault := host.fault_of(host.guard_status()):
        raise CliError(f"nothing is redirected, because the guard does not serve: {fault}")
    for step in steps[3:]:
        host.run(step)
    first, last = volute.ports
    says = [
        f"guarded: {safe(volute.unit)}, the ports {first} to {last},"
        f" {len(known.minds)} mind{'' if len(known.minds) == 1 else 's'}",
        *(f"wrote {safe(file)}" for file in files),
    ]
    if before:
        says.append(
            f"{before} open connections to minds stay as they are until they close; ss -K closes them:"
            f" ss -K dport ge :{first} and dport le :{last}"
        )
    if not drop_remote:
        says.append("the network can still POST to minds past the gate: --drop-remote drops that")
    says.append("next:\n  hostguard volute status")
    show({**answer, "open_connections": before}, as_json, "\n".join(says))


def _indented(text: str) -> str:
    return "".join(f"    {safe(line)}".rstrip() + "\n" for line in text.splitlines())


@command.command()
@dry_run_option
@json_option
def unguard(dry_run: bool, as_json: bool) -> int:
    """Lead new connections to the minds straight again, and then remove what `guard` wrote.

    It cuts no connection. While messages are held, turns run or connections go through the guard, the guard
    goes on with them: this verb says how many, and exits with 75. Call it again later to remove the rest.

    \b
    Examples:
      hostguard volute unguard --dry-run
      until sudo hostguard volute unguard; do sleep 10; done
    """
    from hostguard.cli.volute import host, state, texts

    volute = host.configured()
    if dry_run:
        files = [*map(str, (host.SECTION, host.RULES, *host.our_drop_ins()))]
        text = "\n".join([f"systemctl disable --now {texts.LOADER}", *(f"rm {safe(file)}" for file in files)])
        show({"files": files, "done": False}, as_json, f"{text}\nnothing was done")
        return 0
    host.need_root("unguard")
    host.go_straight()
    status = host.guard_status()
    if volute is not None and status is None:
        raise NotRunning(
            "new connections go straight, but hostguard is not running, and may hold messages:"
            " systemctl start hostguard, then hostguard volute unguard"
        )
    minds = host.minds(status, volute) if volute and status else ()
    left = [*state.left(minds, host.connections((0, 0), None, None))]
    if left:
        says = ["new connections go straight; what the guard still has:", *(f"  {one}" for one in left)]
        says.append("next:\n  hostguard volute unguard    # again, to remove the rest")
        show({"done": False, "left": left}, as_json, "\n".join(says))
        return HELD
    removed = host.remove()
    says = ["not guarded", *(f"removed {safe(one)}" for one in removed)]
    show({"done": True, "left": [], "removed": removed}, as_json, "\n".join(says))
    return 0


@command.command()
@json_option
def status(as_json: bool) -> int:
    """Show whether the guard stands in front of Volute, and what it holds for its minds.

    It exits with 1 if the guard stands there only in part, and says how to fix that. Only root sees the table
    and the connections.

    \b
    Examples:
      hostguard volute status --json
      sudo hostguard volute status
    """
    from hostguard.cli.volute import host, state

    seen = host.seen()
    show(state.as_json(seen), as_json, "\n".join(safe(line) for line in state.lines(seen)))
    return FAILED if [*state.problems(seen)] else 0
