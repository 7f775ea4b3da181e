"""Keys and values as TOML writes them. Pure."""

from __future__ import annotations

import json
import re
import unicodedata

KeyPath = tuple[str, ...]


def dotted(path: KeyPath) -> str:
    """A key's path as TOML writes it."""
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else quoted(key) for key in path)


def quoted(text: str) -> str:
    """A TOML basic string without characters that move the cursor or change the writing direction."""
    return "".join(
        f"\\U{ord(char):08x}" if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") else char
        for char in json.dumps(text, ensure_ascii=False)  # TOML has all escapes of JSON
    )


def toml_value(value: bool | str | int | float | list[str]) -> str:
    """A value of a key, as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value) if isinstance(value, str) else str(value)
