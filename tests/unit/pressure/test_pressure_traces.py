"""The rule of pressure on traces that were recorded on the slow card: level and cap over time.

tests/rig/traces.py made them; how many turns run is what it was, so that a cut has no effect on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hostguard.core.settings import Level
from hostguard.pressure import trace
from hostguard.pressure.sample import Sample

TRACES = Path(__file__).with_name("traces")
# From the start of the trace: "seconds level cap admit". In all of them something happens from the tenth second on.
EXPECTED = {
    "normal": "",
    "stop-60s": "11.5 stalled 2 1, 26.5 stalled 1 1, 74.7 calm 1 1, 94.8 calm 2 2",
    "merely-slow": "11.5 stalled 2 1, 31.6 stalled 1 1",
    "spikes": "21.7 stalled 1 1, 28.7 calm 1 1, 48.8 calm - -",
    "24-writers": "5.1 strained 12 12, 20.2 strained 6 6, 36 strained 3 3",
}


def load(name: str) -> tuple[trace.Head, list[Sample]]:
    with (TRACES / f"{name}.jsonl").open("rb") as file:
        head, samples = trace.read(file)
        return head, [*samples]


def shown(
    name: str, change: Callable[[Sample], Sample] = lambda sample: sample, every: int = 1
) -> Iterator[list[str]]:
    head, samples = load(name)
    before = ["calm", "-", "-"]
    for sample, state in trace.replay(map(change, samples[::every]), head.settings):
        now = [str(state.level), str(state.cap or "-"), str(state.admit or "-")]
        if now != before:
            yield [f"{sample.at - samples[0].at:.1f}", *now]
        before = now


def matches(found: list[list[str]], expected: str, within: float) -> None:
    wanted = [text.split() for text in expected.split(", ")] if expected else []
    assert [one[1:] for one in found] == [one[1:] for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert abs(float(one[0]) - float(other[0])) <= within, (one, other)


def test_each_trace_has_its_expectation() -> None:
    assert {file.stem for file in TRACES.glob("*.jsonl")} == {*EXPECTED}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_cap_over_time(name: str) -> None:
    matches([*shown(name)], EXPECTED[name], 0.2)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_disk_alone_decides_the_same_without_psi(name: str) -> None:
    matches([*shown(name, lambda sample: replace(sample, host=None, slice=None))], EXPECTED[name], 2)


@pytest.mark.parametrize("name", ["normal", "stop-60s", "spikes"])
def test_psi_alone_cannot_make_it_worse(name: str) -> None:
    """As with idle io_uring waiters: tasks seem to wait all the time."""

    def lying(sample: Sample) -> Sample:
        assert sample.host is not None
        return replace(sample, host=replace(sample.host, some_us=int(1e6 * sample.at)))

    matches([*shown(name, lying)], EXPECTED[name], 0.2)


@pytest.mark.parametrize("name", ["normal", "merely-slow", "24-writers"])
def test_looks_that_are_fewer_come_to_the_same_caps(name: str) -> None:
    """Ticks of a busy host come late."""
    expected = [text.split()[2] for text in EXPECTED[name].split(", ")] if EXPECTED[name] else []
    for every in (2, 3):
        caps = [one[2] for one in shown(name, every=every)]
        assert [cap for cap, before in zip(caps, ["", *caps], strict=False) if cap != before] == expected, (
            every
        )


def test_the_stall_was_seen_within_2_s_of_the_stop() -> None:
    """The stop was at 10 s after the first sample, or just before."""
    (at, level, *_), *_ = shown("stop-60s")
    assert level == Level.STALLED
    assert float(at) < 12
