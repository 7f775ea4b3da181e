"""Times that were missed, come twice, or were none: a guard that was away, a clock that is set, a full queue."""

from dataclasses import replace

import pytest
from scheduling import DAY, HOUR, MINDS, MINUTE, NOON, Host, beat, key, run

from hostguard.core.model import Config
from hostguard.store.settings import FIRED


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
            assert (await host.settings(FIRED))["fired.beat-bob"]["seen"] == NOON + HOUR
            await host.at(NOON + 2 * HOUR)
            assert await host.keys() == [key(NOON + n * HOUR) for n in (1, -2, -1, 0, 2)]

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
