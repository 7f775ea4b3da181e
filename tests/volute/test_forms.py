"""How often, and when, real minds say `done`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forms import FORMS, RealSubject, Script, play
from real_minds import RealMinds

NAMES = {"claude": "ada", "pi": "eve"}


@pytest.fixture
def alone(real_minds: RealMinds) -> Iterator[RealMinds]:
    """The real minds without a guard."""
    real_minds.posted.clear()
    real_minds.model.calls.clear()
    real_minds.posted.guarded = False
    real_minds.start()
    yield real_minds
    real_minds.posted.guarded = True


@pytest.mark.parametrize(("template", "script", "expected"), FORMS)
def test_real_minds(alone: RealMinds, template: str, script: Script, expected: list[str]) -> None:
    mind = RealSubject(alone, alone.minds[NAMES[template]])
    assert play(mind, script, expected) == expected
