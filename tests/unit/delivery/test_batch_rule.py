import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import sized

from hostguard.delivery.batch_rule import (
    MESSAGES_MAX,
    Flush,
    Heard,
    Item,
    Session,
    Wait,
    decide,
    gathered,
    interrupts,
    triggered,
)
from hostguard.delivery.routes import Batch

NORMAL = Batch()  # debounce 5 s, longest wait 120 s
MANY = 1000


def items(*times, batch=NORMAL, **more):
    return [Item(number, at, batch, **more) for number, at in enumerate(times, 1)]


IDLE, BUSY = Session(), Session(busy=True)

TABLE = [
    # why, messages, session, now, what becomes of them
    ("nothing waits", [], IDLE, 0, Wait(None)),
    ("one waits for the debounce", items(10), IDLE, 10, Wait(15)),
    ("the debounce is over", items(10), IDLE, 15, Flush(1)),
    ("each message begins it anew", items(10, 14), IDLE, 15, Wait(19)),
    ("all go out together", items(10, 14), IDLE, 19, Flush(2)),
    ("a busy session only has the longest wait", items(10, 14), BUSY, 60, Wait(130)),
    ("the longest wait, even when busy", items(10, 14), BUSY, 130, Flush(2)),
    ("the longest wait is that of the first", items(10, *range(11, 52)), BUSY, 129, Wait(130)),
    ("going idle begins the debounce anew", items(10), Session(idle_since=60), 61, Wait(65)),
    ("that debounce is over", items(10), Session(idle_since=60), 65, Flush(1)),
    ("not beyond the longest wait", items(10), Session(idle_since=128), 129, Wait(130)),
    ("a talk without a pause ends with the longest wait", items(10, 50, 90, 128), IDLE, 130, Flush(4)),
    ("a shorter wait of a later message counts", items(10) + items(20, batch=Batch(5, 10)), BUSY, 30, Flush(2)),
    ("49 wait", items(*[10] * 49), BUSY, 10, Wait(130)),
    ("50 go out", items(*[10] * 50), BUSY, 10, Flush(50)),
    ("of 51, 50", items(*[10] * 51), BUSY, 10, Flush(50)),
    ("a trigger", items(10, 11) + items(12, urgent=True), BUSY, 12, Flush(3)),
    ("somebody new", items(10) + items(12, urgent=True, interrupt=True), BUSY, 12, Flush(2, interrupt=True)),
    ("too large together", items(10, 11, size=600), BUSY, 11, Flush(1)),
    ("large enough", items(10, 11, size=500), BUSY, 11, Wait(130)),
    ("an older one that comes later begins it anew", items(20) + items(10), IDLE, 15, Wait(25)),
    ("one that is too large goes alone", items(10, 11, size=2000), BUSY, 11, Flush(1)),
    ("a large one alone waits", items(10, size=2000), BUSY, 11, Wait(130)),
    ("the interrupt goes with its message", items(1, size=999) + items(2, size=9, urgent=True, interrupt=True), BUSY, 2, Flush(1)),
]  # fmt: skip


@pytest.mark.parametrize(("why", "waiting", "session", "now", "said"), TABLE, ids=[row[0] for row in TABLE])
def test_decide(why, waiting, session, now, said):
    assert decide(waiting, session, now, bytes_max=MANY) == said


@pytest.mark.parametrize(
    ("triggers", "text", "found"),
    [
        (("urgent",), "this is URGENT!", True),
        (("Urgent",), "an urgently needed thing", True),
        (("urgent",), "no hurry", False),
        (("a", "b"), "xbx", True),
        ((), "anything", False),
    ],
)
def test_triggers(triggers, text, found):
    assert triggered(Batch(triggers=triggers), text) is found


HEARD = Heard(frozenset({"ann"}), frozenset({"#x"}), at=100)

SPEAKERS = [
    # why, sender, channel, what the turn heard, last interrupt, now, interrupts?
    ("somebody new in the same channel", "bo", "#x", HEARD, None, 110, True),
    ("the same sender", "ann", "#x", HEARD, None, 110, False),
    ("another channel", "bo", "#y", HEARD, None, 110, False),
    ("nobody", None, "#x", HEARD, None, 110, False),
    ("no turn runs", "bo", "#x", None, None, 110, False),
    ("longer ago than the longest wait", "bo", "#x", HEARD, None, 220, False),
    ("just within the longest wait", "bo", "#x", HEARD, None, 219, True),
    ("within the debounce since the last one", "bo", "#x", HEARD, 105, 110, False),
    ("past it", "bo", "#x", HEARD, 104, 110, True),
]


@pytest.mark.parametrize(("why", "sender", "channel", "heard", "last", "now", "said"), SPEAKERS, ids=[row[0] for row in SPEAKERS])  # fmt: skip
def test_interrupts(why, sender, channel, heard, last, now, said):
    item = Item(1, now, NORMAL, sender=sender, channel=channel)
    assert interrupts(item, heard, last) is said


def test_gathered_by_channel_in_order():
    raw = [
        json.dumps({"content": content, "channel": channel, "sender": "ann"}).encode()
        for content, channel in [("1", "#x"), ("2", "#y"), ("3", "#x")]
    ]
    said = gathered([*raw, b'{"content": "4", "channel": null, "sender": "bo"}'], interrupt=True)
    contents = {name: [one["content"] for one in rows] for name, rows in said["batch"]["channels"].items()}
    assert contents == {"#x": ["1", "3"], "#y": ["2"], "@bo": ["4"]}
    assert list(contents) == ["#x", "#y", "@bo"]
    assert said["interrupt"] is True
    assert said["batch"]["channels"]["@bo"][0]["isDM"] is True


STEPS = st.lists(
    st.tuples(
        st.floats(0, 40),  # seconds since the step before
        st.sampled_from(["message", "message", "message", "trigger", "busy", "idle"]),
        st.integers(0, 700),  # bytes
        st.sampled_from([NORMAL, Batch(0, 0), Batch(30, 10), Batch(1, 600)]),
    ),
    max_size=150,
)


@settings(max_examples=sized(67), deadline=None)
@given(STEPS)
def test_nothing_is_lost_the_order_is_kept_and_no_wait_is_too_long(steps):
    """A clock, a session and a buffer, driven as the shell drives them: a timer at each Wait.until."""
    now, session, waiting, out, sent = 0.0, IDLE, [], [], {}

    def settle(upto):
        nonlocal now, waiting
        while True:
            said = decide(waiting, session, now, MANY)
            if isinstance(said, Flush):
                chunk, waiting = waiting[: said.count], waiting[said.count :]
                assert 0 < len(chunk) <= MESSAGES_MAX
                assert len(chunk) == 1 or sum(item.size for item in chunk) <= MANY
                for item in chunk:
                    assert now <= item.at + item.batch.max_wait_s + 1e-6
                    out.append(item.id)
            elif said.until is None or said.until > upto:
                now = upto
                return
            else:
                assert said.until > now, "a timer in the past would spin"
                now = said.until

    for number, (pause, what, size, batch) in enumerate(steps):
        settle(now + pause)
        if what == "busy":
            session = BUSY
        elif what == "idle":
            session = Session(idle_since=now) if session.busy else session
        else:
            sent[number] = now
            waiting.append(Item(number, now, batch, size, urgent=what == "trigger"))
    settle(now + 1000)
    assert not waiting
    assert out == sorted(sent)
