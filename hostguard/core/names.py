"""Names of minds, channels, schedules and sessions, and patterns for them. Pure."""

from __future__ import annotations

import re
import unicodedata

MIND_NAME_MAX = 48  # bytes: escaped, in a scope's name, it stays below systemd's 256
CHANNEL_NAME_MAX = 64  # characters
OWN_SESSION = "$"  # begins the sessions that only the guard uses
SYSTEM_NAME = "volute"  # the sender of what the guard itself says to minds (volute.md)
MAIN_SESSION = "main"  # if none is named
NEW_SESSION = "$new"  # a session of its own for each delivery
NEW_PREFIX = "new-"  # begins the names of those
SCRIPT_SESSION = "$script:"  # then the schedule's name, ":" and the session that gets the output
FILE_SESSION = "$file:"  # then the path: lines go into one file in order
SESSION_MAX = 100  # characters: Volute cuts sessions to these


def guards_name(name: str) -> bool:
    """True if the name reads as the guard's own, by which a mind recognizes a message of the system.

    Case, width, marks, and all but letters and digits are left aside: "@Volute" is it, too. Letters of other
    scripts that only look alike are not it.
    """
    plain = unicodedata.normalize("NFKD", name).casefold()
    return "".join(char for char in plain if char.isalnum()) == SYSTEM_NAME


def mind_name_fault(name: str) -> str | None:
    """Why this cannot be a mind's name; None if it can."""
    if not 1 <= len(name.encode()) <= MIND_NAME_MAX:
        return f"a mind's name has 1 to {MIND_NAME_MAX} bytes"
    if name[0] in "@#":
        return 'a mind\'s name does not begin with "@" or "#"'
    if guards_name(name):
        return f"{SYSTEM_NAME} is the name under which the guard itself writes to minds"
    return _space_fault(name)


def channel_name_fault(name: str) -> str | None:
    """Why this cannot be a channel's name; None if it can."""
    if not name.startswith("#") or not 2 <= len(name) <= CHANNEL_NAME_MAX:
        return f'a channel\'s name begins with "#" and has 2 to {CHANNEL_NAME_MAX} characters'
    return _space_fault(name)


def schedule_name_fault(name: str) -> str | None:
    """Why this cannot be a schedule's name; None if it can."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        return "a schedule's name has 1 to 64 letters, digits, ., _ or -"
    return None


def own_session(name: str) -> bool:
    """True if only the guard itself may use the session, for scripts and files."""
    return name.startswith(OWN_SESSION) and name != NEW_SESSION


def matches(pattern: str, text: str) -> bool:
    """True if the whole text matches the pattern, in which only `*` is special: it matches any characters."""
    # Linear in the length of the text for each `*`: patterns and texts come from minds.
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
    """True if the text has the word as a whole, in any case. "@bobby" and "@bob-2" do not say "@bob"."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w|-\w)", text, re.IGNORECASE) is not None


def _space_fault(name: str) -> str | None:
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in name):
        return "a name must not contain a control character or line break"
    if name != name.strip():
        return "a name must not begin or end with white space"
    return None


# By the table of the configuration.
NAME_FAULTS = {"minds": mind_name_fault, "channels": channel_name_fault, "schedules": schedule_name_fault}
