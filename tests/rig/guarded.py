"""A host with the guard on it, as its API and its database show it: what the hosts of the tests share."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import httpx
from guard import Guard  # type: ignore[import-not-found]  # of this folder, which is on the path

from hostguard.core import paths
from hostguard.store.sums import maintain

LONG_S = 60.0  # no test waits this long but on a machine that is very busy


class GuardedHost:
    """Asks the guard, and reaches behind its back."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.api: httpx.Client = guard.client()
        self._last_event = 0  # before this test
        self.first_row = 1  # of this test
        if guard.reused:
            self._last_event = max((event["id"] for event in self.all_events()), default=0)
            self.first_row = self.sql("SELECT coalesce(max(id), 0) + 1 FROM deliveries")[0][0]

    def get(self, path: str) -> Any:
        answer = self.api.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, **body: Any) -> Any:
        answer = self.api.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def send(self, to: str, content: Any = "", **fields: Any) -> int:
        """Send a message; its row."""
        row: int = self.post("/v1/deliveries", to=to, content=content, **fields)["deliveries"][0]["id"]
        return row

    def row(self, row: int) -> Any:
        return self.get(f"/v1/deliveries/{row}")

    def done(self, *rows: int, state: str = "done") -> list[Any]:
        """Wait until these rows are final: as `state`. They, in order."""
        ended = []
        for row in rows:
            found = self.get(f"/v1/deliveries/{row}?wait_s={LONG_S}")
            assert found["state"] == state, found
            ended.append(found)
        return ended

    def rows(self, state: str = "all") -> list[Any]:
        """All rows of this test, in order."""
        found: list[Any] = []
        after = self.first_row - 1
        while page := self.get(f"/v1/deliveries?state={state}&limit=1000&after={after}")["deliveries"]:
            found += page
            after = page[-1]["id"]
        return found

    def turns(self) -> list[Any]:
        found: list[Any] = self.get("/v1/turns")["turns"]
        return found

    def all_events(self) -> list[Any]:
        """The events of this test so far that are in memory, in order."""
        answer = self.api.get("/v1/events?follow=0", headers={"Last-Event-ID": str(self._last_event)})
        lines = answer.text.splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]

    # -- behind the guard's back

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement on the database, with right checksums of what it changes."""
        with closing(sqlite3.connect(paths.DATABASE, timeout=10)) as db, db:
            maintain(db)
            return db.execute(statement, values).fetchall()

    def kill(self) -> None:
        """Kill the daemon with SIGKILL, and have systemd start it again, without its pause."""
        self.guard.kill()
        self.guard.restart()

    def kill_for_good(self) -> None:
        """Kill the daemon with SIGKILL, and keep it down until `guard.restart`."""
        self.guard.kill()
        self.guard.stop()


def overlaps(spans: list[tuple[float, float]]) -> int:
    """The most spans that held at one time; one that ends as another begins is none."""
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
