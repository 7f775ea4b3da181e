"""What Prometheus reads: counted from events, shown from memory, and right by promtool."""

from __future__ import annotations

import asyncio
import math
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from played import CRASH, EXIT_3, OK, on_manager
from scrapes import CONFIG, MINDS, ROOT, end, exposed, on_host, promtool, scrape, send, with_disk

from hostguard.api.metrics import MINDS_MAX, OTHER
from hostguard.core.model import Config, LiveTurn, Mind
from hostguard.core.settings import Level
from hostguard.linux import process
from hostguard.pressure.rule import State as PressureState
from hostguard.telemetry.counters import EXITS_MAX, OTHER_EXIT, Counters
from hostguard.telemetry.events import Event
from hostguard.telemetry.problems import listed
from hostguard.turns.live import Phase, Turn


def test_a_hold_a_start_and_an_end_are_counted_where_they_happen(tmp_path):
    async def work(manager):
        before = scrape(manager)
        for name in ("started_total", "active"):
            assert before[f"hostguard_turns_{name}", "ada"] == before[f"hostguard_turns_{name}", "bob"] == 0
        await send(manager, "ada")
        await send(manager, "bob")
        await send(manager, "bob", not_before=4_000_000_000_000)
        now = scrape(manager)
        assert now["hostguard_turns_active", "ada"] == now["hostguard_turns_started_total", "ada"] == 1
        assert now["hostguard_turns_active", "bob"] == now["hostguard_turns_started_total", "bob"] == 0
        assert now["hostguard_queue_deliveries", "bob", "held"] == 1
        assert now["hostguard_queue_deliveries", "bob", "later"] == 1
        assert now["hostguard_holds_total", "global_cap"] == 1
        assert ("hostguard_hold_seconds_count", "global_cap") not in now, "it has not ended"
        await end(manager, OK)
        now = scrape(manager)
        assert now["hostguard_turns_ended_total", "ada", "exited"] == 1
        assert (now["hostguard_turns_active", "ada"], now["hostguard_turns_active", "bob"]) == (0, 1)
        assert now["hostguard_queue_deliveries", "bob", "held"] == 0
        assert now["hostguard_hold_seconds_count", "global_cap"] == 1
        assert now["hostguard_turn_handoff_seconds_count",] == 2
        assert 0 < now["hostguard_turn_handoff_seconds_sum",] < 60

    on_manager(tmp_path, work, CONFIG)


def test_attempts_that_fail_are_ends_and_the_tenth_is_a_dead_letter(tmp_path):
    async def work(manager):
        await send(manager, "ada")
        for _ in range(10):
            await end(manager, CRASH)
            manager.parts.recovery._clock.passed += 300_000
            manager.pump()
            await manager.settled(5)
        now = scrape(manager)
        assert now["hostguard_turns_ended_total", "ada", "killed"] == 10
        assert now["hostguard_turns_started_total", "ada"] == 11, "and the notice of the dead letter"
        assert (now["hostguard_dead_letters_total", "ada"], now["hostguard_dead_letters_total", "bob"]) == (
            1,
            0,
        )

    on_manager(tmp_path, work, CONFIG)


def test_what_is_wrong_is_there_to_alert_on(tmp_path):
    async def work(manager):
        now = scrape(manager)
        assert {value for (name, *_), value in now.items() if name == "hostguard_problem"} == {0}
        for name in ("failures_in_a_row", "down", "broken", "frozen"):
            assert now[f"hostguard_mind_{name}", "ada"] == now[f"hostguard_mind_{name}", "bob"] == 0
        for _ in range(3):
            await send(manager, "ada")
            await end(manager, EXIT_3)
        manager.parts.availability.note("bob", "refused")
        now = scrape(manager, listed({"no_disk": "unknown"}))
        assert (now["hostguard_problem", "no_disk"], now["hostguard_problem", "not_durable"]) == (1, 0)
        assert (
            now["hostguard_turn_exits_total", "3", "ada"]
            == now["hostguard_mind_failures_in_a_row", "ada"]
            == 3
        )
        assert (now["hostguard_mind_down", "ada"], now["hostguard_mind_down", "bob"]) == (0, 1)
        await send(manager, "ada")
        await end(manager, OK)
        now = scrape(manager)
        assert (
            now["hostguard_turn_exits_total", "0", "ada"],
            now["hostguard_mind_failures_in_a_row", "ada"],
        ) == (1, 0)

    on_manager(tmp_path, work, CONFIG)


def test_dead_letters_are_there_until_a_person_deals_with_them(tmp_path):
    async def work(manager):
        for _ in range(2):
            (row,) = await send(manager, "ada")
            await manager.queue.write(
                lambda db, id_=row.id: db.execute("UPDATE deliveries SET attempts = 9 WHERE id = ?", (id_,))
            )
            (turn,) = manager.runner.live
            turn.delivery = replace(turn.delivery, attempts=9)
            await end(manager, CRASH)
            await end(manager, OK)  # the notice's turn
        assert scrape(manager)["hostguard_dead_letters_kept", "ada"] == 2
        control = manager.parts.deliveries
        await control.drop(1)
        assert scrape(manager)["hostguard_dead_letters_kept", "ada"] == 1
        await control.retry(3)
        assert scrape(manager)["hostguard_dead_letters_kept", "ada"] == 0
        await manager.settled(5)
        await end(manager, OK)

    on_manager(tmp_path, work, CONFIG)


def test_exit_statuses_of_a_mind_that_has_many_share_a_series():
    counts = Counters()
    for number, status in enumerate([*range(20), 3, 19]):
        event = {
            "type": Event.ENDED,
            "mind": "ada",
            "outcome": "exited",
            "turn": f"{number}",
            "delivery": number,
        }
        counts.take(event | {"exit": status})
    assert counts.exits == {("ada", "3"): 2, ("ada", OTHER_EXIT): 13} | {
        ("ada", str(status)): 1 for status in range(EXITS_MAX) if status != 3
    }


@pytest.mark.parametrize(
    ("events", "counted"),
    [
        # A row that was folded into the turn of another one ends with it.
        ([(Event.ENDED, {"turn": "7", "delivery": 7}), (Event.ENDED, {"turn": "7", "delivery": 8})], (1, 0)),
        ([(Event.FAILED, {"turn": "7.2", "delivery": 7})], (1, 0)),
        ([(Event.FAILED, {"turn": "7", "delivery": 7, "outcome": "not_started"})], (0, 1)),
        ([(Event.ENDED, {"turn": "7.9", "delivery": 7, "outcome": "refused"})], (0, 1)),
        ([(Event.ENDED, {"turn": "7", "delivery": 7, "outcome": "not_authorised"})], (0, 1)),
    ],
)
def test_what_ends_is_a_turn(events, counted):
    counts = Counters()
    for event, fields in events:
        counts.take({"type": event, "mind": "ada", "outcome": "exited", **fields})
    assert (sum(counts.ended.values()), counts.not_started["ada"]) == counted


def test_a_change_of_the_cap_alone_is_no_change_of_the_level():
    counts = Counters()
    for level in ("stalled", "stalled", "strained", "calm", "calm", "stalled"):
        counts.take({"type": Event.PRESSURE, "level": level})
    assert counts.levels == {"stalled": 2, "strained": 1, "calm": 1}


@pytest.mark.parametrize(
    ("waited_ms", "bucket"), [(0, 0), (100, 0), (101, 1), (86_400_000, 9), (86_400_001, 10)]
)
def test_a_wait_is_in_the_first_bucket_whose_bound_it_does_not_pass(waited_ms, bucket):
    counts = Counters()
    counts.take({"type": Event.HOLD_ENDED, "reason": "paused", "waited_ms": waited_ms})
    histogram = counts.held_s["paused"]
    assert histogram.counts == [int(at == bucket) for at in range(11)]
    assert histogram.sum == waited_ms / 1000


def test_caps_and_pressure_are_those_of_the_moment(tmp_path):
    async def work(manager):
        manager.policy.config = Config(minds=MINDS)
        now = scrape(manager)
        assert now["hostguard_turns_cap",] == now["hostguard_turns_effective_cap",] == math.inf
        assert [now["hostguard_pressure_level", level] for level in Level] == [1, 0, 0]
        manager.policy.config = Config(minds=MINDS, global_concurrent_turns=8)
        manager.watcher.state = PressureState(level=Level.STALLED, cap=4, floor=1)
        now = scrape(manager)
        assert (now["hostguard_turns_cap",], now["hostguard_turns_effective_cap",]) == (8, 1)
        assert [now["hostguard_pressure_level", level] for level in Level] == [0, 0, 1]

    on_manager(tmp_path, work, CONFIG)


def test_the_disk_is_read_at_the_scrape_and_counts_in_seconds(tmp_path):
    async def work(manager):
        assert not [name for name, *_ in scrape(manager) if "device" in name], "no disk is known"
        with_disk(manager)
        now = scrape(manager)
        for op, count, seconds in (("read", 5, 1.5), ("write", 7, 2.5), ("flush", 2, 0.01)):
            assert now["hostguard_device_requests_total", "mmcblk0", op] == count
            assert now["hostguard_device_request_seconds_total", "mmcblk0", op] == seconds
        assert now["hostguard_device_requests_in_flight", "mmcblk0"] == 3

    on_manager(tmp_path, work, CONFIG)


def test_own_bytes_are_the_kernels_count(tmp_path):
    async def work(manager):
        at_most = process.storage(os.getpid())
        assert 0 <= scrape(manager)["hostguard_written_bytes_total",] <= at_most[1]

    on_manager(tmp_path, work, CONFIG)


def test_no_number_of_minds_sessions_or_turns_makes_more_series(tmp_path):
    async def work(manager):
        for at in range(3000):
            mind = f"mind{at}"
            manager.events.emit(
                Event.STARTED, "", mind=mind, session=f"s{at}", turn=f"{at}", delivery=at, handoff_ms=1.0
            )
            ended = {"outcome": "exited", "turn": f"{at}", "delivery": at}
            manager.events.emit(Event.ENDED, "", mind=mind, session=f"s{at}", **ended)
            live = LiveTurn(f"hostguard-turn-{at}.scope", mind, f"s{at}", str(at))
            manager.runner.live.add(Turn(live, 0, Phase.RUNNING))
        now = scrape(manager)
        assert len(now) < 19 * MINDS_MAX
        assert now["hostguard_turns_started_total", "mind0"] == 1
        assert now["hostguard_turns_started_total", OTHER] == 1000 - MINDS_MAX
        assert now["hostguard_turns_ended_total", OTHER, "exited"] == 1000 - MINDS_MAX
        assert now["hostguard_turns_active", OTHER] == 3000 - MINDS_MAX
        active = sum(value for (name, *_), value in now.items() if name == "hostguard_turns_active")
        assert active == 3000, "what is live adds up, whoever it is of"

    on_manager(tmp_path, work, Config(minds={f"mind{at}": Mind(f"mind{at}") for at in range(1000)}))


def test_a_mind_that_is_taken_out_takes_its_counts_along_and_its_rows_stay_in_sight(tmp_path):
    async def work(manager):
        await send(manager, "ada")
        await send(manager, "ada")
        manager.policy.config = Config(minds={"bob": MINDS["bob"]})
        now = scrape(manager)
        assert ("hostguard_turns_started_total", "ada") not in now
        assert ("hostguard_turns_started_total", OTHER) not in now
        assert now["hostguard_turns_active", OTHER] == now["hostguard_queue_deliveries", OTHER, "held"] == 1
        manager.policy.config = Config(minds=MINDS)
        assert scrape(manager)["hostguard_turns_started_total", "ada"] == 1

    on_manager(tmp_path, work, CONFIG)


def test_a_name_with_any_characters_is_one_label(tmp_path):
    name = 'a"b\\cßd{},='

    async def work(manager):
        assert scrape(manager)["hostguard_turns_active", name] == 0

    on_manager(tmp_path, work, Config(minds={name: Mind(name)}))


def test_the_guard_does_not_load_the_library_before_it_is_asked():
    code = "import hostguard.daemon, sys; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@on_host
def test_promtool_finds_nothing_to_mend(tmp_path):
    async def work(manager):
        await send(manager, "ada")
        await send(manager, "ada")
        await end(manager, OK)
        with_disk(manager)
        await asyncio.to_thread(promtool, "check", "metrics", text=exposed(manager).encode())

    on_manager(tmp_path, work, CONFIG)


def test_the_manual_has_every_metric_and_no_other(tmp_path):
    async def work(manager):
        with_disk(manager)
        there = re.findall(r"^# TYPE (\S+)", exposed(manager), re.MULTILINE)
        page = (ROOT / "packaging/man/hostguard-api.7.scd").read_text()
        assert sorted(re.findall(r"\*(hostguard_\w+)\*", page.replace("\\", ""))) == sorted(there)

    on_manager(tmp_path, work, CONFIG)


# -- hostguard metrics

TEXT = b"# HELP x What.\n# TYPE x gauge\nx 1.0\n"


def test_it_prints_what_the_guard_tells(daemon):
    daemon.answer("GET /metrics", TEXT)
    assert daemon.run("metrics").stdout.encode() == TEXT


def test_a_textfile_is_replaced_whole_and_may_be_read_by_all(daemon, tmp_path):
    daemon.answer("GET /metrics", TEXT)
    file = tmp_path / "hostguard.prom"
    file.write_text("old")
    (tmp_path / ".hostguard.prom.new").symlink_to(tmp_path / "elsewhere")  # what is left here leads nowhere
    before = os.umask(0o077)
    try:
        with file.open() as old:
            assert daemon.run("metrics", "--textfile", str(file)).returncode == 0
            assert old.read() == "old", "a reader that has begun goes on with what it had"
    finally:
        os.umask(before)
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (TEXT, 0o644)
    assert [item.name for item in tmp_path.iterdir()] == ["hostguard.prom"]


def test_old_numbers_do_not_stay_when_the_guard_is_away(away, tmp_path):
    file = tmp_path / "hostguard.prom"
    file.write_text("old")
    done = away.run("metrics", "--textfile", str(file))
    assert (done.returncode, done.stdout) == (3, "")
    assert not file.exists()
