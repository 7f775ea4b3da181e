"""The limits that `hostguard setup` proposes for a host. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hostguard.config.toml import KeyPath, dotted, toml_value
from hostguard.core.model import Limits
from hostguard.linux.limits import Kernel, Label, judge

# On a slow card 24 writers finish as soon with 2 at a time, and a bystander's write takes 0.17 s instead
# of 2.8 s (facts.md, "The incident, by hand").
SLOW_CAP = 2
FAST_CAP_MIN = 2
IO_WEIGHT = 50  # half of every other unit's; systemd rescales values above 100 (facts.md)
TURNS_SHARE = 0.75  # of the measured rate, for all turns together: a quarter is left to the host
SLOW_RATE = 20_000_000  # bytes/s, synced: an A1 card is rated for 10 MB/s (facts.md), the slowest SSD for 100
RATE_MIN = 100_000  # bytes/s; below this the disk stalled during the measurement


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a host. `slow`: its disk is an SD card, a USB disk or a hard disk.

    `rate`: bytes/s written in the measurement, each block synced; None: not measured.
    """

    kernel: Kernel
    slow: bool
    cpus: int
    rate: float | None = None

    @property
    def is_slow(self) -> bool:
        """Whether the disk is slow by its kind or as measured."""
        return self.slow or (self.rate is not None and self.rate < SLOW_RATE)


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the proposed file, and why."""

    path: KeyPath
    value: int | str
    why: tuple[str, ...]


def propose(facts: Facts) -> tuple[Setting, ...]:
    """The settings for the host, in the order of the file."""
    if not facts.is_slow:
        cap = max(FAST_CAP_MIN, facts.cpus)
        known = facts.kernel.disk.name is not None
        why = "this disk is not the bottleneck" if known else "the disk that they use is unknown"
        return (Setting(("limits", "global_concurrent_turns"), cap, (f"One turn per processor: {why}.",)),)
    why = "On such a disk, more turns at a time finish no sooner, and the rest of the host has to wait."
    cap_setting = Setting(("limits", "global_concurrent_turns"), SLOW_CAP, (why,))
    if facts.rate is None or facts.rate < RATE_MIN:
        return (cap_setting,)
    share = int(facts.rate * TURNS_SHARE / SLOW_CAP / 1000)
    measured = f"The disk wrote {facts.rate / 1e6:.1f} MB/s in synced blocks"
    why = f"{measured}: a quarter is left to the host, the rest is shared by {SLOW_CAP} turns."
    inert = _inert(Limits(write_bandwidth=share * 1000), facts.kernel)
    return cap_setting, Setting(("turn", "write_bandwidth"), f"{share}K", (why, *inert))


def slice_weight(facts: Facts) -> tuple[int | None, str]:
    """The IOWeight of hostguard.slice, so of all turns together, and the reason for it or for None.

    It is not in the configuration: a turn's io_weight is its share relative to other turns of its mind.
    """
    kernel = facts.kernel
    if not facts.is_slow:
        return None, "the disk is fast"
    if "io" not in kernel.controllers:
        return None, "cgroup version 2 has no io controller on this host"
    if kernel.weighs is None:
        name, scheduler = kernel.disk.name, kernel.scheduler or "unknown"
        return None, f"the scheduler of {name}, {scheduler}, does not support weights"
    return IO_WEIGHT, f"half of the weight of another slice, applied by {kernel.weighs}"


def file_lines(head: str, settings: tuple[Setting, ...], elsewhere: Mapping[KeyPath, str]) -> Iterator[str]:
    """The file as TOML, with reasons. Keys set in another file (`elsewhere`: key -> file) become comments."""
    yield f"# {head}"
    table: KeyPath = ()
    for setting in settings:
        if setting.path[:-1] != table:
            table = setting.path[:-1]
            yield from ("", f"[{dotted(table)}]")
        yield from (f"# {line}" for line in setting.why)
        line = f"{setting.path[-1]} = {toml_value(setting.value)}"
        if setting.path in elsewhere:
            yield f"# Left out, as {elsewhere[setting.path]} sets it:"
            line = f"#{line}"
        yield line


def _inert(limits: Limits, kernel: Kernel) -> Iterator[str]:
    for verdict in judge(limits, kernel, None):
        if verdict.label is not Label.ENFORCED:
            yield f"On this host it is {verdict.label}: {verdict.why}. See hostguard doctor."
