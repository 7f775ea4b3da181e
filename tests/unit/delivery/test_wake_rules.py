"""Wake triggers, and the patterns in them."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostguard.core.model import WakeOn
from hostguard.core.names import matches, says
from hostguard.delivery.wake_rules import on_message

DM = {"isDM": True, "channel": "@ann", "sender": "ann", "content": "hi"}
BUSY = {"channel": "#busy", "sender": "ann", "content": "hi"}
ON = WakeOn()
OFF = WakeOn(dm=False, mention=False)


@pytest.mark.parametrize(
    ("wish", "wake_on", "payload", "answer"),
    [
        ("skip", ON, DM, "skip"),  # its own wish stands above every trigger
        ("queue", ON, DM, "queue"),
        ("trigger-wake", OFF, BUSY, "wake"),
        ("", ON, DM, "wake"),
        ("", OFF, DM, "queue"),
        ("", ON, BUSY, "queue"),
        ("", ON, {**DM, "isDM": "yes"}, "queue"),  # only true is true
        ("", ON, {**BUSY, "content": "ask @Bob, please"}, "wake"),
        ("", OFF, {**BUSY, "content": "ask @bob"}, "queue"),
        ("", ON, {**BUSY, "content": "ask bob"}, "queue"),
        ("", ON, {**BUSY, "content": [{"type": "text", "text": "@bob"}]}, "wake"),
        ("", ON, {**BUSY, "content": [{"type": "image", "data": "@bob"}, 7, None]}, "queue"),
        ("", ON, {**BUSY, "content": {"to": "@bob"}}, "wake"),
        ("", ON, {**BUSY, "content": None}, "queue"),
        ("", ON, {}, "queue"),
        ("", WakeOn(channels=("#b*",)), BUSY, "wake"),
        ("", WakeOn(channels=("#c*", "#d")), BUSY, "queue"),
        ("", WakeOn(senders=("a*n",)), BUSY, "wake"),
        ("", WakeOn(senders=("*",)), {**BUSY, "sender": None}, "queue"),
        ("", WakeOn(channels=("*",)), {**BUSY, "channel": None}, "queue"),
    ],
)
def test_what_a_message_does_to_a_sleeper(wish, wake_on, payload, answer):
    assert on_message(wish, wake_on, "bob", payload) == answer


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@bob", True),
        ("hi @bob, you", True),
        ("@bob.", True),
        ("(@bob)", True),
        ("@BOB", True),
        ("@bob-", True),
        ("@bobby", False),
        ("@bob-2", False),  # another mind's name
        ("@bob_2", False),
        ("me@bob", False),  # an address
        ("-@bob", True),
        ("bob", False),
        ("", False),
        ("ask @bobby or @bob", True),
    ],
)
def test_a_word_is_said_as_a_whole(text, said):
    assert says("@bob", text) is said


def test_a_name_of_signs_is_no_pattern():
    assert says("@b.b", "@b.b")
    assert not says("@b.b", "@bob")


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
        ("*", "a\nb", True),
        ("a*", "a", True),
        ("a*a", "a", False),  # the two ends must not share a character
        ("a*b*c", "a-b-b-c", True),
        ("ab*bc", "abc", False),
        ("#?", "#x", False),  # `?` and `[` mean themselves
        ("[x]", "x", False),
        ("[x]", "[x]", True),
        ("A*", "a", False),
    ],
)
def test_patterns(pattern, text, fits):
    assert matches(pattern, text) is fits


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_patterns_are_those_of_fnmatch(pattern, text):
    assert matches(pattern, text) is fnmatch.fnmatchcase(text, pattern)


def test_a_hostile_pattern_costs_nothing():
    assert not matches("*a" * 2000 + "*b", "a" * 100_000)
