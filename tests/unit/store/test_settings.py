"""Settings: memory and database together, on a real queue."""

from __future__ import annotations

import asyncio
import threading

import pytest
from onqueue import on_queue

from hostguard.core.errors import Problem
from hostguard.store import requests
from hostguard.store.settings import (
    FIRED,
    LIMIT,
    PAUSE,
    SCHEDULE,
    SLEEP,
    START,
    TOKEN,
    WOKEN,
    SettingsStore,
    on_host_or,
    stored,
    write,
)


def with_settings(path, work):
    async def run(queue):
        settings = SettingsStore(queue)
        await settings.load()
        await work(queue, settings)

    on_queue(path, run)


async def in_database(queue):
    await queue.write(lambda db: None)
    return await queue.read(stored)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (PAUSE.to(on_host_or(None), True), "pause"),
        (PAUSE.to(on_host_or("bob"), True), "pause.mind.bob"),
        (LIMIT.to("n" + on_host_or(None), None), "limit.n"),
        (LIMIT.to("n" + on_host_or("bob"), None), "limit.n.mind.bob"),
        (SLEEP.to("bob", None), "sleep.mind.bob"),
        (WOKEN.to("bob", True), "woken.mind.bob"),
        (START.to("bob", True), "start.mind.bob"),
        (TOKEN.to("bob", "x"), "token.mind.bob"),
        (SCHEDULE.to("tea", {}), "schedule.tea"),
        (FIRED.to("tea", None), "fired.tea"),
    ],
)
def test_the_keys_on_disk_stay(change, key):
    assert change[0] == key


def test_a_change_is_stored_and_then_used(tmp_path):
    async def work(queue, settings):
        done = []
        await settings.change(TOKEN.to("bob", "1"), PAUSE.to("", True), then=lambda: done.append(True))
        assert (settings.get(TOKEN, "bob"), settings.get(PAUSE, "")) == ("1", True)
        assert done == [True]
        assert await in_database(queue) == {"token.mind.bob": "1", "pause": True}
        await settings.change(TOKEN.to("bob", "2"), PAUSE.to("", None))
        assert (settings.get(TOKEN, "bob"), settings.get(PAUSE, "")) == ("2", None)
        assert await in_database(queue) == {"token.mind.bob": "2"}

    with_settings(tmp_path, work)

    async def again(queue, settings):
        assert settings.get(TOKEN, "bob") == "2", "the next guard has it"

    with_settings(tmp_path, again)


def test_one_that_is_withdrawn_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "ANSWER_S", 0.05)

    async def work(queue, settings):
        go, begun = threading.Event(), threading.Event()
        held = queue.submit(lambda db: (begun.set(), go.wait(10)))
        await asyncio.to_thread(begun.wait, 10)
        with pytest.raises(Problem, match="nothing was done"):
            await settings.change(TOKEN.to("bob", "1"))
        go.set()
        await held.future
        assert await in_database(queue) == {}
        assert settings.get(TOKEN, "bob") is None

    with_settings(tmp_path, work)


def test_one_whose_commit_hangs_is_used_once_it_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "ANSWER_S", 0.2)

    async def work(queue, settings):
        first, second, begun = threading.Event(), threading.Event(), threading.Event()
        queue.submit(lambda db: (begun.set(), first.wait(10)))
        await asyncio.to_thread(begun.wait, 10)
        done = []
        with_it = queue.submit(lambda db: second.wait(10))  # in one commit with the change
        change = asyncio.create_task(settings.change(TOKEN.to("bob", "1"), then=lambda: done.append(True)))
        await asyncio.sleep(0)
        first.set()
        with pytest.raises(Problem, match="once it works again"):
            await change
        assert (settings.get(TOKEN, "bob"), done) == (None, [])
        second.set()
        await with_it.future
        await asyncio.sleep(0)
        assert (settings.get(TOKEN, "bob"), done) == ("1", [True])

    with_settings(tmp_path, work)


def test_what_is_kept_is_used_at_once(tmp_path):
    async def work(queue, settings):
        settings.keep(TOKEN.to("bob", "1"))
        assert settings.get(TOKEN, "bob") == "1"
        assert await in_database(queue) == {"token.mind.bob": "1"}
        settings.keep(TOKEN.to("bob", None), durable=False)
        assert settings.get(TOKEN, "bob") is None
        assert await in_database(queue) == {}

    with_settings(tmp_path, work)


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_kept_is_durable_unless_it_need_not_be(tmp_path, durable):
    async def work(queue, settings):
        submitted = []
        submit = queue.submit
        queue.submit = lambda op, **how: submitted.append(how) or submit(op, **how)
        settings.keep(TOKEN.to("bob", "1"), durable=durable)
        settings.keep(TOKEN.to("bob", "1"))
        assert submitted == [{"durable": durable, "keep": True}, {"durable": True, "keep": True}]

    with_settings(tmp_path, work)


def test_memory_alone_and_back(tmp_path):
    async def work(queue, settings):
        settings.keep(TOKEN.to("bob", "1"))
        await queue.write(lambda db: write(db, TOKEN.to("bob", "2"), TOKEN.to("eve", "3")))
        assert (settings.get(TOKEN, "bob"), settings.get(TOKEN, "eve")) == ("1", None)
        settings.restore("token.mind.bob", "token.mind.eve")
        assert await in_database(queue) == {"token.mind.bob": "1"}
        settings.use(TOKEN.to("bob", None), TOKEN.to("ann", "4"))
        assert (settings.get(TOKEN, "bob"), settings.get(TOKEN, "ann")) == (None, "4")
        assert await in_database(queue) == {"token.mind.bob": "1"}

    with_settings(tmp_path, work)


def test_all_of_a_type_by_name_in_order(tmp_path):
    async def work(queue, settings):
        settings.use(
            TOKEN.to("eve", "2"), TOKEN.to("ann", "1"), PAUSE.to("", True), PAUSE.to(".mind.x", True)
        )
        assert list(settings.all(TOKEN).items()) == [("ann", "1"), ("eve", "2")]
        assert settings.all(PAUSE, ".mind.") == {"x": True}
        assert settings.all(SLEEP) == {}

    with_settings(tmp_path, work)


def test_a_change_of_the_database_alone(tmp_path):
    async def work(queue, settings):
        await settings.store(TOKEN.to("bob", "1"))
        assert settings.get(TOKEN, "bob") is None
        assert await in_database(queue) == {"token.mind.bob": "1"}

    with_settings(tmp_path, work)
