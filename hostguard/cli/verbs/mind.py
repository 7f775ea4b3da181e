"""hostguard mind: what concerns one mind."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.errors import CliError
from hostguard.cli.options import complete_minds, json_option, print_json
from hostguard.core.text import safe


@click.group()
def command() -> None:
    """Set up one mind.

    \b
    Examples:
      hostguard mind add coder --command /opt/coder/turn --user coder
      hostguard mind token coder
    """


@command.command()
@click.argument("name")
@click.option("--command", "line", metavar="LINE", help="What a turn runs: a program and its arguments.")
@click.option("--url", help="The address of a resident mind's server, as http://127.0.0.1:4100.")
@click.option(
    "--volute",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="The folder of a Volute mind: its port, routes and user are taken over.",
)
@click.option("--user", help="Who runs the command, or owns the files of a resident mind.")
@click.option("--unit", help="The service that runs a resident mind's server.")
@click.option("--force", is_flag=True, help="Replace a drop-in that this verb wrote before.")
@json_option
def add(
    name: str,
    line: str | None,
    url: str | None,
    volute: Path | None,
    user: str | None,
    unit: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write a drop-in for a mind, once it is known to fit the rest of the configuration.

    It runs a command for each turn, or is a server with a URL. --url beside --volute stands in where the
    port is not found.

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
        raise click.UsageError("give one of --command, --url and --volute")
    name = name.removeprefix("@")
    keys: dict[str, Any] = {"command": _words(line)} if line is not None else {"url": url}
    keys |= {"unit": unit, "user": user} | (_adopted(volute, name, url, user) if volute else {})
    file = dropins.place(f"mind-{escape(name)}")
    try:
        elsewhere = dropins.set_elsewhere(file)
        if ("minds", name) in elsewhere:
            raise CliError(f"{elsewhere['minds', name]} has a mind {name!r} already: change it there")
        dropins.write(file, _drop_in(name, keys), replace=force)
    except config.ConfigError as error:
        raise CliError(f"nothing was written:\n{error}") from None
    except FileExistsError:
        raise CliError(f"{file} exists: --force replaces it") from None
    listen = config.load().events_listen
    steps = list(_next(name, keys.get("url") is not None, volute is not None, listen))
    if as_json:
        print_json({"file": str(file), "next": steps})
    else:
        click.echo("\n".join([f"wrote {safe(file)}", "next:", *(f"  {step}" for step in steps)]))


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise click.BadParameter(f"{line!r}: {error}") from None
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise CliError(f"{line!r}: there is no such program, or it cannot be executed")
    return [str(Path(program).absolute()), *words[1:]]


def _adopted(folder: Path, name: str, url: str | None, user: str | None) -> dict[str, Any]:
    """The keys of a Volute mind. Raises CliError."""
    from hostguard.cli import volute_rows

    if not (folder / "home").is_dir():
        raise CliError(f"{folder} has no folder home: it is no Volute mind's")
    if name != folder.name:
        raise CliError(f"Volute knows this mind as {folder.name!r}, and so it calls itself: use that name")
    if url is None:
        port = volute_rows.port_of(folder, name)
        if port is None:
            raise CliError(
                f"no registry of Volute has {name!r}: set VOLUTE_HOME to Volute's home, or give --url, too"
            )
        url = f"http://127.0.0.1:{port}"
    return {
        "url": url,
        "routes": str(folder / volute_rows.ROUTES),
        "user": user or volute_rows.owner_of(folder),
    }


def _drop_in(name: str, keys: dict[str, Any]) -> str:
    from hostguard.config.toml import dotted, toml_value

    lines = [f"{key} = {toml_value(value)}" for key, value in keys.items() if value is not None]
    header = "# Written by `hostguard mind add`. `hostguard reload` applies it."
    return "\n".join([header, f"[{dotted(('minds', name))}]", *lines, ""])


def _next(name: str, resident: bool, volute: bool, listen: tuple[str, int] | None) -> Iterator[str]:
    """What is left to do, as lines to type."""
    quoted = shlex.quote(name)
    yield "hostguard reload"
    if resident:
        if listen is None:
            yield (
                'set listen = "127.0.0.1:4200" under [events]: without it the mind cannot tell that it is'
                " done, and each turn lasts until it was idle for idle_end"
            )
        variables = "VOLUTE_DAEMON_TOKEN, beside VOLUTE_DAEMON_PORT" if volute else "the token that it sends"
        port = f"={listen[1]}" if volute and listen else ""
        yield f"hostguard mind token {quoted}    # {variables}{port}"
    yield f"hostguard send {shlex.quote('@' + name)} hello"


@command.command()
@click.argument("name", shell_complete=complete_minds)
@json_option
def token(name: str, as_json: bool) -> None:
    """Make a new token for a mind, and print it: it is not shown again.

    With it the mind tells the guard that it is done, and sends messages. Only its hash is kept; an older
    token of the mind ends.

    \b
    Examples:
      hostguard mind token coder
      echo "VOLUTE_DAEMON_TOKEN=$(hostguard mind token coder)" >/etc/coder.env
    """
    answer = client.call("POST", f"/v1/minds/{client.quote(name.removeprefix('@'))}/token", body={})
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["token"])
