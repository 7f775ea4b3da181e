"""hostguard pressure: the level of the disk, and traces of its samples."""

from __future__ import annotations

import json
import signal
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any, BinaryIO

import click

from hostguard.cli import client, recording
from hostguard.cli.away import Away, ask
from hostguard.cli.errors import CliError, NotRunning
from hostguard.cli.options import DURATION, json_option, show
from hostguard.cli.render import terminal_width
from hostguard.config import schema
from hostguard.core.clock import now_ms
from hostguard.core.settings import Settings
from hostguard.core.text import clock, duration, fields, safe, table
from hostguard.pressure.rule import State
from hostguard.pressure.sample import Sample
from hostguard.pressure.trace import TraceError, head_line, read, replay, sample_line, settings_of

WATCH_S = 1.0


@click.group(invoke_without_command=True)
@click.option("-w", "--watch", is_flag=True, help="Print a line a second until interrupted.")
@json_option
@click.pass_context
def command(ctx: click.Context, watch: bool, as_json: bool) -> None:
    """Show the level of the disk, how many turns it allows and why.

    \b
    Examples:
      hostguard pressure
      hostguard pressure --watch
      hostguard pressure record -o trace.jsonl --for 10m
      hostguard pressure replay trace.jsonl --set calm_window=30s
    """
    if ctx.invoked_subcommand is not None:
        return
    if watch:
        _watch(as_json)
    answer = client.call("GET", "/v1/pressure")
    text = fields(_pairs(answer))
    if changes := answer["changes"]:
        rows = [(clock(one["at"]), one["level"], _cap(one["cap"]), one["evidence"]) for one in changes]
        text += "\n\n" + table(("CHANGED", "LEVEL", "CAP", "EVIDENCE"), rows, terminal_width())
    show(answer, as_json, text)


def _pairs(answer: Any) -> list[tuple[str, object]]:
    step_in, frozen = answer["next_step_in_s"], answer.get("frozen")
    samples = answer["samples"]
    looked = time.clock_gettime(time.CLOCK_BOOTTIME) - samples[-1]["at"] if samples else None
    known = f"{answer['level']} since {clock(answer['since'])}"
    return [
        ("Level", known if answer["disk"] == "ok" else "unknown: no disk is watched"),
        ("Evidence", answer["evidence"]),
        ("Last sample", None if looked is None else f"{duration(max(looked, 0))} ago"),
        ("Live turns", _live(answer)),
        ("One more", None if step_in is None else f"in {duration(step_in)} if it stays calm"),
        ("Frozen", ", ".join(frozen) if frozen else None),
        ("Tightened", "yes" if answer.get("tightened") else None),
        ("Device", answer["device"]["node"]),
        ("Found", answer["device"]["reason"]),
        ("Disk", None if answer["disk"] in ("ok", answer["device"]["reason"]) else answer["disk"]),
        ("PSI", answer["psi"]),
    ]


def _live(answer: Any) -> str:
    live, allowed, configured = answer["live"], answer["admit"], answer["configured"]
    cap = "no cap is configured" if configured is None else f"{configured} configured"
    if allowed is None:
        return f"{live}, {cap}, not limited by pressure"
    later = configured if answer["cap"] is None else answer["cap"]
    more = "" if allowed == later else f", then {'any number' if later is None else later}"
    finish = ", which may finish;" if live > allowed else ","
    return f"{live}{finish} only {allowed} at a time now{more} ({cap})"


def _cap(cap: int | None) -> str:
    return "-" if cap is None else str(cap)


def _watch(as_json: bool) -> None:
    line = "{:19}  {:8}  {:>4}  {:>4}  {:>9}  {:>9}  {:>6}  {}"
    titles = line.format("TIME", "LEVEL", "CAP", "LIVE", "IN FLIGHT", "AWAIT", "BUSY", "EVIDENCE\n")
    away = Away()
    while True:
        answer = ask("GET", "/v1/pressure", away)
        if as_json:
            text = json.dumps({name: value for name, value in answer.items() if name != "samples"})
        else:
            took, busy = answer["await_ms"], answer["busy_percent"]
            text = titles + line.format(
                clock(now_ms()), answer["level"], _cap(answer["admit"]), answer["live"],
                _cap(answer["in_flight"]), "-" if took is None else f"{took:.0f} ms",
                "-" if busy is None else f"{busy:.0f} %", safe(answer["evidence"]),
            )  # fmt: skip
            titles = ""
        click.echo(text)
        sys.stdout.flush()
        time.sleep(WATCH_S)


# -- record


@command.command()
@click.option(
    "-o", "--output", metavar="FILE", type=click.File("wb", lazy=False), help="Write to this file at the end."
)
@click.option("--for", "seconds", default="60s", show_default=True, type=DURATION, help="How long to record.")
def record(output: BinaryIO | None, seconds: float) -> None:
    """Record the guard's samples of the disk as a trace of JSON lines, one per sample.

    The trace begins with the samples of the last minutes, which the daemon remembers; without the daemon,
    this command takes samples itself. A trace names the disk and the kernel, but no minds and no messages.
    With -o the file is written at the end, so that recording does not disturb the disk that it records;
    without it, each line is printed immediately.

    \b
    Examples:
      hostguard pressure record -o trace.jsonl --for 10m
      ssh pi hostguard pressure record --for 1h >trace.jsonl
    """
    signal.signal(signal.SIGTERM, _end)
    try:
        head, samples = recording.from_daemon(seconds)
    except NotRunning:
        head, samples = recording.from_here(seconds)
    kept = []
    try:
        for line in chain([head_line(head)], map(sample_line, samples)):
            if output is None:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            else:
                kept.append(line)
    finally:
        if output is not None:
            output.write(b"".join(kept))
            output.flush()  # so that a full disk is reported
            click.echo(f"{len(kept) - 1} samples in {safe(output.name)}", err=True)


def _end(number: int, frame: object) -> None:
    raise KeyboardInterrupt


# -- replay


def _complete_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [f"{name}=" for name in schema.PRESSURE if f"{name}=".startswith(incomplete)]


@command.command("replay")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--set", "changes", metavar="KEY=VALUE", multiple=True, shell_complete=_complete_keys,
    help="Use this value for a key of [pressure] instead of the recorded one; may be repeated.",
)  # fmt: skip
@json_option
def replay_(file: BinaryIO, changes: tuple[str, ...], as_json: bool) -> None:
    """Apply the rule to a trace, and print each change of the level or the cap.

    The number of running turns is always the recorded one: a trace cannot show the effect of another cap.

    \b
    Examples:
      hostguard pressure replay trace.jsonl
      hostguard pressure replay trace.jsonl --set calm_window=30s --set floor=2
    """
    try:
        head, samples = read(file)
        settings = _changed(head.settings, changes)
        shown = list(_shown(replay(samples, settings)))
    except TraceError as error:
        raise CliError(f"{file.name}: {error}") from None
    rows = [
        (f"{at['after']:.2f}", at["level"], _cap(at["cap"]), _cap(at["admit"]), at["live"], at["evidence"])
        for at in shown
    ]
    text = f"device {safe(head.device)}, Linux {safe(head.kernel)}, hostguard {safe(head.version)}\n\n"
    text += table(("SECONDS", "LEVEL", "CAP", "ADMIT", "LIVE", "EVIDENCE"), rows, terminal_width())
    show({"trace": asdict(head), "settings": asdict(settings), "changes": shown}, as_json, text)


def _changed(settings: Settings, changes: tuple[str, ...]) -> Settings:
    given = {name: value for name, value in asdict(settings).items() if value is not None}
    try:
        return settings_of({**given, **dict(map(_setting, changes))})
    except TraceError as error:
        raise click.BadParameter(str(error), param_hint="--set") from None


def _setting(text: str) -> tuple[str, Any]:
    """Split KEY=VALUE. The value is TOML, or else a string, so calm_window=30s needs no quotes."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"invalid setting {text!r}: use KEY=VALUE", param_hint="--set")
    try:
        return name.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value


def _shown(states: Iterable[tuple[Sample, State]]) -> Iterator[dict[str, Any]]:
    """The first state, each that changes level, cap or admit, and the last."""
    start, shown, last = None, None, None
    for sample, state in states:
        start = sample.at if start is None else start
        last = {
            "at": sample.at, "after": round(sample.at - start, 3), "level": state.level, "cap": state.cap,
            "admit": state.admit, "live": sample.live, "evidence": state.evidence,
        }  # fmt: skip
        if shown is None or any(last[name] != shown[name] for name in ("level", "cap", "admit")):
            shown = last
            yield last
    if last is not None and last is not shown:
        yield last
