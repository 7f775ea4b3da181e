"""The events, the journal, its catalog and the metrics report the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from guard import ROOT, Guard, run, wait_for
from guarded import LONG_S, GuardedHost
from pressed_host import QUICK, PressedHost
from prometheus_client.parser import text_string_to_metric_families
from queries import ALERTS, names, queries
from resident_host import ResidentHost

from hostguard.telemetry.events import MESSAGE_IDS, Event

CATALOG = Path("/usr/lib/systemd/catalog/hostguard.catalog")
OWN = ("id", "at", "type", "text")  # of an event, beside its fields
# What eve sends kills its mind. One limit is set that the guest's kernel does not apply.
CONFIG = """
[turn]
tasks_max = 64
[minds.works]
command = ["/bin/sleep", "1000"]
user = "root"
[minds.crashes]
command = ["/bin/sh", "-c", '[ "$HOSTGUARD_SENDER" != eve ] || kill -SEGV $$']
user = "root"
[schedules.missed]
mind = "m"
cron = "{minute} * * * *"
message = "go"
timezone = "UTC"
catch_up = "skip"
catch_up_window = "3h"
[schedules.skipped]
mind = "crashes"
cron = "{minute} * * * *"
message = "go"
timezone = "UTC"
"""
ON_CARD = {Event.PRESSURE, Event.FROZEN, Event.THAWED}
BY_ATTACKS = {Event.OUTSIDE, Event.PORT_TAKEN}  # in tests/system/attacks


@pytest.fixture(scope="module", autouse=True)
def _catalog() -> None:
    if "HOSTGUARD_TESTS_INSTALLED" not in os.environ:  # else the package and dpkg's trigger have seen to it
        CATALOG.write_bytes((ROOT / "packaging/hostguard.catalog").read_bytes())
        run("journalctl", "--update-catalog")


def scrape(host: GuardedHost) -> dict[tuple[str, ...], float]:
    """{(name, label value, ...): value} of every sample."""
    families = text_string_to_metric_families(host.guard.cli("metrics").stdout)
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


@contextmanager
def following(guard: Guard) -> Iterator[list[Any]]:
    """What `hostguard events --follow` prints from the beginning, complete once this is left."""
    followed: list[Any] = []
    argv = ["hostguard", "events", "--follow", "--json", "--since", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield followed
            last = json.loads(guard.cli("events", "--json").stdout.splitlines()[-1])["id"]
            assert process.stdout is not None
            while not followed or followed[-1]["id"] < last:
                followed.append(json.loads(process.stdout.readline()))
        finally:
            process.terminate()


def told(guard: Guard, followed: list[Any]) -> set[Event]:
    """The kinds of the events, each of which the journal has too, with the same text and fields, in order."""
    events = [json.loads(line) for line in guard.cli("events", "--json").stdout.splitlines()][: len(followed)]
    assert followed == events
    lines = [event for event in events if event["type"] != Event.ACCEPTED]
    entries = [entry for entry in guard.journal(f"_PID={guard.pid}") if "MESSAGE_ID" in entry][: len(lines)]
    assert [
        (
            entry["MESSAGE_ID"],
            entry["MESSAGE"],
            {k: v for k, v in entry.items() if k.startswith("HOSTGUARD_")},
        )
        for entry in entries
    ] == [
        (
            MESSAGE_IDS[Event(event["type"])],
            event["text"],
            {f"HOSTGUARD_{name.upper()}": str(value) for name, value in event.items() if name not in OWN},
        )
        for event in lines
    ]
    for event in lines:
        explained(event)
    return {Event(event["type"]) for event in events}


def explained(event: dict[str, Any]) -> None:
    """The catalog's text for an event names nothing that the event does not have."""
    entry = (
        CATALOG.read_text().partition(f"-- {MESSAGE_IDS[Event(event['type'])]}\n")[2].partition("\n-- ")[0]
    )
    wanted = {name.lower() for name in re.findall(r"@HOSTGUARD_(\w+)@", entry)}
    assert wanted <= {*event}, event


def test_events_journal_catalog_and_metrics_tell_the_same_of_everything(guard: Guard) -> None:
    with ResidentHost(guard) as host:
        host.minds.add("m", work=1.0)
        minute = (time.gmtime().tm_min + 30) % 60  # far from now
        host.start(CONFIG.format(minute=minute))
        wait_for(lambda: len(host.sql("SELECT 1 FROM settings WHERE name LIKE 'fired.%'")) == 2)
        guard.cli("pause", "crashes")
        dead, crash = (host.send("@crashes", sender="eve", session="$new") for _ in range(2))
        guard.stop()
        host.sql("UPDATE deliveries SET attempts = 9 WHERE id = ?", dead)
        for name, row in (("missed", None), ("skipped", crash)):
            (value,) = host.sql("SELECT value FROM settings WHERE name = ?", f"fired.{name}")[0]
            state = json.loads(value)
            state.update(seen=state["seen"] - 5 * 3_600_000, row=row)
            host.sql("UPDATE settings SET value = ? WHERE name = ?", json.dumps(state), f"fired.{name}")
        guard.restart()
        assert scrape(host)["hostguard_turns_started_total", "works"] == 0

        with following(guard) as followed:
            guard.cli("pause", "works")
            held, cancelled = host.send("@works"), host.send("@works")
            expires = host.send("@works", expires_at=int(1000 * time.time()) + 300)
            guard.cli("cancel", str(cancelled))
            host.done(expires, state="expired")
            guard.cli("resume", "works")
            guard.cli("limit", "set", "global_concurrent_turns=3")
            wait_for(
                lambda: any(turn["delivery"] == held and turn["state"] == "running" for turn in host.turns())
            )
            metrics = scrape(host)
            assert metrics["hostguard_turns_active", "works"] == 1
            assert metrics["hostguard_turns_cap",] == metrics["hostguard_turns_effective_cap",] == 3
            guard.cli("stop", str(held))
            host.done(held)
            guard.cli("resume", "crashes")
            host.done(dead, state="dead")
            wait_for(lambda: host.row(crash)["attempts"] == 1, LONG_S)
            guard.cli("cancel", str(crash))
            guard.cli("reload")
            first = host.send("@m", "one")
            host.in_turn(first)
            host.done(first, host.send("@m", "two"))
            guard.cli("sleep", "m")
            wait_for(lambda: host.events("asleep"), LONG_S)
            guard.cli("wake", "m")
            wait_for(lambda: not host.rows("queued,delivering"), LONG_S)
        assert told(guard, followed) == {Event.ACCEPTED, *MESSAGE_IDS} - ON_CARD - BY_ATTACKS

        metrics, events = scrape(host), Counter((e["type"], e.get("mind")) for e in host.all_events())
        for mind in ("m", "works", "crashes"):
            assert metrics["hostguard_turns_started_total", mind] == events["started", mind]
        assert metrics["hostguard_turns_ended_total", "works", "stopped"] == events["ended", "works"] == 1
        assert (events["failed", "crashes"], events["dead", "crashes"]) == (1, 1)
        assert metrics["hostguard_turns_ended_total", "crashes", "killed"] == 2
        assert metrics["hostguard_dead_letters_total", "crashes"] == 1
        holds = Counter(
            (e["type"], e["reason"]) for e in host.all_events() if "hold" in e["type"] or e["type"] == "held"
        )
        for (type_, reason), count in holds.items():
            name = "hostguard_holds_total" if type_ == "held" else "hostguard_hold_seconds_count"
            assert metrics[name, reason] == count
        assert holds["held", "mind_paused"] >= 2
        assert holds["hold_ended", "mind_paused"] == 3, "also of those that waited over the restart"


def test_so_do_they_of_a_card_that_stops(pressed: PressedHost) -> None:
    guard = pressed.guard
    pressed.stall(f'{QUICK}on_stall = "freeze"\nfreeze_max = "4s"\n[web]\nlisten = "127.0.0.1:4300"\n')
    wait_for(lambda: pressed.level() == "stalled", LONG_S)
    with following(guard) as followed:
        metrics = scrape(pressed)
        assert metrics["hostguard_pressure_level", "stalled"] == 1
        assert metrics["hostguard_turns_effective_cap",] < metrics["hostguard_turns_cap",] == 6
        (in_flight,) = (value for (name, *_), value in metrics.items() if name.endswith("_in_flight"))
        assert in_flight > 0
        assert fetch("http://127.0.0.1:4300/metrics") == 200, "while the card stands still"
        wait_for(lambda: any(event["type"] == "thawed" for event in pressed.all_events()), LONG_S)
        pressed.card.go()
        wait_for(lambda: pressed.level() == "calm", LONG_S)
    kinds = told(guard, followed)
    assert kinds >= ON_CARD
    assert scrape(pressed)["hostguard_pressure_changes_total", "stalled"] >= 1
    shown = run(
        "journalctl", "--catalog", f"MESSAGE_ID={MESSAGE_IDS[Event.PRESSURE]}", f"_PID={guard.pid}"
    ).stdout
    _, found, text = shown.partition("Subject: The disk is stalled")
    assert found, shown
    (evidence,) = re.findall(r"Evidence: ([^.]+)", text)[:1]
    assert re.fullmatch(r"[0-9]+ requests? in flight, (none|not) completed for [0-9]+", evidence)
    assert "@HOSTGUARD" not in shown


def fetch(url: str, host: str | None = None) -> int:
    given = {"Host": host} if host else {}
    return httpx.get(url, headers=given, timeout=60, trust_env=False, verify=False).status_code


def test_the_shipped_dashboard_and_alerts_ask_for_what_a_guard_shows(guard: Guard) -> None:
    guard.start(
        '[limits]\nglobal_concurrent_turns = 1\n[minds.ada]\ncommand = ["/bin/true"]\nuser = "root"\n'
    )
    host = GuardedHost(guard)
    host.done(*(host.send("@ada") for _ in range(3)))
    there = {line.split("{")[0].split()[0] for line in guard.cli("metrics").stdout.splitlines()}
    for query in (*queries(), ALERTS.read_text().partition("groups:")[2]):
        assert names(query) <= there, query
    host.api.close()


def test_a_scrape_costs_the_disk_nothing_and_counts_begin_anew_with_the_guard(guard: Guard) -> None:
    guard.start('[web]\nlisten = "127.0.0.1:4300"\n[minds.ada]\ncommand = ["/bin/true"]\nuser = "root"\n')
    host = GuardedHost(guard)
    host.done(host.send("@ada"))
    assert scrape(host)["hostguard_turns_started_total", "ada"] == 1
    written = own_writes(guard)
    for _ in range(20):
        assert fetch("http://127.0.0.1:4300/metrics") == 200
    assert own_writes(guard) == written
    assert fetch("http://127.0.0.1:4300/metrics", "evil.example") == 403
    guard.restart()
    assert scrape(host)["hostguard_turns_started_total", "ada"] == 0
    guard.configure('[minds.bob]\ncommand = ["/bin/true"]\nuser = "root"\n')
    guard.reload()
    with pytest.raises(httpx.ConnectError):
        fetch("http://127.0.0.1:4300/metrics")
    assert ("hostguard_turns_started_total", "ada") not in scrape(host)
    host.api.close()


def own_writes(guard: Guard) -> int:
    (line,) = (
        line
        for line in Path(f"/proc/{guard.pid}/io").read_text().splitlines()
        if "write_bytes" in line and "cancelled" not in line
    )
    return int(line.split()[1])
