"""/v1/schedules: the API on a real queue and scheduler. Nothing here starts a turn."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from played import views_of
from scheduling import HOUR, NOON, Host, beat

from hostguard.api.app import make_app
from hostguard.api.http import Budget
from hostguard.api.schedules import KEPT_BYTES, KEPT_MAX, Schedules
from hostguard.config.build import SCRIPT_MAX
from hostguard.core.clock import now_ms
from hostguard.core.model import Kind, Schedule
from hostguard.store.settings import SCHEDULE

ROOT, NOBODY, OTHER = 0, 65534, 1234
DAILY = {"name": "tidy", "mind": "bob", "cron": "0 3 * * *", "message": "tidy up"}
SCRIPT = {"name": "df", "mind": "bob", "cron": "0 3 * * *", "script": "df -h"}


class Client:
    """Calls the API of a host. The address is as server.client_of gives it."""

    def __init__(self, host: Host, address: str) -> None:
        views = views_of(host.manager)
        app = make_app(Budget(), Schedules(host.manager.policy, host.scheduler, views))
        transport = httpx.ASGITransport(app=app, client=(address, 1))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://hostguard")

    async def call(self, method, path="", **more):
        answer = await self.client.request(method, f"/v1/schedules{path}", **more)
        return answer.status_code, answer.json()

    async def add(self, **body):
        return await self.call("POST", json=body)


def on_api(path, work, *schedules, uid=ROOT):
    async def main():
        async with Host(path, *schedules) as host:
            await work(Client(host, f"uid={uid}"), host)

    asyncio.run(main())


def test_a_schedule_is_added_listed_and_removed(tmp_path):
    async def work(client, host):
        status, made = await client.add(**DAILY, timezone="UTC", catch_up_window=60)
        assert status == 201
        assert made == {
            "name": "tidy", "mind": "bob", "cron": "0 3 * * *", "at": None, "message": "tidy up",
            "script": None, "session": "main", "timezone": "UTC", "catch_up": "once", "catch_up_window": 60,
            "while_sleeping": "", "overlap": "skip", "enabled": True, "uid": None, "source": "kept",
            "next_at": NOON + 15 * HOUR, "last_at": None, "last_delivery": None, "skipped": 0, "held": None,
        }  # fmt: skip
        status, listed = await client.call("GET")
        assert [(one["name"], one["source"]) for one in listed["schedules"]] == [
            ("beat-bob", "config"),
            ("tidy", "kept"),
        ]
        assert await client.call("DELETE", "/tidy") == (200, {})
        assert (await client.call("DELETE", "/tidy"))[0] == 404
        assert [one["name"] for one in (await client.call("GET"))[1]["schedules"]] == ["beat-bob"]

    on_api(tmp_path, work, beat())


def test_the_times_of_one_that_fired_are_told(tmp_path):
    async def work(client, host):
        await host.at(NOON + HOUR)
        [one] = (await client.call("GET"))[1]["schedules"]
        assert (one["last_at"], one["next_at"]) == (NOON + HOUR, NOON + 2 * HOUR)

    on_api(tmp_path, work, beat())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": None}, "name is missing"),
        ({"name": "a b"}, "letters, digits"),
        ({"cron": None}, "either cron or at"),
        ({"at": now_ms() + HOUR}, "either cron or at"),
        ({"message": None}, "either message or script"),
        ({"script": "df"}, "either message or script"),
        ({"message": None, "script": "x" * (SCRIPT_MAX + 1)}, "script has more than"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "no date matches it"),
        ({"timezone": "Mars/Base"}, "unknown on this host"),
        ({"session": "$script:x:y"}, "session"),
        ({"catch_up": "some"}, '"skip", "once", "all"'),
        ({"catch_up_window": -1}, "catch_up_window"),
        ({"while_sleeping": "shout"}, "while_sleeping"),
        ({"overlap": "twice"}, '"skip", "queue"'),
        ({"enabled": "yes"}, "true or false"),
        ({"cron": None, "at": True}, "at"),
        ({"cron": None, "at": 1 << 60}, "at"),
        ({"cron": None, "at": 1000}, "in the past"),
        ({"cron": None, "at": "soon"}, "at"),
        ({"colour": "red"}, "unknown field colour"),
    ],
)
def test_what_is_no_schedule_is_refused_with_a_reason(tmp_path, change, words):
    async def work(client, host):
        body = {name: value for name, value in {**DAILY, **change}.items() if value is not None}
        status, answer = await client.add(**body)
        assert status == 400, answer
        assert words in answer["detail"]
        assert host.scheduler.all() == {}

    on_api(tmp_path, work)


def test_its_mind_is_looked_up_as_every_other_is(tmp_path):
    async def work(client, host):
        status, answer = await client.add(**{**DAILY, "mind": "zoe"})
        assert (status, answer["code"], answer["detail"]) == (
            404, "unknown_mind", "there is no mind zoe: minds: ann, bob, cat",
        )  # fmt: skip
        for nobody in ({"mind": ""}, {}):
            status, answer = await client.add(**{key: DAILY[key] for key in DAILY if key != "mind"}, **nobody)
            assert (status, answer["detail"]) == (400, "no mind is named: minds: ann, bob, cat")

    on_api(tmp_path, work)


def test_a_name_is_given_once(tmp_path):
    async def work(client, host):
        assert (await client.add(**DAILY))[0] == 201
        assert (await client.add(**DAILY))[0] == 200, "the same again changes nothing"
        status, answer = await client.add(**{**DAILY, "message": "other"})
        assert (status, answer["detail"]) == (409, "the schedule tidy already exists: remove it first")
        status, answer = await client.add(**{**DAILY, "name": "beat-bob"})
        assert (status, answer["detail"]) == (
            409,
            "the schedule beat-bob already exists: it is in the configuration",
        )
        assert (await client.call("DELETE", "/beat-bob"))[0] == 409
        assert list(host.scheduler.all()) == ["tidy", "beat-bob"]

    on_api(tmp_path, work, beat())


def test_there_is_an_end_to_their_bytes(tmp_path):
    async def work(client, host):
        text = "x" * (KEPT_BYTES // 5)
        for i in range(5):
            assert (await client.add(**{**DAILY, "name": f"n{i}", "message": text}))[0] == 201
        status, answer = await client.add(**{**DAILY, "message": text})
        assert (status, answer["code"]) == (507, "no_room")
        assert answer["detail"].startswith(f"the added schedules have {KEPT_BYTES} bytes of text")
        await client.call("DELETE", "/n0")
        assert (await client.add(**DAILY))[0] == 201

    on_api(tmp_path, work)


def test_there_is_an_end_to_how_many_are_kept(tmp_path):
    async def work(client, host):
        for i in range(KEPT_MAX):
            host.parts.settings.use(SCHEDULE.to(f"s{i}", {"mind": "bob", "cron": "@daily", "message": "x"}))
        status, answer = await client.add(**DAILY)
        assert (status, answer["detail"]) == (409, "there are 1000 schedules; remove one first")

    on_api(tmp_path, work)


@pytest.mark.parametrize(("uid", "status"), [(ROOT, 201), (NOBODY, 201), (OTHER, 403)])
def test_only_root_and_the_minds_user_may_have_a_script_run(tmp_path, uid, status):
    async def work(client, host):
        assert (await client.add(**SCRIPT))[0] == status
        assert (await client.add(**DAILY))[0] == 201, "a message may come from anybody on the socket"

    on_api(tmp_path, work, uid=uid)


def test_a_caller_who_is_not_on_the_socket_may_not_schedule(tmp_path):
    async def work(client, host):
        assert (await Client(host, "10.0.0.1").add(**SCRIPT))[0] == 403

    on_api(tmp_path, work)


def test_run_now(tmp_path):
    async def work(client, host):
        status, answer = await client.call("POST", "/beat-bob/run")
        assert status == 201
        [row] = answer["deliveries"]
        assert (row["mind"], row["kind"], row["state"]) == ("bob", Kind.SCHEDULE, "queued")
        assert [found.id for found in await host.rows()] == [row["id"]]
        assert (await client.call("POST", "/other/run"))[0] == 404
        assert (await client.call("POST", "/lost/run"))[0] == 409, "its mind was taken out"

    on_api(tmp_path, work, beat(), beat("zoe", name="lost"))


def test_one_time_schedules_are_told_as_they_were_given(tmp_path):
    async def work(client, host):
        at = now_ms() + HOUR
        status, made = await client.add(name="tea", mind="bob", at=at, message="tea")
        assert (status, made["at"], made["next_at"]) == (201, at, at)
        assert host.scheduler.all()["tea"] == (Schedule("tea", "bob", at=at, message="tea"), True)

    on_api(tmp_path, work)
