"""Random histories of the whole guard: sends of every kind, ends of every kind, and everything that operators do.

The clock of the guard is turned, too, by hours forward and back. What holds at the end, whatever came, is in
anything_checks.py; the minds and the clock are in anything_host.py.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import anything_checks as checks
import pytest
from anything_host import CAP, EXEC, MINDS, PRESETS, ROUTES, AnythingHost
from guard import Guard
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from searches import sized

Step = Callable[..., None]
HOUR = 3600
CASES, LENGTH = sized(3), 40
SESSIONS = ("main", "other")
RESIDENTS = tuple(PRESETS)


STEPS: list[tuple[Step, dict[str, Sequence[Any]]]] = []


def step(**arguments: Sequence[Any]) -> Callable[[Step], Step]:
    """A step of a history, and what its arguments may be."""

    def add(do: Step) -> Step:
        STEPS.append((do, arguments))
        return do

    return add


# -- sends of every kind


@step(to=MINDS, session=SESSIONS, interrupt=(False, True), times=(1, 2, 3, 4))
def send(host: AnythingHost, to: str, session: str, interrupt: bool, times: int) -> None:
    for _ in range(times):
        host.message(f"@{to}", session=session, interrupt=interrupt)


@step(to=MINDS)
def send_again(host: AnythingHost, to: str) -> None:
    body = host.message(f"@{to}")
    first, again = host.sent[-1], host.post("/v1/deliveries", **body)["deliveries"]
    assert [row["id"] for row in again] == [first["id"]]


@step(to=("#all", "#system"), times=(1, 2))
def send_to_many(host: AnythingHost, to: str, times: int) -> None:
    for _ in range(times):
        host.message(to)


@step(to=MINDS, wish=("skip", "queue", "trigger-wake"))
def send_to_a_sleeper(host: AnythingHost, to: str, wish: str) -> None:
    host.message(f"@{to}", whileSleeping=wish)


@step(to=MINDS, hours=(0.5, 2))
def send_for_later(host: AnythingHost, to: str, hours: float) -> None:
    host.message(f"@{to}", session="later", not_before=host.clock.in_ms(hours * HOUR))


@step(to=MINDS, hours=(0.1, 2))
def send_for_a_while(host: AnythingHost, to: str, hours: float) -> None:
    host.message(f"@{to}", session="while", expires_at=host.clock.in_ms(hours * HOUR))


@step()
def schedule(host: AnythingHost) -> None:
    host.sent += host.post("/v1/schedules/tick/run")["deliveries"]


@step(name=MINDS)
def run_a_command(host: AnythingHost, name: str) -> None:
    host.run(name)


# -- ends of every kind, beside those that the minds' presets bring about


@step(how=(" !fail", " !crash"))
def end_badly(host: AnythingHost, how: str) -> None:
    host.message(f"@{EXEC}", how)


@step(to=("a", "c"), how=("work=30", "work=1 quit", "die", "silent"))
def end_otherwise(host: AnythingHost, to: str, how: str) -> None:
    """By max_turn, since the processes are gone, with the mind, or by being idle."""
    if how == "die":
        host.mortal.add(to)
    host.message(f"@{to}", f" !{how}")


@step(to=MINDS, which=range(CAP), signal=(None, "KILL"))
def stop_a_turn(host: AnythingHost, to: str, which: int, signal: str | None) -> None:
    """Of that mind, if it may have one now, or any other."""
    host.message(f"@{to}", " !work=1")
    time.sleep(0.2)
    for scope in host.guard.scopes()[which : which + 1]:
        host.stop_scope(scope, signal)


@step(name=RESIDENTS)
def kill_the_mind(host: AnythingHost, name: str) -> None:
    host.mortal.add(name)
    # A mind that sleeps has no process.
    subprocess.run(["systemctl", "kill", "--signal=KILL", host.minds[name].unit], check=False)


@step(name=RESIDENTS)
def lose_an_answer(host: AnythingHost, name: str) -> None:
    """The mind takes a message, and the connection breaks."""
    host.mortal.add(name)
    with suppress(OSError):  # it sleeps, or was killed just now
        host.minds[name].control(lose=1)
    host.message(f"@{name}", session="other")


@step(name=RESIDENTS, session=(None, *SESSIONS))
def tell_done(host: AnythingHost, name: str, session: str | None) -> None:
    """Though the mind is still at work, or did nothing at all."""
    host.tell(host.minds[name], type="done", **({"session": session} if session else {}))


# -- what operators do


@step(name=MINDS, hours=(None, 1, 5))
def sleep(host: AnythingHost, name: str, hours: int | None) -> None:
    until = {} if hours is None else {"until": host.clock.in_ms(hours * HOUR)}
    host.post(f"/v1/minds/{name}/sleep", **until)


@step(name=MINDS)
def wake(host: AnythingHost, name: str) -> None:
    host.post(f"/v1/minds/{name}/wake")


@step(name=(None, *MINDS))
def pause(host: AnythingHost, name: str | None) -> None:
    host.post("/v1/pause", mind=name)


@step(name=(None, *MINDS))
def resume(host: AnythingHost, name: str | None) -> None:
    host.post("/v1/resume", mind=name)


@step(value=range(CAP + 1))
def cap(host: AnythingHost, value: int) -> None:
    host.cap(value)


@step(name=MINDS, which=sorted(ROUTES))
def routes(host: AnythingHost, name: str, which: str) -> None:
    host.route(name, which)


# -- what becomes of the guard


@step()
def kill(host: AnythingHost) -> None:
    host.kill()


@step()
def restart(host: AnythingHost) -> None:
    host.restart()


@step(how=("restart", "kill"))
def break_the_configuration(host: AnythingHost, how: str) -> None:
    host.start_with_bad_configuration(how)


@step()
def reload(host: AnythingHost) -> None:
    host.guard.reload()


@step(hours=(-5, -0.2, 0.2, 5))
def turn_the_clock(host: AnythingHost, hours: float) -> None:
    host.turn_to(host.clock.offset + hours * HOUR)


@pytest.fixture
def host(guard: Guard) -> Iterator[AnythingHost]:
    with AnythingHost(guard) as host:
        yield host


def test_nothing_is_lost_or_doubled_whatever_happens(host: AnythingHost) -> None:
    # Only the seed is hypothesis's to choose: steps that it drew would be nearly all the simplest ones in the few
    # cases for which there is time. Nothing is shrunk, since what failed depends on more than the steps.
    @settings(
        max_examples=CASES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.randoms(use_true_random=True))
    def run(random: Random) -> None:
        done = []
        try:
            for _ in range(LENGTH):
                do, options = random.choice(STEPS)
                arguments = {name: random.choice(values) for name, values in options.items()}
                done.append((do.__name__, arguments))
                do(host, **arguments)
            host.calm()
            checks.check(host)
        except BaseException:
            print("the steps were:", *done, sep="\n")
            raise

    run()
    assert host.sent
    assert host.scopes.most > 0
