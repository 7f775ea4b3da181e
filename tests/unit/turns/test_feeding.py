"""What waits for the session of a live turn, and what becomes of it as the turn ends. Nothing is posted here."""

from __future__ import annotations

from pathlib import Path

import pytest
from onqueue import message, on_queue, put
from played import managed

from hostguard.core.model import Config, LiveTurn, Mind
from hostguard.core.reasons import Reason
from hostguard.gate.dispatcher import Dispatcher
from hostguard.turns.live import Phase, Resident, Turn
from hostguard.turns.mind_client import Outcome, Posted


def fed(queue, posted: list[int]) -> tuple[Dispatcher, Turn]:
    """A manager with a live turn of m's main session; the ids of what is posted are noted."""
    manager = managed(queue, Config(minds={"m": Mind("m", url="http://127.0.0.1:9")}))
    live = LiveTurn("t.scope", "m", "main", "99", takes_input=True)
    turn = Turn(live, 0, Phase.RUNNING, driver=manager.residents, resident=Resident(posted=True))
    manager.ready, manager.runner.connected = True, False
    manager.runner.live.add(turn)

    async def post(turn, mind, row, *rest) -> Posted:
        posted.append(row.id)
        return Posted(Outcome.TAKEN)

    manager.residents._post = post
    return manager, turn


@pytest.mark.parametrize(
    ("ends", "posts"), [("no", 3), ("while the first row is read", 0), ("after a post", 1)]
)
def test_a_turn_that_is_over_is_fed_nothing_more(tmp_path: Path, ends: str, posts: int) -> None:
    async def work(queue) -> None:
        posted = []
        manager, turn = fed(queue, posted)
        read, post = manager.ledger.fetch, manager.residents._post

        async def fetch(id_):
            found = await read(id_)
            if ends == "while the first row is read":
                manager.runner.live.remove(turn)  # as if its scope had been stopped
            return found

        async def then_over(*args) -> Posted:
            if ends == "after a post":
                manager.runner.live.remove(turn)
            return await post(*args)

        manager.ledger.fetch, manager.residents._post = fetch, then_over
        rows = [row for _ in range(3) for row in (await put(queue, message("m")))[1]]
        manager.admit(rows)
        await manager.residents._tasks.settled(10)
        assert posted == [row.id for row in rows[:posts]]
        assert [row.id for row in rows if manager.backlog.has(row.id, "m", "main")] == [
            row.id for row in rows[posts:]
        ]

    on_queue(tmp_path, work)


@pytest.mark.parametrize("how", ["hostguard stop", "systemctl stop"])
def test_a_turn_that_was_asked_to_stop_takes_nothing_while_it_lasts(tmp_path: Path, how: str) -> None:
    async def work(queue) -> None:
        posted = []
        manager, turn = fed(queue, posted)
        if how == "hostguard stop":
            manager.runner._systemd = Obeying()
            await manager.runner.stop(turn)
        else:
            manager.runner.scope_job("t.scope")
        [row] = (await put(queue, message("m")))[1]
        manager.admit([row])
        await manager.residents._tasks.settled(10)
        assert posted == []
        manager.runner.connected = True
        hold = manager.verdict(row.row)
        assert (hold.reason, hold.blocker) == (Reason.SESSION_BUSY, "t.scope")

    on_queue(tmp_path, work)


class Obeying:
    """systemd that says yes."""

    async def thaw(self, unit: str) -> None:
        pass

    stop_unit = thaw
