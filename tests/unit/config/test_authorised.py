"""For whom a script or a line of a file was authorised, and whether it may run as the mind's user now."""

from __future__ import annotations

import pytest
from rows import row

from hostguard.config.authorised import row_refusal, schedule_refusal
from hostguard.core.model import Kind, Mind, Schedule

MIND = Mind("ada", user="root", uid=0)
OTHER = "it was authorised for uid 1001, but ada runs as root (uid 0) now"
OLDER = "an older hostguard did not note for which user it was authorised, and ada runs as root (uid 0) now"


@pytest.mark.parametrize(
    ("kind", "uid", "why"),
    [
        (Kind.SCRIPT, 0, None),
        (Kind.SCRIPT, 1001, OTHER),
        (Kind.SCRIPT, None, OLDER),
        (Kind.FILE, 0, None),
        (Kind.FILE, 1001, OTHER),
        (Kind.FILE, None, OLDER),
        *((kind, None, None) for kind in Kind if kind not in (Kind.SCRIPT, Kind.FILE)),
        (Kind.RUN, 1001, None),  # it runs as its caller, not as the mind's user
    ],
)
def test_a_row_starts_only_for_the_user_it_was_authorised_for(kind, uid, why):
    assert row_refusal(row(kind=kind, uid=uid), MIND) == why


@pytest.mark.parametrize(
    ("given", "mind", "why"),
    [
        ({"script": "id", "uid": 0}, MIND, None),
        ({"script": "id", "uid": 1001}, MIND, OTHER),
        ({"script": "id"}, MIND, OLDER),
        ({"message": "x"}, MIND, None),
        ({"script": "id", "uid": 1001}, Mind("ada", user="gone", broken="there is no such user"), None),
        ({"script": "id", "uid": 1001}, Mind("eve", uid=7), None),  # its mind is not configured
    ],
)
def test_a_schedule_s_script_runs_only_for_the_user_it_was_authorised_for(given, mind, why):
    told = schedule_refusal(Schedule("s", "ada", cron="* * * * *", **given), {mind.name: mind})
    assert told == (why and f"its script is refused: {why}. Remove it, and add it again")
