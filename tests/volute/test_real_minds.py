"""Real minds under the guard: a turn begins, works, and ends with the mind's `done`."""

from __future__ import annotations

from real_minds import RealHost

KINDS = ("session_start", "tool_use", "done")


def test_a_turn_of_each(real: RealHost) -> None:
    real.start()
    real.end()  # of what claude starts in advance
    session = "each"  # no other test's
    rows = {
        mind: real.say(mind, bash=real.ran.command(mind, 0.2), session=session) for mind in ("ada", "eve")
    }
    for mind, row in rows.items():
        (ended,) = real.done(row)
        assert ended["result"]["reason"] == "the mind reported that it is done"
        told = [event.type for event in real.events(mind, *KINDS, session=session)]
        assert told == [*KINDS]
        assert [run.label for run in real.ran.runs()].count(mind) == 1
