"""Events on their way to the journal, and to readers in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from hostguard.core.clock import now_ms
from hostguard.systemd.journal import Journal
from hostguard.telemetry import events as events_
from hostguard.telemetry.events import MESSAGE_IDS, Event, Events, RecentEvents, to_journal


class Kept(Journal):
    def __init__(self) -> None:
        self.entries: list[Any] = []

    def send(self, *entry: Any) -> None:
        self.entries.append(entry)


def test_each_event_goes_to_all_sinks_in_order_with_a_higher_id():
    taken: list[Any] = []

    began = now_ms()
    events = Events(*(lambda event, name=name: taken.append((name, event)) for name in "ab"))
    events.emit(Event.ENDED, "over", mind="ada", exit=0, reason=None)
    events.emit(Event.DEAD, "dead")
    assert [name for name, _ in taken] == ["a", "b", "a", "b"]
    first, _, second, _ = (event for _, event in taken)
    assert {**first, "id": 0, "at": 0} == {
        "id": 0, "at": 0, "type": "ended", "text": "over", "mind": "ada", "exit": 0
    }  # fmt: skip
    assert began < first["id"] == second["id"] - 1
    assert began <= first["at"] <= now_ms()


@pytest.mark.parametrize(
    ("event", "priority"), [(Event.DEAD, 3), (Event.FAILED, 4), (Event.PRESSURE, 5), (Event.STARTED, 6)]
)
def test_the_journal_gets_what_has_a_message_id(event, priority):
    journal = Kept()
    events = Events(partial(to_journal, journal))
    events.emit(Event.ACCEPTED, "accepted")
    events.emit(event, "a text", mind="ada", waited_ms=5)
    fields = {"HOSTGUARD_MIND": "ada", "HOSTGUARD_WAITED_MS": "5", "MESSAGE_ID": MESSAGE_IDS[event]}
    assert journal.entries == [("a text", priority, fields)]


def test_readers_get_new_events_and_a_slow_one_loses_some(monkeypatch):
    monkeypatch.setattr(events_, "BEHIND_MAX", 3)
    recent = RecentEvents()
    events = Events(recent.take)
    events.emit(Event.HELD, "before")
    with recent.reader() as queue:
        for number in range(5):
            events.emit(Event.HELD, str(number))
        assert [queue.get_nowait()["text"] for _ in range(queue.qsize())] == ["0", "1", "2"]
    events.emit(Event.HELD, "after")
    assert queue.empty()
    kept = recent.kept(0)
    assert [event["text"] for event in kept] == ["before", *"01234", "after"]
    assert recent.kept(kept[-2]["id"]) == kept[-1:]


def test_memory_holds_the_latest_events_only():
    recent = RecentEvents()
    for number in range(events_.KEPT + 1):
        recent.take({"id": number})
    assert (len(recent.kept(-1)), recent.kept(-1)[0]) == (events_.KEPT, {"id": 1})
