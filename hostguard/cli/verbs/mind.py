"""hostguard mind and minds: list the minds, add one, or make a token for it."""

from __future__ import annotations

import hashlib
import secrets
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from hostguard.cli import client
from hostguard.cli.errors import CliError
from hostguard.cli.options import complete_minds, json_option, show
from hostguard.cli.render import terminal_width
from hostguard.cli.tables import mind_table
from hostguard.core import paths
from hostguard.core.errors import ConfigError
from hostguard.core.text import safe

if TYPE_CHECKING:
    from hostguard.cli.volute_mind import VoluteMind

EVENTS = ("127.0.0.1", 4200)  # where minds report, unless the configuration says so
TOKEN_BYTES = 32


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
    "--volute", metavar="DIR", help="The directory of a Volute mind: it gets a service.",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
)  # fmt: skip
@click.option("--user", help="The user who runs the command, or owns the files of a resident mind.")
@click.option("--unit", help="The service that runs a resident mind's server, if there is one.")
@click.option("--force", is_flag=True, help="Replace the files that this verb wrote before.")
@json_option
def add(
    name: str, line: str | None, url: str | None, volute: Path | None, user: str | None, unit: str | None,
    force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write a drop-in for a mind, after validating it with the rest of the configuration.

    A mind is a command that runs once per turn, or a server with a URL. For a Volute mind it also writes a
    file with the variables that the mind reads and its token, and a drop-in for the service that runs it;
    then it prints the next commands. Add --url to --volute if the port is not found.

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
    keys |= {"unit": unit, "user": user}
    file, made = dropins.place(f"mind-{escape(name)}"), None
    try:
        elsewhere = dropins.set_elsewhere(file)
        if ("minds", name) in elsewhere:
            raise CliError(f"mind {name!r} already exists in {elsewhere['minds', name]}: change it there")
        listen = config.load().events_listen
        if volute:
            made = _volute_mind(volute, name, url, user, listen)
            own = [place for place in (made.variables_file, made.unit_file) if place.exists()]
            if own and not force:
                raise CliError(f"{own[0]} exists: use --force to replace it")
            token = secrets.token_urlsafe(TOKEN_BYTES)
            keys = _adopted(made, token) | {"url": url or f"http://127.0.0.1:{made.port}"}
            keys |= {"unit": unit or (None if paths.USER else made.unit)}
        dropins.write(file, _drop_in(name, keys), replace=force)
        files = [file]
        if made is not None:
            files += _write(made, token, service=keys["unit"] == made.unit, listens=listen is not None)
    except ConfigError as error:
        raise CliError(f"nothing was written:\n{error}") from None
    except FileExistsError:
        raise CliError(f"{file} exists: use --force to replace it") from None
    if made is None:
        steps = list(_next(name, keys.get("url") is not None, listen))
    else:
        steps = list(_next_volute(made, keys["unit"]))
    text = "\n".join([*(f"wrote {safe(one)}" for one in files), "next:", *(f"  {step}" for step in steps)])
    show({"file": str(file), "files": [*map(str, files)], "next": steps}, as_json, text)


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise click.BadParameter(f"{line!r}: {error}") from None
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise CliError(f"{line!r}: program not found or not executable")
    return [str(Path(program).absolute()), *words[1:]]


def _volute_mind(
    folder: Path, name: str, url: str | None, user: str | None, listen: tuple[str, int] | None
) -> VoluteMind:
    from hostguard.cli import volute_rows
    from hostguard.cli.volute_mind import PATH, VoluteMind

    if not (folder / "home").is_dir():
        raise CliError(f"{folder} is not the directory of a Volute mind: it has no directory home")
    if name != folder.name:
        raise CliError(f"Volute calls this mind {folder.name!r}: use that name")
    if {":", "\n"} & {*str(folder)}:
        raise CliError(
            f"{str(folder)!r} cannot be in PATH: move the mind to a directory without : in its path"
        )
    address, daemon_port = listen or EVENTS
    if not address.startswith("127."):
        raise CliError(
            f'Volute minds report to 127.0.0.1: set listen = "127.0.0.1:{daemon_port}" under [events]'
        )
    port = volute_rows.port_of(folder, name) if url is None else urlsplit(url).port
    if port is None:
        fix = "set VOLUTE_HOME to Volute's home, or add --url"
        raise CliError(f"{name!r} is in no registry of Volute: {fix}")
    node = shutil.which("node")
    place = Path(node).parent if node and str(Path(node).parent) not in PATH else None
    return VoluteMind(name, folder, user or volute_rows.owner_of(folder), port, daemon_port, place)


def _adopted(mind: VoluteMind, token: str) -> dict[str, Any]:
    from hostguard.cli.volute_rows import ROUTES

    digest = hashlib.sha256(token.encode()).hexdigest()
    return {
        "user": mind.user,
        "routes": str(mind.folder / ROUTES),
        "token": f"sha256:{digest}",
    }


def _write(mind: VoluteMind, token: str, *, service: bool, listens: bool) -> Iterator[Path]:
    """Write what a Volute mind needs in addition to its drop-in; the files."""
    from hostguard.config import dropins
    from hostguard.linux.files import write_whole

    if not listens:
        events = dropins.place("events")
        text = f'# Written by `hostguard mind add`.\n[events]\nlisten = "{EVENTS[0]}:{EVENTS[1]}"\n'
        dropins.write(events, text, replace=True)
        yield events
    wanted = [(mind.variables_file, mind.variables(token), 0o600)]
    if service:
        wanted.append((mind.unit_file, mind.service(), 0o644))
    for file, text, mode in wanted:
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_whole(file, text, mode)
        yield file


def _drop_in(name: str, keys: dict[str, Any]) -> str:
    from hostguard.config.toml import dotted, toml_value

    lines = [f"{key} = {toml_value(value)}" for key, value in keys.items() if value is not None]
    header = "# Written by `hostguard mind add`. `hostguard reload` applies it."
    return "\n".join([header, f"[{dotted(('minds', name))}]", *lines, ""])


def _next(name: str, resident: bool, listen: tuple[str, int] | None) -> Iterator[str]:
    quoted = shlex.quote(name)
    yield "hostguard reload"
    if resident:
        if listen is None:
            yield (
                f'set listen = "{EVENTS[0]}:{EVENTS[1]}" under [events]: without it the mind cannot report'
                " the end of a turn, and each turn lasts until it has been idle for idle_end"
            )
        yield f"hostguard mind token {quoted}    # the token that it sends"
    yield f"hostguard send {shlex.quote('@' + name)} hello"


def _next_volute(mind: VoluteMind, unit: str | None) -> Iterator[str]:
    name, variables = shlex.quote(mind.name), shlex.quote(str(mind.variables_file))
    yield f"volute mind stop {name}    # if Volute runs it: only one server can have port {mind.port}"
    yield f"editor {variables}    # add what its model needs, such as ANTHROPIC_API_KEY"
    yield "hostguard reload"
    if unit == mind.unit:
        yield f"systemctl daemon-reload && systemctl enable --now {shlex.quote(unit)}"
    else:
        what = f"EnvironmentFile={mind.variables_file}, WorkingDirectory={mind.folder}, User={mind.user}"
        yield f"systemctl edit --full {shlex.quote(unit or 'UNIT')}    # it needs {what}; then restart it"
    yield f"hostguard send {shlex.quote('@' + mind.name)} hello --wait"


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
