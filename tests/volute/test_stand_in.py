"""The rig's stand-in for a mind says `done` as the real minds do: test_forms.py expects the same of them."""

from __future__ import annotations

import pytest
from forms import FORMS, Script, StandIn, play
from minds import Minds
from posted import Posted


@pytest.mark.parametrize(("template", "script", "expected"), FORMS)
def test_it_does_as_its_template(template: str, script: Script, expected: list[str]) -> None:
    with Minds("/run") as minds:
        posted = Posted(minds.events_port, 0)
        posted.guarded = False
        with posted:
            mind = StandIn(minds.add("m", template), posted)
            minds.start()
            assert play(mind, script, expected) == expected
