"""Which row a message becomes for a mind: asleep or not, with routes or without."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hostguard.core.model import Channel, Config, Kind, Mind, State, Target, WakeOn
from hostguard.core.names import FILE_SESSION
from hostguard.delivery import message as intake
from hostguard.delivery.message import named
from hostguard.delivery.planner import Plan, place, plan
from hostguard.delivery.routes import Unread, parse_routes

BOB = Mind("bob", ("/bin/true",), routes="/r", wake_on=WakeOn(dm=True, mention=True), uid=1001)
CONFIG = Config(minds={"bob": BOB}, channels={"#c": Channel("#c", ("bob",))})
ROUTES = parse_routes("""{"rules": [
    {"channel": "#file", "destination": "file", "path": "/notes"},
    {"channel": "#mention", "mode": "mention"},
    {"channel": "#batch", "session": "b", "batch": {"debounce": 1, "maxWait": 2, "triggers": ["now"]}},
    {"channel": "#new", "session": "$new"},
    {"channel": "#s", "session": "s"}
]}""")
FILE = Target("bob", f"{FILE_SESSION}/notes", kind=Kind.FILE, uid=1001)
BATCH = {"batch": {"debounce_s": 1.0, "max_wait_s": 2.0, "triggers": ["now"]}}


def sent(channel="#s", **fields):
    return intake.message({"to": "@bob", "content": "x", "channel": channel, **fields}, CONFIG, 1)


def skipped(outcome, reason, session="main"):
    return Target("bob", session, State.SKIPPED, result={"outcome": outcome, "reason": reason})


ASLEEP = "bob was asleep, and the message says skip"
AWAKE = [
    # fields -> row
    ({"channel": "#file"}, FILE),
    ({"channel": "#mention", "sender": "ann"},
     skipped("filtered", "rule 2 matches, but only for messages that mention bob")),
    ({"channel": "#mention", "sender": "ann", "content": "hi @bob"}, Target("bob", "main")),
    ({"channel": "#batch"}, Target("bob", "b", State.BATCHING, result=BATCH)),
    ({"channel": "#batch", "not_before": 5}, Target("bob", "b")),
    ({"channel": "#batch", "expires_at": 1 << 40}, Target("bob", "b")),
    ({"channel": "#s", "not_before": 5}, Target("bob", "s")),
    ({"channel": "#none"}, Target("bob", "main", State.QUARANTINED)),
    ({"channel": "#none", "session": "mine"}, Target("bob", "mine")),
    ({"channel": "#file", "kind": "notice"}, Target("bob", "main", kind=Kind.NOTICE)),
    ({"channel": "#file", "kind": "notice", "session": "mine"}, Target("bob", "mine", kind=Kind.NOTICE)),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "target"), AWAKE)
def test_routes_place_a_message(fields, target):
    assert plan(BOB, False, ROUTES, sent(**fields)) == Plan(target, False)


@pytest.mark.parametrize("fields", [{}, {"session": "mine"}])
def test_without_routes_it_goes_where_it_says_or_to_the_main_session(fields):
    target = Target("bob", fields.get("session", "main"))
    assert plan(BOB, False, None, sent(channel="#none", **fields)) == Plan(target, False)


SLEEPING = [
    # fields -> row, woken
    ({"channel": "#s"}, Target("bob", "s"), False),
    ({"channel": "#s", "isDM": True}, Target("bob", "s"), True),
    ({"channel": "#batch", "isDM": True}, Target("bob", "b", State.BATCHING, result=BATCH), True),
    ({"channel": "#none", "isDM": True}, Target("bob", "main", State.QUARANTINED), False),
    ({"channel": "#file", "isDM": True}, FILE, False),
    ({"channel": "#mention", "isDM": True, "sender": "ann"},
     skipped("filtered", "rule 2 matches, but only for messages that mention bob"), False),
    ({"channel": "#s", "whileSleeping": "skip"}, skipped("asleep", ASLEEP), False),
    ({"channel": "#s", "whileSleeping": "skip", "session": "mine"}, skipped("asleep", ASLEEP, "mine"), False),
    ({"channel": "#s", "whileSleeping": "trigger-wake"}, Target("bob", "s"), True),
    ({"channel": "#s", "whileSleeping": "queue", "isDM": True}, Target("bob", "s"), False),
    ({"channel": "#s", "kind": "notice", "isDM": True}, Target("bob", "main", kind=Kind.NOTICE), True),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "target", "wake"), SLEEPING)
def test_a_sleeping_mind_is_woken_for_what_reaches_it(fields, target, wake):
    assert plan(BOB, True, ROUTES, sent(**fields)) == Plan(target, wake)


@pytest.mark.parametrize(("owner", "uid"), [(0, 1001), (1001, 1001), (1002, 1002)])
def test_a_line_of_a_file_is_authorised_by_the_owner_of_the_routes(owner, uid):
    target = plan(BOB, False, replace(ROUTES, owner=owner), sent("#file")).target
    assert (target.kind, target.uid) == (Kind.FILE, uid)
    assert plan(BOB, False, replace(ROUTES, owner=owner), sent("#s")).target.uid is None


def test_a_new_session_is_one_of_its_own():
    names = {named("$new") for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch("new-[0-9a-f]{8}", name) for name in names)
    assert named("s") == "s"
    assert place(BOB, ROUTES, {"channel": "#new", "content": "x"}).session.startswith("new-")
    assert plan(BOB, False, None, sent(session="$new")).target.session.startswith("new-")


UNREAD = [
    # asleep, fields -> row
    (False, {}, Target("bob", "main", result={"unrouted": False})),
    (False, {"session": "mine"}, Target("bob", "mine", result={"unrouted": False})),
    (True, {"isDM": True}, Target("bob", "main", result={"unrouted": True})),
    (True, {"whileSleeping": "skip"}, skipped("asleep", ASLEEP)),
    (False, {"kind": "notice"}, Target("bob", "main", kind=Kind.NOTICE)),  # the routes are not asked
]


@pytest.mark.parametrize(("asleep", "fields", "target"), UNREAD)
def test_before_the_routes_are_read_a_message_has_no_place_and_wakes_nobody(asleep, fields, target):
    assert plan(BOB, asleep, Unread("why"), sent(**fields)) == Plan(target)
