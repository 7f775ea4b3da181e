"""hostguard queue and why: list, show or explain deliveries."""

from __future__ import annotations

import json
from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.options import complete_minds, complete_rows, json_option, show
from hostguard.cli.render import terminal_width
from hostguard.core.text import clock, fields, ms, safe, size, table
from hostguard.telemetry.headlines import hold_text

STATES = (
    "queued", "delivering", "in_turn", "batching", "gated", "done", "dead", "cancelled", "expired", "batched",
    "skipped", "failed", "all",
)  # fmt: skip
LIMIT_MAX = 1000  # the API's own


@click.command()
@click.argument("id_", metavar="[ID]", type=int, required=False, shell_complete=complete_rows)
@click.option("--mind", help="Only deliveries for this mind.", shell_complete=complete_minds)
@click.option(
    "--state",
    type=click.Choice(STATES),
    help="Only this state. Default: all that are not final. failed: turns that failed, whatever their state.",
)
@click.option("--failed", is_flag=True, help="The same as --state failed.")
@click.option(
    "--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True, help="At most this many."
)
@json_option
def queue(
    id_: int | None, mind: str | None, state: str | None, failed: bool, limit: int, as_json: bool
) -> None:
    """List the waiting deliveries, or show one.

    With ID, show that delivery and its message.

    \b
    Examples:
      hostguard queue --mind coder
      hostguard queue --failed
      hostguard queue 17
    """
    if id_ is not None:
        delivery = client.call("GET", f"/v1/deliveries/{id_}")
        show(delivery, as_json, delivery_text(delivery))
        return
    state = "failed" if failed else state
    # A row is stored as delivering while it is in a turn; the daemon's answer tells the two apart.
    stored = "delivering" if state == "in_turn" else state
    params = {"mind": mind and mind.removeprefix("@"), "state": stored, "limit": limit}
    answer = client.call("GET", "/v1/deliveries", params=params)
    if stored == "delivering":
        answer["deliveries"] = [row for row in answer["deliveries"] if row["state"] == state]
    deliveries = answer["deliveries"]
    rows = [(d["id"], d["mind"], d["session"], _state(d), ms(d["age_ms"]), _note(d)) for d in deliveries]
    text = table(("ID", "MIND", "SESSION", "STATE", "AGE", "NOTE"), rows, terminal_width())
    if not deliveries:
        text = "nothing waits" if state is None else "nothing found"
    elif len(deliveries) == limit:
        text += f"\nshowing at most {limit}, {answer['total_queued']} are queued; --limit shows more"
    show(answer, as_json, text)


def _state(delivery: Any) -> str:
    """The state; failed for a turn that ended with another exit status than 0, or was not completed."""
    state = str(delivery["state"])
    return "failed" if delivery.get("failed") and state == "done" else state


def _note(delivery: Any) -> str:
    """Why the delivery waits, why its last attempt failed, or how it ended."""
    result = ended(delivery.get("result") or {})
    if delivery.get("ended_at") is not None:
        return result
    failed = f"attempt {delivery['attempts']} failed: {result}" if delivery.get("attempts") else ""
    return hold_text(delivery.get("hold"), delivery["mind"]) or failed


def delivery_text(delivery: Any) -> str:
    """The details of a delivery, one per line, with its message last."""
    hold = delivery.get("hold") or {}
    payload = delivery.get("payload") or {}
    pairs = [
        ("Delivery", delivery["id"]),
        ("Mind", delivery["mind"]),
        ("Session", delivery["session"]),
        ("State", _state(delivery)),
        ("Kind", delivery.get("kind")),
        ("Held", hold_text(delivery.get("hold"), delivery["mind"]) or None),
        ("Held since", clock(hold.get("since"))),
        ("Held for", ms(hold.get("waited_ms"))),
        ("Command", payload.get("description") or payload.get("argv0")),
        ("Sender", delivery.get("sender")),
        ("Channel", delivery.get("channel")),
        ("Key", delivery.get("key")),
        ("Accepted", clock(delivery["created_at"])),
        ("Not before", clock(delivery.get("not_before"))),
        ("Expires", clock(delivery.get("expires_at"))),
        ("Attempts", delivery.get("attempts")),
        ("Turn", delivery.get("turn")),
        ("Started", clock(delivery.get("started_at"))),
        ("Ended", clock(delivery.get("ended_at"))),
        *result_pairs(delivery.get("result")),
    ]
    text = fields(pairs)
    if "content" not in payload:
        return text
    content = payload["content"]
    content = content if isinstance(content, str) else json.dumps(content, indent=2)
    return text + "\nMessage:\n" + "\n".join(f"  {safe(line)}" for line in content.splitlines())


def ended(result: Any) -> str:
    """How a turn or delivery ended; "" if unknown."""
    return str(result.get("reason") or result.get("outcome") or "")


def result_pairs(result: Any) -> list[tuple[str, object]]:
    """How a turn ended and what it used, for `fields`."""
    result = result or {}
    return [
        ("Outcome", result.get("outcome")),
        ("Exit status", result.get("exit")),
        ("Reason", result.get("reason") or None),
        ("Held for", ms(result.get("held_ms"))),
        ("Ran for", ms(result.get("run_ms"))),
        ("CPU time", ms(result.get("cpu_ms"))),
        ("Memory peak", size(result.get("memory_peak"))),
        ("Read", size(result.get("read_bytes"))),
        ("Written", size(result.get("write_bytes"))),
    ]


@click.command()
@click.argument("id_", metavar="ID", type=int, shell_complete=complete_rows)
@json_option
def why(id_: int, as_json: bool) -> None:
    """Explain why a delivery waits.

    Shows the reason, the turn or pause that blocks it, since when, and its place in the queue.

    \b
    Example:
      hostguard why 17
    """
    answer = client.call("GET", f"/v1/deliveries/{id_}/why")
    pairs = [
        ("State", answer.get("state")),
        ("Reason", answer.get("reason")),
        ("Behind", answer.get("blocker")),
        ("Since", clock(answer.get("since"))),
        ("Waited", ms(answer.get("waited_ms"))),
        ("Due", clock(answer.get("due"))),
        ("Place in queue", answer.get("place")),
    ]
    show(answer, as_json, f"{safe(answer['text'])}\n{fields(pairs)}")
