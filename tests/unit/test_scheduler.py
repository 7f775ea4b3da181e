"""The scheduler on a real queue, with a clock that the test sets. Nothing here starts a turn."""

import asyncio
import json
import logging
from dataclasses import replace

import pytest
from onqueue import acceptor

from hostguard import deliveries
from hostguard.events import Events
from hostguard.journal import Journal
from hostguard.manager import Manager
from hostguard.model import Config, Kind, Mind, Schedule, State
from hostguard.policy import Policy, sleep_key
from hostguard.problems import Problem
from hostguard.queue import Queue
from hostguard.scheduler import FIRED, KEPT, Scheduler

NOON = 1_781_092_800_000  # 2026-06-10 12:00 UTC
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
MINDS = {name: Mind(name, ("/bin/true",), user="nobody") for name in ("ann", "bob", "cat")}


class Silent(Journal):
    def __init__(self):
        self.lines = []

    def send(self, text, *_, **__):
        self.lines.append(text)


class Host:
    """A guard's life; `again` is the next one, on the same queue."""

    def __init__(self, folder, *schedules, now=NOON):
        self.folder, self.now = folder, now
        self.schedules = {one.name: one for one in schedules}

    async def __aenter__(self):
        self.queue = Queue(self.folder / "queue.db")
        await self.queue.open()
        self.journal = Silent()
        self.manager = Manager(self.queue, Events(self.journal), lambda: None)
        kept = await self.queue.read(deliveries.settings)
        self.manager.policy = Policy(Config(minds=MINDS, schedules=self.schedules), kept, "boot")
        self.scheduler = Scheduler(self.manager, acceptor(self.manager), lambda: self.now)
        await self.scheduler.start()
        await self.idle()
        return self

    async def __aexit__(self, *_):
        self.scheduler.close()
        await self.manager.settled(5)
        await self.queue.close()

    async def idle(self):
        """Until nothing is being looked at."""
        while self.manager._tasks:
            await self.manager.settled(5)
        await self.queue.write(lambda db: None)  # behind what nobody waits for

    async def at(self, now):
        self.now = now
        self.scheduler.check()
        await self.idle()

    async def reload(self, *schedules):
        self.schedules = {one.name: one for one in schedules}
        self.manager.policy.config = Config(minds=MINDS, schedules=self.schedules)
        await self.scheduler.reload()
        await self.idle()

    async def rows(self):
        return await self.queue.read(lambda db: deliveries.select(db, tuple(State), None, 0, 10_000))

    async def keys(self):
        return [row.key for row in await self.rows()]

    async def payload(self, row):
        return json.loads((await self.queue.read(lambda db: deliveries.with_payload(db, row.id)))[1])

    async def settings(self, prefix):
        found = await self.queue.read(deliveries.settings)
        return {name: value for name, value in found.items() if name.startswith(prefix)}


def beat(mind="bob", cron="0 * * * *", name=None, **more):
    return Schedule(name or f"beat-{mind}", mind, cron=cron, message="go", timezone="UTC", **more)


def run(work):
    return asyncio.run(work)


def key(time, name="beat-bob"):
    return f"schedule:{name}:{time}"


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


@pytest.mark.parametrize(
    ("policy", "fired"),
    [("skip", []), ("once", [NOON + 3 * HOUR]), ("all", [NOON + HOUR, NOON + 2 * HOUR, NOON + 3 * HOUR])],
)
def test_a_guard_that_was_away_catches_up(tmp_path, policy, fired):
    async def main():
        async with Host(tmp_path, beat(catch_up=policy)):
            pass
        async with Host(tmp_path, beat(catch_up=policy), now=NOON + 3 * HOUR + 5 * MINUTE) as host:
            assert await host.keys() == [key(time) for time in fired]
            text = "\n".join(host.journal.lines)
            assert all(f"2026-06-10 {hour}:00+00:00" in text for hour in (13, 14, 15))
            assert (f"; {len(fired)} of these are sent now" in text) == bool(fired)
        async with Host(tmp_path, beat(catch_up=policy), now=NOON + 3 * HOUR + 6 * MINUTE) as host:
            assert await host.keys() == [key(time) for time in fired]  # dealt with, and not said again
            assert host.journal.lines == [] or not any("missed" in line for line in host.journal.lines)

    run(main())


def test_forty_five_overdue_schedules(tmp_path):
    schedules = [beat("bob", name=f"s{i}") for i in range(45)]

    async def main():
        async with Host(tmp_path, *schedules):
            pass
        async with Host(tmp_path, *schedules, now=NOON + 10 * DAY + 30 * MINUTE) as host:
            assert sorted(await host.keys()) == sorted(key(NOON + 10 * DAY, f"s{i}") for i in range(45))

    run(main())


def test_a_clock_that_is_set(tmp_path):
    async def main():
        async with Host(tmp_path, beat()) as host:
            await host.at(NOON + HOUR)
            await host.at(NOON + 30 * MINUTE)  # back: 13:00 comes again
            await host.at(NOON + HOUR)
            assert await host.keys() == [key(NOON + HOUR)]
            await host.at(NOON + 2 * HOUR)
            await host.at(NOON + 5 * DAY + 10 * MINUTE)  # forward: as time spent away
            assert await host.keys() == [key(NOON + HOUR), key(NOON + 2 * HOUR), key(NOON + 5 * DAY)]
            await host.at(NOON + 30 * MINUTE)  # back by days: it goes on from here, but nothing comes twice
            for hour in range(1, 4):
                await host.at(NOON + hour * HOUR)
            assert (await host.keys())[3:] == [key(NOON + 3 * HOUR)]

    run(main())


def test_a_time_that_fired_with_another_message_is_not_fired_again(tmp_path):
    async def main():
        async with Host(tmp_path, beat(catch_up="all")) as host:
            await host.at(NOON + HOUR)
            await host.at(NOON - 3 * HOUR)
            await host.reload(replace(beat(catch_up="all"), message="other"))
            await host.at(NOON + HOUR)
            await host.at(NOON + 2 * HOUR)
            assert await host.keys() == [key(NOON + n * HOUR) for n in (1, -2, -1, 0, 2)]

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

    logging.getLogger("hostguard.scheduler").addHandler(handler)
    run(main())


def test_a_full_queue_makes_a_schedule_wait_or_miss(tmp_path):
    async def main():
        async with Host(tmp_path, beat(cron="* * * * *", catch_up="once")) as host:
            host.manager.policy.config = Config(minds=MINDS, schedules=host.schedules, rows_per_mind=1)
            await host.at(NOON + MINUTE)
            await host.at(NOON + 2 * MINUTE)
            await host.at(NOON + 5 * MINUTE)
            assert await host.keys() == [key(NOON + MINUTE)]
            row = (await host.rows())[0].row
            host.manager.backlog.remove(row.id, row.mind, row.session)
            await host.at(NOON + 5 * MINUTE + 20_000)
            assert await host.keys() == [key(NOON + MINUTE), key(NOON + 5 * MINUTE)]
            missed = [line for line in host.journal.lines if "missed" in line]
            assert len(missed) == 1  # 12:02 to 12:04, once
            assert all(f"12:0{minute}" in missed[0] for minute in (2, 3, 4))

    run(main())


def test_new_sessions_and_scripts(tmp_path):
    script = Schedule("probe", "bob", cron="0 * * * *", script="df -h", session="$new", timezone="UTC")

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
            assert list(await host.settings(KEPT)) == [KEPT + "tea"]
        async with Host(tmp_path, now=NOON + 9 * DAY) as host:  # it was down at the time
            assert await host.keys() == [key(NOON + HOUR, "tea")]
            assert await host.settings(KEPT) == await host.settings(FIRED) == {}
            assert host.scheduler.all() == {}
        async with Host(tmp_path, now=NOON + 9 * DAY) as host:
            assert len(await host.rows()) == 1

    run(main())


def test_a_configured_time_of_its_own_is_remembered(tmp_path):
    tea = Schedule("tea", "bob", at=NOON + HOUR, message="tea")

    async def main():
        async with Host(tmp_path, tea) as host:
            await host.at(NOON + HOUR)
            await host.reload()
            await host.reload(tea)  # taken out and back in: meant anew
            assert len(await host.rows()) == 1  # the key still knows
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
            assert await host.settings(KEPT) == await host.settings(FIRED) == {}

    run(main())


@pytest.mark.parametrize("gone", [(), (beat(enabled=False),), (beat("nobody", name="beat-bob"),)])
def test_one_that_was_not_to_run_has_missed_nothing(tmp_path, gone):
    async def main():
        async with Host(tmp_path, beat(catch_up="all")) as host:
            await host.reload(*gone)
            await host.at(NOON + 5 * HOUR + 1)
            assert await host.settings(FIRED) == {}
            await host.reload(beat(catch_up="all"))
            assert await host.rows() == []
            await host.at(NOON + 6 * HOUR)
            assert await host.keys() == [key(NOON + 6 * HOUR)]

    run(main())


def test_other_times_were_not_missed(tmp_path):
    async def main():
        async with Host(tmp_path, beat(cron="0 0 1 1 *", catch_up="all")) as host:
            await host.at(NOON + 5 * HOUR + 1)
            await host.reload(beat(catch_up="all"))
            assert await host.rows() == []
            assert not any("missed" in line for line in host.journal.lines)

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
            host.manager.policy.set(sleep_key("bob"), {"since": NOON, "until": None})
            await host.at(NOON + HOUR)
            assert {row.key.split(":")[1]: row.state for row in await host.rows()} == {
                "no": State.SKIPPED, "later": State.QUEUED, "now": State.QUEUED,
            }  # fmt: skip
            assert list(await host.settings("woken.")) == ["woken.mind.bob"]
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
            assert len(host.manager._tasks) == 1

    run(main())


def test_the_timer_fires_by_itself(tmp_path):
    async def main():
        async with Host(tmp_path, beat()) as host:
            host.now = NOON + HOUR - 200
            host.scheduler.check()
            await asyncio.sleep(0.05)
            host.now = NOON + HOUR
            for _ in range(100):
                if await host.rows():
                    break
                await asyncio.sleep(0.02)
            assert len(await host.rows()) == 1

    run(main())
