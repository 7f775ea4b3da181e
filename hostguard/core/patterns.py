"""Patterns with `*`, and words in a text, as wake triggers and routes have them. Pure."""

from __future__ import annotations

import re


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text fits the pattern, in which `*` stands for any characters, and nothing else does.

    Linear in the text's length for each `*`: patterns and texts come from minds.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return pattern == text
    *middle, last = parts
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def says(word: str, text: str) -> bool:
    """Whether the text has the word as a whole, in any case. `@bob` is not said by "@bobby" or "@bob-2"."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w|-\w)", text, re.IGNORECASE) is not None
