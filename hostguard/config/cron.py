"""When schedules are due. Pure.

The rules where clocks and calendars disagree:
  - Times that the spring change skips are due at the change, together once.
  - A time that comes twice in autumn is due the first time. A schedule for every hour (`*` as its hour) is
    due in both hours instead, and misses nothing in spring.
  - A time more than LATE_MS ago was missed: the guard was down, the card took no writes, or the clock was
    set forward. The schedule's catch_up decides.
  - A clock set back by at most BACK_MS makes nothing due again. If it was set back by more it was wrong
    before: schedules start from the time that it shows now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile

from croniter import CroniterBadDateError, croniter

from hostguard.core.model import Schedule

CRON_MAX = 200  # characters
CRON_NAMES = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
LATE_MS = 60_000  # the finest step of cron
BACK_MS = 3 * 3_600_000  # as Debian's cron(8) distinguishes a correction from a wrong clock
# Of the missed times of a schedule the latest are considered: at most this many, at least half as many.
MISSED_MAX = 1000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Due:
    """What to do about a schedule now. Times are ms since the epoch.

    Every time in `missed` is before every time in `fire`; all are in order. `seen` is to be remembered once
    that is done: all times up to it are handled.
    """

    fire: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    since: int | None = None  # there were too many times before this: none of them fires
    seen: int | None = None  # None: unchanged
    next: int | None = None


def cron_fault(text: str) -> str | None:
    """Why a cron expression is invalid, as the end of a sentence; None if it is valid."""
    if text.startswith("@"):
        return None if text in CRON_NAMES else f"a name is one of {', '.join(CRON_NAMES)}"
    if len(text) > CRON_MAX:
        return f"it has more than {CRON_MAX} characters"
    if len(text.split()) != 5:
        return 'it needs five fields, "minute hour day month weekday", such as "*/15 8-18 * * mon-fri"'
    # croniter also knows H and R, which are random: not the same after a restart.
    if not re.fullmatch(r"[0-9A-Za-z*/,# \t-]+", text) or re.search(r"(?i)(?<![a-z])[hr](?![a-z])", text):
        return "a field may have only numbers, names such as mon or jan, and * / , - #"
    try:
        croniter(text, datetime(2000, 1, 1)).get_next(datetime)
    except CroniterBadDateError:
        return "no date matches it"
    except (ValueError, KeyError) as error:
        return str(error)
    return None


def due(schedule: Schedule, seen: int | None, now: int, zone: tzinfo) -> Due:
    """What fires now, what was missed, and when the schedule is due next.

    `seen`: up to when all times are handled; None for a new schedule, which has missed nothing. A one-time
    schedule fires however late it is.
    """
    if schedule.at is not None:
        if seen is not None and seen >= schedule.at:
            return Due()
        return Due((schedule.at,), seen=schedule.at) if schedule.at <= now else Due(next=schedule.at)
    if seen is None or seen > now + BACK_MS:
        return Due(seen=now, next=next_time(schedule, now, zone))
    times, since = _latest(schedule, seen, now, zone)
    following = next_time(schedule, max(seen, now), zone)
    if not times:
        return Due(next=following)
    window = LATE_MS if schedule.catch_up == "skip" else max(LATE_MS, schedule.catch_up_window * 1000)
    fire = [time for time in times if now - time <= window]
    if schedule.catch_up == "once":
        fire = fire[-1:]
    missed = times[: len(times) - len(fire)]
    return Due(tuple(fire), tuple(missed), since if since > seen else None, times[-1], following)


def next_time(schedule: Schedule, after: int, zone: tzinfo) -> int | None:
    """The first time after `after`, in ms; None if there is none."""
    if schedule.at is not None:
        return schedule.at if schedule.at > after else None
    assert schedule.cron is not None
    return next(_times(schedule.cron, after, zone), None)


def _latest(schedule: Schedule, seen: int, now: int, zone: tzinfo) -> tuple[list[int], int]:
    """The latest times after `seen` up to `now` (MISSED_MAX), and the time after which none is left out."""
    assert schedule.cron is not None
    low, high, start = seen, now, seen
    while True:
        upto_now = takewhile(lambda time: time <= now, _times(schedule.cron, start, zone))
        times = list(islice(upto_now, MISSED_MAX + 1))
        if len(times) > MISSED_MAX:
            low = start
        elif start == seen or len(times) >= MISSED_MAX // 2:
            return times, start
        else:
            high = start
        start = (low + high) // 2


def _times(cron: str, after: int, zone: tzinfo) -> Iterator[int]:
    try:
        hourly = cron == "@hourly" or cron.split()[1:2] == ["*"]
        yield from (_every_hour if hourly else _at_hours)(cron, after, zone)
    except (ValueError, OverflowError):  # the calendar ends in the year 9999
        return


def _at_hours(cron: str, after: int, zone: tzinfo) -> Iterator[int]:
    """Each wall time once."""
    last = after
    for wall in _wall_times(cron, _wall(after, zone)):
        time = _first(wall, zone)
        if time > last:
            yield time
            last = time


def _every_hour(cron: str, after: int, zone: tzinfo) -> Iterator[int]:
    """Wall times with one offset from UTC until it changes, then those with the next."""
    cursor = _wall(after, zone)
    while True:
        offset = _offset(after, zone)
        for wall in _wall_times(cron, cursor):
            time = _ms(wall.replace(tzinfo=UTC)) - offset
            change = _change(after, min(time, after + _DAY_MS), zone)
            if change is None and _offset(time, zone) != offset:
                change = _first(wall, zone)  # the change is far from both: start again at the time itself
            if change is not None:
                after, cursor = change, _wall(change, zone) - timedelta(minutes=1)
                break
            after = time
            yield time


def _wall_times(cron: str, after: datetime) -> Iterator[datetime]:
    # Without a time zone: croniter's rules for the changes differ between versions.
    steps = croniter(cron, after.replace(second=0, microsecond=0))
    while True:
        yield steps.get_next(datetime)


def _first(wall: datetime, zone: tzinfo) -> int:
    """When a wall time first comes; if a change skips it, the time of the change."""
    early = _ms(wall.replace(tzinfo=zone, fold=0))
    if _wall(early, zone) == wall:
        return early
    # In a gap fold=1 uses the offset after the change: that is before it.
    change = _change(_ms(wall.replace(tzinfo=zone, fold=1)), early, zone)
    return early if change is None else change


def _change(low: int, high: int, zone: tzinfo) -> int | None:
    """The first ms in (low, high] with another offset than `low`; None if `high` has the same."""
    offset = _offset(low, zone)
    if _offset(high, zone) == offset:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(middle, zone) == offset:
            low = middle
        else:
            high = middle
    return high


def _offset(time: int, zone: tzinfo) -> int:
    """The offset of wall time from UTC, in ms."""
    offset = (_EPOCH + timedelta(milliseconds=time)).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // timedelta(milliseconds=1)


def _wall(time: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=time)).astimezone(zone).replace(tzinfo=None, fold=0)


def _ms(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(milliseconds=1)
