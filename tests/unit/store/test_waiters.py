"""Who waits for which row."""

from __future__ import annotations

import asyncio

from hostguard.store.requests import Waiters


def test_all_who_wait_for_a_row_are_told_once():
    async def work():
        waiters = Waiters()
        waiters.tell(1)  # nobody waits
        with waiters.waiter(1) as first, waiters.waiter(1) as second, waiters.waiter(2) as other:
            waiters.tell(1)
            waiters.tell(1)
            assert (first.done(), second.done(), other.done()) == (True, True, False)
        with waiters.waiter(1) as third:
            assert not third.done(), "what was told before is missed"
        assert waiters._rows == {}

    asyncio.run(work())


def test_one_who_left_is_not_told():
    async def work():
        waiters = Waiters()
        with waiters.waiter(1) as stays:
            with waiters.waiter(1) as leaves:
                pass
            waiters.tell(1)
            assert (stays.done(), leaves.done()) == (True, False)

    asyncio.run(work())


def test_a_guard_that_stops_lets_nobody_wait():
    async def work():
        waiters = Waiters()

        async def wait():
            with waiters.waiter(1) as future:
                await asyncio.wait([future], timeout=30)

        waits = asyncio.create_task(wait())
        await asyncio.sleep(0)
        begun = asyncio.get_running_loop().time()
        await waiters.release(5)
        assert waits.done()
        with waiters.waiter(2) as late:
            assert late.done(), "nor anybody who comes now"
            await waiters.release(0.1)
        assert asyncio.get_running_loop().time() - begun < 3

    asyncio.run(work())
