"""An open queue on a real file, for tests."""

import asyncio

from hostguard import deliveries
from hostguard.deliveries import New
from hostguard.queue import Queue


def message(*minds, key=None, body=b'{"content":"x"}', session="main", **more):
    return New(minds or ("x",), session, body, 1000, key=key, **more)


def on_queue(path, work):
    """Run `await work(queue)` on an open queue."""

    async def main():
        queue = Queue(path / "queue.db")
        await queue.open()
        try:
            return await work(queue)
        finally:
            await queue.close()

    return asyncio.run(main())


def put(queue, new):
    return queue.write(lambda db: deliveries.enqueue(db, new))
