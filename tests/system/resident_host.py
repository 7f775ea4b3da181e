"""The guard with resident minds, its API, and what became of each row."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import httpx
from guard import Guard, wait_for
from guarded import LONG_S, GuardedHost
from minds import Minds, OneMind


class ResidentHost(GuardedHost):
    """A context manager; add minds to `minds`, then `start`."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard)
        self.minds = Minds("/run")

    def __enter__(self) -> ResidentHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.guard.pid and kind is None:
                wait_for(lambda: not self.turns(), LONG_S)
                wait_for(lambda: not self.guard.scopes())
        finally:
            self.api.close()
            self.minds.__exit__(kind, error, trace)

    def start(self, rest: str = "", down: tuple[str, ...] = (), **limits: int) -> None:
        """Start the minds, but for those that are `down`, and the guard."""
        up = [name for name in self.minds.minds if name not in down]
        if up:
            self.minds.start(*up)
        self.guard.start(self.minds.config(rest, **limits))

    def one(self, preset: str = "normal", *, work: float = 0.1, config: str = "", **limits: int) -> OneMind:
        """Start with one mind, m."""
        mind = self.minds.add("m", preset, work=work, config=config)
        self.start("", (), **limits)
        return mind

    # -- the API

    def in_turn(self, row: int) -> Any:
        """Wait until the row's turn is live and its message posted; the turn."""
        wait_for(lambda: self.events("started", row=row), LONG_S)
        return next(turn for turn in self.turns() if turn["delivery"] == row)

    def events(self, *types: str, row: int | None = None) -> list[Any]:
        """The events so far that are in memory: of these types or all, of a row or all; in order."""
        return [
            e
            for e in self.all_events()
            if (not types or e["type"] in types) and (row is None or e.get("delivery") == row)
        ]

    def tell(self, mind: OneMind, about: str | None = None, **event: Any) -> int:
        """Tell the guard an event with the mind's token, about that mind or another; the answer's status."""
        url = f"http://127.0.0.1:{self.minds.events_port}/api/minds/{about or mind.name}/events"
        headers = {"Authorization": f"Bearer {mind.token}"}
        return httpx.post(
            url, json=event, headers=headers, timeout=10, trust_env=False, verify=False
        ).status_code

    def ended(self, row: int) -> tuple[str, str]:
        """(outcome, reason) of the row's turn: as the record has it, and as the journal does."""
        found = self.row(row)
        outcome, reason, turn = found["result"]["outcome"], found["result"]["reason"], found["turn"]
        lines = self.guard.journal(f"HOSTGUARD_TURN={turn}", f"HOSTGUARD_OUTCOME={outcome}")
        assert [line["MESSAGE"] for line in lines if line["HOSTGUARD_DELIVERY"] == str(row)] == [
            f"{found['mind']}: turn {turn} ended: {reason}"
        ]
        return outcome, reason
