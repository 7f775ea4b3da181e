"""What holds after any history of test_anything.py."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from anything_host import CAP, EXEC, LOG, PRESETS, RUN_LOG, AnythingHost, errors_of

Rows = dict[int, Any]  # by id
Got = list[tuple[str, Any]]  # (session, content) in the order in which a mind took them


def check(host: AnythingHost) -> None:
    """Nothing lost, nothing twice without a crash, order per session, caps, times, attempts."""
    rows = {row["id"]: row for row in host.rows()}
    assert {row["id"] for row in host.sent} <= rows.keys(), "a row is lost"
    for row in rows.values():
        check_end(row)
        check_attempts(host, row)
    for name in PRESETS:
        check_resident(host, name, rows)
    check_exec(host, rows)
    check_runs(host)
    assert host.leap in {row["key"] for row in rows.values()}, "a schedule did not make up for a time"
    assert host.scopes.most <= CAP, "more turns than the cap at one time"
    assert host.scopes.most_of_mind <= 1, "two turns of a mind at one time"


def check_end(row: Any) -> None:
    """It ended as its kind may, and not before or after the times that were asked for."""
    ends = {"done", "batched", "skipped"}
    if row["kind"] == "lifecycle":
        ends |= {"cancelled", "expired"}  # a mind that is woken before it was told to sleep is not told
    if row["expires_at"]:
        ends.add("expired")
        assert row["state"] != "expired" or row["ended_at"] >= row["expires_at"], row
    assert row["state"] in ends, row
    asked_for = row["not_before"] and not row["attempts"]
    assert not asked_for or row["state"] != "done" or row["started_at"] >= row["not_before"], row


def check_attempts(host: AnythingHost, row: Any) -> None:
    """A failure is an attempt, and a hold is none. A guard that ends in that moment may not come to count it."""
    if row["mind"] == EXEC:
        least = failures = int("!crash" in host.texts.get(row["key"], ""))
        others = bool(host.stopped) or row["kind"] == "batch"
        if host.stopped and row["result"].get("outcome") == "stopped":
            least = 0  # before it could crash
    else:
        lines = host.minds[row["mind"]].log("message")
        lines = [line for line in lines if line["key"].startswith(f"hostguard-{row['id']}-")]
        failures = sum(not line["taken"] and not line["repeat"] for line in lines)
        least = failures - host.interruptions
        others = row["mind"] in host.mortal  # answers that were lost with the mind
    assert row["attempts"] >= least, (row, failures)
    assert row["attempts"] <= failures or others, (row, failures)


def check_resident(host: AnythingHost, name: str, rows: Rows) -> None:
    """The mind honours the key: it took each message exactly once."""
    got: Got = []
    for line in host.minds[name].taken():
        got += [(line["session"], content) for content in contents(line)]
    wanted = wanted_by(host, name, rows)
    texts = Counter(content for _, content in got if content.startswith("text "))
    lost = Counter(wanted.values()) - texts
    # One that was posted as the guard was killed may expire before it is posted again.
    more = texts - Counter(wanted.values()) - Counter(wanted_by(host, name, rows, "expired").values())
    assert not lost, (name, [rows[id_] for id_, text in wanted.items() if text in lost])
    assert not more, (name, [line for line in host.minds[name].log("message") if line["content"] in more])
    check_order(got, wanted, rows)
    hours = [
        row for row in rows.values() if row["mind"] == name and (row["key"] or "").startswith("schedule:")
    ]
    assert sum(content == "[hour] hour" for _, content in got) == len(hours), "of a schedule"


def check_exec(host: AnythingHost, rows: Rows) -> None:
    """The command ran once for each message, and again only after a crash."""
    got: Got = []
    for line in map(json.loads, LOG.read_text().splitlines()):
        got += [(line["session"], content) for content in contents(line)]
    wanted = wanted_by(host, EXEC, rows)
    texts = Counter(content for _, content in got if content.startswith("text "))
    expired = wanted_by(host, EXEC, rows, "expired")  # after a crash, before it was tried again
    assert texts.keys() <= {*wanted.values(), *expired.values()}
    for id_, text in wanted.items():
        turn = rows[rows[id_]["result"].get("delivery", id_)]  # that of its batch, if it went out in one
        least = 0 if turn["result"]["outcome"] in ("stopped", "killed") else 1
        least = least if host.stopped else turn["attempts"] + 1
        assert least <= texts[text] <= turn["attempts"] + 1, (text, turn)
    check_order(got, wanted, rows)


def check_order(got: Got, wanted: dict[int, str], rows: Rows) -> None:
    """What names its session comes in order. Only main may get messages by another way, too, and later."""
    plain = {id_: text for id_, text in wanted.items() if not rows[id_]["attempts"]}
    for session in ("other", "while"):
        named = [text for id_, text in plain.items() if rows[id_]["session"] == session]
        came = [content for where, content in got if where == session and content in set(named)]
        assert came == [text for text in named if text in set(came)], f"order of {session}"


def check_runs(host: AnythingHost) -> None:
    """Each `hostguard run` ran its command once, unless its turn was stopped or the guard was on standby."""
    lines = Counter(RUN_LOG.read_text().splitlines())
    for text, run in host.runs.items():
        said = errors_of(text).read_text()
        refused = run.returncode == 1 and "nothing is accepted or started" in said
        most = 0 if refused else 1
        least = 0 if refused or (host.stopped and run.returncode) else 1
        assert least <= lines[text] <= most, (text, run.returncode, said)
        assert run.returncode == 0 or refused or host.stopped, (run.returncode, said)
    assert lines.keys() <= host.runs.keys()


def wanted_by(host: AnythingHost, name: str, rows: Rows, *states: str) -> dict[int, str]:
    """The text of each of the mind's rows of these states, or that it is to get, by id, in order."""
    states = states or ("done", "batched")
    return {
        row["id"]: host.texts[row["key"]]
        for row in rows.values()
        if row["mind"] == name and row["key"] in host.texts and row["state"] in states
    }


def contents(line: Any) -> list[str]:
    """What is in a message: one content, or those of a batch; without the note of a long hold."""
    messages = [line]
    if line.get("batch"):
        messages = [one for many in line["batch"]["channels"].values() for one in many]
    texts = [str(message["content"]) for message in messages]
    return [text.partition("\n")[2] if text.startswith("[hostguard held") else text for text in texts]
