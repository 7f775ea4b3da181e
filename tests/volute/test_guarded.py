"""The incident with the guard in front of Volute's own daemon: never above the cap, nothing lost, all in scopes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import nft
import pytest
from guard import Guard, run, systemctl, wait_for
from guarded import LONG_S, GuardedHost, overlaps
from ran import Run
from volute_daemon import HOME, UNIT, VoluteDaemon

WORK_S = 2.0
CAP = 2
DROP_IN = Path(f"/run/systemd/system/{UNIT}.d/50-hostguard.conf")
CONFIG = f"""
[limits]
global_concurrent_turns = {CAP}
[volute]
home = "{HOME}"
"""


@pytest.fixture(scope="module")
def in_front(_volute: VoluteDaemon, shared_guard: Guard) -> Iterator[Guard]:
    """The guard in front of the running daemon, which is neither restarted nor configured."""
    DROP_IN.parent.mkdir(parents=True)
    DROP_IN.write_text("[Service]\nDelegate=yes\n")
    systemctl("daemon-reload")
    shared_guard.close()
    systemctl("start", "hostguard-front.socket")
    guard = shared_guard
    guard.start(CONFIG)
    for name in _volute.minds:  # Volute makes some of a mind's folders as root
        run("chown", "-R", f"mind-{name}:", f"/minds/{name}")
    nft.load()
    yield guard
    nft.unload()
    systemctl("stop", "hostguard-front.socket")
    guard.close()
    DROP_IN.unlink()
    with suppress(OSError):
        DROP_IN.parent.rmdir()
    systemctl("daemon-reload")


@pytest.fixture
def host(in_front: Guard, volute: VoluteDaemon) -> Iterator[GuardedHost]:
    in_front.reuse()
    host = GuardedHost(in_front)
    try:
        yield host
        wait_for(
            lambda: not host.turns(), 3 * LONG_S
        )  # a `done` that was told while the guard was killed is lost
    finally:
        host.post("/v1/resume")
        host.api.close()


def test_three_schedules_and_a_message_to_all_run_two_at_a_time(
    host: GuardedHost, volute: VoluteDaemon
) -> None:
    names = list(volute.minds)
    for name in names:
        volute.schedule(name, f"each-{name}", bash=volute.ran.command(f"schedule-{name}", WORK_S))
    volute.minute()
    mentioned = " ".join(f"@{name}" for name in names)
    volute.chat("#system", mentioned, bash=volute.ran.command("channel", WORK_S))
    wait_for(lambda: len([one for one in volute.ran.runs() if one.ended]) == 2 * len(names), 2 * LONG_S)
    runs = volute.ran.runs()
    assert overlaps([one.span for one in runs]) <= CAP
    assert all(in_scope(one) for one in runs), runs
    rows = host.rows()
    assert {row["mind"] for row in rows} == {*names}
    ended = host.done(*(row["id"] for row in rows))
    assert {row["result"]["outcome"] for row in ended} == {"done"}


def in_scope(run: Run) -> bool:
    """Whether it ran in a turn. A tool of eve, a pi, begins as a child of its server, and is moved a moment later."""
    return run.in_scope or "/hostguard-turn-eve-" in run.cgroups[-1]


def fire(volute: VoluteDaemon, mind: str, label: str, bash: str) -> None:
    """A message of the daemon to a mind, now."""
    volute.schedule(mind, label, bash=bash)
    volute.minute()


def test_a_message_of_a_mind_to_another_passes_the_gate(host: GuardedHost, volute: VoluteDaemon) -> None:
    fire(volute, "ada", "speaks", "volute chat send @bob hello")
    wait_for(lambda: [row for row in host.rows() if (row["mind"], row["sender"]) == ("bob", "ada")], LONG_S)
    host.done(*(row["id"] for row in host.rows()))


def test_kills_of_the_guard_lose_nothing(host: GuardedHost, volute: VoluteDaemon) -> None:
    labels = []
    for number in range(6):
        name = ("ada", "bob")[
            number // 2 % 2
        ]  # eve's server crashes if it is sent messages while it starts a session
        labels.append(f"{name}-{number}")
        fire(volute, name, labels[-1], volute.ran.command(labels[-1], 0.5))
        if number % 2:  # once it was answered: what Volute 0.39 is refused, it loses
            wait_for(lambda: len(host.rows()) >= len(labels), LONG_S)
            host.kill()
    wait_for(lambda: {one.label for one in volute.ran.runs() if one.ended} == {*labels}, 2 * LONG_S)
    runs = volute.ran.runs()
    assert overlaps([one.span for one in runs]) <= CAP
    assert [one for one in runs if not in_scope(one)] == []
    for name in ("ada", "bob"):
        own = [one.label for one in runs if one.label.startswith(name)]
        assert [*dict.fromkeys(own)] == [label for label in labels if label.startswith(name)]


def test_a_mind_that_volute_stops_gets_what_was_held_once_it_is_back(
    host: GuardedHost, volute: VoluteDaemon
) -> None:
    host.post("/v1/pause")
    fire(volute, "ada", "held", volute.ran.command("held"))
    wait_for(lambda: host.rows(), LONG_S)
    volute.api("POST", "minds/ada/stop")
    host.post("/v1/resume")
    row = host.rows()[0]["id"]
    wait_for(lambda: (host.row(row).get("hold") or {}).get("reason") == "mind_down", LONG_S)
    assert volute.ran.runs() == []
    volute.api("POST", "minds/ada/start")
    host.done(row)
    assert [one.label for one in volute.ran.runs()] == ["held"]
