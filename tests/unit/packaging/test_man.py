"""The manual agrees with the command line and with the configuration's keys."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from hostguard import daemon
from hostguard.cli import errors
from hostguard.cli.group import cli
from hostguard.cli.verbs import run
from hostguard.config.schema import KEYS, UNLIMITED
from hostguard.core import paths
from hostguard.core.model import Config, Limits, Mind, Schedule, Volute, WakeOn
from hostguard.core.settings import Settings

MAN = Path(__file__).parents[3] / "packaging/man"


def page(name: str) -> dict[str, str]:
    """The sections of a page, as written, by their headings."""
    parts = re.split(r"^# (.+)$", (MAN / f"{name}.scd").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def blocks(section: str) -> Iterator[tuple[str, str]]:
    """The paragraphs with a heading of their own: the heading, and what is indented below it."""
    yield from re.findall(r"^(\*.+)\n((?:\t.*\n\n*)+)", section, flags=re.MULTILINE)


def plain(text: str) -> str:
    """The text on one line, without markup."""
    bare = re.sub(r"(?<!\\)(?:\*|\b_(?=\S)|(?<=\S)_\b)", "", text)
    return " ".join(re.sub(r"\\(.)", r"\1", bare).split())


# -- hostguard(1)

SECTIONS = page("hostguard.1")
LISTED = [
    (bold[1], (heading, body))
    for title in ("WORK", "LOOK", "STEER", "SET UP")
    for heading, body in blocks(SECTIONS[title])
    if (bold := re.match(r"\*([a-z][a-z -]*)\*", heading))
]
TEXTS = dict(LISTED)


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """All commands that do something, such as "dead list"."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(cli))


def test_the_manual_has_every_verb_and_no_other() -> None:
    assert sorted(name for name, _ in LISTED) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_manual_has_every_option_and_argument_of_a_verb(name: str) -> None:
    heading, body = TEXTS[name]
    options = [param for param in COMMANDS[name].params if isinstance(param, click.Option)]
    arguments = [param for param in COMMANDS[name].params if isinstance(param, click.Argument)]
    has = {opt for option in options for opt in option.opts}
    assert {*re.findall(r"\*(--?[a-z][a-z-]*)\*", heading + body)} - {"--"} == has
    for argument in arguments:
        # As usage has it, but for the words that click adds.
        word = re.sub(r"[][.]", "", argument.make_metavar(*_context(COMMANDS[name]))).removeprefix("-- ")
        assert word.upper() in plain(heading).replace("[", "").replace("]", "").replace("...", "").upper(), (
            word
        )
    for option in options:
        if isinstance(option.type, click.Choice):
            assert all(re.search(rf"\b{word}\b", body) for word in option.type.choices), option.name
        if option.show_default:
            assert f"Default: {option.default}." in plain(body), option.name


def _context(command: click.Command) -> tuple[click.Context, ...]:
    """The arguments of make_metavar: newer versions of click require the context."""
    wanted = click.Argument.make_metavar.__code__.co_argcount - 1
    return (click.Context(command),) * wanted


def test_the_manual_has_the_options_before_the_verb() -> None:
    has = {opt for param in cli.params for opt in param.opts}
    assert {*re.findall(r"^\*(--[a-z]+)\*$", SECTIONS["DESCRIPTION"], re.MULTILINE)} == has


def test_the_manual_has_every_exit_code() -> None:
    codes = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    codes |= {0, run.NOT_FOUND, run.NOT_EXECUTABLE}
    assert {int(code) for code in re.findall(r"\*(\d+)\*", SECTIONS["EXIT STATUS"])} == codes
    ours = {daemon.EXIT_FAILURE, 0, 2}
    assert {int(code) for code in re.findall(r"\*(\d+)\*", page("hostguardd.8")["EXIT STATUS"])} == ours


# -- hostguard.toml(5)

TOML = page("hostguard.toml.5")
TITLES = {
    "minds.*": "[minds.NAME]",
    "minds.*.turn": "[minds.NAME.turn]",
    "minds.*.wake_on": "[minds.NAME.wake_on]",
    "channels.*": '[channels."#NAME"]',
    "schedules.*": "[schedules.NAME]",
}
DEFAULTS: dict[str, Any] = {
    "limits": Config(),
    "turn": Limits(),
    "pressure": Settings(),
    "minds.*": Mind(""),
    "minds.*.wake_on": WakeOn(),
    "schedules.*": Schedule("", ""),
    "volute": Volute(""),
}


def documented() -> dict[str, str]:
    """The text of each key that the page has."""
    found = {}
    for title, section in TOML.items():
        if title.startswith("["):
            for heading, body in blocks(section):
                found |= {f"{title} {key}": plain(body) for key in re.findall(r"\*([a-z_]+)\*", heading)}
    return found


KNOWN = documented()


def place(key: str) -> str:
    """The entry of a key on the page: a mind's limits are described under [turn]."""
    table, _, name = key.rpartition(".")
    table = "turn" if table == "minds.*.turn" else table
    return f"{TITLES.get(table, f'[{table}]')} {name}"


def test_the_page_has_every_key_and_no_other() -> None:
    assert sorted(KNOWN) == sorted({place(key) for key in KEYS})
    own = re.findall(r"\*([a-z_]+)\*", TOML["[minds.NAME.turn]"])
    assert own == [item.name for item in fields(Limits)]


@pytest.mark.parametrize("key", KEYS)
def test_the_page_has_the_allowed_values_of_a_key(key: str) -> None:
    assert f"Allowed: {KEYS[key].allowed}" in KNOWN[place(key)]


@pytest.mark.parametrize("key", KEYS)
def test_the_page_has_the_default(key: str) -> None:
    table, _, name = key.rpartition(".")
    text = KNOWN[place(key)]
    stated = re.search(rf'Default(?: of {name})?: (unset|\[[^]]*]|\S*?"?)(?:[.,]|$)(?: |$)', text)
    if key == "device.path":
        default: Any = Config().device_path
    elif key == "events.listen":
        default = Config().events_listen
    elif table == "web":
        default = getattr(Config(), f"web_{name}")
    elif table == "minds.*.turn":
        return  # those of [turn]
    else:
        default = getattr(DEFAULTS.get(table), name, None)
    if stated is None:
        assert default in (None, "", (), {}, "/"), f"{key}: {default!r}"
        return
    if stated[1] == "unset":
        assert default is None
        return
    value = tomllib.loads(f"x = {stated[1]}")["x"]
    assert (None if value == UNLIMITED else KEYS[key].parse(value)) == default
    assert value == UNLIMITED or default is not None


def test_the_page_has_every_variable_of_a_turn() -> None:
    example = (MAN.parent / "hostguard.toml").read_text()
    there = re.search(r"HOSTGUARD_MIND(.*)_HELD_MS", example, re.DOTALL)
    assert there is not None
    names = {"MIND", "HELD_MS", *re.findall(r"_([A-Z]+)", there[1])}
    listed = {*re.findall(r"\*HOSTGUARD_([A-Z_]+)\*", TOML["THE COMMAND OF A TURN"])}
    assert listed == names


# -- hostguardd(8)


def test_the_manual_has_every_unit() -> None:
    shipped = {unit.name for unit in (MAN.parents[1] / "units").iterdir()}
    assert {*re.findall(r"\*(hostguard[a-z@-]*\.[a-z.]+)\*", page("hostguardd.8")["UNITS"])} == shipped


def test_the_manual_has_every_file_of_the_daemon() -> None:
    known = {file for file in vars(paths).values() if isinstance(file, Path)}
    own = {str(file).rstrip("/") for file in known if {paths.STATE, paths.RUNTIME} & {*file.parents}}
    stated = re.findall(r"\*(/(?:run|var)/[^*]+)\*", page("hostguardd.8")["FILES"])
    assert {file.rstrip("/") for file in stated} == own


# -- all pages


@pytest.mark.skipif(shutil.which("scdoc") is None, reason="scdoc is where packages are built")
@pytest.mark.parametrize("file", sorted(MAN.glob("*.scd")), ids=lambda file: file.name)
def test_scdoc_takes_the_page(file: Path) -> None:
    with file.open() as text:
        assert subprocess.run(["scdoc"], stdin=text, capture_output=True, check=True).stdout


@pytest.mark.parametrize("file", sorted(MAN.glob("*.scd")), ids=lambda file: file.name)
def test_a_page_names_itself_and_only_pages_that_there_are(file: Path) -> None:
    text = file.read_text()
    name, section = file.stem.rsplit(".", 1)
    assert text.splitlines()[0] == f"{name}({section})"
    ours = {f"{other.stem.rsplit('.', 1)[0]}({other.stem.rsplit('.', 1)[1]})" for other in MAN.glob("*.scd")}
    named = {f"{page}({number})" for page, number in re.findall(r"\*(hostguard[a-z.-]*)\*\((\d)\)", text)}
    assert named <= ours


@pytest.mark.parametrize("file", sorted(MAN.glob("*.scd")), ids=lambda file: file.name)
def test_no_line_of_a_paragraph_begins_a_table_for_scdoc(file: Path) -> None:
    text = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^(?:\t+[][|:].*|\[[^[].*)", text, re.MULTILINE) == []
