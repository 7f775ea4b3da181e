"""How an end is read: the stub's record, and what becomes of the row. Each row says why."""

import pytest

from hostguard.core.model import NOT_HELD, Waited
from hostguard.core.outcome import (
    DIED,
    RECORD_LOST,
    Ending,
    Record,
    Usage,
    backoff,
    ending,
    keeps_place,
    resident_ending,
    result,
    row_of,
    turn_id,
)
from hostguard.core.reasons import Reason
from hostguard.turns.exit_record import parse_record

RAN = Record(released=True)


def exited(status):
    return Record(released=True, exit=status)


def died(number):
    return Record(released=True, signal=number)


TABLE = [
    # record, stopped, ran, max_turn -> outcome, failed, back, exit
    ("exit 0", exited(0), False, 1, None, "exited", False, False, 0),
    ("a failing command has ended, too", exited(3), False, 1, None, "exited", False, False, 3),
    ("255 is an exit, no signal", exited(255), False, 1, None, "exited", False, False, 255),
    ("a shell's 137 is an exit as well", exited(137), False, 1, None, "exited", False, False, 137),
    ("SIGSEGV is a crash", died(11), False, 1, None, "killed", True, False, 139),
    ("SIGKILL that nobody asked for is a crash", died(9), False, 1, None, "killed", True, False, 137),
    ("stub and command killed together", RAN, False, 1, None, "killed", True, False, None),
    ("hostguard stop", died(15), True, 1, None, "stopped", False, False, 143),
    ("stop, then systemd's SIGKILL to all", RAN, True, 99, 60, "stopped", False, False, None),
    ("stop, and the command exits by itself", exited(0), True, 1, None, "stopped", False, False, 0),
    ("SIGTERM from elsewhere asks for an end", died(15), False, 1, None, "stopped", False, False, 143),
    ("RuntimeMaxSec's SIGTERM", died(15), False, 60.1, 60, "timeout", False, False, 143),
    ("RuntimeMaxSec's SIGKILL", RAN, False, 61, 60, "timeout", False, False, None),
    ("SIGTERM before max_turn", died(15), False, 59, 60, "stopped", False, False, 143),
    ("an exit after max_turn is still an exit", exited(0), False, 61, 60, "exited", False, False, 0),
    ("SIGSEGV after max_turn is a crash", died(11), False, 61, 60, "killed", True, False, 139),
    ("cannot execute", Record(True, "/x: Permission denied"), False, 0, None, "not_started", True, False, None),
    ("never let run", Record(), False, 0, None, "dismissed", False, True, None),
    ("never let run, and stopped", Record(), True, 0, None, "dismissed", False, True, None),
    ("host restarted", None, False, 0, None, "killed", True, False, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "stopped", "ran", "max_turn", "outcome", "failed", "back", "status"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_ending(record, stopped, ran, max_turn, outcome, failed, back, status):
    end = ending(record, stopped, ran, max_turn)
    assert (end.outcome, end.failed, end.back, end.exit) == (outcome, failed, back, status)
    assert end.reason


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ("", Record()),
        ("started\n", RAN),
        ("started\nexit 3\ncpu_usec 5\nread_bytes 7\n", Record(True, None, 3, None, {"cpu_usec": 5, "read_bytes": 7})),
        ("started\nsignal 9\n", died(9)),
        ("started\nnot_started /x: No such file\n", Record(True, "/x: No such file")),
        # The mind's own processes could write here: nonsense is left out, nothing breaks.
        ("started\nexit -1\nexit x\nexit 99999999999999999999999\ncpu_usec 1e9\nwhat 5\n\0\xff", RAN),
        ("started\n" + "a" * 5000 + "\nexit 0\n", RAN),
    ],
)  # fmt: skip
def test_parse_record(text, record):
    assert parse_record(text) == record


@pytest.mark.parametrize(
    ("stopped", "ran", "posted", "ours", "outcome", "failed", "back"),
    [
        (False, 1, True, True, "gone", False, False),
        (False, 1, False, True, "dismissed", False, True),
        (True, 1, True, True, "stopped", False, False),
        (False, 9, True, True, "timeout", False, False),
        (False, 9, True, False, "timeout", False, False),
        # Of what the mind never confirmed nothing is over: it comes again.
        (False, 9, False, True, "timeout", True, False),
        (False, 9, False, False, "dismissed", False, True),
    ],
)
def test_how_a_resident_minds_turn_ended(stopped, ran, posted, ours, outcome, failed, back):
    end = resident_ending(Record(anchor=5), stopped, ran, 8, posted, ours)
    assert (end.outcome, end.failed, end.back) == (outcome, failed, back)


@pytest.mark.parametrize(("stopped", "ran"), [(True, 1), (False, 9)])
@pytest.mark.parametrize("posted", [True, False])
def test_an_end_by_force_says_that_the_mind_may_have_lost_the_conversation(stopped, ran, posted):
    end = resident_ending(Record(anchor=5), stopped, ran, 8, posted, True)
    assert ("the mind may have lost the conversation" in end.reason) == posted


def test_a_row_whose_mind_died_lets_its_session_go_on():
    assert DIED.failed
    assert DIED.overtaken
    assert not keeps_place(result(DIED, None, 1, NOT_HELD))


@pytest.mark.parametrize("posted", [True, False])
def test_a_resident_minds_turn_that_ended_with_the_host_is_posted_again(posted):
    end = resident_ending(None, False, 1, 8, posted, False)
    assert (end.failed, end.back) == (posted, not posted)


@pytest.mark.parametrize(
    ("end", "cut"),
    [
        (ending(exited(3), False, 1, None), False),
        (ending(died(15), False, 1, None), True),
        (ending(died(9), False, 1, None), True),
        (ending(died(15), True, 1, None), True),
        (ending(RAN, False, 1, None), True),
        (ending(died(15), False, 60.1, 60), False),
        (ending(Record(), False, 0, None), False),
        (RECORD_LOST, True),
        (Ending("exited", "the caller's command ended"), True),
        (Ending("done", "the mind said so"), False),
        (Ending("idle", "quiet"), False),
        (Ending("died", "its server is gone"), True),
        (Ending("refused", "no answer", failed=True), True),
    ],
)
def test_what_may_be_the_work_of_a_host_that_goes_down(end, cut):
    assert end.cut_short is cut


def test_backoff_doubles_up_to_five_minutes():
    assert [backoff(n) // 1000 for n in range(1, 10)] == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_each_attempt_has_its_own_turn_id():
    assert (turn_id(17, 0), turn_id(17, 2)) == ("17", "17.2")
    assert [row_of(name) for name in ("17", "17.2", "x00ff00ff", "", "²", "9" * 19, "9" * 5000)] == [
        17,
        17,
        *[None] * 5,
    ]


def test_result_says_none_where_the_kernel_gave_nothing():
    shown = result(ending(RAN, False, 1, None), RAN, 1000, Waited(5, "a turn", Reason.MIND_BUSY))
    assert shown["cpu_ms"] is None
    assert (shown["held_ms"], shown["held_for"]) == (5, "mind_busy")
    assert shown["write_bytes"] is None
    shown = result(
        ending(exited(0), False, 1, None), Record(True, None, 0, None, {"cpu_usec": 2500}), 1, NOT_HELD
    )
    assert shown["cpu_ms"] == 2


def test_a_turn_without_a_record_is_told_of_by_its_scope_alone():
    of_scope, of_processes = Usage(7, 1, 2, "scope"), Usage(7, 1, 2, "processes")
    shown = result(ending(exited(0), False, 1, None), None, 1, NOT_HELD, of_scope)
    assert (shown["cpu_ms"], shown["read_bytes"], shown["write_bytes"]) == (7, 1, 2)
    shown = result(ending(exited(0), False, 1, None), None, 1, NOT_HELD, of_processes)
    assert (shown["cpu_ms"], shown["read_bytes"], shown["write_bytes"]) == (7, None, None)
    told = Record(True, None, 0, None, {"cpu_usec": 2500, "read_bytes": 5, "write_bytes": 0})
    shown = result(ending(exited(0), False, 1, None), told, 1, NOT_HELD, of_scope)
    assert (shown["cpu_ms"], shown["read_bytes"], shown["write_bytes"]) == (2, 5, 0)
