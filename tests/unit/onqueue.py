"""An open queue on a real file, for tests."""

import asyncio
import sqlite3
from pathlib import Path

from hostguard.core.model import Kind, Target
from hostguard.gate.policy import Policy
from hostguard.store import deliveries
from hostguard.store.deliveries import New
from hostguard.store.settings import SettingsStore
from hostguard.store.writer import Queue


def to(*minds, session="main", **more):
    return [Target(mind, session, **more) for mind in minds]


def message(*minds, key=None, body=b'{"content":"x"}', session="main", kind=Kind.MESSAGE, **more):
    targets, request = to(*minds or ("x",), session=session, kind=kind), {"content": body.decode()}
    return New(targets, body, 1000, key=key, **{"request": request} | more)


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


def policy(config, *changes, boot="boot"):
    """The policy under this configuration, and the settings that these changes made."""
    settings = SettingsStore(Queue(Path("/nowhere")))
    settings.use(*changes)
    made = Policy(settings, boot)
    made.config = config
    return made


def acceptor(manager):
    """That of the dispatcher's guard."""
    return manager.parts.acceptor


def failure(code):
    """An error of SQLite's that has nothing to do with the write."""
    error = sqlite3.OperationalError("no such luck")
    error.sqlite_errorcode = code
    return error


def put(queue, new):
    return queue.write(lambda db: deliveries.enqueue(db, new))
