"""The note of a hold: who waited for more than a minute is told how long, and behind what, in every path.

The guard's clock is turned while the rows wait.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guard import DISK, Guard, wait_for
from guarded import LONG_S
from resident_host import ResidentHost
from turned import Clock

LOG = DISK / "notes-of-exec"
EXEC = f'[minds.e]\ncommand = ["/bin/sh", "-c", "cat >>{LOG}; echo >>{LOG}"]\nuser = "root"\n'
SCHEDULES = """
[schedules.tick]
mind = "m"
cron = "0 0 1 1 *"
message = "tock"
[schedules.script]
mind = "m"
cron = "0 0 1 1 *"
script = "echo now"
"""
BATCH = {"rules": [{"channel": "#x", "session": "s", "batch": {"debounce": 0.1, "maxWait": 1}}]}
NOTE = re.compile(r"\[hostguard held this message for 1 min 4\d s(?:(?:, behind |: )([^\]]+))?\]\n")


def told(content: Any) -> tuple[str, str]:
    """(behind what, or why, the rest) of a content with a note."""
    found = NOTE.match(content)
    assert found, content
    return found[1], content[found.end() :]


class Held:
    """Resident mind m and exec mind e, both with a batch for #x, and a turn of mind o that has the only slot."""

    def __init__(self, host: ResidentHost, clock: Clock) -> None:
        self.host, self.clock, self.mind = host, clock, host.minds["m"]
        LOG.write_text("")
        self._earlier = len(self.mind.taken())
        self.first = host.send("o", "!work=60")
        self.turn = host.in_turn(self.first)

    def taken(self) -> list[dict[str, Any]]:
        """The messages that mind m has taken in this test."""
        return self.mind.taken()[self._earlier :]

    def contents(self) -> list[Any]:
        return [line["content"] for line in self.taken()]

    def send(self, *args: Any, **fields: Any) -> int:
        """Send a message, and wait until it is held; its row, or that of the batch which it went out in."""
        return self.is_held(self.host.send(*args, **fields))

    def is_held(self, row: int) -> int:
        wait_for(lambda: self.host.row(row)["state"] != "batching", LONG_S)
        row = self.host.row(row)["result"].get("delivery", row)
        wait_for(lambda: self.host.events("held", row=row), LONG_S)
        return row

    def let_go(self, *rows: int) -> str:
        """Let 100 s pass by the clock, and end the turn; what the rows waited behind: its unit."""
        self.clock.let_pass(100)
        self.host.post(f"/v1/turns/{self.turn['id']}/stop")
        self.host.done(*rows)
        return str(self.turn["unit"])

    def log(self) -> list[Any]:
        """What exec mind e got, in order."""
        return [json.loads(line) for line in LOG.read_text().splitlines() if line]


def routes(name: str) -> Path:
    return DISK / f"routes-of-{name}.json"


@pytest.fixture(scope="module")
def started(shared_guard: Guard) -> Iterator[tuple[ResidentHost, Clock]]:
    with Clock(DISK / "clock") as clock, ResidentHost(shared_guard) as host:
        for name in "me":
            routes(name).write_text(json.dumps(BATCH))
        host.minds.add("m", config=f'routes = "{routes("m")}"\nuser = "root"\n')
        host.minds.add("o", "silent")
        host.start(f'{EXEC}routes = "{routes("e")}"\n{SCHEDULES}', global_concurrent_turns=1)
        yield host, clock


@pytest.fixture
def held(started: tuple[ResidentHost, Clock]) -> Held:
    return Held(*started)


def test_a_resident_mind_is_told_with_the_first_message_and_with_one_that_folds(held: Held) -> None:
    rows = [held.send("m", content, session="t") for content in ("one", "two", {"a": 1})]
    unit = held.let_go(*rows)
    texts = ["one", "two", '{"a": 1}']
    assert [told(content) for content in held.contents()] == [(unit, text) for text in texts]
    held.host.done(held.host.send("m", "three", session="t"))
    assert held.contents()[3] == "three", "one that did not wait is told nothing"


def test_a_batch_tells_so_in_the_first_of_its_messages(held: Held) -> None:
    first = held.host.send("m", "one", channel="#x")
    row = held.send("m", "two", channel="#x")
    assert held.is_held(first) == row
    unit = held.let_go(row)
    [line] = held.taken()
    one, two = line["batch"]["channels"]["#x"]
    assert told(one["content"]) == (unit, "one")
    assert two["content"] == "two"


def test_an_exec_mind_is_told_on_its_standard_input(held: Held) -> None:
    rows = [
        held.send("e", "one", session="t"),
        held.send("e", "two", channel="#x"),
        held.send("e", {"a": 1}, session="t"),
    ]
    unit = held.let_go(*rows)
    one, batch, other = held.log()
    assert told(one["content"]) == (unit, "one")
    assert one["held"]["behind"] == unit
    assert 100_000 < one["held"]["ms"] < 160_000
    assert told(batch["batch"]["channels"]["#x"][0]["content"]) == (unit, "two")
    # Data stays as it is; the wait is told beside it.
    assert other["content"] == {"a": 1}
    assert other["held"]["ms"] > 100_000


def test_a_schedules_message_and_what_its_script_prints_tell_so(held: Held) -> None:
    for name in ("tick", "script"):
        [row] = held.host.post(f"/v1/schedules/{name}/run")["deliveries"]
        held.is_held(row["id"])
    unit = held.let_go(
        *(row["id"] for row in held.host.rows() if row["mind"] == "m" and row["id"] > held.first)
    )
    wait_for(lambda: len(held.taken()) == 2, LONG_S)
    [tick] = [content for content in held.contents() if content.endswith("tock")]
    assert told(tick) == (unit, "[tick] tock")
    # The script waited, and says what is so now: nobody waited for that.
    assert "[script] now" in held.contents()


def test_what_waited_for_a_sleeper_says_so_when_it_wakes(held: Held) -> None:
    held.host.post(f"/v1/turns/{held.turn['id']}/stop")
    held.host.post("/v1/minds/m/sleep")
    wait_for(lambda: held.host.events("asleep"), LONG_S)
    before = len(held.taken())
    row = held.send("m", "hello", session="t", whileSleeping="queue")
    held.clock.let_pass(100)
    held.host.post("/v1/minds/m/wake")
    held.host.done(row)
    assert told(held.contents()[before]) == ("m sleeps", "hello")


def test_the_guard_that_was_restarted_knows_how_long_it_was_and_why(held: Held) -> None:
    row = held.send("e", "one", session="t")
    held.host.kill()
    unit = held.let_go(row)
    [one] = held.log()
    assert told(one["content"]) == (unit, "one")
    result = held.host.row(row)["result"]
    assert (result["held_for"], result["held_ms"] > 100_000) == ("global_cap", True)


def test_a_clock_that_is_set_while_rows_wait_is_told_to_nobody(held: Held) -> None:
    row = held.send("e", "one", session="t")
    held.clock.set(6 * 3600)
    shown = [held.host.get(f"/v1/deliveries/{row}/why")["waited_ms"], held.host.row(row)["hold"]["waited_ms"]]
    shown += [one["hold"]["waited_ms"] for one in held.host.get("/v1/status")["minds"] if one["name"] == "e"]
    assert max(shown) < 60_000, shown
    held.clock.set(-6 * 3600)
    assert held.host.get(f"/v1/deliveries/{row}/why")["waited_ms"] >= shown[0]
    held.host.post(f"/v1/turns/{held.turn['id']}/stop")
    held.host.done(row)
    [one] = held.log()
    assert one["content"] == "one", "it waited for seconds"
    assert held.host.row(row)["result"]["held_ms"] < 60_000
    assert held.host.row(held.turn["delivery"])["result"]["run_ms"] < 60_000
