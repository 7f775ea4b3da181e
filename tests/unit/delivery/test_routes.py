import json

import pytest

from hostguard.delivery.routes import Batch, instructions, parse_routes, route

TOLD = {"channel": "discord:general", "sender": "ann", "content": "hello"}


def routed(file, mind="bob", **payload):
    return route(parse_routes(json.dumps(file)), mind, {**TOLD, **payload})


def to(file, **payload):
    return routed(file, **payload).session


ROWS = [
    # what the file says, of which message, where it goes
    ("the first match wins", {"rules": [{"channel": "x"}, {"channel": "d*", "session": "a"}, {"session": "b"}]}, {}, "a"),
    ("channel", {"rules": [{"channel": "discord:general", "session": "a"}]}, {}, "a"),
    ("channel with a star", {"rules": [{"channel": "discord:*", "session": "a"}]}, {}, "a"),
    ("a star only: ? is a character", {"rules": [{"channel": "discord:genera?", "session": "a"}]}, {}, None),
    ("a star only: . is a character", {"rules": [{"channel": "discord.general", "session": "a"}]}, {}, None),
    ("sender", {"rules": [{"sender": "an*", "session": "a"}]}, {}, "a"),
    ("another sender", {"rules": [{"sender": "an*", "session": "a"}]}, {"sender": "dan"}, None),
    ("no sender is an empty one", {"rules": [{"sender": "N*", "session": "a"}]}, {"sender": None}, None),
    ("any sender is also none", {"rules": [{"sender": "*", "session": "a"}]}, {"sender": None}, "a"),
    ("isDM", {"rules": [{"isDM": True, "session": "a"}]}, {"isDM": True}, "a"),
    ("isDM missing is false", {"rules": [{"isDM": True, "session": "a"}]}, {}, None),
    ("isDM false wanted, missing", {"rules": [{"isDM": False, "session": "a"}]}, {}, "a"),
    ("isDM false wanted, true", {"rules": [{"isDM": False, "session": "a"}]}, {"isDM": True}, None),
    ("isDM of a wrong type", {"rules": [{"isDM": 1, "session": "a"}]}, {"isDM": True}, None),
    ("participants", {"rules": [{"participants": 2, "session": "a"}]}, {"participantCount": 2}, "a"),
    ("participants, by name", {"rules": [{"participants": 2, "session": "a"}]}, {"participants": ["a", "b"]}, "a"),
    ("participants: the exact count", {"rules": [{"participants": 2, "session": "a"}]}, {"participantCount": 3}, None),
    ("participants unknown are none", {"rules": [{"participants": 0, "session": "a"}]}, {}, "a"),
    ("participants: a count of a wrong type is none", {"rules": [{"participants": 0, "session": "a"}]}, {"participantCount": "1"}, "a"),
    ("participants of a wrong type", {"rules": [{"participants": "2", "session": "a"}]}, {"participantCount": 2}, None),
    ("participants: true is no count", {"rules": [{"participants": True, "session": "a"}]}, {"participantCount": 1}, None),
    ("channel of a wrong type", {"rules": [{"channel": ["discord:general"], "session": "a"}]}, {}, None),
    ("any other key never matches", {"rules": [{"platform": "discord", "session": "a"}]}, {"platform": "discord"}, None),
    ("all keys have to match", {"rules": [{"sender": "ann", "channel": "x", "session": "a"}]}, {}, None),
    ("a rule without match keys takes all", {"rules": [{"session": "a"}]}, {}, "a"),
    ("a rule without a session: the default", {"rules": [{"channel": "*"}]}, {}, "main"),
    ("a default of its own", {"rules": [{"channel": "*"}], "default": "d"}, {}, "d"),
    ("sender and channel in the name", {"rules": [{"session": "${sender}-${channel}"}]}, {}, "ann-discord:general"),
    ("no sender in the name", {"rules": [{"session": "${sender}"}]}, {"sender": None}, "unknown"),
    ("/ and \\ are made safe", {"rules": [{"session": "${channel}"}]}, {"channel": "a/b\\c"}, "a-b-c"),
    (".. is made safe", {"rules": [{"session": "${channel}"}]}, {"channel": "../x"}, "--x"),
    ("NUL is made safe", {"rules": [{"session": "${channel}"}]}, {"channel": "a\0b"}, "a-b"),
    ("a name has 100 characters", {"rules": [{"session": "x${sender}"}]}, {"sender": "s" * 200}, "x" + "s" * 99),
    ("a sender cannot name the guard's own", {"rules": [{"session": "${sender}"}]}, {"sender": "$file:/etc/x"}, "-file:-etc-x"),
    ("a sender cannot ask for $new", {"rules": [{"session": "${sender}"}]}, {"sender": "$new"}, "-new"),
    ("a template in a value stays", {"rules": [{"session": "${sender}"}]}, {"sender": "${channel}"}, "-{channel}"),
    ("$new", {"rules": [{"session": "$new"}]}, {}, "$new"),
    ("$new as the default", {"default": "$new", "gateUnmatched": False}, {}, "$new"),
    ("a file without a path is skipped", {"rules": [{"destination": "file"}, {"session": "b"}]}, {}, "b"),
    ("gateUnmatched false: the default", {"gateUnmatched": False}, {}, "main"),
    ("a named session skips matching", {"rules": [{"session": "a"}]}, {"session": "s"}, "s"),
    ("a named session skips files", {"rules": [{"destination": "file", "path": "f"}]}, {"session": "s"}, "s"),
    ("a named session skips gating", {}, {"session": "s"}, "s"),
    ("a named session skips mention", {"rules": [{"mode": "mention"}]}, {"session": "s"}, "s"),
    ("a session of null is none", {"rules": [{"session": "a"}]}, {"session": None}, "a"),
]  # fmt: skip


@pytest.mark.parametrize(("why", "file", "payload", "session"), ROWS, ids=[row[0] for row in ROWS])
def test_session(why, file, payload, session):
    found = routed(file, **payload)
    assert (found.session, found.action) == (session, "deliver" if session else "gated")


def test_gated_by_default():
    found = routed({"rules": [{"channel": "x"}]})
    assert (found.action, found.rule) == ("gated", None)
    assert found.text == "no rule matches, so it is kept until one does"
    assert route(parse_routes("{}"), "bob", TOLD).action == "gated"


def test_file():
    found = routed({"rules": [{"channel": "x"}, {"destination": "file", "path": "log/all.jsonl"}]})
    assert (found.action, found.path, found.rule, found.session) == ("file", "log/all.jsonl", 2, None)


MENTIONS = [
    ("bob", "hey bob", True),
    ("bob", "hey @bob!", True),
    ("bob", "BOB, look", True),
    ("bob", "bobby was here", False),
    ("bob", "ask bob-2", False),
    ("bob", "hello", False),
    ("a.b", "is a.b there", True),
    ("a.b", "is axb there", False),
    ("bob", [{"type": "text", "text": "hey bob"}, {"type": "image", "data": "x"}], True),
    ("bob", [{"type": "image", "data": "bob"}], False),
    ("bob", {"to": "bob"}, True),
]


@pytest.mark.parametrize(("mind", "content", "passes"), MENTIONS)
def test_mention(mind, content, passes):
    found = routed({"rules": [{"mode": "mention", "session": "a"}]}, mind=mind, content=content)
    assert found.action == ("deliver" if passes else "filtered")
    if not passes:
        assert found.text == f"rule 1 matches, but only for messages that mention {mind}"
        assert found.rule == 1


def test_mention_is_asked_only_of_a_sender():
    assert to({"rules": [{"mode": "mention", "session": "a"}]}, sender=None) == "a"
    assert to({"rules": [{"mode": "all", "session": "a"}]}) == "a"


MODES = [
    ("nothing", {}, "immediate"),
    ("a number is minutes of max wait", {"rule": 2}, Batch(5, 120)),
    ("half a minute", {"rule": 0.5}, Batch(5, 30)),
    ("an object is in seconds", {"rule": {"debounce": 1, "maxWait": 9, "triggers": ["!"]}}, Batch(1, 9, ("!",))),
    ("defaults", {"rule": {}}, Batch(5, 120)),
    ("null is none", {"rule": None}, "immediate"),
    ("a session's immediate beats the rule's batch", {"rule": 2, "s*": {"delivery": "immediate"}}, "immediate"),
    ("a session's batch beats the rule's", {"rule": 2, "s": {"delivery": "batch"}}, Batch(5, 120)),
    ("a session's instructions alone beat it, too", {"rule": 2, "s": {"instructions": "x"}}, "immediate"),
    ("a session's object", {"s": {"delivery": {"mode": "batch", "maxWait": 7}}}, Batch(5, 7)),
    ("a session's object without a mode", {"s": {"delivery": {"debounce": 7}}}, Batch(7, 120)),
    ("a session's object, immediate", {"s": {"delivery": {"mode": "immediate"}}}, "immediate"),
    ("batch beside delivery", {"s": {"delivery": "batch", "batch": {"triggers": ["now"]}}}, Batch(5, 120, ("now",))),
    ("batch beside delivery, minutes", {"s": {"delivery": "batch", "batch": 0}}, Batch(5, 0)),
    ("batch beside an immediate delivery", {"s": {"delivery": "immediate", "batch": 3}}, "immediate"),
    ("batch without delivery", {"s": {"batch": 1}}, Batch(5, 60)),
    ("the first glob wins", {"x*": {"batch": 9}, "*": {"batch": 1}, "s": {"batch": 2}}, Batch(5, 60)),
    ("no glob fits: the rule's", {"rule": 2, "x": {"delivery": "immediate"}}, Batch(5, 120)),
]  # fmt: skip


@pytest.mark.parametrize(("why", "said", "mode"), MODES, ids=[row[0] for row in MODES])
def test_mode(why, said, mode):
    sessions = {name: value for name, value in said.items() if name != "rule"}
    file = {"rules": [{"session": "s", "batch": said.get("rule")}], "sessions": sessions}
    assert routed(file).mode == mode


def test_a_named_session_has_its_settings_too():
    file = {"rules": [{"session": "s", "batch": 3}], "sessions": {"s": {"batch": 1}}}
    assert routed(file, session="s").mode == Batch(5, 60)
    assert routed(file, session="t").mode == "immediate"


def test_the_settings_of_new_sessions():
    file = {"rules": [{"session": "$new"}], "sessions": {"new-*": {"batch": 1, "instructions": "short"}}}
    assert routed(file).mode == Batch(5, 60)
    assert instructions(parse_routes(json.dumps(file)), "new-0123abcd") == "short"


def test_instructions():
    routes = parse_routes(
        '{"sessions": {"a*": {"instructions": "one"}, "*": {"instructions": "two"}, "b": {}}}'
    )
    assert instructions(routes, "ab") == "one"
    assert instructions(routes, "b") == "two"
    assert instructions(parse_routes("{}"), "b") is None


def test_the_text_explains():
    file = {"rules": [{"channel": "x"}, {"session": "s"}], "sessions": {"s*": {"batch": 1}}}
    assert routed(file).text == 'rule 2 matches: session s, delivered as sessions["s*"] says'
    assert routed(file).rule == 2
    assert routed(file, session="t").text == "the message names its session, t"
    assert routed({"gateUnmatched": False}).text == "no rule matches: session main"


BAD = [
    ("{", "it is not JSON: "),
    ("[" * 10_000, "it is nested deeper than"),
    ("[" * 100_000, "it is JSON with more than 20000 items"),
    ("[]", 'it must be an object, such as {"rules": [...]}'),
    ('{"rules": {}}', "rules must be a list of at most 1000"),
    ('{"rules": [%s{}]}' % ("{}," * 1000), "rules must be a list of at most 1000"),
    ('{"rules": [{}, 1]}', "rules[1] must be an object"),
    ('{"rules": [{"session": 1}]}', "rules[0].session must be a string"),
    ('{"rules": [{"destination": "disk"}]}', 'rules[0].destination must be "mind" or "file"'),
    (
        '{"rules": [{"path": "a\\u0000"}]}',
        "rules[0].path must be the path of a file, of at most 1000 printable",
    ),
    (
        '{"rules": [{"path": "%s"}]}' % ("a" * 1001),
        "rules[0].path must be the path of a file, of at most 1000",
    ),
    ('{"rules": [{"mode": "some"}]}', 'rules[0].mode must be "all" or "mention"'),
    ('{"rules": [{"batch": true}]}', "rules[0].batch must be minutes, at most 1440, or an object with"),
    ('{"rules": [{"batch": -1}]}', "rules[0].batch must be minutes, at most 1440, or an object with"),
    ('{"rules": [{"batch": {"debounce": "5"}}]}', "rules[0].batch.debounce must be a number of seconds"),
    ('{"rules": [{"batch": {"maxWait": NaN}}]}', "rules[0].batch.maxWait must be a number of seconds"),
    (
        '{"rules": [{"batch": {"triggers": [""]}}]}',
        "rules[0].batch.triggers must be a list of at most 100 texts",
    ),
    (
        json.dumps({"rules": [{"batch": {"triggers": ["x"] * 101}}]}),
        "rules[0].batch.triggers must be a list of at most 100",
    ),
    (json.dumps({"rules": [{"batch": {"triggers": ["x" * 101]}}]}), "rules[0].batch.triggers must be"),
    ('{"sessions": []}', "sessions must be an object of at most 1000 patterns"),
    ('{"sessions": {"a": 1}}', 'sessions["a"] must be an object'),
    ('{"sessions": {"a": {"instructions": "\\ud800"}}}', 'sessions["a"].instructions must be a string'),
    ('{"sessions": {"a": {"delivery": "now"}}}', 'sessions["a"].delivery must be "immediate" or "batch"'),
    ('{"default": 1}', "default must be the name of a session"),
    ('{"gateUnmatched": "no"}', "gateUnmatched must be true or false"),
]


@pytest.mark.parametrize(("text", "said"), BAD, ids=[row[1] for row in BAD])
def test_refused(text, said):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        parse_routes(text)
    assert str(refusal.value).startswith(said)


def test_names_with_half_a_surrogate_are_no_trouble():
    found = routed({"rules": [{"session": "\ud800${sender}"}], "sessions": {"\ud800": {}}})
    assert found.session == "-ann"
