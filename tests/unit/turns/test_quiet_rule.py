"""When a turn is over in which a `done` may not be the last. The seconds are those of real minds: see the rule."""

from __future__ import annotations

import pytest

from hostguard.turns.drivers.quiet_rule import Seen, over


@pytest.mark.parametrize(
    ("why", "seen", "want"),
    [
        ("no done, and at work a moment ago", Seen(None, 0, 0, 0), None),
        ("no done, at rest for long: a tool waits", Seen(None, 500, 500, 500), None),
        ("no done for idle_end", Seen(None, 600, 600, 0), "idle"),
        ("a done a moment ago, after a rest", Seen(0.1, 30, 30, 0.1), None),
        ("both look alike at first", Seen(4.9, 4.9, 9, 4.9), None),
        ("quiet since", Seen(5.0, 3.0, 5, 5.0), "done"),
        ("quiet since, though the guard looked late", Seen(5.2, 2.8, 5, 5.0), "done"),
        ("another run began", Seen(5.0, 0.0, 5, 5.0), None),
        ("its model answers slowly", Seen(12.0, 6.0, 9, 12.0), None),
        ("what began was not a run", Seen(20.0, 10.0, 15, 20.0), "done"),
        ("perhaps the done of the turn before", Seen(6.0, 6.0, 6, 6.0, late=True), None),
        ("and quiet since", Seen(11.0, 10.0, 11, 11.0, late=True), "done"),
        ("its model answers for minutes", Seen(200.0, 0.0, 200.0, 200.0, told=True), None),
        ("a slow host: at rest it is above BUSY", Seen(300.0, 0.0, 300.0, 300.0, told=True), "done"),
        ("but LOUD", Seen(300.0, 0.0, 299.0, 300.0, told=True), None),
        ("an answer came late, and the last done before it", Seen(None, 60, 60, 60, told=True), "done"),
        ("it is calling a tool", Seen(None, 400, 400, 400, told=True, tool=True), None),
        ("it reported something since", Seen(None, 90, 90, 50, told=True), None),
        ("its processes are gone", Seen(None, 30, 30, 30, deserted=True), "gone"),
        ("another may follow", Seen(None, 29, 30, 30, deserted=True), None),
        ("nobody asked for it: it reports", Seen(None, 70, 70, 10, unasked=True), None),
        ("nobody asked for it, and it is silent", Seen(None, 60, 60, 60, unasked=True), "idle"),
        ("but a tool that it called", Seen(None, 60, 60, 60, unasked=True, tool=True), None),
    ],
)
def test_over(why: str, seen: Seen, want: str | None) -> None:
    ended = over(seen, 600)
    assert (ended and ended.outcome) == want, why


def test_no_rest_need_be_longer_than_idle_end() -> None:
    assert over(Seen(2.0, 2.0, 2, 2, late=True), 2) is not None
    assert over(Seen(None, 2, 2, 2, deserted=True), 2) is not None
