"""hostguard send: queue a message."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Any

import click

from hostguard.cli import client
from hostguard.cli.away import Away
from hostguard.cli.errors import FAILED, HELD, CliError, ConnectionLost, NotRunning, Refused
from hostguard.cli.options import DURATION, TIME, WHILE_SLEEPING, complete_addresses, json_option, show
from hostguard.cli.tables import row_line
from hostguard.cli.verbs.queue import ended
from hostguard.core.text import ms, safe
from hostguard.telemetry.headlines import hold_text

READ_MAX = (
    64 << 20
)  # bytes, the most that limits.payload_max allows; the daemon refuses what is above its own
POLL_S = 50  # seconds that one request waits; the API allows 60
FINAL = frozenset({"done", "dead", "cancelled", "expired", "skipped"})
# Fields of a message, as the command line has them.
OPTIONS = {
    "content": "the text", "channel": "the recipient", "session": "--session", "sender": "--sender",
    "not_before": "--at", "expires_at": "--expires", "interrupt": "--interrupt",
    "instructions": "--instructions", "whileSleeping": "--while-sleeping",
}  # fmt: skip
TIMES = {"not_before", "expires_at"}


@click.command()
@click.argument("to", metavar="@MIND|#CHANNEL", shell_complete=complete_addresses)
@click.argument("text", metavar="[TEXT|-]", required=False)
@click.option("--session", help='The conversation; else that of the routes, or "main". "$new": a new one.')
@click.option("--sender", help="The sender.")
@click.option("--key", help="Idempotency key: a message sent again with the same key is queued only once.")
@click.option("--at", "not_before", type=TIME, help="Do not start before this time.")
@click.option("--expires", "expires_at", type=TIME, help="Drop the message if not started by this time.")
@click.option("--interrupt", is_flag=True, help="Ask the mind to take the message into its running turn.")
@click.option("--instructions", metavar="TEXT", help="Additional instructions for the mind.")
@click.option("--while-sleeping", "whileSleeping", type=WHILE_SLEEPING, help="What to do if the mind sleeps.")
@click.option("--wait", is_flag=True, help="Wait for the end; exit with 0 only if every command did.")
@click.option("--timeout", type=DURATION, help="With --wait: stop waiting after this time.")
@click.option("--porcelain", is_flag=True, help="Print only the id of each delivery, one a line.")
@json_option
def command(
    to: str, text: str | None, wait: bool, timeout: float | None, porcelain: bool, as_json: bool,
    **options: Any
) -> int:  # fmt: skip
    """Queue a message for a mind or for each mind of a channel.

    The text comes from standard input if it is "-" or omitted. WHEN is +10m, 14:30 or an ISO time such as
    2026-07-21T16:00:45; T is 90s, 10m or 1h30m. A "#" needs quotes in a shell.

    \b
    Examples:
      hostguard send @coder "run the tests"
      git diff | hostguard send '#reviews' --sender ci --expires +1h
      hostguard send @coder "nightly tidy" --at +10m --wait --timeout 1h
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait")
    answer = _send({"to": to, "content": _content(text), **options})
    deliveries = answer["deliveries"]
    if wait:
        for delivery in deliveries:
            if delivery["state"] not in FINAL:
                CliError(_accepted(delivery)).show()  # its id, should this command be stopped
        deadline = None if timeout is None else monotonic() + timeout
        deliveries = [_wait(delivery, deadline) for delivery in deliveries]
    lines = [_outcome(delivery) if wait else _accepted(delivery) for delivery in deliveries]
    if porcelain:
        lines = [str(delivery["id"]) for delivery in answer["deliveries"]]
    if lines or as_json:
        show({**answer, "deliveries": deliveries}, as_json, "\n".join(lines))
    code = _exit_code(deliveries) if wait else 0
    for mind in answer["refused"]:
        CliError(f"not sent to {mind}, whose queue is full: hostguard queue --mind {mind}").show()
        code = code or FAILED
    return code


def _content(text: str | None) -> str:
    """The text of the message, which may not be blank. Raises click.UsageError, CliError."""
    content = text if text is not None and text != "-" else _from_stdin(text)
    if not content.strip():
        raise click.UsageError("the text is empty: nothing is sent")
    return content


def _from_stdin(text: str | None) -> str:
    if text is None and sys.stdin.isatty():
        raise click.UsageError("the text is missing: give it as an argument or on standard input")
    raw = sys.stdin.buffer.read(READ_MAX + 1)
    if len(raw) > READ_MAX:
        raise CliError(f"the text is longer than {READ_MAX} bytes: send the path of a file instead")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CliError(f"the text is not UTF-8 (byte {error.start}): convert it with iconv") from None


def _accepted(delivery: Any) -> str:
    held = hold_text(delivery.get("hold"), delivery["mind"])
    return f"{row_line(delivery)} ({safe(held)})" if held else row_line(delivery)


def _send(request: Any) -> Any:
    """Send the message; with a key again while the daemon restarts, since it is then accepted only once."""
    key, away = request["key"], Away()
    while True:
        try:
            return client.call("POST", "/v1/deliveries", body=request)
        except Refused as error:
            away.bear(_named(error, key))
        except ConnectionLost as error:
            if key is None:
                found = "hostguard queue --state all shows whether the message was accepted"
                raise ConnectionLost(f"{error.message}; {found}. With --key it is sent again") from None
            away.bear(error)
        except NotRunning as error:
            away.bear(error)


def _named(error: Refused, key: str | None) -> CliError:
    """If the key was used for another message: name what differs as the command line does."""
    differs = error.document.get("differs")
    if not differs:
        return error
    text = f"the key {key} was used for another message, delivery {error.document['delivery']}"
    times = ". A time such as +10m is another one each time: give it as a date" if {*differs} & TIMES else ""
    return CliError(f"{text}; different here: {', '.join(OPTIONS.get(n, n) for n in differs)}{times}")


def _wait(delivery: Any, deadline: float | None) -> Any:
    """Wait until the delivery is final or the deadline (monotonic seconds) has passed."""
    away = Away(f"; {delivery['id']} is accepted: hostguard queue {delivery['id']}")
    away.back()
    while delivery["state"] not in FINAL:
        wait_s = POLL_S if deadline is None else min(POLL_S, deadline - monotonic())
        if wait_s <= 0:
            break
        # A delivery that became part of a batch ends with the batch.
        batched = delivery["state"] == "batched"
        id_ = delivery["result"]["delivery"] if batched else delivery["id"]
        try:
            delivery = client.call("GET", f"/v1/deliveries/{id_}", params={"wait_s": round(wait_s, 1)})
        except CliError as error:
            away.bear(error)  # it is accepted: ask again while the daemon restarts, or its disk stalls
        else:
            away.back()
    return delivery


def _outcome(delivery: Any) -> str:
    start = row_line(delivery)
    if delivery["state"] not in FINAL:
        if delivery["state"] != "queued":
            return f"{start}; its turn continues"
        remove = f"hostguard cancel {delivery['id']}"
        return f"{_accepted(delivery)}; it stays in the queue; to remove it: {remove}"
    result = delivery.get("result") or {}
    parts = [text] if (text := ended(result)) else []
    for name, word in (("held_ms", "held"), ("run_ms", "ran")):
        if result.get(name) is not None:
            parts.append(f"{word} {ms(result[name])}")
    return f"{start}: {safe(', '.join(parts))}" if parts else start


def _exit_code(deliveries: list[Any]) -> int:
    """0 only if every command exited with 0; HELD takes precedence over FAILED."""
    if any(delivery["state"] == "queued" for delivery in deliveries):
        return HELD
    return 0 if all(map(_succeeded, deliveries)) else FAILED


def _succeeded(delivery: Any) -> bool:
    """Whether a command exited with 0, or a resident mind's turn ended normally."""
    result = delivery.get("result") or {}
    ended_well = result.get("exit") == 0 or result.get("outcome") in ("done", "gone", "idle")
    return delivery["state"] == "done" and ended_well
