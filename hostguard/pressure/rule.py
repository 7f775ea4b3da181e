"""The rule of pressure: from counters of the disk and the kernel to how many turns may run. Pure.

`step` makes the next State from the Sample of a tick:

- Stalled: requests are in flight, and none completed for `stall_after`. Strained: both requests take
  long and tasks wait for I/O, for `strained_after` in total; fine seconds count against slow ones. Without
  PSI the disk alone decides. PSI alone never does: it is wrong both ways (facts.md).
- A cut halves what runs, or what may run if that is less, as TCP halves its window (RFC 5681, 3.1):
  immediately on a stall, and repeatedly while strained. The next cut comes after `hold_off` at the earliest.
- After each `calm_window` the cap rises by one, up to the configured cap. Without a configured cap, calm
  counts only while as many turns run as may; beyond the number at the first cut there is no limit again.
  Slow seconds count against calm ones; those between slow and calm count for neither.
- A rise that led to a cut is repeated after twice as long a calm, and so on: a merely slow card settles.
- A sample after a gap, or with counters that ran backwards or are missing, decides nothing and restarts all
  clocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hostguard.core.settings import Level, Settings
from hostguard.pressure.sample import Sample, ran_backwards, share, took

TICK = 1.0  # seconds between samples while turns run, or it is not calm
FAST_TICK = 0.25  # while the disk is busy, to see a stall soon after stall_after
SPAN = 0.9  # seconds: the shortest span that is judged, a tick that came early
GAP = 5.0  # seconds between samples, if ticks were lost: the guard was stopped, or the host slept
MINUTE = 60.0
CHANGES = 3  # of the cap in a minute, at most ("fewer than 4", vellum-assistant#32521)
PROBES_MAX = 4  # doublings of calm_window: 20 s become at most 5 min 20 s
SPIKE_SHOWN = 300.0  # seconds for which a slow request is reported
_ROUNDING = 1e-6  # seconds
_SLOW, _BETWEEN, _FINE = 1, 0, -1  # the pace of a span: how its seconds count for strain


@dataclass(frozen=True, slots=True)
class State:
    """The rule's memory; State() is the cold start. Others use only the fields above `admit`."""

    level: Level = Level.CALM
    since: float = 0.0  # Sample.at of the last change of the level
    cap: int | None = None  # that pressure allows, as shown; None: no limit
    evidence: str = "no sample yet"  # one line for people
    next_step_at: float | None = None  # Sample.at when the cap rises if it stays calm; None: it will not
    wait: float = math.inf  # seconds until the next sample; inf: none until a turn starts
    floor: int = 1

    @property
    def admit(self) -> int | None:
        """The cap for the gate: while nothing completes, nothing starts beyond the floor."""
        return self.floor if self.level is Level.STALLED else self.cap

    last: Sample | None = None
    seen_at: float = 0.0  # Sample.at when a disk was last seen
    base: Sample | None = None  # the beginning of the span that is judged next
    quiet_since: float | None = None  # requests are in flight, and none has completed since then
    stalled_at: float = -math.inf  # of the last stall
    pace: int | None = None  # of the span that ended with `last`, if one did
    strain: float = 0.0  # seconds of slow spans less those of fine ones, from 0 to strained_after
    calm: float = 0.0  # seconds of fine spans less those of slow ones, since the last change
    spike: tuple[float, float] | None = None  # Sample.at, and the seconds that a request took or has waited
    changes: tuple[float, ...] = ()  # Sample.at of the cap's changes within a minute
    cut_at: float = -math.inf
    top: int = 0  # how many ran, or could, at the first cut since there was no limit
    failed: int | None = None  # how many ran, or could, at the last cut
    failures: int = 0  # how often a rise to `failed` led to a cut
    risen: bool = False  # since the last cut


def step(state: State, sample: Sample, settings: Settings) -> State:
    """The state after `sample`; its `wait` says when the next sample is due. Never raises."""
    state = _bounded(state, sample, settings)
    if doubt := _doubt(state, sample, settings):
        state = _again(state, sample, doubt)
    else:
        state = _changed(_levelled(_judged(state, sample, settings), sample, settings), sample, settings)
    rise, wait = _next_step(state, sample, settings), _wait(state, sample, settings)
    return replace(state, last=sample, next_step_at=rise, wait=wait)


def _bounded(state: State, sample: Sample, settings: Settings) -> State:
    """The cap within the floor and the configured cap, which may have changed; the latter wins."""
    floor = settings.floor if sample.cap is None else min(settings.floor, sample.cap)
    cap = None if state.cap is None else max(state.cap, floor)
    if cap is not None and sample.cap is not None and cap >= sample.cap:
        cap = None
    return replace(state, cap=cap, floor=floor)


def _doubt(state: State, sample: Sample, settings: Settings) -> str | None:
    """Why the sample cannot be compared with the last one; None if it can."""
    last = state.last
    if last is None:
        return "first sample"
    pause = sample.at - last.at
    if not 0 < pause <= GAP:
        return f"idle, last sample {pause:.0f} s ago" if pause > 0 else "the clock ran backwards"
    if sample.disk is None:
        # Without a disk for long there is no reason to hold turns.
        blind = last.disk is None and sample.at - state.seen_at > settings.calm_window
        return None if blind else "there is no disk to watch"
    if last.disk is None:
        return "the disk is back"
    if ran_backwards(last.disk, sample.disk):
        return "the disk's counters ran backwards"
    return None


def _again(state: State, sample: Sample, doubt: str) -> State:
    """Restart all clocks at this sample; level and cap stay."""
    first = state.last is None
    since = sample.at if first else state.since
    seen_at = sample.at if first or sample.disk else state.seen_at
    quiet_since = sample.at if sample.disk is not None and sample.disk.in_flight > 0 else None
    stalled_at = sample.at if state.level is Level.STALLED else state.stalled_at
    state = replace(state, since=since, seen_at=seen_at, quiet_since=quiet_since, stalled_at=stalled_at)
    return replace(state, evidence=doubt, base=sample, pace=None, strain=0.0, calm=0.0)


def _judged(state: State, sample: Sample, settings: Settings) -> State:
    """Since when nothing completes, and the pace of the span, if one ends here."""
    last, base, disk = state.last, state.base, sample.disk
    if disk is None or last is None or last.disk is None or base is None or base.disk is None:
        return _paced(state, sample, settings, _FINE, "there is no disk to watch")
    if not disk.in_flight:
        quiet = None
    elif disk.completed > last.disk.completed:
        quiet = sample.at
    elif state.quiet_since is None:
        # The same requests are in flight. Bounded, as busy_ms of old kernels stops or jumps (facts.md).
        busy = (disk.busy_ms - last.disk.busy_ms) / 1000
        quiet = sample.at - min(busy, sample.at - last.at)
    else:
        quiet = state.quiet_since
    age = 0.0 if quiet is None else sample.at - quiet
    state = replace(state, seen_at=sample.at, pace=None, quiet_since=quiet)
    state = _noted(state, sample, settings, age)
    if age >= settings.stall_after - _ROUNDING:
        what = "request in flight, not" if disk.in_flight == 1 else "requests in flight, none"
        evidence = f"{disk.in_flight} {what} completed for {age:.1f} s"
        return replace(state, stalled_at=sample.at, base=sample, strain=0.0, calm=0.0, evidence=evidence)

    done = disk.completed - base.disk.completed
    if sample.at - base.at < SPAN or (disk.in_flight and not done):
        return state
    if not done:
        return _paced(state, sample, settings, _FINE, "no reads or writes")
    seconds, waiting = took(base.disk, disk), share(base, sample)
    evidence = f"requests take {_time(seconds)}"
    if waiting is not None:
        evidence += f", tasks wait for I/O {waiting:.0f} % of the time"
    if seconds >= settings.strained_await and (waiting is None or waiting >= settings.strained_psi):
        return _paced(_noted(state, sample, settings, seconds), sample, settings, _SLOW, evidence)
    pace = _FINE if seconds < settings.calm_await else _BETWEEN
    return _paced(state, sample, settings, pace, evidence)


def _noted(state: State, sample: Sample, settings: Settings, seconds: float) -> State:
    """A single slow request is reported but changes nothing; the slowest recent one is kept."""
    old = state.spike if state.spike and sample.at - state.spike[0] < SPIKE_SHOWN else None
    if seconds >= max(settings.strained_await, old[1] if old else 0.0):
        old = (sample.at, seconds)
    return state if old is state.spike else replace(state, spike=old)


def _paced(state: State, sample: Sample, settings: Settings, pace: int, evidence: str) -> State:
    """A span ended: its seconds count for strain or for calm, and against the other."""
    assert state.base is not None
    span = sample.at - state.base.at
    slow = span * pace
    if state.spike and pace != _SLOW:
        at, seconds = state.spike
        evidence += f"; slowest recent request {_time(seconds)}, {sample.at - at:.0f} s ago"
    # Without a configured cap only what runs calmly can prove a higher one.
    unused = sample.cap is None and state.cap is not None and sample.live < state.cap
    strain = min(max(state.strain + slow, 0.0), settings.strained_after)
    calm = state.calm if unused and slow < 0 else max(state.calm - slow, 0.0)
    return replace(state, base=sample, pace=pace, evidence=evidence, strain=strain, calm=calm)


def _levelled(state: State, sample: Sample, settings: Settings) -> State:
    level, ago = state.level, sample.at - state.stalled_at
    if not ago:
        level = Level.STALLED
    elif level is Level.STALLED and ago < (settings.hold_off if state.strain else settings.strained_after):
        state = replace(state, evidence=f"nothing completed until {ago:.0f} s ago")
    elif state.strain >= settings.strained_after - _ROUNDING:
        level = Level.STRAINED
    elif state.strain == 0:
        level = Level.CALM
    elif level is Level.STALLED:
        level = Level.STRAINED
    calm = state.calm if level is Level.CALM and state.level is Level.CALM else 0.0
    return replace(state, level=level, since=state.since if level is state.level else sample.at, calm=calm)


def _changed(state: State, sample: Sample, settings: Settings) -> State:
    recent = tuple(at for at in state.changes if at > sample.at - MINUTE)
    state = replace(state, changes=recent)
    if state.stalled_at == sample.at or (state.level is Level.STRAINED and state.pace == _SLOW):
        held_off = sample.at - state.cut_at < settings.hold_off
        return state if held_off or len(recent) >= CHANGES else _cut(state, sample)
    if state.pace != _FINE or state.calm < _window(state, settings) - _ROUNDING:
        return state
    if state.cap is None:
        return replace(state, failed=None)  # as many ran as at the last cut, calmly
    # One change a minute is reserved for a stall, whose cut is never late.
    return state if len(recent) >= CHANGES - 1 else _raised(state, sample)


def _cut(state: State, sample: Sample) -> State:
    allowed = sample.cap if state.cap is None else state.cap
    ran = sample.live if allowed is None else min(allowed, sample.live)
    cap = max(ran // 2, state.floor)
    if not ran or (allowed is not None and cap >= allowed):
        return state  # nothing of ours runs, or the cap is at the floor
    top = ran if state.cap is None else state.top
    failures = 0 if state.failed is None else min(state.failures + state.risen, PROBES_MAX)
    state = replace(state, cap=cap, calm=0.0, changes=(*state.changes, sample.at), cut_at=sample.at)
    return replace(state, top=top, failed=ran, failures=failures, risen=False)


def _raised(state: State, sample: Sample) -> State:
    assert state.cap is not None
    cap = state.cap + 1
    full = cap > state.top if sample.cap is None else cap >= sample.cap
    failed = None if state.failed is not None and state.cap >= state.failed else state.failed
    changes = (*state.changes, sample.at)
    return replace(state, cap=None if full else cap, calm=0.0, changes=changes, failed=failed, risen=True)


def _window(state: State, settings: Settings) -> float:
    """Seconds of calm before the cap rises."""
    tried = state.failed is not None and (state.cap is None or state.cap + 1 >= state.failed)
    return settings.calm_window * 2.0 ** (state.failures if tried else 0)


def _next_step(state: State, sample: Sample, settings: Settings) -> float | None:
    if state.cap is None or state.level is not Level.CALM or (sample.cap is None and sample.live < state.cap):
        return None
    counted = sample.at if state.base is None else state.base.at
    calm = counted + _window(state, settings) - state.calm
    rest = state.changes[1 - CHANGES] + MINUTE if len(state.changes) >= CHANGES - 1 else 0.0
    return max(calm, rest)


def _wait(state: State, sample: Sample, settings: Settings) -> float:
    """Seconds until the next sample. `state.last` is still the previous one."""
    if not sample.live and state.level is Level.CALM and (state.cap is None or sample.cap is None):
        return math.inf  # nothing runs, and nothing would change
    if state.level is Level.STALLED or sample.disk is None:
        return TICK
    if state.quiet_since is not None:
        left = state.quiet_since + settings.stall_after - sample.at
        return min(max(left, FAST_TICK / 5), FAST_TICK)
    before = state.last and state.last.disk
    return FAST_TICK if before and sample.disk.completed > before.completed else TICK


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.9995 else f"{seconds * 1000:.3g} ms"
