"""How much a random search does. HOSTGUARD_TESTS_SEARCH=25 makes it 25 times as much.

The unit tests' searches have found nothing new in hundreds of runs, so they do a third of what Hypothesis does by itself.
"""

from __future__ import annotations

import os


def sized(times: int) -> int:
    """`times`, or the part or multiple of it that is asked for; at least 1.

    tests/run asks for a third on any Debian but the first: the guard and the search are the same there, and what
    differs (kernel, systemd, libraries) shows in each round alike.
    """
    return max(1, round(times * float(os.environ.get("HOSTGUARD_TESTS_SEARCH", "1"))))
