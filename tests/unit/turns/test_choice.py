"""Which driver serves a row: by its kind, its mind, and how an earlier guard began its turn."""

from __future__ import annotations

import pytest

from hostguard.core.model import Kind, Mind
from hostguard.turns.drivers.choice import Drivers

DRIVERS = Drivers("exec", "run", "resident")
COMMAND, SERVER = Mind("m", ("/bin/true",)), Mind("m", url="http://127.0.0.1:1")


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    ("mind", "posted", "driver"),
    [
        (COMMAND, None, "exec"),
        (SERVER, None, "resident"),
        (None, None, "exec"),
        (SERVER, False, "exec"),  # it had a command when its turn began
        (COMMAND, True, "resident"),
        (None, False, "exec"),
        (None, True, "resident"),
    ],
)
def test_one_place_chooses_the_driver(kind, mind, posted, driver):
    always = {Kind.RUN: "run", Kind.SCRIPT: "exec", Kind.FILE: "exec"}
    assert DRIVERS.choose(kind, mind, posted) == always.get(kind, driver)
