"""The command line: what it understands, and what it says of its verbs."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostguard.cli import client
from hostguard.cli.errors import UNKNOWN, CliError
from hostguard.cli.group import VERBS, cli
from hostguard.cli.options import complete_addresses
from hostguard.cli.verbs.limit import complete_setting, parse_setting
from hostguard.cli.verbs.logs import matches
from hostguard.cli.verbs.run import complete_cmd
from hostguard.core import paths

ROOT = Path(__file__).parents[3]


# -- the client's pure parts


@pytest.mark.parametrize(
    ("status", "code", "retry", "exit_code", "said"),
    [
        (404, "unknown_mind", None, 4, "the detail"),
        (404, "unknown_channel", None, 4, "the detail"),
        (404, "unknown_delivery", None, 4, "the detail"),
        (404, "unknown_turn", None, 4, "the detail"),
        (404, None, None, 1, "the detail"),
        (400, "bad_request", None, 2, "the detail"),
        (403, "not_allowed", None, 1, "the detail"),
        (409, "conflict", None, 1, "the detail"),
        (413, "too_large", None, 1, "the detail"),
        (429, "queue_full", None, 1, "the detail"),
        (503, "unavailable", "5", 1, "the detail; try again in 5 s"),
        (500, "internal", None, 1, "the detail"),
    ],
)
def test_each_refusal_has_its_exit_code(
    status: int, code: str | None, retry: str | None, exit_code: int, said: str
) -> None:
    error = client.problem(
        status, json.dumps({"code": code, "title": "T", "detail": "the detail"}).encode(), retry
    )
    assert error.exit_code == exit_code
    assert said in error.message


@pytest.mark.parametrize("answer", [b"", b"<html>", b"null", b"[]", b"{}", b'"x"'])
def test_a_refusal_without_a_problem_document_is_told_by_its_status(answer: bytes) -> None:
    error = client.problem(502, answer, None)
    assert (error.exit_code, error.message) == (1, "hostguard answered with HTTP status 502")


@given(st.lists(st.integers(min_value=0, max_value=60)))
def test_events_are_read_however_the_stream_is_cut(cuts: list[int]) -> None:
    raw = b'id: 1\nevent: held\ndata: {"a":1}\n\n: ping\n\n'
    raw += b'id: 2\r\ndata: {"b":\r\ndata: 2}\r\n\r\nid: 3\ndata: {}'
    edges = [0, *sorted(cuts), len(raw)]
    chunks = [raw[a:b] for a, b in pairwise(edges)]
    assert list(client.server_sent(client.lines(chunks))) == [{"a": 1}, {"b": 2}]


# -- verbs


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            assert child is not None
            yield from walk(child, f"{path} {name}".strip())


COMMANDS = dict(walk(cli, ""))
LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}
# Their output is the command's, the journal's, a drawing, a dialogue, a trace, a page, Prometheus' format.
NO_DATA = {"run", "logs", "demo", "setup", "pressure record", "report", "metrics", "help", "version"}


@pytest.mark.parametrize("path", LEAVES)
def test_help_explains_each_verb_with_an_example(path: str) -> None:
    command = LEAVES[path]
    text = command.get_help(click.Context(command, info_name=f"hostguard {path}"))
    assert re.search(rf"Examples?:\s+(.*\| )?hostguard {path}\b", text), text


@pytest.mark.parametrize("path", [path for path in LEAVES if path not in NO_DATA])
def test_each_verb_that_prints_data_has_json(path: str) -> None:
    assert "--json" in [option for param in LEAVES[path].params for option in param.opts]


def test_the_list_of_verbs_and_each_verb_say_the_same() -> None:
    listed = {name: line for verbs in VERBS.values() for name, line in verbs.items()}
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.get_short_help_str(200).rstrip(".") == listed[name]


def test_help_lists_the_verbs_and_the_exit_codes() -> None:
    text = cli.get_help(click.Context(cli, info_name="hostguard"))
    assert re.search(r"^  send +Queue a message", text, re.M)
    assert re.search(r"^    75 +held", text, re.M)


def shown(*arguments: str) -> str:
    """What another process prints: click keeps the options of the first context that a command had."""
    command = [sys.executable, "-m", "hostguard", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("path", ["", "schedule add"])
def test_the_help_of_a_command_is_had_in_three_ways(path: str) -> None:
    verbs = path.split()
    text = shown(*verbs, "--help")
    assert text.startswith(f"Usage: hostguard {path}".rstrip())
    assert shown(*verbs, "-h") == text
    assert shown("help", *verbs) == text


def test_the_version_is_had_in_two_ways() -> None:
    assert shown("version") == shown("--version")


@pytest.mark.parametrize(
    ("typed", "meant"), [("stauts", "status"), ("ques", "queue"), ("shedule", "schedule")]
)
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(click.UsageError, match=rf"No such command '{typed}'\. Did you mean {meant}\?"):
        cli.main([typed], standalone_mode=False)


@pytest.mark.parametrize("verbs", [["xyzzy"], ["help", "xyzzy"], ["help", "send", "me"]])
def test_what_is_like_no_command_is_refused_alone(verbs: list[str]) -> None:
    with pytest.raises(click.UsageError, match=rf"No such command '{verbs[-1]}'\.$"):
        cli.main(verbs, standalone_mode=False)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("", ["@ada", "#all"]), ("@", ["@ada"]), ("#", ["#all"]), ("#al", ["#all"]), ("@b", []), ("ad", ["@ada"]),
    ],
)  # fmt: skip
def test_completion_of_addresses(typed: str, completed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"/v1/minds": {"minds": [{"name": "ada"}]}, "/v1/config": {"channels": {"all": {}}}}
    monkeypatch.setattr(client, "call", lambda method, path, **_: answers[path])
    param = click.Argument(["to"])
    found = complete_addresses(click.Context(cli), param, typed)
    assert [item.value for item in found] == completed


def test_completion_of_a_limit_and_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, param = click.Context(cli), click.Argument(["x"])
    assert [item.value for item in complete_setting(context, param, "mind")] == [
        "mind_concurrent_turns=", "mind_concurrent_turns=unlimited", "mind_concurrent_turns=default",
    ]  # fmt: skip
    (tmp_path / "mytool").touch()
    monkeypatch.setenv("PATH", f"/no/such/folder:{tmp_path}")
    assert [(item.value, item.type) for item in complete_cmd(context, param, "my")] == [("mytool", "plain")]
    context.params["cmd"] = ["mytool"]
    assert [item.type for item in complete_cmd(context, param, "my")] == ["file"]


@pytest.mark.parametrize("module", ["hostguard.cli", "hostguard.cli.verbs.send", "hostguard.cli.verbs.run"])
def test_help_starts_without_the_heavy_libraries(module: str) -> None:
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    log = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stderr
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in log.splitlines()}
    assert "hostguard" in imported
    assert not imported & {"httpx", "pystemd", "asyncio", "dbus_next", "starlette", "psutil", "lxml"}


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("global_concurrent_turns=0", ("global_concurrent_turns", 0)),
        ("mind_concurrent_turns=12", ("mind_concurrent_turns", 12)),
        ("global_concurrent_turns=unlimited", ("global_concurrent_turns", "unlimited")),
        ("global_concurrent_turns=default", ("global_concurrent_turns", "default")),
    ],
)
def test_a_limit_setting(text: str, setting: tuple[str, int | str]) -> None:
    assert parse_setting(text) == setting


@pytest.mark.parametrize(
    "text", ["", "=1", "cap=1", "mind_concurrent_turns", "mind_concurrent_turns=", "mind_concurrent_turns=-1",
             "mind_concurrent_turns=1.5", "mind_concurrent_turns=²"],
)  # fmt: skip
def test_what_is_no_limit_setting_is_a_usage_error(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_setting(text)


def test_logs_of_a_mind_follow_its_slice_and_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams: of the mind's user and of root, as anybody may name a stream so."""
    file = tmp_path / "hostguard.toml"
    served = "".join(
        f'[minds.{name}]\nurl = "http://127.0.0.1:41{at}"\n' for at, name in enumerate(("17", "b"), 10)
    )
    file.write_text(f'[minds.a-b]\ncommand = ["/bin/true"]\nuser = "nobody"\n{served}')
    monkeypatch.setattr(paths, "CONFIG", file)
    monkeypatch.setattr(paths, "DROP_INS", ())
    nobody = pwd.getpwnam("nobody").pw_uid
    streams = ["+", "SYSLOG_IDENTIFIER=a-b", "_TRANSPORT=stdout", "_UID=0", f"_UID={nobody}"]
    assert matches("a-b") == matches("@a-b") == [r"_SYSTEMD_SLICE=hostguard-a\x2db.slice", *streams]
    unknown = ["+", "SYSLOG_IDENTIFIER=17", "_TRANSPORT=stdout", "_UID=0"]
    assert matches("@17") == ["_SYSTEMD_SLICE=hostguard-17.slice", *unknown]
    with pytest.raises(CliError, match="there is no mind c: minds: a-b, 17, b") as refusal:
        matches("c")
    assert refusal.value.exit_code == UNKNOWN

    monkeypatch.setattr(paths, "USER", True)
    assert matches("b") == [
        "_SYSTEMD_USER_SLICE=hostguard-b.slice", f"_UID={os.getuid()}",
        "+", "SYSLOG_IDENTIFIER=b", "_TRANSPORT=stdout", f"_UID={os.getuid()}",
    ]  # fmt: skip
    assert matches("x01234567") == [
        "--user-unit=hostguard-turn-*-x01234567.scope", "--user-unit=hostguard-turn-*-x01234567.*.scope",
    ]  # fmt: skip
