"""Traces: written and read again, and refused with the line that is wrong."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostguard.core.settings import Settings
from hostguard.pressure import trace
from hostguard.pressure.sample import Disk, Psi, Sample

COUNT = st.integers(0, 2**63)
DISK = st.none() | st.builds(Disk, *[COUNT] * 7, discards=COUNT, flushes=COUNT, flush_ms=COUNT)
PSI = st.none() | st.builds(Psi, COUNT)
SAMPLES = st.lists(st.builds(Sample, st.floats(0, 1e9), COUNT, st.none() | COUNT, DISK, PSI, PSI), max_size=5)
SETTINGS = st.builds(
    Settings, floor=st.integers(1, 9), hold_off=st.floats(1, 3600), tighten=st.none() | st.just(7)
)
HEAD = trace.Head("0.1", "mmcblk0", "6.12", Settings())
DISK_NOW = Disk(1, 2, 3, 4, 5, 6, 7)
SAMPLE = Sample(1.0, 2, None, DISK_NOW, Psi(1), None)


def load(raw: bytes) -> tuple[trace.Head, list[Sample]]:
    head, samples = trace.read(io.BytesIO(raw))
    return head, [*samples]


@given(SAMPLES, SETTINGS, st.none() | st.text(max_size=20))
def test_what_is_written_is_read(samples: list[Sample], settings: Settings, device: str | None) -> None:
    samples = sorted(samples, key=lambda sample: sample.at)
    head = trace.Head("0.1", device, "6.12", settings)
    raw = b"".join([trace.head_line(head), *map(trace.sample_line, samples)])
    assert load(raw) == (head, samples)
    assert max(map(len, raw.splitlines())) < trace.LINE_MAX


def lines(**changes: object) -> bytes:
    return trace.head_line(HEAD) + json.dumps({**asdict(SAMPLE), **changes}).encode() + b"\n"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "line 1: a trace begins with"),
        (b"\n", "line 1: no JSON"),
        (b"\xff\n", "line 1: no JSON"),
        (b"[" * 3000 + b"\n", "line 1: no JSON"),
        (b"[1]\n", "line 1: a trace begins with"),
        (b'{"at": 1}\n', "line 1: a trace begins with"),
        (b'{"hostguard_trace": 2}\n', "line 1: this hostguard reads traces of format 1 only"),
        (b'{"hostguard_trace": 1}\n', "line 1: the head: no version, no device, no kernel"),
        (trace.head_line(HEAD).replace(b'"6.12"', b"6.12"), "line 1: kernel: expected a string"),
        (trace.head_line(HEAD).replace(b'"floor":1', b'"floor":0'), "line 1: floor: allowed: a whole number from 1"),
        (trace.head_line(HEAD).replace(b'"floor"', b'"flour"'), "line 1: flour is not a key of [pressure]: floor, "),
        (trace.head_line(HEAD).replace(b'await":0.2', b'await":0.7'), "line 1: calm_await 0.7 s is not below"),
        (trace.head_line(HEAD) + b"{}\n", "line 2: a sample: no at, no live, no cap"),
        (trace.head_line(HEAD) + b"7\n", "line 2: a sample: expected an object"),
        (lines(at="x"), "line 2: at: expected a number of seconds"),
        (lines(at=True), "line 2: at: expected a number of seconds"),
        (lines(at=float("nan")), "line 2: at: expected a number of seconds"),
        (lines(at=10**400), "line 2: at: expected a number of seconds"),
        (lines(live=-1), "line 2: live: expected a whole number from 0"),
        (lines(live=1.5), "line 2: live: expected a whole number from 0"),
        (lines(cap=True), "line 2: cap: expected a whole number from 0"),
        (lines(disk=[]), "line 2: disk: expected an object"),
        (lines(disk={}), "line 2: disk: no reads, no writes, no read_ms"),
        (lines(host={"some_us": 1, "full_us": 2, "\x1b[2J": 3}), 'line 2: host: unknown "\\u001b[2J"'),
        (lines(slice={"some_us": 2**64}), "line 2: slice.some_us: expected a whole number"),
        (lines(more=1), 'line 2: a sample: unknown "more"'),
        (lines() + trace.sample_line(replace(SAMPLE, at=0.5)), "line 3: at is before that of the line above"),
        (lines() + b" " * trace.LINE_MAX + b"\n", "line 3: longer than 4096 bytes"),
        (lines() + b" " * 10_000, "line 3: longer than 4096 bytes"),
    ],
)  # fmt: skip
def test_an_invalid_trace_is_refused_with_the_line(raw: bytes, text: str) -> None:
    with pytest.raises(trace.TraceError) as refused:
        load(raw)
    assert text in str(refused.value)


def test_a_trace_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "LINES_MAX", 3)
    assert len(load(lines() + trace.sample_line(SAMPLE))[1]) == 2
    with pytest.raises(trace.TraceError, match="more than 3 lines"):
        load(lines() + 2 * trace.sample_line(SAMPLE))


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_last_line_that_was_cut_off_is_dropped(cut: int) -> None:
    """The power failed, or the disk was full."""
    raw = lines() + trace.sample_line(SAMPLE)
    assert load(raw[:-cut])[1] == [SAMPLE]


def test_a_trace_of_an_older_kernel_has_no_discards() -> None:
    """What was recorded before a counter was known is read."""
    disk = {
        name: value
        for name, value in asdict(DISK_NOW).items()
        if name not in ("discards", "flushes", "flush_ms")
    }
    raw = lines(disk=disk)
    assert load(raw)[1] == [SAMPLE]


@given(st.binary(max_size=300) | st.text(max_size=99).map(str.encode))
def test_nothing_but_a_trace_error_comes_of_any_bytes(raw: bytes) -> None:
    for whole in (raw, trace.head_line(HEAD) + raw, lines() + raw):
        try:
            load(whole)
        except trace.TraceError as error:
            assert str(error).startswith("line ")


def test_an_earlier_trace_is_read_without_what_nothing_uses():
    _, samples = trace.read(io.BytesIO(lines(host={"some_us": 1, "full_us": 2**70}, slice=None)))
    assert [(sample.host, sample.slice) for sample in samples] == [(Psi(1), None)]
