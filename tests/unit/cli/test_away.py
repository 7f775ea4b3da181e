"""What is borne of a daemon that is away, and for how long."""

from __future__ import annotations

import pytest

from hostguard.cli import away, client
from hostguard.cli.away import AWAY_S, Away, ask
from hostguard.cli.errors import CliError, ConnectionLost, NotRunning, Refused

LOST, GONE, FULL = ConnectionLost(), NotRunning(), Refused("the disk is full", 1, 503, {})


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses so far; the clock is theirs."""
    found: list[float] = []
    monkeypatch.setattr(away, "sleep", found.append)
    monkeypatch.setattr(away, "monotonic", lambda: 1000 + sum(found))
    return found


@pytest.mark.parametrize("error", [GONE, FULL, CliError("x"), Refused("x", 4, 404, {})])
def test_one_that_was_never_met_is_not_borne(error: CliError) -> None:
    with pytest.raises(CliError) as raised:
        Away().bear(error)
    assert raised.value is error


@pytest.mark.parametrize("error", [CliError("x"), Refused("x", 4, 404, {}), Refused("x", 1, 409, {})])
def test_what_does_not_pass_is_not_borne(error: CliError) -> None:
    met = Away()
    met.back()
    with pytest.raises(CliError) as raised:
        met.bear(error)
    assert raised.value is error


def bear_until(met: Away, pauses: list[float], paused_s: float) -> None:
    while sum(pauses) < paused_s:
        met.bear(GONE)


def test_one_that_stays_away_is_given_up_with_the_hint(pauses: list[float]) -> None:
    met = Away("; see 7")
    met.bear(LOST)  # it was there
    with pytest.raises(CliError, match=r"not running.*; see 7") as raised:
        bear_until(met, pauses, AWAY_S + 1)
    assert sum(pauses) >= AWAY_S
    assert raised.value.exit_code == 3
    met.back()
    met.bear(GONE)


def test_a_full_disk_is_borne_for_any_time_and_said_once(
    pauses: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    met = Away()
    met.back()
    for _ in range(100):
        met.bear(FULL)
    assert sum(pauses) > 2 * AWAY_S
    assert capsys.readouterr().err == "hostguard: the disk is full\n"


def test_it_is_asked_until_it_answers(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[object] = [LOST, GONE, GONE, FULL, {"a": 1}]

    def call(method: str, path: str, *, body: object = None) -> object:
        assert (method, path, body) == ("POST", "/x", 5)
        answer = answers.pop(0)
        if isinstance(answer, CliError):
            raise answer
        return answer

    monkeypatch.setattr(client, "call", call)
    assert ask("POST", "/x", Away(), 5) == {"a": 1}
    assert answers == []
