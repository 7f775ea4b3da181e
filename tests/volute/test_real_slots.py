"""Whatever works holds a slot, with real minds: what they do after a fold, and outside of any turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakemodel import line
from guard import wait_for
from guarded import LONG_S
from real_minds import RealHost


def start(real: RealHost, cap: int = 9) -> None:
    """Start, and wait until the processes that claude minds start in advance are at rest."""
    real.start("", global_concurrent_turns=cap)
    real.end()


@pytest.mark.parametrize(
    ("mind", "interrupt", "seconds"),
    [("ada", False, 12), ("ada", True, 12), ("eve", False, 4), ("eve", True, 4)],
)
def test_a_folded_message_keeps_the_slot_though_the_first_is_done(
    real: RealHost, mind: str, interrupt: bool, seconds: float
) -> None:
    """The case of the issue: 3 s, a second folded in that runs a tool for 12 s, and one to bob, with a cap of 1."""
    start(real, cap=1)
    first = real.say(mind, "first", work=3, session="s")
    real.wait_calls()
    label = f"second-{mind}-{interrupt}"
    second = real.say(mind, bash=real.ran.command(label, seconds), session="s", interrupt=interrupt)
    third = real.say("bob", bash=real.ran.command("third"), session="s")
    ended = real.done(first, second, third)
    assert len({row["turn"] for row in ended}) == 2, "the second joined the turn of the first"
    assert ended[0]["result"]["reason"] == "the mind reported that it is done, and has been quiet since"
    [long, after] = real.ran.runs()
    assert (long.label, after.label) == (label, "third")
    assert f"/hostguard-turn-{mind}-" in long.cgroups[-1]
    if mind == "ada":  # a tool of pi begins as a child of its server, and is moved a moment later
        assert long.in_scope
        assert after.in_scope
    assert after.began > long.span[1]
    assert not [one for one in real.all_events() if (one["type"], one.get("session")) == ("outside", "s")]


def test_a_message_past_the_guard_gets_a_scope_and_a_slot(real: RealHost) -> None:
    start(real, cap=1)
    ada = real.minds.minds["ada"]
    ada.post(content=f"work\n{line(work=2, bash=real.ran.command('past', 4))}", session="past")
    real.wait_events("ada", "tool_use", session="past")
    wait_for(lambda: [turn for turn in real.turns() if turn["session"] == "past"], LONG_S)
    [turn] = real.turns()
    assert turn["delivery"] is None
    waits = real.say("bob", bash=real.ran.command("waits"), session="s")
    real.done(waits)
    past, after = real.ran.runs("past", "waits")
    assert turn["unit"] in past.cgroups[-1]
    assert after.began > past.span[1]


def test_the_process_started_in_advance_is_adopted_by_main_alone(real: RealHost) -> None:
    start(real)
    ada = real.minds.minds["ada"]
    for session, place in [("s", ada.cgroup), ("main", "/hostguard-turn-ada-")]:
        label = f"in-{session}"
        row = real.say("ada", bash=real.ran.command(label, 2), session=session)
        wait_for(lambda label=label: real.ran.runs(label), LONG_S)  # type: ignore[misc]
        [main] = started_in_advance(ada.folder)
        own = [event["text"] for event in real.all_events() if event["type"] == "outside"]
        assert place in Path(f"/proc/{main}/cgroup").read_text(), own
        real.done(row)
        assert real.ran.runs(label)[0].in_scope


def started_in_advance(folder: Path) -> list[int]:
    """The `claude` of the mind in this folder whose environment has no session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        variables = path.read_bytes().split(b"\0") if path.exists() else []
        without = not any(one.startswith(b"VOLUTE_SESSION=") for one in variables)
        ours = without and f"VOLUTE_MIND_DIR={folder}".encode() in variables
        if ours and path.with_name("comm").read_text() == "claude\n":
            found.append(int(path.parent.name))
    return found
