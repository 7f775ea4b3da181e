"""What was done for a time, and must be undone by the next guard if this one is killed.

It is written before it is done, to a file in the runtime folder: as a frozen scope it is gone after a reboot.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


def recall(file: Path) -> Any:
    """What an earlier guard left to be undone; None: nothing."""
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s: %s; what it tells of is not undone", file, error)
        return None


def note(file: Path, what: Any) -> None:
    """Keep it for the next guard, or if it is empty nothing. It is a file in memory. Raises OSError."""
    if not what:
        file.unlink(missing_ok=True)
        return
    new = file.with_suffix(".new")
    new.write_text(json.dumps(what))
    os.replace(new, file)
