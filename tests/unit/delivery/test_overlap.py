"""A schedule whose earlier message still waits: at most one waits, and it takes no room of other messages."""

import pytest
from played import sink
from scheduling import DAY, HOUR, MINDS, MINUTE, NOON, Host, beat, key, run

from hostguard.core.clock import Now
from hostguard.core.errors import Problem
from hostguard.core.model import Config, Kind, Schedule, State
from hostguard.delivery import message as intake
from hostguard.store import deliveries
from hostguard.store.settings import FIRED
from hostguard.telemetry.counters import Counters


def minutely(**more):
    return beat(cron="* * * * *", overlap="skip", **more)


async def begin(host, row):
    """The row's turn begins."""
    host.manager.backlog.remove(row.id, row.mind, row.session)
    await host.queue.write(lambda db: deliveries.mark_delivering(db, row.id, str(row.id), Now(host.now), {}))


async def end(host, row):
    await host.queue.write(
        lambda db: deliveries.finish(db, row.id, str(row.id), State.DONE, 0, host.now, {"outcome": "exited"})
    )


def told(host):
    return [line for line in host.journal.lines if "skipped" in line]


def skips(host):
    return sink(host.parts, Counters).skipped["bob"]


def test_one_row_of_two_days(tmp_path):
    async def main():
        async with Host(tmp_path, minutely()) as host:
            for minute in range(1, 2 * 24 * 60, 7):  # of the times in between some are late, and so missed
                await host.at(NOON + minute * MINUTE)
            assert await host.keys() == [key(NOON + MINUTE)]
            row = (await host.rows())[0].id
            assert host.scheduler.unbegun("beat-bob") == (row, 411 * 7)
            assert skips(host) == 411 * 7
            assert told(host) == [
                f"bob: schedule beat-bob: its times are skipped while delivery {row} has not begun: hostguard why {row}"
            ]
            assert not any("missed" in line for line in host.journal.lines)

    run(main())


def test_it_fires_again_once_the_row_has_begun(tmp_path):
    async def main():
        async with Host(tmp_path, minutely()) as host:
            for minute in (1, 2, 3):
                await host.at(NOON + minute * MINUTE)
            await begin(host, (await host.rows())[0])
            await host.at(NOON + 4 * MINUTE)  # it runs: that is no reason to skip
            assert await host.keys() == [key(NOON + MINUTE), key(NOON + 4 * MINUTE)]
            assert told(host)[1:] == ["bob: schedule beat-bob: it fires again; 2 of its times were skipped"]
            second = (await host.rows())[1]
            assert host.scheduler.unbegun("beat-bob") == (second.id, 0)
            await host.at(NOON + 5 * MINUTE)
            await begin(host, second)
            await end(host, second)
            await host.at(NOON + 6 * MINUTE)
            assert (await host.keys())[2:] == [key(NOON + 6 * MINUTE)]
            assert len(told(host)) == 2, "once an hour at most"
            assert skips(host) == 3
            await host.at(NOON + 62 * MINUTE)
            assert len(told(host)) == 3

    run(main())


def test_the_next_guard_goes_on_where_this_one_was(tmp_path):
    async def main():
        async with Host(tmp_path, minutely(catch_up="all")) as host:
            for minute in (1, 2, 3):
                await host.at(NOON + minute * MINUTE)
        async with Host(tmp_path, minutely(catch_up="all"), now=NOON + 63 * MINUTE) as host:
            row = (await host.rows())[0]
            assert host.scheduler.unbegun("beat-bob") == (row.id, 62)
            assert len(await host.rows()) == 1
            assert [line for line in host.journal.lines if "schedule" in line] == []  # said by the first
            await begin(host, row)
            await host.at(NOON + 64 * MINUTE)
            assert told(host) == ["bob: schedule beat-bob: it fires again; 62 of its times were skipped"]

    run(main())


def test_what_one_look_makes_up_for_is_one_time(tmp_path):
    async def main():
        async with Host(tmp_path, beat(overlap="skip", catch_up="all")):
            pass
        async with Host(tmp_path, beat(overlap="skip", catch_up="all"), now=NOON + 3 * HOUR + 5) as host:
            assert await host.keys() == [key(NOON + n * HOUR) for n in (1, 2, 3)]
            await host.at(NOON + 4 * HOUR)
            assert len(await host.rows()) == 3
            assert skips(host) == 1

    run(main())


def test_one_that_queues_fires_each_time(tmp_path):
    async def main():
        async with Host(tmp_path, beat(cron="* * * * *")) as host:
            for minute in (1, 2, 3):
                await host.at(NOON + minute * MINUTE)
            assert len(await host.rows()) == 3
            assert told(host) == []

    run(main())


def test_a_time_of_its_own_is_never_skipped(tmp_path):
    def tea(at):
        return Schedule("tea", "bob", at=at, message="tea")

    async def main():
        async with Host(tmp_path, tea(NOON + HOUR)) as host:
            await host.at(NOON + HOUR)
            await host.reload(tea(NOON + 2 * HOUR))
            await host.at(NOON + 2 * HOUR)
            assert await host.keys() == [key(NOON + HOUR, "tea"), key(NOON + 2 * HOUR, "tea")]

    run(main())


def test_missed_times_keep_what_is_known_of_the_row(tmp_path):
    async def main():
        async with Host(tmp_path, minutely(catch_up="skip")) as host:
            await host.at(NOON + MINUTE)
            await host.at(NOON + 2 * MINUTE)
            await host.at(NOON + HOUR + 30_000)
            assert len(await host.rows()) == 1
            row = (await host.rows())[0].id
            known = (await host.settings(FIRED))["fired.beat-bob"]
            assert (known["row"], known["skipped"]) == (row, 59)

    run(main())


def test_a_row_of_another_mind_is_no_reason(tmp_path):
    async def main():
        async with Host(tmp_path, minutely()) as host:
            await host.at(NOON + MINUTE)
            await host.reload(beat("ann", "* * * * *", "beat-bob", "skip"))
            await host.at(NOON + 2 * MINUTE)
            assert [row.mind for row in await host.rows()] == ["bob", "ann"]

    run(main())


def probe():
    return Schedule("probe", "bob", cron="* * * * *", script="df -h", timezone="UTC")


def test_a_script_that_runs_and_its_output_count(tmp_path):
    async def main():
        async with Host(tmp_path, probe()) as host:
            await host.at(NOON + MINUTE)
            script = (await host.rows())[0]
            await begin(host, script)
            await host.at(NOON + 2 * MINUTE)
            assert len(await host.rows()) == 1
            output = deliveries.New(
                (deliveries.Target("bob", "main", kind=Kind.SCHEDULE),),
                b'{"content": "[probe] 1%"}',
                host.now,
            )

            def ended(db):
                deliveries.finish(
                    db, script.id, str(script.id), State.DONE, 0, host.now, {"outcome": "exited"}
                )
                [row] = deliveries.enqueue(db, output)[1]
                deliveries.note_output(db, script.id, row.id)
                return row

            said = await host.queue.write(ended)
            assert (await host.rows())[0].result == {"outcome": "exited", "delivery": said.id}
            await host.at(NOON + 3 * MINUTE)
            assert len(await host.rows()) == 2
            assert host.scheduler.unbegun("probe") == (script.id, 2)
            await begin(host, said)
            await host.at(NOON + 4 * MINUTE)
            assert len(await host.rows()) == 3

    run(main())


def test_a_schedule_takes_no_room_of_a_sender(tmp_path):
    async def main():
        schedules = [beat(cron="* * * * *", name=f"s{i}", session="$new") for i in range(4)]
        async with Host(tmp_path, *schedules) as host:
            config = Config(minds=MINDS, schedules=host.schedules, rows_per_mind=5)
            host.manager.policy.config = config
            for minute in range(1, 4):
                await host.at(NOON + minute * MINUTE)
            assert len(await host.rows()) == 5, "its own room is bounded, too"

            def sent(**more):
                body = {"to": "@bob", "content": "hello", **more}
                return host.parts.acceptor.send(intake.message(body, config, host.now))

            for n in range(5):
                await sent(not_before=(n % 2) * (NOON + DAY))
            with pytest.raises(Problem, match="its 5 rows"):
                await sent()
            for row in await host.rows():
                if row.kind is Kind.SCHEDULE:
                    host.manager.backlog.remove(row.id, row.mind, row.session)
            with pytest.raises(Problem, match="its 5 rows"):
                await sent()
            await sent(kind="notice")  # as the guard's own are, it is counted apart

    run(main())
