"""Reads and writes of a caller who waits, on a real queue that does not answer in time or at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time

import pytest
from onqueue import failure, message, on_queue

from hostguard.core.errors import Problem
from hostguard.store import deliveries, requests
from hostguard.store.writer import Refused


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(requests, "ANSWER_S", 0.1)


class Stalled:
    """The card hangs in a commit until `go` is set."""

    def __init__(self, queue):
        self.queue, self.go, self.begun = queue, threading.Event(), threading.Event()

    def hang(self, db):
        self.begun.set()
        self.go.wait(10)
        return 7


def test_a_write_is_followed_by_what_needs_it(tmp_path):
    async def work(queue):
        told = []
        await requests.write(queue, lambda db: 7, told.append)
        assert told == [7]

    on_queue(tmp_path, work)


def test_a_write_that_waits_is_taken_back(tmp_path):
    async def work(queue):
        told, stalled = [], Stalled(queue)
        held = queue.submit(stalled.hang)
        await asyncio.to_thread(stalled.begun.wait, 10)
        with pytest.raises(Problem, match="nothing was done") as problem:
            await requests.write(queue, lambda db: deliveries.enqueue(db, message()), told.append)
        assert problem.value.code == "unavailable"
        stalled.go.set()
        await held.future
        assert await queue.read(deliveries.last_id) == 0
        assert told == []

    on_queue(tmp_path, work)


def test_a_write_whose_commit_hangs_is_done_in_the_end(tmp_path):
    async def work(queue):
        told, stalled = [], Stalled(queue)
        with pytest.raises(Problem, match="it is done once it works again"):
            await requests.write(queue, stalled.hang, told.append)
        assert told == []
        stalled.go.set()
        await queue.write(lambda db: None)
        await asyncio.sleep(0)
        assert told == [7]

    on_queue(tmp_path, work)


def test_a_write_that_fails_late_has_no_consequence_but_what_it_undoes(tmp_path):
    async def work(queue):
        told, undone, stalled = [], [], Stalled(queue)

        def refused(db):
            stalled.hang(db)
            raise Refused

        with pytest.raises(Problem, match="once it works again"):
            await requests.write(queue, refused, told.append, lambda: undone.append(1))
        assert undone == [], "not certain yet"
        stalled.go.set()
        await queue.write(lambda db: None)
        await asyncio.sleep(0)
        assert (told, undone) == ([], [1])

    on_queue(tmp_path, work)


def test_a_refusal_passes(tmp_path):
    async def work(queue):
        def refuse(db):
            raise Refused

        with pytest.raises(Refused):
            await requests.write(queue, refuse, lambda _: None)

    on_queue(tmp_path, work)


def _fail(db):
    raise failure(sqlite3.SQLITE_NOMEM)


def _wrong(db):
    raise KeyError("a secret")


@pytest.mark.parametrize(
    ("fails", "status", "text"),
    [
        (_fail, 503, "the queue accepts no writes: "),
        (_wrong, 500, "a bug in hostguard: KeyError in _wrong (test_requests.py:"),
    ],
)
def test_what_is_not_stored_is_undone_once(tmp_path, fails, status, text):
    async def work(queue):
        told, undone = [], []
        with pytest.raises(Problem) as problem:
            await requests.write(queue, fails, told.append, lambda: undone.append(1))
        assert (told, undone) == ([], [1])
        assert problem.value.status == status
        assert problem.value.detail.startswith(text)
        assert "secret" not in problem.value.detail

        def refuse(db):
            raise Refused

        with pytest.raises(Refused):
            await requests.write(queue, refuse, told.append, lambda: undone.append(2))
        stalled = Stalled(queue)
        held = queue.submit(stalled.hang)
        await asyncio.to_thread(stalled.begun.wait, 10)
        with pytest.raises(Problem, match="nothing was done"):
            await requests.write(queue, lambda db: 1, told.append, lambda: undone.append(3))
        assert (told, undone) == ([], [1, 2, 3])
        stalled.go.set()
        await held.future
        await requests.write(queue, lambda db: 1, told.append, lambda: undone.append(4))
        assert (told, undone) == ([1], [1, 2, 3])

    on_queue(tmp_path, work)


def test_a_database_that_fails(tmp_path):
    async def work(queue):
        with pytest.raises(Problem, match=r"accepts no writes: .*no such luck"):
            await requests.write(queue, _fail, lambda _: None)
        with pytest.raises(Problem, match=r"cannot be read: .*no such luck"):
            await requests.read(queue, _fail)

    on_queue(tmp_path, work)


def test_a_read_answers_or_is_given_up(tmp_path):
    async def work(queue):
        assert await requests.read(queue, deliveries.last_id) == 0
        with pytest.raises(Problem, match="the device does not answer; hostguard status does"):
            await requests.read(queue, lambda db: time.sleep(0.3))

    on_queue(tmp_path, work)


def test_in_a_thread():
    async def work():
        assert await requests.in_thread(int, "7") == 7
        assert await requests.in_thread(threading.get_ident) != threading.get_ident()
        with pytest.raises(Problem, match="nothing was done"):
            await requests.in_thread(time.sleep, 0.3)

    asyncio.run(work())
