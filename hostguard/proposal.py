"""The limits that `hostguard setup` proposes for a host. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hostguard.config import KeyPath, dotted
from hostguard.enforce import Kernel, Label, judge
from hostguard.model import Limits

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


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the proposed file, and why."""

    path: KeyPath
    value: int | str
    why: tuple[str, ...]


def propose(facts: Facts) -> tuple[Setting, ...]:
    """The settings that suit the host, in the order of the file."""
    slow = facts.slow or (facts.rate is not None and facts.rate < SLOW_RATE)
    if not slow:
        cap = max(FAST_CAP_MIN, facts.cpus)
        why = ("A turn for each processor: this disk is not the first thing to run out.",)
        return (Setting(("limits", "global_concurrent_turns"), cap, why),)
    settings = [
        Setting(
            ("limits", "global_concurrent_turns"),
            SLOW_CAP,
            ("More at once are done no sooner on such a disk, and the rest of the host waits for it.",),
        ),
        Setting(
            ("turn", "io_weight"),
            IO_WEIGHT,
            ("Half of what other units have.", *_inert(Limits(io_weight=IO_WEIGHT), facts.kernel)),
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


def file_lines(head: str, settings: tuple[Setting, ...], elsewhere: Mapping[KeyPath, str]) -> Iterator[str]:
    """The file as TOML, with reasons. What another file sets (`elsewhere`: key -> file) is left out."""
    yield f"# {head}"
    table: KeyPath = ()
    for setting in settings:
        if setting.path[:-1] != table:
            table = setting.path[:-1]
            yield from ("", f"[{dotted(table)}]")
        yield from (f"# {line}" for line in setting.why)
        value = f'"{setting.value}"' if isinstance(setting.value, str) else setting.value
        line = f"{setting.path[-1]} = {value}"
        if setting.path in elsewhere:
            yield f"# Left out, as {elsewhere[setting.path]} sets it:"
            line = f"#{line}"
        yield line


def _inert(limits: Limits, kernel: Kernel) -> Iterator[str]:
    """What keeps the kernel from applying the limit, if anything does."""
    for verdict in judge(limits, kernel, None):
        if verdict.label is not Label.ENFORCED:
            yield f"It is {verdict.label} here: {verdict.why}. See hostguard doctor."
