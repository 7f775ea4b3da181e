"""Which minds fail: counted from events, and after a restart from the stored rows."""

from __future__ import annotations

import pytest
from onqueue import message, on_queue, put
from played import CRASH, EXIT_3, OK, on_manager
from scrapes import CONFIG, end, send, views_of

from hostguard.core import outcome
from hostguard.core.clock import Now
from hostguard.core.model import State
from hostguard.store import deliveries, failures
from hostguard.telemetry.health import Health
from hostguard.telemetry.problems import of_minds

STOPPED = outcome.Ending("stopped", "stopped on request", 143)


@pytest.mark.parametrize(
    ("endings", "in_a_row"),
    [
        ([EXIT_3] * 6, 6),
        ([EXIT_3, OK], None),
        ([OK, EXIT_3], 1),
        ([EXIT_3, STOPPED], 1),  # which says nothing of the mind
        ([EXIT_3, outcome.RECORD_LOST], 1),
        ([outcome.Ending("timeout", "ran longer than max_turn (5 s)", 143)], 1),
        ([EXIT_3, outcome.Ending("done", "the mind reported that it is done")], None),
    ],
)
def test_failures_in_a_row_are_the_same_after_a_restart(tmp_path, endings, in_a_row):
    async def work(manager):
        for ending in endings:
            await send(manager, "ada")
            await end(manager, ending)
        again = Health()
        again.load(*await manager.queue.read(lambda db: (failures.latest(db), failures.dead(db))))
        for health in (manager.parts.health, again):
            found = health.failing("ada")
            assert (found and found.in_a_row) == in_a_row
            assert health.failing("bob") is None

    on_manager(tmp_path, work, CONFIG)


def test_the_last_one_says_why(tmp_path):
    async def work(manager):
        await send(manager, "ada")
        await end(manager, CRASH)
        found = manager.parts.health.failing("ada")
        assert (found.turn, found.reason) == ("1", "died of SIGSEGV")
        again = Health()
        again.load(await manager.queue.read(failures.latest), {})
        assert again.failing("ada").in_a_row == 1, "its row waits for the next attempt"

    on_manager(tmp_path, work, CONFIG)


async def stored(queue, mind, state, result, attempts=0):
    """A row of the mind that ended so."""
    (row,) = (await put(queue, message(mind)))[1]
    await queue.write(lambda db: deliveries.mark_delivering(db, row.id, str(row.id), Now(5), {}))
    await queue.write(lambda db: deliveries.finish(db, row.id, str(row.id), state, attempts, 9, result))
    return row.id


@pytest.mark.parametrize(
    ("state", "result", "attempts", "is_failed"),
    [
        (State.DONE, {"outcome": "exited", "exit": 0}, 0, False),
        (State.DONE, {"outcome": "exited", "exit": 3}, 0, True),
        (State.DONE, {"outcome": "exited", "exit": None}, 0, False),
        (State.DONE, {"outcome": "timeout", "exit": 143}, 0, True),
        (State.DONE, {"outcome": "stopped", "exit": 143}, 0, False),
        (State.DONE, {"outcome": "exited", "exit": 0}, 4, False),  # the fifth attempt went well
        (State.DEAD, {"outcome": "killed", "exit": 139}, 10, True),
        (State.CANCELLED, {"outcome": "cancelled"}, 0, False),
        (State.QUEUED, {"outcome": "killed", "exit": 139}, 1, True),
    ],
)
def test_a_row_has_failed_by_the_database_as_by_the_api(tmp_path, state, result, attempts, is_failed):
    async def work(queue):
        id_ = await stored(queue, "ada", state, result, attempts)
        row = await queue.read(lambda db: deliveries.get(db, id_))
        assert failures.failed(row) == is_failed
        found = await queue.read(lambda db: deliveries.select(db, tuple(State), None, 0, 9, failed=True))
        assert [one.id for one in found] == [id_] * is_failed

    on_queue(tmp_path, work)


def test_dead_letters_and_attempts_of_what_waits_count_after_a_restart(tmp_path):
    async def work(queue):
        await stored(queue, "ada", State.DONE, {"outcome": "exited", "exit": 0})
        await stored(queue, "ada", State.DEAD, {"outcome": "refused", "reason": "500"}, attempts=10)
        await stored(queue, "ada", State.QUEUED, {"outcome": "refused", "reason": "503"}, attempts=2)
        health = Health()
        health.load(*await queue.read(lambda db: (failures.latest(db), failures.dead(db))))
        assert (health.dead("ada"), health.dead("bob")) == (1, 0)
        assert (health.failing("ada").in_a_row, health.failing("ada").reason) == (12, "503")

    on_queue(tmp_path, work)


def test_dead_letters_of_a_mind_that_was_removed_are_told(tmp_path):
    async def work(manager):
        await stored(manager.queue, "gone", State.DEAD, {"outcome": "refused", "reason": "500"}, attempts=10)
        manager.parts.health.load((), await manager.queue.read(failures.dead))
        told = of_minds(views_of(manager).minds(), ())
        assert told["dead_letters"] == "1 of gone (hostguard dead list)"
        manager.parts.health.dead_letter_gone("gone")
        assert "gone" not in [mind["name"] for mind in views_of(manager).minds()]

    on_manager(tmp_path, work, CONFIG)
