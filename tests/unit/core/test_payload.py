"""What a mind is told of a delivery."""

from __future__ import annotations

import gc
import json
import re

import pytest
from rows import row

from hostguard.core import payload
from hostguard.core.model import Kind
from hostguard.core.payload import DEPTH_MAX, ITEMS_MAX, items, parsed

MINUTE = 60_000


def raw(content="hi", **more):
    return json.dumps(
        {"content": content, "channel": None, "sender": "bob", "interrupt": False, **more}
    ).encode()


def resident(content="hi", waited=0, behind=None, instructions=None, kind=Kind.MESSAGE, **more):
    return payload.for_resident(row(kind=kind), raw(content, **more), waited, behind, instructions)


def executed(content="hi", waited=0, behind=None, **more):
    return json.loads(payload.for_exec(row(), raw(content, **more), waited, behind))


def test_the_session_is_the_rows():
    assert resident(session="main")["session"] == executed(session="main")["session"] == "s"


@pytest.mark.parametrize(
    ("given", "channel", "is_dm"),
    [
        ({}, "@bob", True),
        ({"sender": None}, "@hostguard", True),
        ({"channel": "#x"}, "#x", None),
        ({"channel": "discord:general", "isDM": False}, "discord:general", False),
        ({"isDM": False}, "@bob", False),
    ],
)
def test_a_message_to_no_channel_is_a_direct_one(given, channel, is_dm):
    told = resident(**given)
    assert (told["channel"], told.get("isDM")) == (channel, is_dm)


@pytest.mark.parametrize(
    ("content", "told"),
    [("hi", "hi"), ([{"type": "text", "text": "a"}], [{"type": "text", "text": "a"}]), ({"a": 1}, '{"a": 1}'), (7, "7"), ([1], "[1]")],
)  # fmt: skip
def test_content_that_a_resident_mind_does_not_read_is_json(content, told):
    assert resident(content)["content"] == told
    assert executed(content)["content"] == content


def test_a_resident_mind_gets_all_fields_but_those_that_are_hostguards_own():
    told = resident(script="rm", participants=["a"], channelName="general", signature={"by": "x"})
    assert set(told) == {
        "content", "channel", "sender", "session", "interrupt", "isDM", "participants", "channelName", "signature",
    }  # fmt: skip
    assert (told["channelName"], told["signature"]) == ("general", {"by": "x"})
    late = payload.for_resident(row(), raw(), 2 * MINUTE, "x.scope", None)
    assert "held" not in late


def test_instructions_of_the_session_and_of_the_message_are_both_told():
    assert resident(instructions="be brief")["instructions"] == "be brief"
    both = payload.for_resident(row(), raw(instructions="now"), 0, None, "be brief")
    assert both["instructions"] == "be brief\nnow"


@pytest.mark.parametrize(
    ("waited", "behind", "note"),
    [
        (MINUTE, "x.scope", None),
        (MINUTE + 1, "x.scope", "[hostguard held this message for 1 min 0 s, behind x.scope]"),
        (200_000, None, "[hostguard held this message for 3 min 20 s]"),
        (200_000, "ada sleeps", "[hostguard held this message for 3 min 20 s: ada sleeps]"),
        (
            2 * 3_600_000 + 5 * MINUTE,
            "x.scope",
            "[hostguard held this message for 2 h 5 min, behind x.scope]",
        ),
    ],
)
def test_a_long_wait_is_told_in_the_content(waited, behind, note):
    prefix = f"{note}\n" if note else ""
    assert (
        executed("hi", waited, behind)["content"]
        == resident("hi", waited, behind)["content"]
        == f"{prefix}hi"
    )
    parts = [{"type": "image", "media_type": "image/png", "data": ""}]
    told = [{"type": "text", "text": note}] if note else []
    assert (
        executed(parts, waited, behind)["content"]
        == resident(parts, waited, behind)["content"]
        == told + parts
    )
    batch = {"channels": {"#a": [{"content": "one"}, {"content": "two"}], "#b": [{"content": "three"}]}}
    got = resident(None, waited, behind, kind=Kind.BATCH, batch=batch)["batch"]["channels"]
    assert [m["content"] for m in [*got["#a"], *got["#b"]]] == [f"{prefix}one", "two", "three"]


def test_a_long_wait_is_told_beside_content_that_is_no_text():
    told = executed({"a": 1}, 90_000, "x.scope")
    assert told["content"] == {"a": 1}
    assert told["held"] == {"ms": 90_000, "behind": "x.scope"}
    assert "held" not in executed({"a": 1}, MINUTE)
    # A resident mind reads data as text, with the note before it.
    note = "[hostguard held this message for 1 min 30 s, behind x.scope]"
    assert resident({"a": 1}, 90_000, "x.scope")["content"] == f'{note}\n{{"a": 1}}'


def test_a_line_of_a_file_is_one_line():
    line = payload.file_line(row(), raw("two\nlines"))
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"at": 1000, "channel": "@bob", "sender": "bob", "content": "two\nlines"}


def nested(depth: int, open_: str = "[", inner: str = "", close: str = "]") -> str:
    return open_ * depth + inner + close * depth


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "not JSON: Expecting value"),
        (b"{", "not JSON: "),
        (b'"\xff"', "not JSON: it is not UTF-8"),
        (b"9" * 5000, "not usable: a number has too many digits"),
        (nested(DEPTH_MAX + 1), "nested deeper than 100 levels"),
        (nested(DEPTH_MAX + 1).encode(), "nested deeper than 100 levels"),
        (nested(971), "nested deeper than 100 levels"),
        (nested(20_000), "nested deeper than 100 levels"),
        (nested(200_000), "more than 20000 items"),
        (nested(DEPTH_MAX, '{"a":', "[]", "}"), "nested deeper than 100 levels"),
        ("[1," + nested(DEPTH_MAX) + "]", "nested deeper than 100 levels"),
    ],
)
def test_json_of_others_is_refused_with_what_it_is(raw: bytes | str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parsed(raw)


def test_json_of_others_has_so_many_items_whatever_its_texts_hold() -> None:
    full = [1] * (ITEMS_MAX - 3)  # with the list around them, the first text, and one more
    texts = (
        "",
        ",",
        '"',
        "\\",
        '\\"',
        '",[{' * 9,
        "\\" * 3 + '"' * 3,
        "," * 3 * ITEMS_MAX,
        '"' * ITEMS_MAX * 5,
    )
    for text in texts:
        for value in ([text, *full], {text: full}, [[], text, *full[:-1]]):
            raw = json.dumps(value).encode()
            assert items(raw) <= ITEMS_MAX, text[:20]
            assert parsed(raw) == value
        for value in (
            [text, *full, 1, 1, 1],
            [*full, text, {}, {}, []],
            [[[] for _ in range(ITEMS_MAX)], text],
        ):
            with pytest.raises(ValueError, match="more than 20000 items"):
                parsed(json.dumps(value))
    names = {str(number): "" for number in range(ITEMS_MAX - 1)}
    assert parsed(json.dumps(names)) == names
    for encoding in ("utf-16", "utf-32-le"):  # of which the items are not counted
        with pytest.raises(ValueError, match="not JSON: "):
            parsed("[[],[]]".encode(encoding))


def test_a_refusal_of_json_keeps_nothing_of_it() -> None:
    gc.collect()
    for raw in (b'{"' + b"x" * 100_000, b'"\xff' + b"x" * 100_000 + b'"', b"[" * 9000 + b"x" * 100_000):
        with pytest.raises(ValueError, match=r"JSON|nested") as refused:
            parsed(raw)
        assert refused.value.__cause__ is refused.value.__context__ is None


def test_json_of_others_may_be_wide_and_as_deep_as_is_allowed() -> None:
    deep, wide = nested(DEPTH_MAX), "[" + ",".join(["[{}]"] * 1000) + "]"
    for raw in (deep, wide, nested(DEPTH_MAX, '{"a":', "1", "}"), '"' + "[" * 500 + '"', "7"):
        assert parsed(raw) == parsed(bytearray(raw.encode())) == json.loads(raw)
