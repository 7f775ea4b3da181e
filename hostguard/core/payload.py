"""Payloads: as they are stored, and as an exec mind, a resident mind or a file gets them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hostguard.core.model import Delivery, Kind, Schedule
from hostguard.core.names import SYSTEM_NAME

CHANNEL = f"@{SYSTEM_NAME}"  # volute.md: by this a mind recognizes a message of the system
SENDER = SYSTEM_NAME
NOTE_MS = 60_000  # spec: a delivery that waited longer than a minute says so
NOT_FOR_RESIDENT = ("held", "script")  # fields of a payload that its POST does not have


# Of JSON from outside. Python's own stack ends at some 900 levels, and differs by version. An item takes up
# to 300 bytes and a microsecond, and is sent in three bytes: two million took two seconds.
DEPTH_MAX, ITEMS_MAX = 100, 20_000
REQUEST = "request"  # of a payload that came through front/: the HTTP request, byte for byte, as Latin-1
ITEM_BYTES = 50  # as many as an item counts for in a batch, so that one of 1 MiB has ITEMS_MAX of them, too


def parsed(raw: bytes | bytearray | str) -> Any:
    """JSON that somebody else wrote. Raises ValueError; its text says what the JSON is."""
    given = raw.encode(errors="surrogatepass") if isinstance(raw, str) else raw
    if items(given, ITEMS_MAX) > ITEMS_MAX:
        raise ValueError(
            f"JSON with more than {ITEMS_MAX} items, which is the most: send a part of it as one text"
        )
    value = fault = None
    try:
        # Not json.loads(given): that also takes UTF-16, whose items are not counted.
        value = json.loads(given.decode("utf-8-sig"))
    except RecursionError:
        fault = f"nested deeper than {DEPTH_MAX} levels"
    except UnicodeDecodeError:
        fault = "not JSON: it is not UTF-8"
    except json.JSONDecodeError as error:
        fault = f"not JSON: {error}"
    except ValueError:
        fault = "not usable: a number has too many digits"
    if fault is None and _brackets(given) > DEPTH_MAX and _depth(value) > DEPTH_MAX:
        fault = f"nested deeper than {DEPTH_MAX} levels"
    if fault is not None:
        raise ValueError(fault)  # not in a handler above: JSONDecodeError has all of the text
    return value


def items(raw: bytes | bytearray, most: int = 0) -> int:
    """How many values the JSON has, and not many more; up to `most`, commas in texts may count, too."""
    found = raw.count(b",") + _brackets(raw)
    if found > most:  # some are in texts
        plain = raw.replace(rb"\\", b"").replace(rb"\"", b"")
        if plain.count(b'"') <= 4 * ITEMS_MAX:  # an item has at most a name and a text
            outside = b"".join(plain.split(b'"')[::2])
            found = outside.count(b",") + _brackets(outside)
    return found


def _brackets(raw: bytes | bytearray) -> int:
    return raw.count(b"[") + raw.count(b"{")


def _depth(value: Any) -> int:
    level, depth = [value] if isinstance(value, dict | list) else [], 0
    while level:
        inner = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
        level, depth = [item for item in inner if isinstance(item, dict | list)], depth + 1
    return depth


def compact(payload: Mapping[str, Any]) -> bytes:
    """A payload as it is stored. Raises UnicodeEncodeError, ValueError if JSON or UTF-8 cannot hold it."""
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def describe(row: Delivery, raw: bytes) -> str:
    """The description of the turn's scope, which `systemctl status` shows."""
    if row.kind is Kind.RUN:
        given = json.loads(raw)
        return f"{row.mind}: {given['description'] or given['argv0'] or 'hostguard run'}"
    sender = f" from {row.sender}" if row.sender else ""
    channel = f" in {row.channel}" if row.channel else ""
    return f"{row.mind}: {row.kind} {row.id}{sender}{channel}, session {row.session}"


def told(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload with a channel: a message to no channel is a direct one, in its sender's."""
    if payload.get("channel") is not None:
        return dict(payload)
    sender = payload.get("sender") or "hostguard"
    return {"isDM": True, **payload, "channel": f"@{sender}"}


def system_payload(minds: tuple[str, ...], content: Any, *, interrupt: bool = False) -> bytes:
    """The payload of a message from the guard itself."""
    return json.dumps(_of_system(minds, content) | {"interrupt": interrupt}, ensure_ascii=False).encode()


def scheduled(schedule: Schedule) -> dict[str, Any]:
    """The payload of a schedule's message, or of the row of its script."""
    payload = _of_system((schedule.mind,), f"[{schedule.name}] {schedule.message}")
    if schedule.script is not None:
        payload |= {"content": None, "script": schedule.script}
    return payload


def _of_system(minds: tuple[str, ...], content: Any) -> dict[str, Any]:
    both = [SENDER, *minds]
    head = {"channel": CHANNEL, "sender": SENDER, "isDM": True, "participants": both, "interrupt": False}
    return {"content": content, **head}


def note(waited_ms: int, behind: str | None) -> str | None:
    """The sentence about a long wait `behind` a unit, or a reason in words; None if the wait was short."""
    if waited_ms <= NOTE_MS:
        return None
    minutes, seconds = divmod(waited_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    length = f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
    why = (f": {behind}" if " " in behind else f", behind {behind}") if behind else ""
    return f"[hostguard held this message for {length}{why}]"


def for_exec(row: Delivery, raw: bytes, waited_ms: int, behind: str | None) -> bytes:
    """The standard input of an exec mind's command."""
    payload = json.loads(raw)
    payload["session"] = row.session
    _tell_wait(payload, waited_ms, behind)
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def request(raw: bytes) -> bytes | None:
    """The HTTP request as which the message came and goes to the mind; None: it came otherwise."""
    if not raw.startswith(b'{"%s":' % REQUEST.encode()):  # it comes first: most payloads need not be parsed
        return None
    text: str = json.loads(raw)[REQUEST]
    return text.encode("latin-1")


def shown(raw: bytes) -> dict[str, Any]:
    """The payload as a person reads it: of a request, the content in its place."""
    payload: dict[str, Any] = json.loads(raw)
    if (sent := request(raw)) is not None:
        del payload[REQUEST]
        with suppress(ValueError, LookupError, TypeError):  # it came in chunks
            payload["content"] = json.loads(sent.partition(b"\r\n\r\n")[2])["content"]
    return payload


def for_resident(
    row: Delivery, raw: bytes, waited_ms: int, behind: str | None, instructions: str | None
) -> dict[str, Any]:
    """The body of `POST /message` to a resident mind (volute.md). `instructions` are the session's."""
    payload = told(json.loads(raw))
    payload["session"] = row.session
    if given := [text for text in (instructions, payload.get("instructions")) if text]:
        payload["instructions"] = "\n".join(given)
    content = payload.get("content")
    if content is not None and not isinstance(content, str) and not _is_parts(content):
        payload["content"] = json.dumps(content, ensure_ascii=False)
    _tell_wait(payload, waited_ms, behind)
    return {name: value for name, value in payload.items() if name not in NOT_FOR_RESIDENT}


def _tell_wait(payload: dict[str, Any], waited_ms: int, behind: str | None) -> None:
    """Add how long the delivery waited, if long: as numbers, and in words to content that a mind reads."""
    if (text := note(waited_ms, behind)) is None:
        return
    payload["held"] = {"ms": waited_ms, "behind": behind}
    if "batch" in payload:
        for messages in payload["batch"]["channels"].values():
            if messages:
                messages[0]["content"] = _prefixed(messages[0].get("content"), text)
                return
    payload["content"] = _prefixed(payload.get("content"), text)


def _prefixed(content: Any, text: str) -> Any:
    if isinstance(content, str):
        return f"{text}\n{content}"
    if _is_parts(content):
        return [{"type": "text", "text": text}, *content]
    return content


def _is_parts(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content)


def file_line(row: Delivery, raw: bytes) -> bytes:
    """The line that a route to a file appends: when, where, who and what, as JSON."""
    payload = told(json.loads(raw))
    kept = {"at": row.created_at, **{name: payload.get(name) for name in ("channel", "sender", "content")}}
    return json.dumps(kept, ensure_ascii=False).encode() + b"\n"
