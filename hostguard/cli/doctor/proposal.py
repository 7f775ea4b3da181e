"""The limits that `hostguard setup` proposes for a host. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hostguard.config.toml import KeyPath, dotted, toml_value
from hostguard.core.model import Limits
from hostguard.linux.limits import Kernel, Label, judge

# On a slow card the makespan of 24 writers is the same with 2 at once, and a bystander's write takes 0.17 s
# instead of 2.8 s (facts.md, "The incident, by hand").
SLOW_CAP = 2
FAST_CAP_MIN = 2
IO_WEIGHT = 50  # half of what every other unit has; above 100 systemd compresses (facts.md)
TURNS_SHARE = 0.75  # of what the disk takes, for all turns together: a quarter is always the host's
SLOW_RATE = 20_000_000  # bytes/s, synced: an A1 card is made for 10 MB/s (facts.md), the slowest SSD for 100
RATE_MIN = 100_000  # bytes/s; less, and the disk was stalled rather than measured


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a host. `slow`: its disk is a card, a USB or a turning disk.

    `rate`: bytes/s that the disk took in the measurement, each block synced; None: not measured.
    """

    kernel: Kernel
    slow: bool
    cpus: int
    rate: float | None = None

    @property
    def is_slow(self) -> bool:
        """By its kind, or as measured."""
        return self.slow or (self.rate is not None and self.rate < SLOW_RATE)


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the proposed file, and why."""

    path: KeyPath
    value: int | str
    why: tuple[str, ...]


def propose(facts: Facts) -> tuple[Setting, ...]:
    """The settings that suit the host, in the order of the file."""
    if not facts.is_slow:
        cap = max(FAST_CAP_MIN, facts.cpus)
        known = facts.kernel.disk.name is not None
        why = "this disk is not the first thing to run out" if known else "which disk they use is not known"
        return (Setting(("limits", "global_concurrent_turns"), cap, (f"A turn for each processor: {why}.",)),)
    settings = [
        Setting(
            ("limits", "global_concurrent_turns"),
            SLOW_CAP,
            ("More at once are done no sooner on such a disk, and the rest of the host waits for it.",),
        ),
    ]
    if facts.rate is not None and facts.rate >= RATE_MIN:
        share = int(facts.rate * TURNS_SHARE / SLOW_CAP / 1000)
        measured = f"The disk took {facts.rate / 1e6:.1f} MB/s in synced blocks: a quarter stays the host's,"
        settings.append(
            Setting(
                ("turn", "write_bandwidth"),
                f"{share}K",
                (
                    f"{measured} the rest is for {SLOW_CAP} turns.",
                    *_inert(Limits(write_bandwidth=share * 1000), facts.kernel),
                ),
            )
        )
    return tuple(settings)


def slice_weight(facts: Facts) -> tuple[int | None, str]:
    """The IOWeight of hostguard.slice, so of all turns beside the rest of the host, and why; None: why none.

    Not a key of the configuration: a turn's own io_weight is its share beside other turns of its mind.
    """
    kernel = facts.kernel
    if not facts.is_slow:
        return None, "the disk is fast"
    if "io" not in kernel.controllers:
        return None, "cgroup version 2 has no io controller here"
    if kernel.weighs is None:
        return (
            None,
            f"{kernel.disk.name} has the scheduler {kernel.scheduler or 'unknown'}, which weighs nothing",
        )
    return IO_WEIGHT, f"half of what another slice has, by {kernel.weighs}"


def file_lines(head: str, settings: tuple[Setting, ...], elsewhere: Mapping[KeyPath, str]) -> Iterator[str]:
    """The file as TOML, with reasons. What another file sets (`elsewhere`: key -> file) is left out."""
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
    """What keeps the kernel from applying the limit, if anything does."""
    for verdict in judge(limits, kernel, None):
        if verdict.label is not Label.ENFORCED:
            yield f"It is {verdict.label} here: {verdict.why}. See hostguard doctor."
