"""The memory of a slow card, as an nbdkit plugin. Used by card.py only.

nbdkit's own delay filter cannot be changed while it runs; here the file `settings` in the card's folder is read
at each request. Like a real card it does one thing at a time, and while there is a file `stop` it completes nothing.
"""

import builtins
import json
import os
import time
from typing import Any

API_VERSION = 2
POLL_S = 0.005  # how soon a changed setting is seen

_memory = bytearray()
_folder = ""


def config(key: str, value: str) -> None:
    global _memory, _folder
    if key == "size":
        _memory = bytearray(int(value))
    elif key == "folder":
        _folder = value
    else:
        raise ValueError(f"unknown parameter {key}")


def open(readonly: bool) -> int:
    return 1


def get_size(handle: int) -> int:
    return len(_memory)


def can_multi_conn(handle: int) -> bool:
    return True


def _take_time(delay: str, size: int) -> None:
    began = time.monotonic()
    while True:
        with builtins.open(f"{_folder}/settings") as file:  # nbdkit wants its own open above
            now: dict[str, Any] = json.load(file)
        left = began + now[delay] + (size / now["rate"] if now["rate"] else 0) - time.monotonic()
        if left <= 0 and not os.path.exists(f"{_folder}/stop"):
            return
        time.sleep(min(left, POLL_S) if left > 0 else POLL_S)


def pread(handle: int, buffer: Any, offset: int, flags: int) -> None:
    _take_time("read_delay", len(buffer))
    buffer[:] = _memory[offset : offset + len(buffer)]


def pwrite(handle: int, buffer: Any, offset: int, flags: int) -> None:
    _take_time("write_delay", len(buffer))
    _memory[offset : offset + len(buffer)] = buffer


def flush(handle: int, flags: int) -> None:
    """An SD card has no cache to flush; and a flush under way does not show in a disk's in-flight count."""
