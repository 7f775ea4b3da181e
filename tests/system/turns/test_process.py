"""A turn as a process: its user, its environment, and where its output goes."""

from __future__ import annotations

import json
from pathlib import Path

from guard import drop_in, run
from scripted_host import ScriptedHost

# Says what it is; runs as a user who can write nothing.
LOOK = r"""#!/bin/bash
echo "ids $(id -un) $(id -u) $(id -G)"
echo "place $PWD $(umask) $(cat /proc/self/oom_score_adj) $(nice)"
grep -E '^(SigBlk|SigIgn|CapEff|CapPrm)' /proc/self/status
env | LC_ALL=C sort | sed 's/^/env /'
echo "stdin $(cat)"
echo to stderr >&2
exec ls -l /proc/self/fd  # with one of its own, for the folder
"""


def look(scripted: ScriptedHost, **fields: str) -> tuple[int, list[str]]:
    """A turn of mind `user` that looks at itself; the row, and what it wrote, as the journal has it."""
    row = scripted.send("#all", 'text "quoted"', **fields)
    scripted.done(row)
    lines = scripted.guard.journal(f"_SYSTEMD_UNIT=hostguard-turn-user-{row}.scope")
    assert {line["SYSLOG_IDENTIFIER"] for line in lines} == {"user"}
    return row, [line["MESSAGE"] for line in lines]


def start(scripted: ScriptedHost) -> None:
    run("groupadd", "--force", "extra")
    run("sh", "-c", "id minduser || useradd --create-home --shell /bin/bash --groups extra minduser")
    script = Path("/usr/local/bin/look")
    script.write_text(LOOK)
    script.chmod(0o755)
    mind = '[minds.user]\ncommand = ["/usr/local/bin/look"]\nuser = "minduser"\n'
    mind += '[minds.user.environment]\nOWN = "a value"\n[channels."#all"]\nminds = ["user"]'
    scripted.start("ab", mind)


def test_a_turn_runs_as_its_minds_user(scripted: ScriptedHost) -> None:
    """With that user's ids, groups and home, and with nothing of the guard's: no protection, no descriptor."""
    with drop_in("OOMScoreAdjust=200"):  # its own -900 is not allowed in a guest
        start(scripted)
    row, said = look(scripted, sender="somebody", session="s 1")
    ids = run("id", "-u", "minduser").stdout.strip(), run("id", "-G", "minduser").stdout.strip()
    assert f"ids minduser {ids[0]} {ids[1]}" in said
    assert len(ids[1].split()) == 2
    assert "place /home/minduser 0022 0 0" in said
    masks = {line.split(":\t")[0]: int(line.split(":\t")[1], 16) for line in said if ":\t" in line}
    masks["SigIgn"] &= 0x7FFFFFFF  # glibc's posix_spawn has its own two, 32 and 33, ignored
    assert masks == {"SigBlk": 0, "SigIgn": 0, "CapPrm": 0, "CapEff": 0}
    fds = [line.split(" -> ")[0].split()[-1] for line in said if " -> " in line and "/proc/" not in line]
    assert fds == ["0", "1", "2"], said
    payload = json.loads(next(line for line in said if line.startswith("stdin ")).removeprefix("stdin "))
    assert payload["content"] == 'text "quoted"'
    env = dict(line.removeprefix("env ").split("=", 1) for line in said if line.startswith("env "))
    for own in ("PWD", "OLDPWD", "SHLVL", "_"):  # bash's
        env.pop(own, None)
    assert env.pop("HOSTGUARD_HELD_MS").isdecimal()
    assert env == {
        "HOME": "/home/minduser", "USER": "minduser", "LOGNAME": "minduser", "SHELL": "/bin/bash",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
        "OWN": "a value", "HOSTGUARD_MIND": "user", "HOSTGUARD_TURN": str(row), "HOSTGUARD_DELIVERY": str(row),
        "HOSTGUARD_SESSION": "s 1", "HOSTGUARD_CHANNEL": "#all", "HOSTGUARD_SENDER": "somebody",
        "HOSTGUARD_ATTEMPT": "1",
    }  # fmt: skip


def test_output_is_under_the_scopes_unit(scripted: ScriptedHost) -> None:
    """`journalctl -u` and `hostguard logs` show it, stderr too, also of what was written after the guard was killed."""
    start(scripted)
    row, said = look(scripted)
    assert "to stderr" in said
    assert "to stderr\n" in scripted.guard.cli("logs", str(row)).stdout
    loud = scripted.send("@a", "echo before; wait_go; echo after")
    scripted.wait_started(loud)
    scripted.kill()
    scripted.go(loud)
    scripted.done(loud)
    written = scripted.guard.journal(f"_SYSTEMD_UNIT=hostguard-turn-a-{loud}.scope", "SYSLOG_IDENTIFIER=a")
    assert [line["MESSAGE"] for line in written] == ["before", "after"]
    logs = scripted.guard.cli("logs", str(loud)).stdout
    assert ("before" in logs, "after" in logs, "to stderr" in logs) == (True, True, False)


def test_holds_and_turns_are_in_the_journal(scripted: ScriptedHost) -> None:
    """One structured line when a hold begins and one when it ends, and of each start, end and change of a cap."""
    scripted.start("ab")
    first, second = scripted.send("@a", "wait_go; exit 3"), scripted.send("@a", session="other")
    scripted.wait_started(first)
    scripted.go(first)
    scripted.done(first, second)
    scripted.limit(3)

    def told(last: str, *fields: str) -> list[tuple[str, ...]]:
        lines = scripted.guard.journal(f"MESSAGE_ID=6b0e4d2f0a5c4b7c9d1f3a8e52c704{last}")
        return [tuple(line[f"HOSTGUARD_{field.upper()}"] for field in fields) for line in lines]

    blocker = f"hostguard-turn-a-{first}.scope"
    hold = ("a", "other", str(second), "mind_busy", blocker)
    assert told("11", "mind", "session", "delivery", "reason", "blocker") == [hold]
    assert told("12", "mind", "session", "delivery", "reason", "blocker") == [hold]
    assert int(told("12", "waited_ms")[0][0]) == scripted.row(second)["result"]["held_ms"] > 0
    assert told("13", "delivery", "unit")[0] == (str(first), blocker)
    assert told("14", "delivery", "outcome") == [(str(first), "exited"), (str(second), "exited")]
    assert told("1b", "limit", "value", "source") == [("global_concurrent_turns", "3", "kept")]
