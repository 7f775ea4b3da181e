"""Which `done` may be an earlier one that the mind tries again."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hostguard.dones import REPEAT_S, Done, Dones
from hostguard.waiters import Waiters


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
        (0.1, "m", True, "m", True, True),
        (60.0, "m", True, "m", False, True),
        (0.1, "m", False, None, True, True),
    ],
)
def test_which_done_may_be_one_that_is_tried_again(age, first, answered, second, told, expected):
    done = Done(time.monotonic() - age, first, 1, answered)
    assert done.repeated(second, told) == expected


def turn(session: str, row: int) -> Any:
    return SimpleNamespace(live=SimpleNamespace(mind="m", session=session), delivery=SimpleNamespace(id=row))


def test_each_session_has_its_own_and_the_end_is_waited_for() -> None:
    async def work() -> None:
        waiters = Waiters()
        dones = Dones(waiters)
        assert not dones.repeats(turn("s", 1), None, False)
        one = dones.note(turn("s", 1), None)
        assert dones.repeats(turn("s", 2), None, False)
        assert not dones.repeats(turn("t", 2), None, False)
        waiting = asyncio.create_task(dones.stored([one]))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        waiters.tell(1)
        await asyncio.wait_for(waiting, 1)
        await asyncio.wait_for(dones.stored([]), 1)

    asyncio.run(work())
