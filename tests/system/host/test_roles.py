"""The table of roles in hostguardd(8): each of its cells, tried; and what others can find of secrets."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from guard import ROOT, run, wait_for
from roles_host import NEEDLE, OUTPUT, ROLES, SECRET, TOKEN, WEB, Host
from roles_host import host as host


def table() -> dict[str, dict[str, str]]:
    """What the manual says: row -> role -> cell."""
    text = (ROOT / "packaging/man/hostguardd.8.scd").read_text()
    section = text.partition("\n# ROLES\n")[2].partition("\n# ")[0]
    heading, *rows = re.split(r"^(?:\[\[|\|) +", section, flags=re.MULTILINE)[1:]
    assert re.findall(r"\*(\w+)\*", heading) == ["to", *ROLES]
    cells = [[cell.strip() for cell in row.partition("\n\n")[0].split("\n:-")] for row in rows]
    return {row[0]: dict(zip(ROLES, row[1:], strict=True)) for row in cells}


TABLE = table()

# Of each row of the table: whether the role may; "its own" where only about itself.
Probe = Callable[[Host, str], bool | str]


def see(host: Host, role: str) -> bool:
    if role == "mind":
        paths = ("status", "minds", "turns", "limits", "events?follow=0")
        return host.api_by_token(*(("GET", f"/v1/{path}") for path in paths))
    looks = ("status",), ("minds",), ("turns",), ("limit", "show"), ("events",), ("metrics",)
    return host.all_or_none(role, *looks)


def see_web(host: Host, role: str) -> bool:
    page = host.as_user(role, "curl", "-s", f"http://{WEB}/").stdout
    metrics = host.as_user(role, "curl", "-s", f"http://{WEB}/metrics").stdout
    assert not [word for word in (NEEDLE, SECRET, TOKEN, OUTPUT) if word in page or word in metrics]
    assert ("ada" in page) == ('mind="ada"' in metrics)
    return "ada" in page


def see_queue(host: Host, role: str) -> bool:
    if role == "mind":
        return host.api_by_token(("GET", "/v1/deliveries"), ("GET", "/v1/deliveries/1"))
    found = NEEDLE in host.as_user(role, "hostguard", "queue", "1").stdout
    assert host.cli(role, "queue") == found
    return found


def send_as_anybody(host: Host, role: str) -> bool:
    if role == "mind":
        return (
            host.asked("/api/minds/ada/message", {"content": "x", "sender": "eve"}) < 300
            or host.asked("/api/minds/bob/message", {"content": "x", "sender": "ada"}) < 300
        )
    return host.all_or_none(role, ("send", "@ada", "x", "--sender", "eve"), ("send", "#system", "x"))


def send_as_itself(host: Host, role: str) -> bool:
    if role != "mind":
        return host.cli(role, "send", "@ada", "x", "--sender", "bob")
    assert host.asked("/api/minds/ada/message", {"content": "x"}, token=None) == 401
    return host.asked("/api/minds/ada/message", {"content": "x", "sender": "bob"}) == 200


def tell_done(host: Host, role: str) -> bool | str:
    if role != "mind":  # none of them has a token
        return host.asked("/api/minds/bob/events", {"type": "done"}, token=None) < 300
    assert host.asked("/api/minds/bob/events", {"type": "done"}) == 200
    return host.asked("/api/minds/ada/events", {"type": "done"}) < 300 or "its own"


def steer(host: Host, role: str) -> bool:
    row, unit = host.live()
    if role == "mind":
        mine = [f"deliveries/{host.waiting()}/cancel", f"turns/{row}/stop", "pause", "minds/bob/sleep"]
        may = host.api_by_token(*(("POST", f"/v1/{path}") for path in mine))
    else:
        may = host.all_or_none(
            role, ("cancel", host.waiting()), ("retry", host.dead()), ("dead", "drop", host.dead()),
            ("stop", row), ("pause", "ada"), ("resume", "ada"), ("sleep", "bob"), ("wake", "bob"),
        )  # fmt: skip
    assert may or unit in host.guard.scopes()
    return may


def change(host: Host, role: str) -> bool:
    if role == "mind":
        return host.api_by_token(("PATCH", "/v1/limits"), ("POST", "/v1/reload"))
    return host.all_or_none(role, ("limit", "set", "global_concurrent_turns=90", "--runtime"), ("reload",))


def make_token(host: Host, role: str) -> bool:
    if role == "mind":
        return host.api_by_token(("POST", "/v1/minds/ada/token"), ("POST", "/v1/minds/bob/token"))
    return host.cli(role, "mind", "token", "ada")


def run_own(host: Host, role: str) -> bool:
    if role == "mind":
        return host.api_by_token(("POST", "/v1/run"))
    done = host.as_user(role, "hostguard", "run", "--mind", "ada", "--", "id", "-un")
    assert done.stdout == (f"{role}\n" if done.returncode == 0 else "")  # never as the mind's user
    return done.returncode == 0


def schedule_message(host: Host, role: str) -> bool:
    if role == "mind":
        return host.api_by_token(("POST", "/v1/schedules"))
    return host.cli(role, "schedule", "add", f"m-{role}", "@ada", "--at", "+9h", "--message", "x")


def schedule_script(host: Host, role: str) -> bool:
    if role == "mind":
        return host.api_by_token(("POST", "/v1/schedules"))
    return host.cli(role, "schedule", "add", f"s-{role}", "@ada", "--at", "+9h", "--script", "id")


def see_environment(host: Host, role: str) -> bool:
    if role == "mind":
        return host.api_by_token(("GET", "/v1/config"))
    shown = host.as_user(role, "hostguard", "config", "show").stdout
    url = "http://localhost/v1/config"
    shown += host.as_user(role, "curl", "-s", "--unix-socket", "/run/hostguard/hostguard.sock", url).stdout
    return SECRET in shown


def readable(host: Host, role: str, *places: str) -> bool:
    outcomes = {host.as_user(role, "head", "--bytes=1", place).returncode == 0 for place in places}
    assert len(outcomes) == 1, places
    return outcomes.pop()


def read_state(host: Host, role: str) -> bool:
    row, _ = host.live()
    return readable(host, role, "/var/lib/hostguard/queue.db", f"/run/hostguard/turns/{row}")


def write_configuration(host: Host, role: str) -> bool:
    file = Path(f"/etc/hostguard/hostguard.toml.d/mind-{role}.toml")
    done = host.as_user(role, "hostguard", "mind", "add", role, "--command", "true", "--user", "root")
    assert file.exists() == (done.returncode == 0)
    file.unlink(missing_ok=True)
    return done.returncode == 0


def read_output(host: Host, role: str) -> bool:
    unit = host.guard.journal(f"MESSAGE={OUTPUT}")[0]["_SYSTEMD_UNIT"]
    return OUTPUT in host.as_user(role, "journalctl", "--no-pager", f"--unit={unit}").stdout


def stop_scope(host: Host, role: str) -> bool:
    _, unit = host.live()
    done = host.as_user(role, "systemctl", "--no-ask-password", "stop", unit)
    if done.returncode != 0:
        assert unit in host.guard.scopes()
        return False
    wait_for(lambda: unit not in host.guard.scopes())
    return True


def list_scopes(host: Host, role: str) -> bool:
    if role == "mind":
        return host.api_by_token(("GET", "/v1/turns"))
    _, unit = host.live()
    return unit in host.as_user(role, "systemctl", "list-units", "hostguard-*").stdout


PROBES: dict[str, Probe] = {
    "see status, minds, turns, limits, events, metrics": see,
    "see the page and the metrics under [web], if configured": see_web,
    "see the queue, including the messages": see_queue,
    "send a message to a mind or a channel, under any name": send_as_anybody,
    "send a message to another mind, under its own name": send_as_itself,
    "report that a mind's turn is done": tell_done,
    "cancel, retry, drop, stop, pause, resume, sleep, wake": steer,
    "change a limit, reload the configuration": change,
    "make a token for a mind": make_token,
    "run its own command as a turn of a mind": run_own,
    "add a schedule that sends a message": schedule_message,
    "add a schedule that runs a script as a mind's user": schedule_script,
    "see the values of a mind's environment": see_environment,
    "read the queue's database, or a turn's record": read_state,
    "write the configuration": write_configuration,
    "read the output of turns in the journal": read_output,
    "stop a turn's scope with systemctl": stop_scope,
    "list turns with systemctl": list_scopes,
}


def test_each_row_is_tried() -> None:
    assert list(TABLE) == list(PROBES)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("row", PROBES)
def test_a_cell(host: Host, row: str, role: str) -> None:
    may = PROBES[row](host, role)
    assert (may if isinstance(may, str) else "yes" if may else "no") == TABLE[row][role]


def test_a_member_who_is_the_minds_user_may_add_a_script(host: Host) -> None:
    run("usermod", "--append", "--groups", "hostguard", "ada")
    assert host.cli("ada", "schedule", "add", "mine", "@ada", "--at", "+9h", "--script", "id")


# -- secrets

SEARCH = """
import os, sys
needles = [word.encode() for word in sys.argv[1:]]
own = f"/proc/{os.getpid()}"
def files():
    for top in ("/run/hostguard", "/var/lib/hostguard", "/etc/hostguard", "/run/log", "/var/log", "/tmp", "/run/systemd"):
        for folder, _, names in os.walk(top):
            yield from (os.path.join(folder, name) for name in names)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        yield from (f"/proc/{pid}/{name}" for name in ("environ", "cmdline", "fd/0") if f"/proc/{pid}" != own)
looked = 0
for path in files():
    try:
        if not os.path.isfile(path):
            continue
        text = open(path, "rb").read()
    except OSError:
        continue
    looked += 1
    print(*(f"FOUND {word.decode()} in {path}" for word in needles if word in text), sep="\\n")
print("looked", looked)
"""


def found(host: Host, role: str) -> list[str]:
    """Where the role finds a message, a secret or a token of this host."""
    said = host.as_user(role, sys.executable, "-c", SEARCH, NEEDLE, SECRET, TOKEN, OUTPUT).stdout.splitlines()
    assert int(said[-1].removeprefix("looked ")) > 10
    return [line for line in said if line.startswith("FOUND")]


def test_others_find_no_message_and_no_secret_on_the_host(host: Host) -> None:
    host.as_user("root", "hostguard", "send", "@slow", "-", "--session", "$new", stdin=NEEDLE)
    host.live()
    assert any(NEEDLE in line for line in found(host, "root"))  # the search does find
    assert any(SECRET in line for line in found(host, "root"))
    for role in ("member", "other"):
        assert found(host, role) == []


def test_a_token_is_kept_as_its_hash_only(host: Host) -> None:
    told = host.as_user("root", "hostguard", "mind", "token", "ada").stdout.strip()
    assert len(told) > 40
    kept = host.sql("SELECT value FROM settings WHERE name = 'token.mind.ada'")
    assert json.loads(kept[0][0]) == hashlib.sha256(told.encode()).hexdigest()
    assert not host.guard.journal(f"MESSAGE={told}")


def test_no_message_s_text_is_in_the_journal_of_the_guard(host: Host) -> None:
    lines = host.guard.journal("SYSLOG_IDENTIFIER=hostguardd")
    assert len(lines) > 10
    assert NEEDLE not in json.dumps(lines)
    assert SECRET not in json.dumps(lines)
