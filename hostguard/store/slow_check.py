"""What a start leaves to the background: it counts large messages, and checks the rows of a large queue."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from hostguard.store import damage, sums
from hostguard.store.connection import CHECK_MAX
from hostguard.store.writer import Queue, Unavailable

PAUSE_S = 0.1  # between some rows and the next


async def check_slowly(queue: Queue) -> None:
    """Count the large messages, for quota.py. Then check each row, a few at a time, if the start did not.

    Damaged ones are set aside and reported. Otherwise a row that nobody needs, or whose state is damaged,
    would be found late or never.
    """
    with suppress(Unavailable):  # reported where it matters; the next start checks again
        counted: int | None = 0
        while counted is not None:
            counted = await queue.count_some(counted)
            await asyncio.sleep(PAUSE_S if counted is not None else 0)
        size = await queue.read(lambda _: queue.path.stat().st_size)
        for table in await queue.read(sums.tables) if size > CHECK_MAX else ():
            after: int | None = -1 << 63
            while after is not None:
                after = await queue.read(partial(damage.check_some, table=table, after=after))
                await asyncio.sleep(PAUSE_S)
