"""Traces of the disk's pressure: samples to inspect, to send to us, and to replay.

A trace is JSON lines. The first is the head,

    {"hostguard_trace": 1, "version": "...", "device": "mmcblk0", "kernel": "6.1.0", "settings": {...}}

with [pressure] of the configuration in force; every other line is a raw Sample, in order of time:

    {"at": 812.25, "live": 2, "cap": 2, "disk": {...}, "host": {"some_us": 5}, "slice": null}

Traces of earlier versions have a full_us beside some_us, which nothing uses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from itertools import islice
from typing import Any, BinaryIO, get_args, get_type_hints

from hostguard.config.schema import PRESSURE
from hostguard.core.settings import Settings, settings_fault
from hostguard.pressure.rule import State, step
from hostguard.pressure.sample import Psi, Sample

FORMAT = 1
LINE_MAX = 4096  # bytes; a sample has about 300
LINES_MAX = 1_000_000  # eleven days with a sample a second
AT_MAX = 2**63 / 1e9  # seconds; the kernel counts nanoseconds in 63 bits

# The class of each field of a sample that holds counters or None.
_COUNTERS = {
    name: kind
    for name, hint in get_type_hints(Sample).items()
    for kind in get_args(hint)
    if isinstance(kind, type) and is_dataclass(kind)
}


class TraceError(Exception):
    """The trace is invalid. The text names the line and what was expected there."""


@dataclass(frozen=True, slots=True)
class Head:
    """The source of a trace: versions of hostguard and the kernel, the disk's name, and the settings."""

    version: str
    device: str | None
    kernel: str
    settings: Settings


def head_line(head: Head) -> bytes:
    """The first line of a trace."""
    shown = {name: value for name, value in asdict(head.settings).items() if value is not None}
    return _line({"hostguard_trace": FORMAT, **asdict(head), "settings": shown})


def sample_line(sample: Sample) -> bytes:
    """A sample as a line."""
    return _line(asdict(sample))


def sample_of(value: Any) -> Sample:
    """The sample that a line's JSON holds. Raises TraceError."""
    _only(value, Sample, "a sample")
    at = value["at"]
    if isinstance(at, bool) or not isinstance(at, int | float) or not abs(at) < AT_MAX:  # NaN is not below
        raise TraceError("at: expected a number of seconds")
    live = _count(value["live"], "live")
    cap = None if value["cap"] is None else _count(value["cap"], "cap")
    counters = {name: _counters(kind, value.get(name), name) for name, kind in _COUNTERS.items()}
    return Sample(float(at), live, cap, **counters)


def settings_of(values: Mapping[str, Any]) -> Settings:
    """Settings from values of [pressure], with defaults for the rest. Raises TraceError."""
    parsed = {}
    for name, value in values.items():
        if name not in PRESSURE:
            raise TraceError(f"{name} is not a key of [pressure]: {', '.join(PRESSURE)}")
        try:
            parsed[name] = PRESSURE[name].parse(value)
        except ValueError:
            raise TraceError(f"{name}: allowed: {PRESSURE[name].allowed}") from None
    settings = Settings(**parsed)
    if fault := settings_fault(settings):
        raise TraceError(fault)
    return settings


def read(stream: BinaryIO) -> tuple[Head, Iterator[Sample]]:
    """The head, and the samples as they are read. Raises TraceError at the first invalid line."""
    lines = _lines(stream)
    number, first = next(lines, (1, None))
    if not isinstance(first, dict) or "hostguard_trace" not in first:
        raise TraceError('line 1: a trace begins with {"hostguard_trace": 1, ...}')
    if first["hostguard_trace"] != FORMAT:
        raise TraceError(f"line 1: this hostguard reads traces of format {FORMAT} only")
    return _at(number, _head, first), _samples(lines)


def replay(samples: Iterable[Sample], settings: Settings) -> Iterator[tuple[Sample, State]]:
    """Run the rule on the samples from a cold start; each sample with the state after it."""
    state = State()
    for sample in samples:
        state = step(state, sample, settings)
        yield sample, state


def _samples(lines: Iterator[tuple[int, Any]]) -> Iterator[Sample]:
    before = -math.inf
    for number, value in lines:
        sample = _at(number, sample_of, value)
        if sample.at < before:
            raise TraceError(f"line {number}: at is before that of the line above")
        before = sample.at
        yield sample


def _head(value: dict[str, Any]) -> Head:
    _only({name: item for name, item in value.items() if name != "hostguard_trace"}, Head, "the head")
    for name in ("version", "kernel", "device"):
        if not isinstance(value[name], str) and not (name == "device" and value[name] is None):
            raise TraceError(f"{name}: expected a string")
    if not isinstance(value["settings"], dict):
        raise TraceError("settings: expected an object")
    return Head(value["version"], value["device"], value["kernel"], settings_of(value["settings"]))


def _lines(stream: BinaryIO) -> Iterator[tuple[int, Any]]:
    """Each line's number and JSON, without an incomplete last line, as after a power failure."""
    for number in range(1, LINES_MAX + 2):
        raw = stream.readline(LINE_MAX + 1)
        if not raw or (number > 1 and len(raw) <= LINE_MAX and not raw.endswith(b"\n")):
            return
        if len(raw) > LINE_MAX:
            raise TraceError(f"line {number}: longer than {LINE_MAX} bytes")
        if number > LINES_MAX:
            raise TraceError(f"more than {LINES_MAX} lines")
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            raise TraceError(f"line {number}: no JSON") from None
        yield number, value


def _at(number: int, parse: Any, value: Any) -> Any:
    try:
        return parse(value)
    except TraceError as error:
        raise TraceError(f"line {number}: {error}") from None


def _counters(kind: type[Any], value: Any, name: str) -> Any:
    if value is None:
        return None
    if kind is Psi and isinstance(value, dict):
        value = {key: item for key, item in value.items() if key != "full_us"}
    _only(value, kind, name)
    return kind(**{key: _count(item, f"{name}.{key}") for key, item in value.items()})


def _only(value: Any, kind: Any, name: str) -> None:
    """Raises TraceError unless `value` is an object with the fields of the dataclass."""
    if not isinstance(value, dict):
        raise TraceError(f"{name}: expected an object")
    known = {item.name: item.default is MISSING for item in fields(kind)}
    wrong = [f"no {key}" for key, needed in known.items() if needed and key not in value]
    wrong += [f"unknown {json.dumps(key[:40])}" for key in value if key not in known]
    if wrong:
        raise TraceError(f"{name}: {', '.join(islice(wrong, 3))}")


def _count(value: Any, name: str) -> int:
    # bool is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise TraceError(f"{name}: expected a whole number from 0")
    return value


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
