"""When schedules are due: calendars, changes of the hour, clocks that are set, and times that were missed."""

import time as clock
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import sized

from hostguard.config.cron import BACK_MS, LATE_MS, MISSED_MAX, Due, cron_fault, due, next_time
from hostguard.core.model import Schedule

BERLIN = ZoneInfo("Europe/Berlin")
BEIRUT = ZoneInfo("Asia/Beirut")  # the change is at midnight
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # the change is of half an hour
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def ms(text, zone=UTC):
    """Of "2026-10-25 02:30", with "+" for the second of two such times."""
    return int(
        datetime.fromisoformat(text.rstrip("+")).replace(tzinfo=zone, fold="+" in text).timestamp() * 1000
    )


def cron(text, **more):
    return Schedule("beat", "bob", cron=text, message="hi", **more)


def after(text, start, count, zone=BERLIN):
    """The next times, as UTC and HH:MM."""
    times, at = [], ms(start, zone)
    for _ in range(count):
        at = next_time(cron(text), at, zone)
        times.append(datetime.fromtimestamp(at / 1000, UTC).strftime("%d %H:%M"))
    return times


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("* * * * *", None),
        ("*/15 8-18 * jan-mar,dec mon-fri", None),
        ("0 0 L * *", None),
        ("0 0 * * 1#2", None),
        ("@daily", None),
        ("@reboot", "@hourly"),
        ("", "five fields"),
        ("* * * * * *", "five fields"),  # croniter would take seconds
        ("0 0 30 2 *", "no date matches it"),
        ("60 * * * *", "60"),
        ("*/0 * * * *", ""),
        ("5-x * * * *", "5-x"),
        ("R * * * *", "numbers"),  # another minute after each restart
        ("H(1-5) * * * *", "numbers"),
        ("0\n0 1 1 *", "numbers"),
        ("9" * 99 + " * * * *", "range"),
        ("1," * 200 + "1 * * * *", "200 characters"),
    ],
)
def test_faults_of_cron(text, fault):
    assert cron_fault(text) is None if fault is None else fault in cron_fault(text)


@given(st.text("0123456789*/,-#LHRWlmontueja @\t", max_size=24))
def test_what_has_no_fault_has_a_next_time(text):
    if cron_fault(text) is None:
        assert next_time(cron(text), 0, UTC) > 0


# -- changes of the hour


@pytest.mark.parametrize(
    ("text", "start", "zone", "times"),
    [
        # Spring, 02:00 -> 03:00 at 01:00 UTC: skipped times come at the change, together with 03:00 itself.
        ("30 2 * * *", "2026-03-28 12:00", BERLIN, ["29 01:00", "30 00:30"]),
        ("*/10 2,3 * * *", "2026-03-28 12:00", BERLIN, ["29 01:00", "29 01:10"]),
        ("0 3 * * *", "2026-03-28 12:00", BERLIN, ["29 01:00", "30 01:00"]),
        ("59 1 * * *", "2026-03-29 01:59", BERLIN, ["29 23:59"]),
        # A schedule of every hour goes on at its pace.
        ("30 * * * *", "2026-03-29 00:30", BERLIN, ["29 00:30", "29 01:30"]),
        ("@hourly", "2026-03-29 00:30", BERLIN, ["29 00:00", "29 01:00", "29 02:00"]),
        ("*/20 * * * *", "2026-03-29 01:30", BERLIN, ["29 00:40", "29 01:00", "29 01:20"]),
        # Autumn, 03:00 -> 02:00 at 01:00 UTC: the first of two.
        ("30 2 * * *", "2026-10-24 12:00", BERLIN, ["25 00:30", "26 01:30"]),
        ("30 2 * * *", "2026-10-25 02:15+", BERLIN, ["26 01:30"]),
        ("*/30 2-3 * * *", "2026-10-24 12:00", BERLIN, ["25 00:00", "25 00:30", "25 02:00", "25 02:30"]),
        ("30 * * * *", "2026-10-25 01:30", BERLIN, ["25 00:30", "25 01:30", "25 02:30"]),
        (
            "*/20 * * * *",
            "2026-10-25 02:30",
            BERLIN,
            ["25 00:40", "25 01:00", "25 01:20", "25 01:40", "25 02:00"],
        ),
        ("15 * * * *", "2026-10-25 02:10+", BERLIN, ["25 01:15", "25 02:15"]),
        ("@hourly", "2026-10-25 01:30", BERLIN, ["25 00:00", "25 01:00", "25 02:00"]),
        # Months later: the offset of then counts.
        ("0 12 1 1 *", "2026-07-01 00:00", BERLIN, ["01 11:00"]),
        ("30 * 1 7 *", "2026-01-01 00:00", BERLIN, ["30 22:30", "30 23:30"]),
        # At midnight, 00:00 -> 01:00 at 22:00 UTC of the day before.
        ("0 0 * * *", "2026-03-28 12:00", BEIRUT, ["28 22:00", "29 21:00"]),
        ("30 * 29 3 *", "2025-12-01 00:00", BEIRUT, ["28 22:30", "28 23:30"]),
        ("30 * 24 10 *", "2026-10-24 23:30", BEIRUT, ["24 21:30"]),  # the second one, not next year's
        ("0 2 * * *", "2026-10-03 12:00", LORD_HOWE, ["03 15:30", "04 15:00"]),
    ],
)
def test_a_change_of_the_hour(text, start, zone, times):
    assert after(text, start, len(times), zone) == times


MINUTES = st.sampled_from(["*", "*/7", "0", "30", "15,45", "59"])
HOURS = st.sampled_from(["*", "*/2", "0", "1", "2", "3", "23", "1-3", "0,2"])
CHANGES = [
    (BERLIN, "2026-03-29 01:00"),
    (BERLIN, "2026-10-25 01:00"),
    (BEIRUT, "2026-03-28 22:00"),
    (BEIRUT, "2026-10-24 21:00"),
    (LORD_HOWE, "2026-10-03 15:30"),
    (LORD_HOWE, "2026-04-04 15:00"),
    (timezone(timedelta(hours=5, minutes=45)), "2026-05-05 05:00"),
]


def counted(minute, hour, zone, start, end):
    """The times by the rules as they are written, found minute by minute."""
    from croniter import croniter

    def fits(wall):
        return croniter.match(f"{minute} {hour} * * *", wall)

    times, before = [], datetime.fromtimestamp(start / 1000, zone)
    for at in range(start + MINUTE, end + 1, MINUTE):
        wall = datetime.fromtimestamp(at / 1000, zone)
        naive, last = wall.replace(tzinfo=None), before.replace(tzinfo=None)
        skipped = [last + timedelta(minutes=n) for n in range(1, (naive - last) // timedelta(minutes=1))]
        if hour == "*":
            hit = fits(naive)
        else:
            hit = (fits(naive) and not wall.fold) or any(fits(one) for one in skipped)
        if hit:
            times.append(at)
        before = wall
    return times


@settings(max_examples=sized(20), deadline=None)
@given(MINUTES, HOURS, st.sampled_from(CHANGES), st.integers(-300, 100))
def test_a_change_of_the_hour_by_counting(minute, hour, change, shift):
    zone, when = change
    start = ms(when) + shift * MINUTE
    end = start + 300 * MINUTE
    at, times = start, []
    while (at := next_time(cron(f"{minute} {hour} * * *"), at, zone)) <= end:
        times.append(at)
    assert times == counted(minute, hour, zone, start, end)


def test_of_all_the_times_that_a_change_skips_one_is_due():
    schedule = cron("*/10 2 * * *", catch_up="all")
    assert due(schedule, ms("2026-03-28 12:00"), ms("2026-03-29 12:00"), BERLIN).fire == (
        ms("2026-03-29 01:00"),
    )


def test_no_time_after_the_end_of_the_calendar():
    assert next_time(cron("0 0 1 1 *"), ms("9999-06-01 00:00"), UTC) is None


# -- what is due

NOON = ms("2026-06-10 12:00")


@pytest.mark.parametrize(
    ("policy", "seen", "now", "fire", "missed"),
    [
        ("once", "12:00", "12:04", [], []),
        ("once", "12:00", "12:05", ["12:05"], []),
        ("skip", "12:00", "12:05", ["12:05"], []),
        ("skip", "12:00", "12:06", ["12:05"], []),  # no more than a minute late is on time
        ("skip", "12:00", "12:07", [], ["12:05"]),
        ("once", "12:00", "12:07", ["12:05"], []),
        ("once", "12:00", "12:23", ["12:20"], ["12:05", "12:10", "12:15"]),
        ("all", "12:00", "12:23", ["12:05", "12:10", "12:15", "12:20"], []),
        ("skip", "12:00", "12:20", ["12:20"], ["12:05", "12:10", "12:15"]),
        ("once", "12:00", "12:20", ["12:20"], ["12:05", "12:10", "12:15"]),  # one message says all
        ("all", "11:40", "12:23", ["11:55", "12:00", "12:05", "12:10", "12:15", "12:20"], ["11:45", "11:50"]),
    ],
)
def test_times_missed_while_away(policy, seen, now, fire, missed):
    def at(text):
        return ms(f"2026-06-10 {text}")

    found = due(cron("*/5 * * * *", catch_up=policy, catch_up_window=1800), at(seen), at(now), UTC)
    assert found.fire == tuple(map(at, fire))
    assert found.missed == tuple(map(at, missed))
    assert found.seen == ((found.missed + found.fire)[-1] if fire or missed else None)
    assert found.next == (at(now) // (5 * MINUTE) + 1) * 5 * MINUTE


def test_what_is_outside_the_window_is_missed():
    daily = cron("0 12 * * *", catch_up="once", catch_up_window=3600)
    assert due(daily, NOON - DAY, NOON + 2 * HOUR, UTC) == Due((), (NOON,), None, NOON, NOON + DAY)
    assert due(daily, NOON - DAY, NOON + HOUR, UTC).fire == (NOON,)


def test_a_window_of_nothing_still_lets_a_schedule_fire():
    assert due(cron("0 12 * * *", catch_up="all", catch_up_window=0), NOON - DAY, NOON + 50, UTC).fire == (
        NOON,
    )


def test_a_new_schedule_has_missed_nothing():
    assert due(cron("0 12 * * *"), None, NOON, UTC) == Due(seen=NOON, next=NOON + DAY)


@pytest.mark.parametrize(
    ("seen", "now", "expected"),
    [
        (None, NOON - 1, Due(next=NOON)),
        (None, NOON, Due((NOON,), seen=NOON)),
        (None, NOON + 400 * DAY, Due((NOON,), seen=NOON)),  # however late
        (NOON, NOON + 1, Due()),
        (NOON, NOON - 50 * DAY, Due()),  # a clock that was set back does not fire it again
        (NOON + DAY, NOON + 2 * DAY, Due()),  # its time was changed to one before it had fired
        (NOON - DAY, NOON, Due((NOON,), seen=NOON)),  # its time was changed after it had fired
    ],
)
def test_a_time_of_its_own(seen, now, expected):
    assert due(Schedule("once", "bob", at=NOON, message="hi", catch_up="skip"), seen, now, UTC) == expected


def test_a_clock_set_back_makes_nothing_due_again():
    five = cron("*/5 * * * *")
    assert due(five, NOON, NOON - BACK_MS, UTC) == Due(next=NOON + 5 * MINUTE)
    assert due(five, NOON, NOON - 2 * MINUTE, UTC).next == NOON + 5 * MINUTE


def test_a_clock_that_was_far_ahead_is_not_waited_for():
    ahead = NOON + 3650 * DAY
    assert due(cron("*/5 * * * *"), ahead, NOON, UTC) == Due(seen=NOON, next=NOON + 5 * MINUTE)


def test_a_clock_set_forward_is_as_time_spent_away():
    assert due(cron("*/5 * * * *"), NOON, NOON + DAY + MINUTE, UTC).fire == (NOON + DAY,)


@pytest.mark.parametrize("policy", ["skip", "once", "all"])
@pytest.mark.parametrize("text", ["* * * * *", "* * * * mon", "0 0 1 1 *", "* 9 * * *"])
def test_years_of_missed_times_take_no_time(policy, text):
    schedule = cron(text, catch_up=policy, catch_up_window=100 * 365 * 86_400)
    begun = clock.process_time()  # other work on the machine does not count
    found = due(schedule, NOON - 20 * 365 * DAY, NOON, BERLIN)
    assert clock.process_time() - begun < 2
    assert len(found.fire) + len(found.missed) <= MISSED_MAX
    assert (found.since is None) == (text == "0 0 1 1 *")
    assert policy == "skip" or found.fire  # also where the last time is days ago
    assert len(found.fire) + len(found.missed) >= (20 if found.since is None else MISSED_MAX / 2)


def test_of_too_many_times_the_latest_count():
    found = due(cron("* * * * *", catch_up="all", catch_up_window=10**9), NOON - 30 * DAY, NOON, UTC)
    assert MISSED_MAX / 2 <= len(found.fire) <= MISSED_MAX
    assert found.fire == tuple(range(found.fire[0], NOON + 1, MINUTE))
    assert found.fire[0] - MINUTE <= found.since < found.fire[0]


STEPS = st.lists(st.integers(-4 * HOUR, 9 * HOUR) | st.integers(0, 2 * MINUTE), max_size=12)


@settings(max_examples=sized(20), deadline=None)
@given(
    st.sampled_from(["*/10 * * * *", "0 3 * * *", "30 2 * * *", "*/10 2-4 * * *"]),
    st.sampled_from(["skip", "once", "all"]),
    st.sampled_from([BERLIN, BEIRUT, UTC]),
    st.sampled_from(["2026-03-28 15:00", "2026-10-24 15:00"]),
    STEPS,
)
def test_whatever_the_clock_does(text, policy, zone, start, steps):
    """Nothing twice, nothing without a word, and with `all` nothing lost inside the window."""
    schedule = cron(text, catch_up=policy, catch_up_window=86_400)
    begun = now = ms(start)
    seen = due(schedule, None, now, zone).seen
    dealt, anew = [], False
    for step in steps:
        now += step
        found = due(schedule, seen, now, zone)
        anew = anew or (seen > now + BACK_MS)
        times = found.missed + found.fire
        assert all(time <= now for time in times)
        assert found.since is None
        assert found.next > now or found.next > seen
        if found.seen is not None and times:
            assert found.seen == times[-1]
        if policy == "all":
            assert not [time for time in found.missed if now - time <= 86_400_000]
        if policy == "once":
            assert len(found.fire) <= 1
        if policy == "skip":
            assert all(now - time <= LATE_MS for time in found.fire)
        dealt += times
        seen = seen if found.seen is None else found.seen
        # Whatever is asked again at once is done already.
        again = due(replace(schedule), seen, now, zone)
        assert (again.fire, again.missed, again.seen) == ((), (), None)
    if not anew:
        every, at = [], begun
        while (at := next_time(schedule, at, zone)) is not None and at <= seen:
            every.append(at)
        assert dealt == every
