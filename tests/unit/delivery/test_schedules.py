"""What a schedule sends, and how long one is kept."""

import asyncio
import logging
from dataclasses import replace
from datetime import UTC

import pytest
from scheduling import DAY, HOUR, MINDS, MINUTE, NOON, Host, beat, key, run
from until import until

from hostguard.core.errors import Problem
from hostguard.core.model import Config, Kind, Schedule, State
from hostguard.delivery import schedules as module
from hostguard.store.settings import FIRED, SCHEDULE, SLEEP, WOKEN


def test_aligned_schedules_fire_each_once(tmp_path):
    async def main():
        async with Host(tmp_path, beat("ann"), beat("bob"), beat("cat")) as host:
            assert await host.rows() == []  # what would have been due before it was there
            await host.at(NOON + HOUR)
            await host.at(NOON + HOUR + 1)
            rows = await host.rows()
            assert sorted(row.mind for row in rows) == ["ann", "bob", "cat"]
            assert {(row.kind, row.session, row.sender, row.channel) for row in rows} == {
                (Kind.SCHEDULE, "main", "volute", "@volute")
            }
            assert await host.payload(rows[0]) == {
                "content": f"[beat-{rows[0].mind}] go", "channel": "@volute", "sender": "volute", "isDM": True,
                "participants": ["volute", rows[0].mind], "interrupt": False,
            }  # fmt: skip
            assert host.manager.backlog.total("bob") == 1  # the gate has it
            assert host.scheduler.times("beat-bob") == (NOON + 2 * HOUR, NOON + HOUR)

    run(main())


def test_a_row_and_its_note_are_one_transaction(tmp_path):
    async def main():
        async with Host(tmp_path, beat()) as host:

            def refuse(db):
                db.execute("CREATE TRIGGER t BEFORE UPDATE ON settings BEGIN SELECT RAISE(ABORT, 'no'); END")

            await host.queue.write(refuse)
            await host.at(NOON + HOUR)
            assert await host.rows() == []
            assert "cannot fire" in caplog_text()
            await host.queue.write(lambda db: db.execute("DROP TRIGGER t"))
            await host.at(NOON + HOUR + 9_000)
            assert await host.rows() == []  # not before AGAIN_MS
            await host.at(NOON + HOUR + 10_000)
            assert await host.keys() == [key(NOON + HOUR)]

    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())

    def caplog_text():
        return "\n".join(lines)

    logging.getLogger("hostguard.delivery.schedules").addHandler(handler)
    run(main())


def test_new_sessions_and_scripts(tmp_path):
    script = Schedule(
        "probe", "bob", cron="0 * * * *", script="df -h", session="$new", timezone="UTC", overlap="queue"
    )

    async def main():
        async with Host(tmp_path, beat(session="$new"), script) as host:
            await host.at(NOON + HOUR)
            await host.at(NOON + 2 * HOUR)
            rows = await host.rows()
            plain = [row for row in rows if row.kind is Kind.SCHEDULE]
            probes = [row for row in rows if row.kind is Kind.SCRIPT]
            assert [len(plain), len(probes)] == [2, 2]
            assert len({row.session for row in rows}) == 4
            assert all(row.session.startswith("new-") for row in plain)
            assert all(row.session.startswith("$script:probe:new-") for row in probes)
            assert (await host.payload(probes[0]))["script"] == "df -h"

    run(main())


def test_a_kept_time_of_its_own_removes_itself(tmp_path):
    async def main():
        async with Host(tmp_path) as host:
            await host.scheduler.add(Schedule("tea", "bob", at=NOON + HOUR, message="tea"))
            assert host.scheduler.times("tea") == (NOON + HOUR, None)
            assert list(await host.settings(SCHEDULE)) == ["schedule.tea"]
        async with Host(tmp_path, now=NOON + 9 * DAY) as host:  # it was down at the time
            assert await host.keys() == [key(NOON + HOUR, "tea")]
            assert await host.settings(SCHEDULE) == await host.settings(FIRED) == {}
            assert host.scheduler.all() == {}
        async with Host(tmp_path, now=NOON + 9 * DAY) as host:
            assert len(await host.rows()) == 1

    run(main())


def test_a_configured_time_of_its_own_is_remembered(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hostguard.delivery.schedules")
    tea = Schedule("tea", "bob", at=NOON + HOUR, message="tea", timezone="UTC")

    async def main():
        async with Host(tmp_path, tea) as host:
            await host.at(NOON + HOUR)
            await host.reload()
            await host.reload(tea)  # taken out and back in: meant anew
            [row] = await host.rows()  # the key still knows
            assert host.scheduler.times("tea") == (None, row.created_at), "it does not count as fired again"
            await host.reload()
            await host.reload(replace(tea, message="another"))
            assert len(await host.rows()) == 1
            assert host.scheduler.times("tea") == (None, None)
        assert [record.getMessage() for record in caplog.records] == [
            "schedule tea: 2026-06-10 13:00+00:00 was sent before, and is not sent again"
        ] * 2
        async with Host(tmp_path, tea, now=NOON + DAY) as host:
            assert len(await host.rows()) == 1
            await host.reload(Schedule("tea", "bob", at=NOON + 2 * DAY, message="tea"))
            await host.at(NOON + 2 * DAY)
            assert len(await host.rows()) == 2

    run(main())


def test_kept_schedules_come_back_and_go(tmp_path):
    async def main():
        async with Host(tmp_path) as host:
            await host.scheduler.add(beat())
            await host.idle()
            await host.at(NOON + HOUR)
        async with Host(tmp_path, now=NOON + 2 * HOUR) as host:
            assert await host.keys() == [key(NOON + HOUR), key(NOON + 2 * HOUR)]
            await host.scheduler.remove("beat-bob")
            await host.at(NOON + 3 * HOUR)
            assert len(await host.rows()) == 2
            assert await host.settings(SCHEDULE) == await host.settings(FIRED) == {}

    run(main())


def test_nothing_is_written_while_nothing_is_due(tmp_path):
    async def main():
        async with Host(tmp_path, beat()) as host:
            before = await host.queue.read(lambda db: db.execute("PRAGMA data_version").fetchone())
            for minute in range(1, 60):
                await host.at(NOON + minute * MINUTE)
            await host.reload(beat())
            assert await host.queue.read(lambda db: db.execute("PRAGMA data_version").fetchone()) == before

    run(main())


def test_a_sleeping_mind(tmp_path):
    async def main():
        schedules = [
            beat(name="no", while_sleeping="skip"), beat(name="later", while_sleeping="queue"),
            beat(name="now", while_sleeping="trigger-wake"),
        ]  # fmt: skip
        async with Host(tmp_path, *schedules) as host:
            host.parts.settings.use(SLEEP.to("bob", {"since": NOON, "until": None}))
            await host.at(NOON + HOUR)
            assert {row.key.split(":")[1]: row.state for row in await host.rows()} == {
                "no": State.SKIPPED, "later": State.QUEUED, "now": State.QUEUED,
            }  # fmt: skip
            assert list(await host.settings(WOKEN)) == ["woken.mind.bob"]
            await host.at(NOON + HOUR + 1)
            assert len(await host.rows()) == 3  # the skipped one is dealt with, too

    run(main())


def test_run_now_changes_no_time(tmp_path):
    async def main():
        async with Host(tmp_path, beat()) as host:
            await host.scheduler.run_now(beat())
            accepted = await host.scheduler.run_now(beat())
            assert [row.key for row in accepted.rows] == [None]
            assert len(await host.rows()) == 2
            assert host.scheduler.times("beat-bob") == (NOON + HOUR, None)

    run(main())


def test_a_message_that_is_too_large_is_not_kept(tmp_path):
    async def main():
        async with Host(tmp_path) as host:
            with pytest.raises(Problem, match="payload_max"):
                await host.scheduler.add(Schedule("big", "bob", cron="@daily", message="x" * (1 << 21)))
            assert host.scheduler.all() == {}

    run(main())


def test_a_schedule_is_looked_at_once_at_a_time(tmp_path):
    async def main():
        async with Host(tmp_path, beat()) as host:
            host.now = NOON + HOUR
            host.scheduler.check()
            host.scheduler.check()
            assert len(host.parts.accepting) == 1

    run(main())


def test_the_timer_fires_by_itself(tmp_path):
    async def main():
        async with Host(tmp_path, beat()) as host:
            host.now = NOON + HOUR - 200
            host.scheduler.check()
            await asyncio.sleep(0.05)
            host.now = NOON + HOUR
            await until(lambda: host.scheduler.times("beat-bob")[1])
            assert len(await host.rows()) == 1

    run(main())


def test_the_timer_is_set_by_a_look_alone(tmp_path):
    async def main():
        async with Host(tmp_path, beat(), now=NOON + HOUR - 300) as host:
            host.now = NOON + HOUR
            await until(lambda: host.scheduler.times("beat-bob")[1])
            assert [row.key for row in await host.rows()] == [key(NOON + HOUR)]

    run(main())


def test_the_first_schedule_that_is_added_fires_by_itself(tmp_path):
    async def main():
        async with Host(tmp_path, now=NOON + HOUR - 300) as host:
            await host.scheduler.add(beat())
            host.now = NOON + HOUR
            await until(lambda: host.scheduler.times("beat-bob")[1])
            assert await host.keys() == [key(NOON + HOUR)]

    run(main())


def test_a_schedule_that_does_not_run_has_no_next_time(tmp_path, caplog):
    async def main():
        off, nowhere = beat(enabled=False, name="off"), replace(beat(name="nowhere"), timezone="No/Where")
        async with Host(tmp_path, off, nowhere, beat(name="on")) as host:
            assert [host.scheduler.times(name) for name in ("off", "nowhere")] == [(None, None)] * 2
            assert host.scheduler.times("on") == (NOON + HOUR, None)
            assert set(host.scheduler.all()) == {"off", "nowhere", "on"}
            await host.at(NOON + HOUR)
            assert [row.key for row in await host.rows()] == [key(NOON + HOUR, "on")]
            assert host.scheduler.times("on") == (NOON + 2 * HOUR, NOON + HOUR)

    run(main())
    assert "schedule nowhere is held: this host knows no time zone No/Where" in caplog.text


def test_a_script_of_another_user_than_the_minds_now_is_held(tmp_path, caplog):
    kept = Schedule("kept", "bob", cron="0 * * * *", script="id", timezone="UTC", uid=1001, overlap="queue")
    old, plain = replace(kept, name="old", uid=None), replace(beat(name="plain"), uid=None)
    own = replace(kept, name="own", uid=None)  # in the configuration: root's

    async def main():
        async with Host(tmp_path, own) as host:
            minds = {"bob": replace(MINDS["bob"], uid=1001)}
            host.manager.policy.config = Config(minds=minds, schedules={"own": own})
            for one in (kept, plain):
                await host.scheduler.add(one)
            with pytest.raises(Problem, match="an older hostguard did not note"):
                await host.scheduler.add(old)
            await host.at(NOON + HOUR)
            assert sorted((row.key, row.uid) for row in await host.rows()) == [
                (key(NOON + HOUR, "kept"), 1001), (key(NOON + HOUR, "own"), 1001),
                (key(NOON + HOUR, "plain"), None),
            ]  # fmt: skip

            minds = {"bob": replace(MINDS["bob"], user="root", uid=0)}
            host.manager.policy.config = Config(minds=minds, schedules={"own": own})
            await host.at(NOON + 2 * HOUR)  # before the schedules follow
            await host.scheduler.reload()
            await host.idle()
            await host.at(NOON + 3 * HOUR)
            assert {row.key for row in await host.rows() if row.created_at > NOON + HOUR} == {
                key(NOON + n * HOUR, name) for n in (2, 3) for name in ("own", "plain")
            }
            assert {row.uid for row in await host.rows() if row.key == key(NOON + 3 * HOUR, "own")} == {0}
            assert [*host.scheduler.held()] == ["kept"]
            assert host.scheduler.times("kept")[0] is None
            with pytest.raises(Problem, match="kept: its script is refused: it was authorised for uid 1001"):
                await host.scheduler.run_now(host.scheduler.all()["kept"][0])

            minds = {"bob": replace(MINDS["bob"], uid=1001, broken="there is no such user")}
            host.manager.policy.config = Config(minds=minds, schedules={"own": own})
            with pytest.raises(Problem, match="bob is held: there is no such user"):
                await host.scheduler.run_now(host.scheduler.all()["own"][0])
            host.manager.policy.config = Config(minds={"bob": replace(MINDS["bob"], uid=1001)})
            await host.scheduler.reload()
            await host.idle()
            await host.at(NOON + 4 * HOUR)
            assert key(NOON + 4 * HOUR, "kept") in {row.key for row in await host.rows()}
            assert host.scheduler.held() == {}

    run(main())
    assert "schedule kept is held: its script is refused: it was authorised for uid 1001" in caplog.text


def test_a_closed_scheduler_fires_no_more(tmp_path):
    async def main():
        async with Host(tmp_path, beat()) as host:
            host.scheduler.close()
            await host.at(NOON + HOUR)
            assert await host.rows() == []

    run(main())


def test_an_added_schedule_has_missed_nothing_and_one_for_once_has_no_note(tmp_path):
    async def main():
        async with Host(tmp_path) as host:
            await host.scheduler.add(beat(name="tea"))
            await host.scheduler.add(Schedule("once", "bob", at=NOON + HOUR, message="x"))
            await host.idle()
            assert await host.settings(FIRED) == {
                "fired.tea": {"seen": NOON, "last": None, "of": "0 * * * * UTC"},
            }
            assert (await host.settings(SCHEDULE)).keys() == {"schedule.tea", "schedule.once"}

    run(main())


def test_a_schedule_without_its_zone_is_held_and_makes_up_for_it(tmp_path, monkeypatch):
    """Its name moved to another package: the others run, and it runs once the name is back."""
    lacking = {"Europe/Atlantis"}

    def zones(names):
        return {name: None if name in lacking else UTC for name in names}

    monkeypatch.setattr(module, "zones", zones)
    monkeypatch.setattr(module, "CHECK_S", 0.02)
    held = replace(beat("bob"), timezone="Europe/Atlantis", catch_up="once")

    async def main():
        async with Host(tmp_path, beat("ann"), held) as host:
            assert [*host.scheduler.held()] == ["beat-bob"]
            await host.at(NOON + HOUR)
            assert [row.mind for row in await host.rows()] == ["ann"]
        async with Host(tmp_path, beat("ann"), held, now=NOON + HOUR) as host:
            lacking.clear()
            await until(lambda: not host.scheduler.held())
            await host.idle()
            await host.at(NOON + 2 * HOUR)
            assert {row.mind for row in await host.rows()} == {"ann", "bob"}

    run(main())


def test_a_schedule_that_waits_for_its_zone_forgets_nothing(tmp_path, monkeypatch):
    lacking = set()

    def zones(names):
        return {name: None if name in lacking else UTC for name in names}

    monkeypatch.setattr(module, "zones", zones)
    there = replace(beat("bob"), timezone="Europe/Atlantis", catch_up="once")

    async def main():
        async with Host(tmp_path, there) as host:
            await host.at(NOON + HOUR)
        lacking.add("Europe/Atlantis")
        async with Host(tmp_path, there, now=NOON + 3 * HOUR) as host:
            assert len(await host.rows()) == 1
        lacking.clear()
        async with Host(tmp_path, there, now=NOON + 3 * HOUR) as host:
            assert len(await host.rows()) == 2, "what it missed meanwhile, once"

    run(main())
