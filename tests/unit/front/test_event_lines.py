"""The events of a stream, in whatever pieces it comes."""

from __future__ import annotations

import pytest

from hostguard.front.event_streams import LINE_MAX, Lines

SENT = b': ping\n\ndata: {"type":"text","content":"a"}\n\ndata: no json\n\ndata: [1]\n\ndata: {"type":"done"}\n\n'


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_are_read_however_they_come(size: int) -> None:
    lines = Lines()
    parts = [SENT[at : at + size] for at in range(0, len(SENT), size)]
    found = [event["type"] for part in parts for event in lines.feed(part)]
    assert found == ["text", "done"]


def test_an_event_that_is_too_long_is_left_out() -> None:
    lines = Lines()
    assert [*lines.feed(b"data: {")] == []
    for _ in range(LINE_MAX // 1000 + 1):
        assert [*lines.feed(b"x" * 1000)] == []
    assert [*lines.feed(b'}\ndata: {"type":"done"}\n')] == [{"type": "done"}]
