"""hostguard pressure: how the disk is, how many turns that allows, and traces of it."""

from __future__ import annotations

import json
import signal
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, BinaryIO

import click

from hostguard.cli import client, recording
from hostguard.cli.errors import CliError, NotRunning
from hostguard.cli.options import as_duration, json_option, print_json
from hostguard.cli.render import terminal_width
from hostguard.config import schema
from hostguard.core.settings import Settings
from hostguard.core.text import clock, duration, fields, safe, table
from hostguard.pressure.rule import State
from hostguard.pressure.sample import Sample
from hostguard.pressure.trace import TraceError, head_line, read, replay, sample_line, settings_of

WATCH_S = 1.0


@click.group(invoke_without_command=True)
@click.option("-w", "--watch", is_flag=True, help="Print a line a second, until interrupted.")
@json_option
@click.pass_context
def command(ctx: click.Context, watch: bool, as_json: bool) -> None:
    """Show how the disk is, how many turns that allows and why, and the last changes.

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
    if as_json:
        print_json(answer)
        return
    click.echo(fields(_pairs(answer)))
    if answer["changes"]:
        rows = [
            (clock(one["at"]), one["level"], _cap(one["cap"]), one["evidence"]) for one in answer["changes"]
        ]
        click.echo("\n" + table(("CHANGED", "LEVEL", "CAP", "EVIDENCE"), rows, terminal_width()))


def _pairs(answer: Any) -> list[tuple[str, object]]:
    step_in, frozen = answer["next_step_in_s"], answer.get("frozen")
    samples = answer["samples"]
    looked = time.clock_gettime(time.CLOCK_BOOTTIME) - samples[-1]["at"] if samples else None
    return [
        ("Level", f"{answer['level']} since {clock(answer['since'])}"),
        ("Evidence", answer["evidence"]),
        ("Last look", None if looked is None else f"{duration(max(looked, 0))} ago"),
        ("Live turns", _live(answer)),
        ("One more", None if step_in is None else f"in {duration(step_in)}, if it stays calm"),
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
        return f"{live}, {cap}, pressure does not limit"
    later = configured if answer["cap"] is None else answer["cap"]
    more = "" if allowed == later else f", then {'any number' if later is None else later}"
    finish = ", which may finish;" if live > allowed else ","
    return f"{live}{finish} only {allowed} at a time now{more} ({cap})"


def _cap(cap: int | None) -> str:
    return "-" if cap is None else str(cap)


def _watch(as_json: bool) -> None:
    """One line a second, as vmstat does: it can be piped and kept."""
    line = "{:19}  {:8}  {:>4}  {:>4}  {:>9}  {:>9}  {:>6}  {}"
    titles = line.format("TIME", "LEVEL", "CAP", "LIVE", "IN FLIGHT", "AWAIT", "BUSY", "EVIDENCE")
    while True:
        answer = client.call("GET", "/v1/pressure")
        if titles and not as_json:
            click.echo(titles)
        titles = ""
        if as_json:
            click.echo(json.dumps({name: value for name, value in answer.items() if name != "samples"}))
        else:
            took, busy = answer["await_ms"], answer["busy_percent"]
            click.echo(
                line.format(
                    clock(round(time.time() * 1000)) or "",
                    answer["level"],
                    _cap(answer["admit"]),
                    answer["live"],
                    _cap(answer["in_flight"]),
                    "-" if took is None else f"{took:.0f} ms",
                    "-" if busy is None else f"{busy:.0f} %",
                    safe(answer["evidence"]),
                ),
            )
        sys.stdout.flush()
        time.sleep(WATCH_S)


# -- record


@command.command()
@click.option(
    "-o", "--output", metavar="FILE", type=click.File("wb", lazy=False), help="Write it there at the end."
)
@click.option(
    "--for", "seconds", metavar="T", default="60s", show_default=True, callback=as_duration, help="How long."
)
def record(output: BinaryIO | None, seconds: float) -> None:
    """Record what the guard sees of the disk, as JSON lines, one for each look.

    It begins with what the daemon remembers of the last minutes. Without the daemon it looks for itself.
    A trace names the disk and the kernel, and nothing of minds or messages. With -o nothing is written
    before the end, so that the recording does not add to what it records; without it lines are printed as
    they come.

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
    kept = [head_line(head)]
    try:
        if output is None:
            _print(head_line(head))
        for sample in samples:
            if output is None:
                _print(sample_line(sample))
            else:
                kept.append(sample_line(sample))
    finally:
        if output is not None:
            output.write(b"".join(kept))
            output.flush()  # a full disk is told of
            click.echo(f"{len(kept) - 1} samples in {safe(output.name)}", err=True)


def _end(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _print(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


# -- replay


def _complete_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [f"{name}=" for name in schema.PRESSURE if f"{name}=".startswith(incomplete)]


@command.command("replay")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--set", "changes", metavar="KEY=VALUE", multiple=True, shell_complete=_complete_keys,
    help="Decide by another value of [pressure] than the trace has; may be repeated.",
)  # fmt: skip
@json_option
def replay_(file: BinaryIO, changes: tuple[str, ...], as_json: bool) -> None:
    """Run the rule over a trace, and print each change of the level or the cap.

    How many turns run is what it was: the trace does not know what another cap would have brought.

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
    if as_json:
        print_json({"trace": asdict(head), "settings": asdict(settings), "changes": shown})
        return
    rows = [
        (
            f"{one['after']:.2f}",
            one["level"],
            _cap(one["cap"]),
            _cap(one["admit"]),
            one["live"],
            one["evidence"],
        )
        for one in shown
    ]
    click.echo(f"device {safe(head.device)}, Linux {safe(head.kernel)}, hostguard {safe(head.version)}\n")
    click.echo(table(("SECONDS", "LEVEL", "CAP", "ADMIT", "LIVE", "EVIDENCE"), rows, terminal_width()))


def _changed(settings: Settings, changes: tuple[str, ...]) -> Settings:
    given = {name: value for name, value in asdict(settings).items() if value is not None}
    try:
        return settings_of({**given, **dict(map(_setting, changes))})
    except TraceError as error:
        raise click.BadParameter(str(error), param_hint="--set") from None


def _setting(text: str) -> tuple[str, Any]:
    """A key and its value, which is TOML, or else a string: calm_window=30s needs no quotes."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
    try:
        return name.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value


def _shown(states: Iterable[tuple[Sample, State]]) -> Iterator[dict[str, Any]]:
    """The first state, each that differs from the one told before in level, cap or admit, and the last."""
    start, told, last = None, None, None
    for sample, state in states:
        start = sample.at if start is None else start
        last = {
            "at": sample.at,
            "after": round(sample.at - start, 3),
            "level": state.level,
            "cap": state.cap,
            "admit": state.admit,
            "live": sample.live,
            "evidence": state.evidence,
        }
        if told is None or any(last[name] != told[name] for name in ("level", "cap", "admit")):
            told = last
            yield last
    if last is not None and last is not told:
        yield last
