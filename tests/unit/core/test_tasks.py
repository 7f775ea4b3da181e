"""Background tasks: held until they are done, and never failing silently."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from hostguard.core.tasks import Tasks


def test_a_task_is_held_until_it_is_done_and_gives_its_result():
    async def work() -> int:
        await asyncio.sleep(0.01)
        return 7

    async def main() -> None:
        tasks = Tasks()
        task = tasks.start(work())
        gc.collect()  # asyncio itself keeps weak references only
        assert len(tasks) == 1
        assert await task == 7
        await asyncio.sleep(0)
        assert len(tasks) == 0

    asyncio.run(main())


def test_waiting_for_all_is_bounded():
    async def main() -> None:
        tasks, release = Tasks(), asyncio.Event()
        await tasks.settled(0)  # there is none
        tasks.start(release.wait())
        await tasks.settled(0.01)
        assert len(tasks) == 1
        release.set()
        await tasks.settled(10)
        await asyncio.sleep(0)
        assert len(tasks) == 0

    asyncio.run(main())


def test_all_can_be_cancelled_without_a_word(caplog):
    async def main() -> None:
        tasks = Tasks()
        started = [tasks.start(asyncio.sleep(60)) for _ in range(3)]
        tasks.cancel()
        await tasks.settled(10)
        assert all(task.cancelled() for task in started)

    asyncio.run(main())
    assert not caplog.records


@pytest.mark.parametrize(("error", "logged"), [(ValueError("expected"), 0), (KeyError("a fault"), 1)])
def test_a_failure_is_logged_unless_somebody_handles_it(caplog, error, logged):
    async def work() -> None:
        raise error

    async def main() -> None:
        tasks = Tasks(expected=(ValueError,))
        tasks.start(work())
        await tasks.settled(10)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * logged
    assert all(record.exc_info is not None and record.exc_info[1] is error for record in caplog.records)
