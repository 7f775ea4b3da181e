"""The Debians whose guests are switched off and on."""

from __future__ import annotations

import os

SUITES = os.environ.get("HOSTGUARD_TESTS_BOOT", "bookworm trixie").split()
