"""hostguard config: check or show the configuration. It does not need the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any

import click

from hostguard.cli.errors import FAILED, CliError
from hostguard.cli.options import json_option, show
from hostguard.config import dump
from hostguard.config import load as config
from hostguard.config.toml import KeyPath, dotted, toml_value
from hostguard.core.errors import ConfigError
from hostguard.core.text import safe


@click.group("config")
def command() -> None:
    """Check or show the configuration."""


@command.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@json_option
def check(file: Path | None, as_json: bool) -> int:
    """Check the host's configuration, or only FILE, and list every error.

    \b
    Example: hostguard config check ./hostguard.toml
    """
    problems: tuple[str, ...] = ()
    result = []
    try:
        found = config.load([file] if file else None)
        sources = found.sources
        counts = [_count(found.minds, "mind"), _count(found.channels, "channel")]
        counts += [_count(found.schedules, "schedule")] if found.schedules else []
        result = [*([] if sources else ["no file: the defaults apply"]), f"ok: {', '.join(counts)}"]
    except ConfigError as error:
        sources, problems = error.sources, error.problems
    text = "\n".join([*(f"read {safe(source)}" for source in sources), *result])
    if text or as_json:
        show({"ok": not problems, "sources": sources, "problems": problems}, as_json, text)
    if problems and not as_json:
        CliError("\n".join(problems)).show()
    return FAILED if problems else 0


@command.command("show")
@json_option
def show_(as_json: bool) -> None:
    """Show the configuration in effect and the source of each value.

    \b
    Example: hostguard config show
    """
    loaded, origin = config.load_with_origin()
    values = dump.as_dict(loaded, secrets=True)
    lines = toml_lines(values, lambda path: safe(origin.get(path, "default")))
    show({**values, "sources": loaded.sources}, as_json, "\n".join(lines).strip())


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
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"
