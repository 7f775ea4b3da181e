"""A person's mistakes on a whole host: each is one sentence and an exit code, none a traceback or a lost setting."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import pytest
from guard import Guard, wait_for
from guarded import LONG_S, GuardedHost

from hostguard.cli.errors import CliError
from hostguard.cli.group import cli
from hostguard.core.errors import ConfigError, SystemdFailed

LIMITS = '[limits]\npayload_max = "8M"\n'
ADA = '[minds.ada]\ncommand = ["/bin/sh", "-c", "wc -c"]\nuser = "root"\n'
EVE = '[minds.eve]\ncommand = ["/bin/true"]\nuser = "root"\n'


@pytest.fixture(scope="module")
def host(shared_guard: Guard) -> Iterator[GuardedHost]:
    shared_guard.start(LIMITS + ADA + EVE)
    made = GuardedHost(shared_guard)
    yield made
    wait_for(lambda: not shared_guard.scopes())
    made.api.close()


@contextmanager
def without_eve(host: GuardedHost) -> Iterator[None]:
    host.guard.configure(LIMITS + ADA)
    host.guard.reload()
    yield
    host.guard.configure(LIMITS + ADA + EVE)
    host.guard.reload()


# -- names

WITH_A_MIND = [
    ("logs", "adda"),
    ("logs", "@adda"),
    ("queue", "--mind", "adda"),
    ("queue", "--state", "done", "--mind", "@adda"),
    ("dead", "list", "--mind", "adda"),
    ("dead", "retry", "--all", "--mind", "adda"),
    ("dead", "drop", "--all", "--mind", "adda"),
    ("pause", "adda"),
    ("resume", "adda"),
    ("limit", "set", "mind_concurrent_turns=2", "--mind", "adda"),
    ("limit", "set", "mind_concurrent_turns=default", "--mind", "adda"),
    ("sleep", "adda"),
    ("wake", "adda"),
    ("route", "test", "adda"),
    ("mind", "token", "adda"),
    ("schedule", "add", "s", "@adda", "--cron", "@daily", "--message", "x"),
    ("send", "@adda", "hello"),
    ("run", "--mind", "adda", "--", "true"),
]


def test_a_mistyped_mind_is_named(host: GuardedHost) -> None:
    for argv in WITH_A_MIND:
        done = host.guard.cli(*argv, check=False)
        assert (done.returncode, done.stdout) == (4, ""), done
        assert "there is no mind adda: minds: ada, eve" in done.stderr, done
    assert host.get("/v1/limits")["limits"][1:] == [
        {"name": "mind_concurrent_turns", "mind": None, "value": 1, "source": "default"}
    ]
    for argv in (("queue", "--mind", "eve"), ("dead", "list", "--mind", "eve"), ("logs", "-n", "1", "eve")):
        host.guard.cli(*argv)


def test_names_without_the_daemon(host: GuardedHost) -> None:
    host.guard.stop()
    wrong = host.guard.cli("logs", "adda", check=False)
    assert (wrong.returncode, "there is no mind adda: minds: ada, eve" in wrong.stderr) == (4, True), wrong
    assert "journalctl _SYSTEMD_SLICE=hostguard-adda.slice" in wrong.stderr
    host.guard.cli("logs", "-n", "1", "ada")
    host.guard.restart()


def test_a_mind_that_was_removed_still_has_a_name(host: GuardedHost) -> None:
    host.done(host.send("@eve", "hello"))
    host.guard.cli("limit", "set", "mind_concurrent_turns=3", "--mind", "eve")
    host.guard.cli("pause", "eve")
    with without_eve(host):
        assert len(host.guard.json("queue", "--mind", "eve", "--state", "all")["deliveries"]) == 1
        assert host.guard.cli("queue", "--mind", "eve").stdout == "nothing waits\n"
        host.guard.cli("logs", "-n", "1", "eve")
        assert re.search(r"(?m)^mind_concurrent_turns +eve +3 +kept$", host.guard.cli("limit", "show").stdout)
        refused = host.guard.cli("limit", "set", "mind_concurrent_turns=4", "--mind", "eve", check=False)
        assert refused.returncode == 4
        removed = host.guard.cli("limit", "set", "mind_concurrent_turns=default", "--mind", "eve")
        assert "eve" not in removed.stdout
        again = host.guard.cli("limit", "set", "mind_concurrent_turns=default", "--mind", "eve", check=False)
        assert again.returncode == 4, "there is none any more"
        assert host.guard.cli("resume", "eve").stdout == "resumed: eve\n"
        assert host.guard.cli("resume", "eve", check=False).returncode == 4


def test_a_mind_that_was_removed_asleep_can_be_woken(host: GuardedHost) -> None:
    host.post("/v1/minds/eve/sleep")
    wait_for(
        lambda: {mind["name"]: mind["sleep"] for mind in host.get("/v1/minds")["minds"]}["eve"] == "asleep",
        LONG_S,
    )
    with without_eve(host):
        assert "eve" in host.guard.cli("minds").stdout
        assert host.guard.cli("wake", "eve").stdout.startswith("eve is awake")
        assert "eve" not in host.guard.cli("minds").stdout
        assert host.guard.cli("wake", "eve", check=False).returncode == 4


# -- what verbs say


def test_resume_says_what_it_did(host: GuardedHost) -> None:
    cli, before = host.guard.cli, len(host.all_events())
    assert cli("resume").stdout == "not paused: all minds\n"
    assert cli("pause").stdout == "paused: all minds\n"
    assert cli("pause", "@ada").stdout == "paused: all minds, and by name: ada\n"
    assert cli("resume", "eve").stdout == "not paused: eve; still paused: all minds, and by name: ada\n"
    assert cli("resume").stdout == "resumed: all minds; still paused: ada\n"
    assert host.guard.json("resume") == {"host": False, "paused": ["ada"], "changed": False}
    assert cli("resume", "ada").stdout == "resumed: ada\n"
    assert [event["text"] for event in host.all_events()[before:] if event["type"] in ("paused", "resumed")] == [
        "the guard is paused", "ada is paused", "the guard is resumed", "ada is resumed",
    ]  # fmt: skip


def test_why_of_a_row_that_is_not_due(host: GuardedHost) -> None:
    row = host.guard.json("send", "@ada", "later", "--at", "+2h")["deliveries"][0]["id"]
    said = host.guard.cli("why", str(row)).stdout.splitlines()
    assert said[0].startswith(f"{row} is not held: it is due in 1 h 59 min")
    assert [line.partition(":")[0] for line in said[1:]] == ["State", "Reason", "Due"]
    host.guard.cli("pause", "ada")
    paused = host.guard.json("why", str(row))
    assert (paused["reason"], paused["blocker"], paused["since"]) == ("not_due", None, None)
    assert paused["text"].endswith(
        "; if it were due now, it would wait: ada is paused (hostguard resume MIND)"
    )
    assert host.row(row)["hold"] is None
    assert [
        event for event in host.all_events() if event["type"] == "held" and event["delivery"] == row
    ] == []
    host.guard.cli("resume", "ada")
    host.guard.cli("cancel", str(row))


def test_a_flag_is_true_or_false(host: GuardedHost) -> None:
    body = {"name": "global_concurrent_turns", "value": 7, "runtime": "yes"}
    answer = host.api.patch("/v1/limits", json=body)
    assert (answer.status_code, answer.json()["detail"]) == (400, "runtime must be true or false")
    assert host.get("/v1/limits")["limits"][0]["value"] is None
    for runtime, source in ((True, "runtime"), (False, "kept")):
        answer = host.api.patch("/v1/limits", json={**body, "runtime": runtime})
        assert answer.json()["limits"][0]["source"] == source
    host.guard.cli("limit", "set", "global_concurrent_turns=default")


def test_a_large_message_from_standard_input(host: GuardedHost) -> None:
    """payload_max is 8M: the command line takes as much, and more is refused by the limit's name."""
    text = "x" * (7 << 20)
    row = int(host.guard.cli("send", "@ada", "-", input=text).stdout.split()[0])
    host.done(row)
    [line] = host.guard.journal(f"_SYSTEMD_UNIT=hostguard-turn-ada-{row}.scope", "_TRANSPORT=stdout")
    assert int(line["MESSAGE"]) > len(text)
    for size in (9 << 20, 65 << 20):
        done = host.guard.cli("send", "@ada", "-", input="x" * size, check=False)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert ("limits.payload_max" in done.stderr) == (size < 64 << 20), done.stderr


# -- nonsense

DIGITS = "9" * 5000
VALUES = (
    "\udcff", DIGITS, f"+{'9' * 400}d", f"+{DIGITS}d", f"{'9' * 18}d", f"in {'9' * 18}d", f"1.{DIGITS}s", "", "-1",
    "x" * 5000, "99999-12-31", "2026-12-31T25:00", "9999-12-31T23:59:59+00:00", "24:61", "1e400", "nan", "²", "\u202e",
    f"mind_concurrent_turns={DIGITS}", "mind_concurrent_turns=²",
)  # fmt: skip
NOT_HERE = {
    "top",
    "demo",
    "setup",
    "doctor",
    "run",
    "events",
    "metrics",
    "report",
    "status",
    "pressure record",
}


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def lines() -> Iterator[list[str]]:
    """Each option and each argument of each verb, with each of the values; the rest as it should be."""
    for path, command in commands(cli):
        if " ".join(path) in NOT_HERE:
            continue
        arguments = [param for param in command.params if isinstance(param, click.Argument)]
        for param in command.params:
            if isinstance(param, click.Option) and param.is_flag:
                continue
            for value in VALUES:
                given = [
                    value if one is param else "1" if one.type is click.INT else "ada" for one in arguments
                ]
                option = [f"{param.opts[0]}={value}"] if isinstance(param, click.Option) else []
                yield [*path, *option, "--", *given]


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ((b"logs", b"\xff"), 2, "is not UTF-8"),
        ((b"send", b"@ada", b"caf\xe9"), 2, "is not UTF-8"),
        ((b"limit", b"set", b"global_concurrent_turns=" + b"9" * 5000), 2, "use a whole number"),
        ((b"send", b"@ada", b"x", b"--at", b"+" + b"9" * 400 + b"d"), 2, "invalid"),
        ((b"queue", b"9" * 5000), 2, "not a valid integer"),
        ((b"queue", b"9" * 4000), 4, "there is no delivery"),
        ((b"logs", b"9" * 300), 4, "there is no"),
        ((b"turns", b"9" * 3000), 4, "there is no turn"),
        ((b"logs", b""), 2, "the name is empty"),
        ((b"logs", b"@"), 2, "the name is empty"),
        ((b"logs", b"-n", b"9" * 19, b"ada"), 2, "is not in the range"),
        ((b"wake", b""), 2, "the name is empty"),
        ((b"send", b"@", b"x"), 2, "no mind is named: minds: ada, eve"),
        ((b"run", b"--mind", b"", b"--", b"true"), 2, "no mind is named: minds: ada, eve"),
        ((b"mind", b"token", b"@"), 2, "the name is empty"),
        ((b"schedule", b"remove", b""), 2, "the name is empty"),
        ((b"events", b"--since", b"9" * 30), 2, "at most 18 digits"),
        ((b"metrics", b"--textfile", b"/nowhere/x.prom"), 1, "no folder /nowhere: mkdir -p /nowhere"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(
    host: GuardedHost, argv: tuple[bytes, ...], code: int, said: str
) -> None:
    done = subprocess.run(
        [b"hostguard", *argv], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == code, done
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert len(done.stderr) < 1000 + 2 * max(map(len, argv))


def test_no_argument_brings_a_traceback(
    host: GuardedHost, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(os, "execvp", lambda *_: (_ for _ in ()).throw(SystemExit(0)))
    count = 0
    for line in lines():
        count += 1
        try:
            cli.main(line, prog_name="hostguard", standalone_mode=False)
        except (click.ClickException, CliError, SystemdFailed, ConfigError, SystemExit, OSError) as error:
            assert "Traceback" not in str(error), line
        except Exception as error:
            pytest.fail(f"hostguard {[word[:40] for word in line]}: {error!r:.300}")
    assert count > 500
    assert not [
        line
        for line in host.guard.journal("_SYSTEMD_UNIT=hostguard.service")
        if "Traceback" in line["MESSAGE"]
    ]
    with without_eve(host):
        pass  # it still reloads
