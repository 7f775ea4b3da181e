"""The incident with the guard in front of Volute's own daemon: never above the cap, nothing lost, all in scopes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import nft
import pytest
from guard import Guard, run, systemctl, wait_for
from guarded import LONG_S, GuardedHost, overlaps
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
        wait_for(lambda: not host.turns(), LONG_S)
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
    assert all(one.in_scope for one in runs), runs
    rows = host.rows()
    assert {row["mind"] for row in rows} == {*names}
    ended = host.done(*(row["id"] for row in rows))
    assert {row["result"]["outcome"] for row in ended} == {"done"}


def fire(volute: VoluteDaemon, mind: str, label: str, bash: str) -> None:
    """A message of the daemon to a mind, now."""
    volute.schedule(mind, label, bash=bash)
    volute.minute()


def test_a_message_of_a_mind_to_another_passes_the_gate(host: GuardedHost, volute: VoluteDaemon) -> None:
    fire(volute, "ada", "speaks", "volute chat send @bob hello")
    wait_for(lambda: [row for row in host.rows() if (row["mind"], row["sender"]) == ("bob", "ada")], LONG_S)
    host.done(*(row["id"] for row in host.rows()))
