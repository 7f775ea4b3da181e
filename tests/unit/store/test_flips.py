"""Random single bits of a queue flip: nothing is lost silently, nothing changed is believed, each start succeeds.

tests/bench/flips.py does the same 4,000 times.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from flips import DB, WAL, closed_queue, killed_queue, try_flips
from searches import sized

SEED = 12
COUNT = max(30, sized(30))  # of the 4,000 of the bench


@pytest.mark.parametrize(("made", "name"), [(closed_queue, DB), (killed_queue, DB), (killed_queue, WAL)])
def test_no_bit_loses_or_changes_anything_silently(made, name, tmp_path: Path, caplog) -> None:
    queue = made(tmp_path / "made")
    tally = try_flips(queue, name, COUNT, SEED, tmp_path)
    assert tally.wrong == []
    assert caplog.records, "some were damage"
    assert "text number" not in caplog.text  # that of the messages
