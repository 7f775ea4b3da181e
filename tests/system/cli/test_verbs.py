"""The README's examples of resident minds, and the verbs around them, on a whole host."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from guard import ROOT, run, systemctl, wait_for
from guarded import LONG_S
from resident_host import ResidentHost

SHARES_GUARD = True
README = (ROOT / "README.md").read_text()


def mind(host: ResidentHost) -> Any:
    return host.guard.json("minds")["minds"][0]


def test_the_readmes_routes_do_what_it_says(host: ResidentHost) -> None:
    routes = host.minds.folder / "routes.json"
    found = re.search(r"```json\n(.*?)```", README, re.S)
    assert found is not None
    routes.write_text(found[1])
    host.minds.folder.chmod(0o755)
    host.minds.add("bob", config=f'routes = "{routes}"\nuser = "nobody"\ndirectory = "/"\n')
    host.start()
    command, _, said = README.partition("    $ hostguard route test ")[2].partition("\n")
    assert command == "bob --channel '#team' --sender eve --content 'lunch, @bob?'"
    wanted = "".join(f"{line.strip()}\n" for line in said.partition("\n\n")[0].splitlines())
    args = ("--channel", "#team", "--sender", "eve", "--content")
    assert host.guard.cli("route", "test", "bob", *args, "lunch, @bob?").stdout == wanted
    for given, action, session in (
        (("--channel", "#team", "--sender", "eve", "--content", "lunch?"), "filtered", None),
        (("--channel", "#logs"), "file", None),
        (("--sender", "eve"), "deliver", "eve"),
        (("--channel", "#else"), "gated", None),
    ):
        told = host.guard.json("route", "test", "bob", *given)
        assert (told["action"], told["session"]) == (action, session), given
    row = host.send("bob", "hello", sender="eve")
    assert host.done(row)[0]["session"] == "eve", "as the test of the route said"


def test_the_readmes_timer_sends(host: ResidentHost) -> None:
    ada = host.minds.add("ada")
    host.start()
    found = re.search(
        r"# /etc/systemd/system/tidy.service\n(.*?)\n\n# (\S+/tidy.timer)\n(.*?)```", README, re.S
    )
    assert found is not None
    files = {
        Path("/run/systemd/system/tidy.service"): found[1],
        Path("/run/systemd/system/tidy.timer"): found[3],
    }
    for path, text in files.items():
        path.write_text(text)
    systemctl("daemon-reload")
    try:
        systemctl("start", "tidy.timer")
        assert run("systemctl", "is-active", "tidy.timer").stdout == "active\n"
        assert "tidy.timer" in run("systemctl", "list-timers").stdout
        systemctl("start", "tidy.service")
        wait_for(lambda: ada.contents() == ["tidy up"], LONG_S)
        [message] = ada.taken()
        assert message["session"] not in ("main", "$new"), "one of its own"
    finally:
        systemctl("stop", "tidy.timer")
        for path in files:
            path.unlink()
        systemctl("daemon-reload")


def test_a_mind_sleeps_and_wakes_from_the_command_line(host: ResidentHost) -> None:
    bob = host.one()
    cli = host.guard.cli
    assert cli("sleep", "m", "--until", "+8h").stdout.startswith("m will sleep until ")
    wait_for(lambda: mind(host)["sleep"] == "asleep", LONG_S)
    assert abs(mind(host)["asleep_until"] / 1000 - time.time() - 8 * 3600) < 300
    assert re.search(r"^m +asleep until \d{4}-", cli("minds").stdout, re.M)
    assert cli("sleep", "m").stdout == "m is asleep\n"
    row = host.send("m", "for later", channel="#c")
    assert host.guard.json("queue", str(row))["hold"]["reason"] == "asleep"
    assert "asleep: hostguard wake m" in cli("status").stdout
    assert cli("wake", "m").stdout.startswith("m is awake: ")
    host.done(row)
    assert bob.contents().count("for later") == 1
    assert cli("sleep", "nobody", check=False).returncode == 4


def test_a_token_from_the_command_line_is_good(host: ResidentHost) -> None:
    bob = host.one()
    taken = host.guard.cli("mind", "token", "m", check=False)
    assert (taken.returncode, taken.stdout) == (1, "")
    assert "set in the configuration" in taken.stderr, "which wins over one that would be made"
    host.guard.configure(re.sub(r"(?m)^token = .*$", "", host.minds.config()))
    host.guard.reload()
    assert host.tell(bob, type="text") == 401
    bob.token = host.guard.cli("mind", "token", "m").stdout.removesuffix("\n")
    assert host.tell(bob, type="text") == 200
    host.guard.cli("mind", "token", "m")
    assert host.tell(bob, type="text") == 401, "the one before ends"
    bob.token = "token-of-m"  # the mind itself has it, and can tell no end
    host.guard.configure(host.minds.config())
    host.guard.reload()


def test_schedules_from_the_command_line(host: ResidentHost) -> None:
    bob = host.one()
    cli = host.guard.cli
    added = cli("schedule", "add", "tidy", "@m", "--cron", "0 3 * * *", "--message", "tidy up").stdout
    assert re.fullmatch(r"tidy saved; next run \d{4}-\S+ 03:00:00\n", added)
    assert re.search(r"^tidy +m +0 3 \* \* \* .* kept +tidy up$", cli("schedule", "list").stdout, re.M)
    row = int(cli("schedule", "run-now", "tidy").stdout.split()[0])
    host.done(row)
    assert bob.contents() == ["[tidy] tidy up"]
    soon = cli("schedule", "add", "soon", "m", "--at", "+1", "--message", "now")
    assert "next run" in soon.stdout
    wait_for(lambda: bob.contents()[1:] == ["[soon] now"], LONG_S)
    assert cli("schedule", "remove", "tidy").stdout == "tidy removed\n"
    assert cli("schedule", "remove", "tidy", check=False).returncode == 4
    for bad in (("--cron", "* * *"), ("--cron", "* * * * *", "--at", "+1h"), ("--at", "2001-01-01")):
        done = cli("schedule", "add", "x", "m", *bad, "--message", "x", check=False)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert "Traceback" not in done.stderr


def test_dead_letters_from_the_command_line(host: ResidentHost) -> None:
    bob = host.one("refuses", work=0)
    rows = [host.send("m", f"{n}", session=f"s{n}") for n in range(2)]
    bob.control(refuse=1000)
    wait_for(lambda: all(host.row(row)["attempts"] for row in rows), LONG_S)
    for row in rows:
        host.sql("UPDATE deliveries SET attempts = 9 WHERE id = ?", row)
    host.kill()
    host.done(*rows, state="dead")
    [advice] = {
        line["MESSAGE"].rpartition(": ")[2]
        for line in host.guard.journal(f"HOSTGUARD_DELIVERY={rows[0]}", "PRIORITY=3")
    }
    assert advice == f"hostguard retry {rows[0]}"
    assert host.guard.cli(*advice.split()[1:]).stdout == f"{rows[0]} m/s0 queued again\n", "advice is good"
    wait_for(lambda: host.row(rows[0])["attempts"], LONG_S)
    host.sql("UPDATE deliveries SET attempts = 9 WHERE id = ?", rows[0])
    host.kill()
    host.done(rows[0], state="dead")
    listed = host.guard.cli("dead", "list", "--mind", "m").stdout.splitlines()[1:]
    assert [line.split()[0] for line in listed] == [str(row) for row in rows]
    assert "500" in listed[0]
    bob.control(refuse=0, preset="normal")
    dropped = host.guard.cli("dead", "drop", str(rows[0])).stdout
    assert dropped == f"{rows[0]} m/s0 dropped\n"
    assert host.guard.cli("dead", "retry", "--all").stdout == f"{rows[1]} m/s1 queued again\n"
    host.done(rows[1])
    assert host.row(rows[0])["state"] == "cancelled"
    assert host.guard.cli("dead", "list").stdout == "no dead letters\n"
