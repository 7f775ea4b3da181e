"""The guard in front of a running Volute: messages to its minds are kept, gated and sent on as they came."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from front_host import FrontHost
from guard import Guard


@pytest.fixture
def front(guard: Guard) -> Iterator[FrontHost]:
    with FrontHost(guard) as front:
        yield front


def test_a_message_is_kept_answered_as_the_mind_would_and_sent_on(front: FrontHost) -> None:
    front.start("ada")
    said = front.tell("ada", "hello !work=0.2", session="chat", sender="bob", channel="#x")
    assert (said["status"], said["body"]) == (200, '{"ok":true}')
    (row,) = front.rows()
    assert (row["mind"], row["session"], row["sender"]) == ("ada", "chat", "bob")
    front.done(row["id"])
    (got,) = front.log("ada", "message")
    assert got["content"] == "hello !work=0.2"
    assert got["body"] == ["channel", "content", "sender", "session"]  # nothing was added or left out
    assert (got["key"], got["turn"]) == (None, None)
