"""hostguard config: check or show the configuration. It does not need the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any

import click

from hostguard.cli.errors import FAILED, CliError
from hostguard.cli.render import to_json
from hostguard.config import dump
from hostguard.config import load as config
from hostguard.config.toml import KeyPath, dotted, toml_value
from hostguard.core.text import safe


@click.group("config")
def command() -> None:
    """Check or show the configuration."""


@command.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.pass_context
def check(ctx: click.Context, file: Path | None, json_: bool) -> None:
    """Check the host's configuration, or only FILE, and list every error.

    \b
    Example: hostguard config check ./hostguard.toml
    """
    problems: tuple[str, ...] = ()
    try:
        found = config.load([file] if file else None)
        sources = found.sources
    except config.ConfigError as error:
        sources, problems = error.sources, error.problems
    if json_:
        click.echo(to_json({"ok": not problems, "sources": sources, "problems": problems}))
        ctx.exit(FAILED if problems else 0)
    for source in sources:
        click.echo(f"read {safe(source)}")
    if problems:
        raise CliError("\n".join(problems))
    if not sources:
        click.echo("no file: the defaults apply")
    counts = [_count(found.minds, "mind"), _count(found.channels, "channel")]
    if found.schedules:
        counts.append(_count(found.schedules, "schedule"))
    click.echo(f"ok: {', '.join(counts)}")


@command.command()
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def show(json_: bool) -> None:
    """Show the configuration in effect and the source of each value.

    \b
    Example: hostguard config show
    """
    try:
        loaded = config.load_with_origin()
    except config.ConfigError as error:
        raise CliError(str(error)) from None
    values = dump.as_dict(loaded.config, secrets=True)
    if json_:
        click.echo(to_json({**values, "sources": loaded.config.sources}))
        return

    def origin(path: KeyPath) -> str:
        return safe(loaded.origin.get(path, "default"))

    click.echo("\n".join(toml_lines(values, origin)).strip())


def toml_lines(table: dict[str, Any], origin: Callable[..., str], path: KeyPath = ()) -> Iterator[str]:
    """The table as TOML, one key per line, with `origin(path)` as a comment."""
    tables = {name: value for name, value in table.items() if isinstance(value, dict)}
    if path and tables != table:
        yield from ("", f"[{dotted(path)}]")
    for name, value in table.items():
        if name not in tables:
            yield f"{dotted((name,))} = {toml_value(value)}  # {origin((*path, name))}"
    for name, value in tables.items():
        yield from toml_lines(value, origin, (*path, name))


def _count(things: Sized, word: str) -> str:
    count = len(things)
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
