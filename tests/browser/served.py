"""The guard's web endpoint with its pages, on a real database and a real socket, without a systemd."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from statuses import hold, mind, status, turn

from hostguard.api.http import Budget
from hostguard.api.volute import token_hash
from hostguard.api.web import Pages, Reports, WebEndpoint
from hostguard.core.clock import now_ms
from hostguard.core.model import Config
from hostguard.gate.policy import Policy
from hostguard.store.settings import SettingsStore
from hostguard.store.writer import Queue
from hostguard.systemd.notify import Notifier
from hostguard.telemetry.timeline import Seen, Timeline, Trouble

TOKEN = "let me in"
MINUTE, DAY = 60_000, 86_400_000
MINDS = ("ada", "bob", "carol", "dave", "erin", "frank", "gina", "hal", "ivy", "joe")
COLUMNS = (
    "id, mind, session, state, kind, created_at, not_before, expires_at, turn, started_at, ended_at, result"
)
RESULT = '{"outcome":"exited","held_ms":%d,"held_for":"%s","cpu_ms":%d,"read_bytes":%d,"write_bytes":%d}'


class Served:
    """What is served, and how often it was asked for. `status` may be changed."""

    def __init__(self, folder: Path) -> None:
        self.queue = Queue(folder / "queue.db")
        self.history = Timeline()
        self.status: Any = status()
        self.asked: list[str] = []
        self.policy = Policy(SettingsStore(self.queue), "")
        self.policy.config = Config(web_token=token_hash(TOKEN))
        self.control: Any = (
            SimpleNamespace()
        )  # for what the pages can do: a test has it done by something else
        self.reports = Reports(self.queue, self.history, self._status)
        self.port = 0

    def fill(self, turns: int) -> None:
        """A day of so many turns, with two troubles of the disk."""
        rnd, now = random.Random(turns), now_ms()
        rows = []
        for id_ in range(1, turns + 1):
            at = now - DAY + DAY * id_ // (turns + 1)
            held, ran = rnd.choice([0, 20, 3000, 60_000]), rnd.randint(500, 60_000)
            name = rnd.choices(MINDS, weights=range(len(MINDS), 0, -1))[0]
            told = RESULT % (
                held,
                "global_cap" if held else "",
                ran // 7,
                rnd.randrange(1 << 22),
                rnd.randrange(1 << 24),
            )
            rows.append(
                (
                    id_,
                    name,
                    "main",
                    "done",
                    "message",
                    at - held,
                    0,
                    0,
                    str(id_),
                    at,
                    min(at + ran, now),
                    told,
                )
            )

        def store(db: Any) -> None:
            marks = ",".join("?" * len(rows[0]))
            db.executemany(f"INSERT INTO deliveries ({COLUMNS}, payload) VALUES ({marks}, 1)", rows)

        self.call(self.queue.write(store))
        for minute in range(1440):
            level = 2 if minute in (700, 701) else 1 if 690 < minute < 710 or 1200 < minute < 1204 else 0
            seen = Seen(
                level, (4, 2, 1)[level], rnd.randint(0, 4), rnd.randint(0, 9), (9, 700, 16_000)[level]
            )
            trouble = Trouble("3 requests in flight, none completed for 16.5 s", 4, 2 * (level > 1))
            self.history.note(now - DAY + minute * MINUTE, seen, trouble)
        self.status = status(
            live=[turn("17", "ada", 65, started_at=now - 65_000), turn("18", "bob", 4, started_at=now - 4000)],
            minds=[mind("ada", held=3, hold=hold(9, 12, "global_cap", "x")), mind("bob")], held=3, turns=2,
        )  # fmt: skip

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def stop(self) -> None:
        """Serve no more."""
        self.call(self._endpoint.close())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @contextmanager
    def running(self) -> Iterator[Served]:
        """Serve from a thread of its own."""
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        try:
            self.call(self._open())
            yield self
            self.call(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    async def _open(self) -> None:
        await self.queue.open()
        with socket.create_server(("127.0.0.1", 0)) as sock:
            self.port = sock.getsockname()[1]
        self._notifier = Notifier()
        pages = Pages(self.policy, self.reports, self.control)
        self._endpoint = WebEndpoint(self._notifier, Budget(), pages)
        await self._endpoint.start(("127.0.0.1", self.port))

    async def _close(self) -> None:
        await self._endpoint.close()
        self._notifier._socket.close()
        await self.queue.close()

    def _status(self) -> Any:
        self.asked.append("status")
        return self.status
