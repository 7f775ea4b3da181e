"""What callers may send: the edge's limits, each with the answer a person gets."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostguard.core.errors import Problem
from hostguard.core.model import Channel, Config, Kind, Mind, Target
from hostguard.delivery import message as intake

CONFIG = Config(
    payload_max=2000,
    minds={"ada": Mind("ada", ("/bin/true",)), "bob": Mind("bob", ("/bin/true",)), "runs": Mind("runs")},
    channels={"#all": Channel("#all", ("ada", "bob")), "#ada": Channel("#ada", ("ada",))},
)
NOW = 1_000_000


def send(**body):
    return intake.message({"to": "@ada", "content": "hi", **body}, CONFIG, NOW)


def refused(make):
    with pytest.raises(Problem) as caught:
        make()
    return caught.value.code, caught.value.detail


def test_a_message_carries_all_it_was_given():
    sent = send(session="s", sender="me", key="k", not_before=NOW + 5, expires_at=NOW + 9, interrupt=True)
    assert (sent.minds, sent.session, sent.kind) == (("ada",), "s", Kind.MESSAGE)
    target = Target("ada", "s")
    new = sent.new((target,), NOW)
    assert (new.targets, new.sender, new.key, new.channel) == ((target,), "me", "k", None)
    assert (new.not_before, new.expires_at, new.created_at) == (NOW + 5, NOW + 9, NOW)
    assert json.loads(new.payload) == {
        "content": "hi", "channel": None, "sender": "me", "session": "s", "interrupt": True,
    }  # fmt: skip


def test_what_a_mind_of_today_is_told_goes_through():
    told = {
        "channel": "discord:general", "conversationId": "c1", "platform": "discord", "isDM": False,
        "participants": ["ada", "bob"], "participantCount": 2, "typing": ["bob"], "instructions": "two\nlines",
    }  # fmt: skip
    sent = send(**told, whileSleeping="skip")
    assert sent.payload.items() >= told.items()
    assert sent.while_sleeping == "skip"


@pytest.mark.parametrize(
    "body",
    [
        {"isDM": 1}, {"participants": "ada"}, {"participants": [1]}, {"participants": ["a"] * 1001},
        {"participantCount": -1}, {"participantCount": True}, {"participantCount": 1.5}, {"typing": {}},
        {"instructions": 1}, {"instructions": "x" * 4001}, {"whileSleeping": "never"}, {"kind": "run"},
        {"kind": "script"}, {"kind": "wake"}, {"session": "$script:x"}, {"session": "$"}, {"channel": "a\nb"},
        {"platform": ["x"]}, {"conversationId": "x" * 201},
    ],
)  # fmt: skip
def test_what_a_mind_is_told_is_checked(body):
    assert refused(lambda: send(**body))[0] == "bad_request"


def test_what_is_as_long_as_may_be_goes_through():
    most = {
        "session": "s" * 100, "sender": "s" * 200, "channel": "c" * 200, "key": "k" * 200, "platform": "p" * 200,
        "conversationId": "c" * 200, "instructions": "x" * 4000, "participantCount": 1_000_000,
        "participants": ["a"] * 1000,
    }  # fmt: skip
    config = replace(CONFIG, payload_max=10_000)
    sent = intake.message({"to": "@ada", "content": "hi", **most}, config, NOW)
    assert {**sent.payload, "key": sent.key}.items() >= most.items()
    assert send(participants=["a"] * 400, participantCount=0).payload["participantCount"] == 0
    size = len(sent.raw)
    exact = replace(CONFIG, payload_max=size)
    assert intake.message({"to": "@ada", "content": "hi", **most}, exact, NOW).raw == sent.raw
    smaller = replace(CONFIG, payload_max=size - 1)
    assert (
        refused(lambda: intake.message({"to": "@ada", "content": "hi", **most}, smaller, NOW))[0]
        == "too_large"
    )


def test_kinds_and_the_channel_of_all():
    assert send().kind is Kind.MESSAGE
    assert send(kind="notice").kind is Kind.NOTICE
    to_all = send(to="#system")
    assert (to_all.kind, to_all.minds, to_all.payload["channel"]) == (Kind.SYSTEM, ("ada", "bob"), "#system")
    assert send(to="#system", sender="ada").minds == ("bob",)
    assert send(session="$new").session == "$new"


def test_defaults_and_bare_name():
    sent = send(to="ada")
    assert (sent.session, sent.payload["sender"], sent.not_before) == (None, None, 0)


def test_a_channel_goes_to_all_but_the_sender():
    assert send(to="#all").minds == ("ada", "bob")
    assert send(to="#all", sender="ada").minds == ("bob",)
    assert send(to="#all", sender="stranger").minds == ("ada", "bob")


REFUSALS = [
    ({"to": None}, "bad_request", "@mind"),
    ({"to": 5}, "bad_request", "@mind"),
    ({"to": "@nobody"}, "unknown_mind", "ada, bob"),
    ({"to": "#nothing"}, "unknown_channel", "#ada, #all"),
    ({"to": "#ada", "sender": "ada"}, "conflict", "no mind except the sender"),
    ({"to": "@runs"}, "conflict", "hostguard run"),
    ({"sesion": "x"}, "bad_request", "sesion"),
    ({"session": "x" * 101}, "bad_request", "at most 100"),
    ({"session": "a\nb"}, "bad_request", "control"),
    ({"session": "a\0b"}, "bad_request", "control"),
    ({"sender": 5}, "bad_request", "string"),
    ({"key": "k" * 201}, "bad_request", "at most 200"),
    ({"interrupt": "yes"}, "bad_request", "true or false"),
    ({"not_before": -1}, "bad_request", "ms since the epoch"),
    ({"not_before": True}, "bad_request", "ms since the epoch"),
    ({"not_before": 1.5}, "bad_request", "ms since the epoch"),
    ({"not_before": 10**18}, "bad_request", "ms since the epoch"),
    ({"expires_at": NOW}, "bad_request", "never start"),
    ({"expires_at": NOW + 5, "not_before": NOW + 5}, "bad_request", "never start"),
    ({"content": "x" * 2000}, "too_large", "2000 are allowed"),
    ({"content": "\ud800"}, "bad_request", "surrogate"),
    ({"content": [float("nan")]}, "bad_request", "JSON cannot represent"),
    ({"content": float("inf")}, "bad_request", "JSON cannot represent"),
]


@pytest.mark.parametrize(("body", "code", "said"), REFUSALS)
def test_refusals(body, code, said):
    got, detail = refused(lambda: send(**body))
    assert got == code
    assert said in detail


def test_content_is_needed_and_the_body_is_an_object():
    assert refused(lambda: intake.message({"to": "@ada"}, CONFIG, NOW))[0] == "bad_request"
    assert refused(lambda: intake.message([], CONFIG, NOW))[0] == "bad_request"


def test_no_slip_makes_one_mind_all_of_them():
    assert intake.one_or_all({}) is intake.one_or_all({"mind": None}) is None
    assert intake.one_or_all({"mind": "ada"}) == "ada"
    assert refused(lambda: intake.one_or_all({"mind": ""}))[0] == "bad_request"
    assert "minds" in refused(lambda: intake.known_fields({"minds": "ada"}, intake.PAUSE_FIELDS))[1]


def test_run():
    new = intake.run({"mind": "runs", "key": "k", "max_wait_s": 2.5, "argv0": "make"}, CONFIG, NOW, 1000)
    assert (new.targets, new.expires_at) == ((Target("runs", "main", kind=Kind.RUN, uid=1000),), NOW + 2500)
    assert intake.run({"mind": "ada", "key": "k"}, CONFIG, NOW, 1000).expires_at == 0
    long = {
        "mind": "ada",
        "key": "k" * 200,
        "session": "s" * 100,
        "description": "d" * 200,
        "argv0": "a" * 200,
    }
    new = intake.run(long, CONFIG, NOW, 1000)
    assert (new.key, new.targets[0].session) == (long["key"], long["session"])
    assert json.loads(new.payload) == {"description": long["description"], "argv0": long["argv0"]}
    for name in ("key", "session", "description", "argv0"):
        more = {**long, name: long[name] + "x"}
        assert refused(lambda more=more: intake.run(more, CONFIG, NOW, 1000))[0] == "bad_request"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"mind": "nobody", "key": "k"}, "unknown_mind"),
        ({"mind": None, "key": "k"}, "bad_request"),
        ({"mind": "ada"}, "bad_request"),
        ({"mind": "ada", "key": "k", "max_wait_s": -1}, "bad_request"),
        ({"mind": "ada", "key": "k", "max_wait_s": float("nan")}, "bad_request"),
        ({"mind": "ada", "key": "k", "max_wait_s": True}, "bad_request"),
    ],
)
def test_run_refusals(body, code):
    assert refused(lambda: intake.run(body, CONFIG, NOW, 1000))[0] == code


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(intake.SEND_FIELDS)), JSON) | JSON)
def test_no_body_breaks_the_edge(body):
    try:
        new = intake.message(body, CONFIG, NOW)
    except Problem as problem:
        assert problem.detail
    else:
        assert json.loads(new.raw)["content"] == body["content"]
