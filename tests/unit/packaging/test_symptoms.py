"""The README's section for when something is wrong, and its picture: every command and file exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from hostguard.cli.group import cli

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
SECTION = README.partition("\n## When something is wrong\n")[2].partition("\n## ")[0]
COMMANDS = sorted({code for code in re.findall(r"`([^`]+)`", SECTION) if code.startswith("hostguard ")})


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_one(command: str) -> None:
    words = shlex.split(command)[1:]
    found: click.Command = cli
    context = click.Context(cli)
    while isinstance(found, click.Group) and words and (inner := found.get_command(context, words[0])):
        found, words = inner, words[1:]
    assert found is not cli, command
    takes = {option for param in found.params for option in param.opts}
    assert {word for word in words if word.startswith("--")} <= takes, command
    arguments = [param for param in found.params if isinstance(param, click.Argument)]
    given = [word for word in words if word.isupper()]
    assert given == [] or arguments, command


def test_there_are_symptoms() -> None:
    rows = [line for line in SECTION.splitlines() if line.startswith("| ")]
    assert len(rows) > 10
    assert all(row.count("|") == 4 for row in rows)
    assert len(COMMANDS) > 10


def test_the_picture_is_small_and_needs_no_network() -> None:
    [name] = re.findall(r"\]\((\S+\.svg)\)", README)
    text = (ROOT / name).read_text()
    assert len(text.encode()) < 100_000
    ElementTree.fromstring(text)
    assert not re.search(r"(?:href|src|url)\s*[=(]\s*[\"']?(?:https?:|//)", text)
    shown = text.replace("&#160;", " ")
    for said in ("stalled for", "1 turn at a time, not 2", "no slot free, behind turn", "written", "TURN"):
        assert said in shown, said
