"""What was set at run time: in memory for those who decide, in the database for the next start.

The keys and values are those in the database, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar

from hostguard.store import requests
from hostguard.store.connection import Connection
from hostguard.store.sums import checked
from hostguard.store.writer import Queue

Value = TypeVar("Value")
Change = tuple[str, Any]  # key and value; None removes the setting


@dataclass(frozen=True)
class Setting(Generic[Value]):
    """Settings of one type: their keys are `prefix` and a name."""

    prefix: str

    def key(self, name: str) -> str:
        """Its key in the database."""
        return self.prefix + name

    def to(self, name: str, value: Value | None) -> Change:
        """The change that sets the one of this name, or removes it."""
        return self.key(name), value


class Limit(TypedDict):
    """A cap on turns; `value` None: unlimited. It ends with the boot `boot` of the host; None: never."""

    value: int | None
    boot: str | None


class Sleep(TypedDict):
    """A mind sleeps, times in ms. While it falls asleep `since` is None, and `row` and `by` are set.

    `stamp` is that of `since`, see core/clock.py. `row` is the message that announces the sleep, `by` when
    the mind falls asleep without its turn.
    """

    since: int | None
    until: int | None
    stamp: NotRequired[int]
    row: NotRequired[int]
    by: NotRequired[int]


class Woken(TypedDict):
    """A message woke a mind, which was to sleep until this time in ms."""

    until: int | None


class Fired(TypedDict):
    """What became of a schedule's times, in ms: all up to `seen` are dealt with.

    `last` is when it fired last; `of` the times that were meant. `row` is the delivery that it stored last,
    and `skipped` how many times were skipped since, because that had not begun.
    """

    seen: int
    last: int | None
    of: str
    row: NotRequired[int | None]
    skipped: NotRequired[int]


PAUSE = Setting[bool]("pause")  # with on_host_or(mind)
LIMIT = Setting[Limit]("limit.")  # with the limit's name and on_host_or(mind)
SLEEP = Setting[Sleep]("sleep.mind.")
# True: stored with the message that is to wake the mind, for a guard that is killed before it does.
WOKEN = Setting[Woken | Literal[True]]("woken.mind.")
START = Setting[bool]("start.mind.")  # the mind is awake, and its service has still to be started
RESTART = Setting[str]("restart.mind.")  # its service is to be restarted; a text for the mind then, or ""
TOKEN = Setting[str]("token.mind.")  # SHA-256 of the mind's token, hex
SCHEDULE = Setting[dict[str, Any]]("schedule.")  # one that was added at run time
FIRED = Setting[Fired]("fired.")  # by schedule


def on_host_or(mind: str | None) -> str:
    """How a key ends that is of the host, or of one mind."""
    return "" if mind is None else f".mind.{mind}"


def stored(db: Connection) -> dict[str, Any]:
    """All settings in the database, by key. Raises Damaged."""
    rows = db.execute("SELECT rowid, name, value, sum FROM settings")
    return {name: json.loads(text) for name, text in (checked("settings", row[0], row[1:]) for row in rows)}


def write(db: Connection, *changes: Change) -> None:
    """Store changes in another one's transaction; SettingsStore.use follows once it is committed."""
    for name, value in changes:
        if value is None:
            db.execute("DELETE FROM settings WHERE name = ?", (name,))
        else:
            db.execute(
                "INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", (name, json.dumps(value))
            )


class SettingsStore:
    """All settings, in memory and in the database."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._values: dict[str, Any] = {}

    async def load(self) -> None:
        """Read what is stored. Raises Unavailable."""
        self._values = await self._queue.read(stored)

    def get(self, setting: Setting[Value], name: str) -> Value | None:
        """One setting; None if it is not set."""
        return self._values.get(setting.key(name))

    def all(self, setting: Setting[Value], under: str = "") -> dict[str, Value]:
        """The settings of a type whose names begin with `under`, by the rest of their names, in order."""
        prefix = setting.prefix + under
        return {
            key.removeprefix(prefix): value
            for key, value in sorted(self._values.items())
            if key.startswith(prefix)
        }

    def use(self, *changes: Change) -> None:
        """Change settings in memory alone."""
        for key, value in changes:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value

    def keep(self, *changes: Change, durable: bool = True) -> None:
        """Change settings in memory now, and in the database as soon as it takes writes."""
        self.use(*changes)
        self._queue.submit(lambda db: write(db, *changes), durable=durable, keep=True)

    def restore(self, *keys: str) -> None:
        """Store again what memory has, over what a write stored that its caller was told had failed."""
        self.keep(*((key, self._values.get(key)) for key in keys))

    async def change(
        self, *changes: Change, then: Callable[[], None] = lambda: None, durable: bool = True
    ) -> None:
        """Change settings in the database, then in memory, and call `then`. Problems as in requests.write."""

        def use(_: None) -> None:
            self.use(*changes)
            then()

        await requests.write(self._queue, lambda db: write(db, *changes), use, durable=durable)

    async def store(self, *changes: Change) -> None:
        """Change settings in the database alone: `use` or `restore` follows. Raises Problem."""
        await requests.write(self._queue, lambda db: write(db, *changes), lambda _: None)
