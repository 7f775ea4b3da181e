"""hostguard mind and minds: list the minds, add one, or make a token for it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.errors import CliError
from hostguard.cli.options import complete_minds, json_option, show
from hostguard.cli.render import terminal_width
from hostguard.cli.tables import mind_table
from hostguard.core.errors import ConfigError
from hostguard.core.text import safe


@click.group()
def mind() -> None:
    """Add a mind, or make a token for it.

    \b
    Examples:
      hostguard mind add coder --command /opt/coder/turn --user coder
      hostguard mind token coder
    """


@mind.command()
@click.argument("name")
@click.option("--command", "line", metavar="LINE", help="The command of a turn: a program and its arguments.")
@click.option("--url", help="The address of a resident mind's server, such as http://127.0.0.1:4100.")
@click.option(
    "--volute", metavar="DIR", help="The directory of a Volute mind, for its port, routes and user.",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
)  # fmt: skip
@click.option("--user", help="The user who runs the command, or owns the files of a resident mind.")
@click.option("--unit", help="The service that runs a resident mind's server.")
@click.option("--force", is_flag=True, help="Replace a drop-in that this verb wrote before.")
@json_option
def add(
    name: str, line: str | None, url: str | None, volute: Path | None, user: str | None, unit: str | None,
    force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write a drop-in for a mind, after validating it with the rest of the configuration.

    A mind is a command that runs once per turn, or a server with a URL. Add --url to --volute if the port is
    not found.

    \b
    Examples:
      hostguard mind add coder --command "/opt/coder/turn --brief" --user coder
      hostguard mind add bob --url http://127.0.0.1:4100 --unit bob.service --user bob
      hostguard mind add eve --volute /var/lib/volute/minds/eve
    """
    from hostguard.config import dropins
    from hostguard.config import load as config
    from hostguard.core.units import escape

    if (line is None) == (url is None and volute is None):
        raise click.UsageError("give exactly one of --command, --url and --volute")
    name = name.removeprefix("@")
    keys: dict[str, Any] = {"command": _words(line)} if line is not None else {"url": url}
    keys |= {"unit": unit, "user": user} | (_adopted(volute, name, url, user) if volute else {})
    file = dropins.place(f"mind-{escape(name)}")
    try:
        elsewhere = dropins.set_elsewhere(file)
        if ("minds", name) in elsewhere:
            raise CliError(f"mind {name!r} already exists in {elsewhere['minds', name]}: change it there")
        dropins.write(file, _drop_in(name, keys), replace=force)
    except ConfigError as error:
        raise CliError(f"nothing was written:\n{error}") from None
    except FileExistsError:
        raise CliError(f"{file} exists: use --force to replace it") from None
    listen = config.load().events_listen
    steps = list(_next(name, keys.get("url") is not None, volute is not None, listen))
    text = "\n".join([f"wrote {safe(file)}", "next:", *(f"  {step}" for step in steps)])
    show({"file": str(file), "next": steps}, as_json, text)


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise click.BadParameter(f"{line!r}: {error}") from None
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise CliError(f"{line!r}: program not found or not executable")
    return [str(Path(program).absolute()), *words[1:]]


def _adopted(folder: Path, name: str, url: str | None, user: str | None) -> dict[str, Any]:
    from hostguard.cli import volute_rows

    if not (folder / "home").is_dir():
        raise CliError(f"{folder} is not the directory of a Volute mind: it has no directory home")
    if name != folder.name:
        raise CliError(f"Volute calls this mind {folder.name!r}: use that name")
    if url is None:
        port = volute_rows.port_of(folder, name)
        if port is None:
            fix = "set VOLUTE_HOME to Volute's home, or add --url"
            raise CliError(f"{name!r} is in no registry of Volute: {fix}")
        url = f"http://127.0.0.1:{port}"
    routes = str(folder / volute_rows.ROUTES)
    return {"url": url, "routes": routes, "user": user or volute_rows.owner_of(folder)}


def _drop_in(name: str, keys: dict[str, Any]) -> str:
    from hostguard.config.toml import dotted, toml_value

    lines = [f"{key} = {toml_value(value)}" for key, value in keys.items() if value is not None]
    header = "# Written by `hostguard mind add`. `hostguard reload` applies it."
    return "\n".join([header, f"[{dotted(('minds', name))}]", *lines, ""])


def _next(name: str, resident: bool, volute: bool, listen: tuple[str, int] | None) -> Iterator[str]:
    quoted = shlex.quote(name)
    yield "hostguard reload"
    if resident:
        if listen is None:
            yield (
                'set listen = "127.0.0.1:4200" under [events]: without it the mind cannot report the end of'
                " a turn, and each turn lasts until it has been idle for idle_end"
            )
        variables = "VOLUTE_DAEMON_TOKEN, with VOLUTE_DAEMON_PORT" if volute else "the token that it sends"
        port = f"={listen[1]}" if volute and listen else ""
        yield f"hostguard mind token {quoted}    # {variables}{port}"
    yield f"hostguard send {shlex.quote('@' + name)} hello"


@mind.command()
@click.argument("name", shell_complete=complete_minds)
@json_option
def token(name: str, as_json: bool) -> None:
    """Make a new token for a mind and print it. It is not shown again, because only its hash is kept.

    The mind uses it to report the end of a turn and to send messages. The previous token becomes invalid.

    \b
    Examples:
      hostguard mind token coder
      echo "VOLUTE_DAEMON_TOKEN=$(hostguard mind token coder)" >/etc/coder.env
    """
    answer = client.call("POST", f"/v1/minds/{client.quote(name.removeprefix('@'))}/token", body={})
    show(answer, as_json, answer["token"])


@click.command()
@json_option
def minds(as_json: bool) -> None:
    """List the minds.

    Each with its live turns and its cap, its sessions with their age, and its waiting messages.

    \b
    Example:
      hostguard minds
    """
    answer = client.call("GET", "/v1/minds")
    none = "no mind is configured: hostguard mind add NAME ..."
    show(answer, as_json, mind_table(answer["minds"], terminal_width()) if answer["minds"] else none)
