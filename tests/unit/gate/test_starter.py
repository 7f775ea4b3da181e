"""A stop that comes while its turn is being started holds also where the start fails. No scope comes up here."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from onqueue import message, on_queue, put
from played import CONFIG, managed

from hostguard.core import paths
from hostguard.core.model import Delivery
from hostguard.gate.dispatcher import Dispatcher
from hostguard.store import deliveries
from hostguard.store.writer import Queue
from hostguard.systemd.fork_client import Stub
from hostguard.turns.live import Phase

Spoil = Callable[[Dispatcher, Path], None]


def card_lost(manager: Dispatcher, folder: Path) -> None:
    """Nothing can be read from the database."""
    manager.queue._reader.close()


def mind_gone(manager: Dispatcher, folder: Path) -> None:
    """A reload took it away."""
    manager.policy.config = replace(CONFIG, minds={})


def no_room(manager: Dispatcher, folder: Path) -> None:
    """No record can be made of a turn."""
    (folder / "turns").touch()


def no_process(manager: Dispatcher, folder: Path) -> None:
    """No process can be had. Played: of a real limit, the test itself would suffer first."""

    async def take() -> Stub:
        raise OSError(errno.EAGAIN, "")

    manager.runner._forks.take = take


SPOILS = pytest.mark.parametrize("spoil", [card_lost, mind_gone, no_room, no_process])


def started(folder: Path, spoil: Spoil, stop: bool) -> tuple[Delivery, int]:
    """The row of a turn whose start `spoil` makes fail, and how many of its mind wait then."""

    async def work(queue: Queue) -> tuple[Delivery, int]:
        manager = managed(queue)
        manager.ready = True
        _, (row,) = await put(queue, message("a"))
        manager.admit([row])
        (turn,) = manager.runner.live
        assert turn.phase is Phase.STARTING
        spoil(manager, folder)
        if stop:
            await manager.parts.control.stop(turn.live.unit)
        await manager.settled(5)
        assert len(manager.runner.live) == 0
        return await queue.write(lambda db: deliveries.get(db, row.id)), manager.backlog.total("a")

    return on_queue(folder, work)


@SPOILS
def test_a_turn_that_was_stopped_does_not_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoil
) -> None:
    monkeypatch.setattr(paths, "TURNS", tmp_path / "turns")
    row, waiting = started(tmp_path, spoil, stop=True)
    assert (row.state.final, row.attempts, waiting) == (True, 0, 0)
    assert row.result is not None
    assert row.result["reason"] == "stopped on request before it began"


@SPOILS
def test_any_other_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoil) -> None:
    monkeypatch.setattr(paths, "TURNS", tmp_path / "turns")
    row, waiting = started(tmp_path, spoil, stop=False)
    assert (row.state.final, row.attempts, waiting) == (False, 0, 1)
