"""Routes, batches and gated channels on a whole host: a real guard, a real mind, a real routes.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from guard import run, wait_for
from guarded import LONG_S
from minds import OneMind
from resident_host import ResidentHost

SHARES_GUARD = True
BATCH = {"debounce": 0.5, "maxWait": 30, "triggers": ["urgent"]}


class Routed:
    """A mind with a routes.json that a test writes."""

    def __init__(self, host: ResidentHost, work: float = 0.1, **file: Any) -> None:
        self.host, self.path = host, host.minds.folder / "home" / "routes.json"
        host.minds.folder.chmod(0o755)
        if file:
            self.write(**file)
        config = f'routes = "{self.path}"\nuser = "nobody"\ndirectory = "/"\n'
        self.mind: OneMind = host.one(work=work, config=config)

    def write(self, **file: Any) -> None:
        """Replace the file by a rename, as editors do."""
        self.path.parent.mkdir(exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(file))
        os.rename(new, self.path)

    def send(self, content: str, channel: str = "#x", sender: str = "ann", **more: Any) -> int:
        return self.host.send("m", content, channel=channel, sender=sender, **more)

    def state(self, row: int) -> str:
        return str(self.host.row(row)["state"])

    def notices(self) -> list[str]:
        """The contents of what came on @volute."""
        return [line["content"] for line in self.mind.taken() if line["channel"] == "@volute"]

    def bodies(self) -> list[Any]:
        return self.mind.taken()


def test_a_batch_goes_out_as_one_message_and_survives_a_kill(host: ResidentHost) -> None:
    m = Routed(host, rules=[{"channel": "#x", "session": "s", "batch": {**BATCH, "debounce": 20}}])
    rows = [m.send(f"{n}") for n in range(3)]
    assert [m.state(row) for row in rows] == ["batching"] * 3
    assert m.mind.taken() == []
    host.kill()
    assert [m.state(row) for row in rows] == ["batching"] * 3
    rows.append(m.send("this is URGENT", sender="eve"))
    ended = host.done(*rows, state="batched")
    [batch] = {row["result"]["delivery"] for row in ended}
    [row] = host.done(batch)
    assert (row["kind"], row["session"]) == ("batch", "s")
    [line] = m.mind.taken()
    assert line["session"] == "s"
    [(channel, messages)] = line["batch"]["channels"].items()
    assert channel == "#x"
    assert [one["content"] for one in messages] == ["0", "1", "2", "this is URGENT"]
    assert [one["sender"] for one in messages] == ["ann"] * 3 + ["eve"]


def test_a_pause_in_the_talk_lets_a_batch_go(host: ResidentHost) -> None:
    m = Routed(host, rules=[{"batch": BATCH}])
    rows = [m.send("a"), m.send("b", channel="#y")]
    host.done(*rows, state="batched")
    wait_for(lambda: len(m.mind.taken()) == 1)
    assert [*m.mind.taken()[0]["batch"]["channels"]] == ["#x", "#y"]


def test_a_new_speaker_is_heard_in_the_running_turn(host: ResidentHost) -> None:
    m = Routed(host, work=3, rules=[{"session": "s", "batch": {**BATCH, "debounce": 0.5}}])
    first = m.send("urgent: begin")
    [ended] = host.done(first, state="batched")
    turn = host.in_turn(ended["result"]["delivery"])
    same = m.send("more of mine")
    new = m.send("I differ", sender="eve")
    other = {row["result"]["delivery"] for row in host.done(same, new, state="batched")}
    [batch] = other
    [row] = host.done(batch)
    assert row["turn"] == turn["id"], "it folded into the turn"
    lines = m.mind.taken()
    assert [line["interrupt"] for line in lines] == [False, True]
    assert [one["content"] for one in lines[1]["batch"]["channels"]["#x"]] == ["more of mine", "I differ"]


def test_a_gated_channel_is_told_of_and_let_go_by_a_rule(host: ResidentHost) -> None:
    m = Routed(host, rules=[])
    rows = [m.send(f"{n}") for n in range(12)]
    assert {m.state(row) for row in rows} == {"gated"}
    wait_for(lambda: len(m.notices()) == 2, LONG_S)
    assert "from ann: 0\n" in m.notices()[0]
    assert "11 messages are kept back" in m.notices()[1]
    host.kill()
    assert {m.state(row) for row in rows} == {"gated"}
    assert host.get("/v1/minds")["minds"][0]["gated"] == 12

    rule = m.notices()[0]
    m.write(rules=[json.loads(rule[rule.index("{") : rule.index("}") + 1])])
    host.done(*rows[:2], state="skipped")
    host.done(*rows[2:])
    assert [line["content"] for line in m.mind.taken() if line["channel"] == "#x"] == [
        str(n) for n in range(2, 12)
    ]
    assert host.row(rows[0])["result"]["outcome"] == "archived"
    host.done(m.send("now at once"))


def test_a_file_that_comes_later_and_one_that_is_bad(host: ResidentHost) -> None:
    m = Routed(host)
    host.done(m.send("no file: main"))
    m.write(rules=[{"session": "s"}])
    wait_for(lambda: host.post("/v1/minds/m/route", channel="#x")["session"] == "s")
    host.done(m.send("a file"))
    m.path.write_text("{")
    wait_for(lambda: [one for one in host.guard.journal() if str(m.path) in one["MESSAGE"]][-1:] != [])
    wait_for(lambda: any("it is not JSON" in one["MESSAGE"] for one in host.guard.journal()))
    host.done(m.send("a bad file: as before"))
    assert [line["session"] for line in m.mind.taken()] == ["main", "s", "s"]


def test_filtered_named_and_new_sessions(host: ResidentHost) -> None:
    m = Routed(host, rules=[{"channel": "#m", "mode": "mention"}, {"channel": "#n", "session": "$new"}])
    [filtered] = host.done(m.send("hello", channel="#m"), state="skipped")
    assert filtered["result"]["reason"] == "rule 1 matches, but only for messages that mention m"
    host.done(m.send("hello m", channel="#m"))
    host.done(m.send("a", channel="#n"), m.send("b", channel="#n"))
    host.done(m.send("named", channel="#m", session="own"))
    sessions = [line["session"] for line in m.mind.taken()]
    assert sessions[0] == "main"
    assert sessions[1] != sessions[2]
    assert all(session.startswith("new-") for session in sessions[1:3])
    assert sessions[3] == "own"


def test_a_file_takes_messages_as_the_minds_user(host: ResidentHost) -> None:
    folder = Path("/var/tmp/routed-files")
    run("install", "-d", "-o", "nobody", str(folder))
    kept = folder / "kept.jsonl"
    kept.unlink(missing_ok=True)
    m = Routed(host, rules=[{"destination": "file", "path": str(kept)}])
    host.done(m.send("one"), m.send("two\nlines"))
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [(line["channel"], line["sender"], line["content"]) for line in lines] == [
        ("#x", "ann", "one"),
        ("#x", "ann", "two\nlines"),
    ]
    assert kept.stat().st_uid == 65534
    assert m.mind.taken() == []


def test_instructions_of_a_session_come_with_each_message(host: ResidentHost) -> None:
    m = Routed(host, rules=[{"session": "s"}], sessions={"s": {"instructions": "be short"}})
    host.done(m.send("x"))
    assert "instructions" in m.mind.taken()[0]["body"]


def test_route_is_explained(host: ResidentHost) -> None:
    m = Routed(host, rules=[{"channel": "#x", "session": "s-${sender}", "batch": 1}, {"sender": "eve"}])
    explained = host.post("/v1/minds/m/route", channel="#x", sender="ann")
    assert explained == {
        "mind": "m",
        "action": "deliver",
        "session": "s-ann",
        "path": None,
        "rule": 1,
        "mode": "batch",
        "batch": {"debounce_s": 5, "max_wait_s": 60, "triggers": []},
        "text": "rule 1 matches: session s-ann",
    }
    assert host.post("/v1/minds/m/route", channel="#z")["action"] == "gated"
    assert host.api.post("/v1/minds/m/route", json={"chanel": "#z"}).status_code == 400
    said = run("hostguard", "route", "test", "m", "--channel", "#y", "--sender", "eve").stdout
    assert "rule 2 matches: session main" in said
    m.path.unlink()
    text = f"there is no {m.path} that can be used: session main"
    wait_for(lambda: host.post("/v1/minds/m/route")["text"] == text)


def test_a_gathered_and_a_gated_message_can_be_cancelled(host: ResidentHost) -> None:
    m = Routed(host, rules=[{"channel": "#x", "batch": {**BATCH, "debounce": 20}}])
    gathered, gated, other = m.send("1"), m.send("2", channel="#y"), m.send("3")
    for row in (gathered, gated):
        host.post(f"/v1/deliveries/{row}/cancel")
        host.done(row, state="cancelled")
    [ended] = host.done(m.send("urgent"), state="batched")
    host.done(ended["result"]["delivery"])
    assert m.state(other) == "batched"
    [line] = [line for line in m.mind.taken() if line["channel"] != "@volute"]
    assert [one["content"] for one in line["batch"]["channels"]["#x"]] == ["3", "urgent"]

    def kept() -> list[int]:
        mind = host.get("/v1/minds")["minds"][0]
        return [mind["batching"], mind["gated"]]

    wait_for(lambda: kept() == [0, 0])
