"""What a report says of rows, notes and live turns, and what is read of the database for it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from reports import DAY, HOUR, MINUTE, ended, made
from statuses import NOW, status, turn
from until import until

from hostguard.api import web as api_report
from hostguard.core.clock import now_ms
from hostguard.store.writer import Unavailable
from hostguard.telemetry.summary import SERIES, STEPS_MAX, WIDTHS, begin_of, make, quantile, width_of
from hostguard.telemetry.timeline import Timeline
from hostguard.telemetry.timeline_rows import Ended


@pytest.mark.parametrize("span", [MINUTE, HOUR, HOUR + 1, DAY, 7 * DAY, 35 * DAY])
def test_the_steps_cover_the_span_and_are_few(span: int) -> None:
    begin, width = begin_of(NOW + 12_345, span), width_of(span)
    shown = make(status(), (), (), (), NOW + 12_345, span)
    assert begin <= NOW + 12_345 - span < begin + width
    assert len(shown["level"]) <= STEPS_MAX + 1
    assert (shown["from"] + len(shown["level"]) * width) > NOW + 12_345 >= shown["from"]
    assert width in WIDTHS


def test_a_turn_is_counted_in_each_step_in_which_it_ran() -> None:
    shown = made([ended("ada", 5 * MINUTE, 90_000), ended("ada", 5 * MINUTE, 60_000)])
    busy = shown["turns"][0]["busy"]
    at = (NOW - 5 * MINUTE - shown["from"]) // shown["step_ms"]
    assert busy[at : at + 3] == [2.0, 0.5, 0.0]
    assert sum(busy) == 2.5
    assert shown["minds"][0]["run_ms"] == 150_000


def test_only_the_part_of_a_turn_within_the_span_counts() -> None:
    shown = made([ended("ada", 3 * HOUR, 2 * HOUR + 30_000 + DAY)])
    assert sum(shown["turns"][0]["busy"]) == pytest.approx(121, abs=1.01)
    assert made([ended("ada", 3 * HOUR, HOUR)])["turns"][0]["busy"] == [0.0] * 121


def test_live_turns_count_up_to_now_with_what_they_used_so_far() -> None:
    shown = made(
        [ended("ada", 20 * MINUTE, MINUTE, write_bytes=10)], live=[turn("9", "ada", 120, write_bytes=5)]
    )
    assert shown["turns"][0]["busy"][-3:] == [1.0, 1.0, 0.0]
    assert (shown["minds"][0]["turns"], shown["minds"][0]["write_bytes"]) == (2, 15)


def test_a_turn_is_one_however_many_messages_went_into_it() -> None:
    first = ended("ada", HOUR // 2, 1000, write_bytes=7, cpu_ms=3, failed=2, held_ms=5)
    shown = made([first, first._replace(starts=False, held_ms=95)])["minds"][0]
    assert (shown["turns"], shown["failed"], shown["write_bytes"], shown["cpu_ms"]) == (1, 2, 7, 3)
    assert (shown["held_p50_ms"], shown["held_p95_ms"]) == (5, 95)


def test_what_is_not_known_is_not_nothing() -> None:
    shown = made([ended("ada", 1000, 10)])["minds"][0]
    assert (shown["cpu_ms"], shown["read_bytes"], shown["write_bytes"]) == (None, None, None)


def test_minds_beyond_the_colours_are_put_together_and_still_in_the_table() -> None:
    rows = [ended(f"m{i}", 10 * MINUTE, (i + 1) * 1000) for i in range(SERIES + 3)]
    shown = made(rows)
    assert [series["mind"] for series in shown["turns"]] == [f"m{i}" for i in range(SERIES + 2, 2, -1)] + [
        None
    ]
    assert sum(shown["turns"][-1]["busy"]) == pytest.approx(6000 / MINUTE)
    assert len(shown["minds"]) == SERIES + 3


def test_quantiles_are_values_that_were_there() -> None:
    assert quantile([], 0.5) is None
    assert (quantile([4], 0.5), quantile([4], 0.95)) == (4, 4)
    assert (quantile([1, 2, 3, 4], 0.5), quantile([1, 2, 3, 4], 0.95)) == (2, 4)
    assert quantile(list(range(1, 101)), 0.95) == 95


def test_the_commonest_reason_is_told() -> None:
    rows = [
        ended("ada", 1000, 1, held_for=reason) for reason in ("pressure", "global_cap", "global_cap", None)
    ]
    assert made(rows)["minds"][0]["held_for"] == "global_cap"


# -- what is read of the database for it


class Hanging:
    """A database whose reads last as long as the test wants."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[Any]] = []

    def read(self, op: Any) -> asyncio.Future[Any]:
        self.reads.append(asyncio.get_running_loop().create_future())
        return self.reads[-1]


def on_reporter(work: Any) -> None:
    async def main() -> None:
        queue = Hanging()
        await work(api_report.Reports(queue, Timeline(), status), queue)  # type: ignore[arg-type]

    asyncio.run(main())


def stored(*rows: Ended) -> Any:
    return api_report._Stored(time.monotonic(), list(rows), [], [])


def late(name: str) -> Ended:
    return ended(name, 0, 0)._replace(run_ms=1000, ended_at=now_ms() - 1000)


def test_while_the_disk_does_not_answer_what_was_read_before_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(reports: api_report.Reports, queue: Hanging) -> None:
        first = await reports.report(HOUR, 0.01)
        assert (first["complete"], first["minds"]) == (False, [])
        queue.reads[0].set_result(stored(late("ada")))
        second = await reports.report(HOUR, 60)
        assert (second["complete"], [one["name"] for one in second["minds"]]) == (True, ["ada"])
        assert len(queue.reads) == 1  # it is fresh
        monkeypatch.setattr(api_report, "FRESH_S", 0)
        for _ in range(5):
            third = await reports.report(HOUR, 0.01)
            assert (third["complete"], [one["name"] for one in third["minds"]]) == (False, ["ada"])
        assert len(queue.reads) == 2  # one at a time, however many ask

    on_reporter(work)


def test_a_disk_that_refuses_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(reports: api_report.Reports, queue: Hanging) -> None:
        await reports.report(HOUR, 0.01)
        queue.reads[0].set_exception(Unavailable("no"))
        assert not (await reports.report(HOUR, 0.01))["complete"]
        await reports.report(HOUR, 0.01)
        assert len(queue.reads) == 2

    on_reporter(work)


def test_what_was_read_is_let_go_when_nobody_asks_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_report, "KEPT_S", 0.01)

    async def work(reports: api_report.Reports, queue: Hanging) -> None:
        await reports.report(HOUR, 0.01)
        queue.reads[0].set_result(stored(late("ada")))
        await until(lambda: not reports._stored)

    on_reporter(work)
