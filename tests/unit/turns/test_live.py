"""The live set, and which minds are down: bookkeeping."""

from __future__ import annotations

from hostguard.core.clock import Now
from hostguard.core.model import NOT_HELD, LiveTurn
from hostguard.core.outcome import ACCOUNT, backoff
from hostguard.telemetry.events import Events
from hostguard.turns import availability, exit_record
from hostguard.turns.availability import Availability
from hostguard.turns.live import Live, Phase, Resident, Turn


def turn(unit, mind="m", session="s", id_=None, takes=False, **more):
    return Turn(LiveTurn(unit, mind, session, id_, takes), 0, Phase.RUNNING, **more)


def test_slots_by_name_mind_and_session():
    live, first, other = Live(), turn("a", id_="1", takes=True), turn("b", "n", None, "2")
    assert (len(live), [*live.turns], live.of("m"), live.sessions("m")) == (0, [], (), set())
    live.add(first)
    live.add(other)
    live.add(turn("c", "m", "t"))
    assert (len(live), next(iter(live.turns))) == (3, "a")
    assert [one.live.unit for one in live] == ["a", "b", "c"]
    assert live.of("m") == (first.live, live.turns["c"].live)
    assert live.sessions("m") == {"s", "t"}
    assert live.sessions("n") == set()
    assert live.by_id("1") is live.by_id("a") is first
    assert live.by_id("9") is None
    assert live.taking("m", "s") is first
    assert live.taking("m", "t") is None
    assert live.taking("n", "s") is None
    assert live.resident("m") == []
    first.resident = Resident()
    assert live.resident("m") == [(first, first.resident)]
    live.close_input(first)
    assert live.taking("m", "s") is None
    assert live.of("m")[0].takes_input is False
    assert live.remove(first)
    assert not live.remove(first), "a second end"
    assert not live.remove(turn("c")), "another turn of that name"
    assert (len(live), next(iter(live.turns)), live.sessions("m")) == (2, "b", {"t"})
    live.close_input(first)
    assert len(live.of("m")) == 1
    live.remove(other)
    assert live.of("n") == ()


def test_a_turns_rows_and_time():
    one = turn("a")
    assert one.rows == []
    one.delivery = "row"
    one.folded = [("more", NOT_HELD)]
    assert one.rows == [("row", NOT_HELD), ("more", NOT_HELD)]
    begun, now = Now(0, 1_000, 7), Now(10**9, 6_000, 7)
    one.started = begun.stamp
    assert (one.ran_ms(now), one.ran_s) == (5_000, 0)
    one.over(now)
    assert (one.ran_ms(Now(0, 60_000, 7)), one.ran_s) == (5_000, 5), "it ends once"
    one.over(now, Now(0, 3_000, 7).stamp)
    assert (one.ran_ms(now), one.ran_s) == (2_000, 2)
    one.ended = None
    assert one.ran_ms(now) is None, "nobody knows"


def test_a_mind_that_is_down_is_tried_again_after_a_pause(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(availability.time, "monotonic", lambda: now)
    minds = Availability(Events())
    assert (minds.why("m"), minds.up_in(), minds.retried(), minds.up("m")) == (None, None, [], False)
    minds.note("m", "nobody listens")
    assert minds.why("m") == "m is down: nobody listens"
    assert minds.up_in() == backoff(1) / 1000
    now += backoff(1) / 1000
    assert (minds.why("m"), minds.up_in(), minds.retried()) == (None, None, ["m"])
    minds.note("m", "still nobody")
    assert minds.up_in() == backoff(2) / 1000, "longer each time"
    assert minds.retried() == []
    assert minds.up("m")
    assert minds.why("m") is None
    minds.note("m", "again")
    assert minds.up_in() == backoff(1) / 1000


def test_a_record_is_read_as_far_as_it_makes_sense(tmp_path, monkeypatch):
    monkeypatch.setattr(exit_record.paths, "TURNS", tmp_path)
    assert exit_record.read_record("7") is None
    text = "started\nexit 3\nanchor 12\nwrite_bytes 99\nnonsense\nexit\nsignal x\n\xff 1\ncpu_usec 12345678901234567890\noutput\nhello\noutput\nworld"
    (tmp_path / "7").write_bytes(text.encode("latin1"))
    record = exit_record.read_record("7")
    assert (record.released, record.exit, record.signal, record.anchor) == (True, 3, None, 12)
    assert record.account == {"write_bytes": 99}
    assert record.output == "hello\noutput\nworld"
    assert record.not_started is None
    assert exit_record.parse_record("not_started no such file\n").not_started == "no such file"
    killed = exit_record.parse_record("started\nsignal 11\n" + "".join(f"{name} 5\n" for name in ACCOUNT))
    assert (killed.released, killed.exit, killed.signal) == (True, None, 11)
    assert killed.account == dict.fromkeys(ACCOUNT, 5)
    exit_record.forget("7")
    exit_record.forget("7")
    assert exit_record.read_record("7") is None
    assert exit_record.prepare(LiveTurn("u", "m", "s", "8"))
    assert (tmp_path / "8").stat().st_mode & 0o777 == 0o600
