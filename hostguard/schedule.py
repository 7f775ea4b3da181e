"""When schedules are due. Pure."""

from __future__ import annotations

import re
from datetime import datetime

CRON_MAX = 200  # characters
CRON_NAMES = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")


def cron_fault(text: str) -> str | None:
    """What is wrong with a cron expression, as the end of a sentence; None if nothing is."""
    from croniter import CroniterBadDateError, croniter

    if text.startswith("@"):
        return None if text in CRON_NAMES else f"a name is one of {', '.join(CRON_NAMES)}"
    if len(text) > CRON_MAX:
        return f"it has more than {CRON_MAX} characters"
    if len(text.split()) != 5:
        return 'it has five fields, "minute hour day month weekday", such as "*/15 8-18 * * mon-fri"'
    # croniter has more: H and R are random, and not the same after a restart.
    if not re.fullmatch(r"[0-9A-Za-z*/,# \t-]+", text) or re.search(r"(?i)(?<![a-z])[hr](?![a-z])", text):
        return "a field holds numbers, names such as mon or jan, and * / , - # only"
    try:
        croniter(text, datetime(2000, 1, 1)).get_next(datetime)
    except CroniterBadDateError:
        return "such a day never comes"
    except (ValueError, KeyError) as error:
        return str(error)
    return None
