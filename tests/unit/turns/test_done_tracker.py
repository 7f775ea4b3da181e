"""Which `done` may be an earlier one that the mind tries again."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hostguard.store.requests import Waiters
from hostguard.turns.done_tracker import REPEAT_S, Done, DoneTracker


@pytest.mark.parametrize(
    ("age", "first", "answered", "second", "told", "expected"),
    [
        (0.1, None, False, None, False, True),
        (0.1, None, False, None, True, True),  # its answer was lost: the turn that began since goes on
        (0.1, None, True, None, True, False),  # it was heard, and the next turn was a short one
        (0.1, None, True, None, False, True),  # told twice
        (REPEAT_S + 0.1, None, False, None, True, False),
        (REPEAT_S + 0.1, None, False, None, False, False),
        (0.1, "m", False, "n", False, False),
        (0.1, "m", False, None, True, True),
    ],
)
def test_which_done_may_be_one_that_is_tried_again(age, first, answered, second, told, expected):
    done = Done(time.monotonic() - age, first, 1, answered)
    assert done.may_be(second, told) == expected
    assert not done.repeated(second)


def test_one_with_the_same_id_is_the_same_however_late():
    assert Done(time.monotonic() - 60, "m", 1, True).repeated("m")


@pytest.mark.parametrize(("age", "expected"), [(0.1, True), (REPEAT_S + 0.1, False)])
@pytest.mark.parametrize("message_id", [None, "m"])
@pytest.mark.parametrize("told", [False, True])
def test_one_that_is_still_to_come_may_be_any_for_a_while(age, expected, message_id, told):
    assert Done(time.monotonic() - age, None, 1, to_come=True).may_be(message_id, told) == expected


def turn(session: str, row: int, admitted: float | None = None) -> Any:
    return SimpleNamespace(
        live=SimpleNamespace(mind="m", session=session),
        delivery=SimpleNamespace(id=row),
        admitted=time.monotonic() if admitted is None else admitted,
    )


def test_each_session_has_its_own_and_the_end_is_waited_for() -> None:
    async def work() -> None:
        waiters = Waiters()
        dones = DoneTracker(waiters)
        assert dones.before(turn("s", 1), "s") == []
        one = dones.note(turn("s", 1), "s", None)
        assert dones.before(turn("s", 2), "s") == dones.before(turn("s", 2), None) == [one]
        assert dones.before(turn("t", 2), "t") == dones.before(turn("t", 2), None) == []
        assert one.may_be(None, True), "until its answer has been read the mind may try it again"
        waiting = asyncio.create_task(dones.stored([one]))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        waiters.tell(1)
        await asyncio.wait_for(waiting, 1)
        await asyncio.wait_for(dones.stored([]), 1)

    asyncio.run(work())


@pytest.mark.parametrize("how", ["note", "expect"])
def test_one_for_all_sessions_matters_to_turns_of_any_that_began_since(how: str) -> None:
    dones = DoneTracker(Waiters())
    before = time.monotonic()
    if how == "note":
        dones.note(turn("s", 1), None, None)
    else:
        dones.expect(turn("s", 1))
    assert len(dones.before(turn("t", 2), None)) == 1
    assert dones.before(turn("t", 2), "t") == []
    assert dones.before(turn("t", 2, admitted=before), None) == [], "it ran beside it"
