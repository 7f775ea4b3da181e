"""When a resident mind's turn is over, as far as no certain `done` says so. Pure.

How many `done` there are depends on the mind: one per model run, one for several messages, or none. So once
something was folded into a turn, a `done` ends it only if the session is quiet since. The numbers are from
real minds (Volute 0.39, claude-agent-sdk 0.2.141, a fake model that answers slowly, two cores shared with
other work), in percent of one CPU, of the session's `claude`:

  seconds after `done`          0 to 2     2 to 5
  the last one                  3 to 7     0.8 to 1.7
  another run follows           4 to 12    5.5 to 7.3 (while the model is silent; its hooks need 20 more)
  at rest, later                           0.6 to 1.5, and writes of 80 KB/s
"""

from __future__ import annotations

from dataclasses import dataclass

from hostguard.core.outcome import Ending

BUSY = 0.03  # of one CPU: a session at rest uses less, one that waits for its model more
BUSY_BYTES = 256 << 10  # read or written per second
LOUD = 0.2  # of one CPU, on a host so slow that a session at rest is above BUSY
SETTLE_S = 2.0  # after a `done` both look alike
QUIET_S = 3.0  # then this long below BUSY
LATE_S = 0.5  # that a busy guard looks late
DOUBT_S = 10.0  # if it was above BUSY since, or the `done` may be about the turn before
REST_S = 60.0  # if a mind that reported a `done` reported something since, which may be of the same run
SILENT_S = 300.0  # if it is never below BUSY, but not LOUD: at work it would report something in this time
GONE_S = 30.0  # a session's process may be followed by another
STRAGGLE_S = 1.0  # events are sent side by side: one of the same run may come after its `done`


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a turn; all times are seconds until now.

    `done`: since the mind reported a `done` that may not be the last; None: it did not, or reported work
    since. `idle`: since its processes were above BUSY, or it was posted to. `calm`: the same with LOUD.
    `heard`: since the mind reported anything. `deserted`: it had processes, and has none. `told`: a `done`
    came, whatever was reported since. `tool`: a call of a tool was reported last; that may wait for long.
    `late`: the `done` may be about the turn before. `unasked`: no message began the turn.
    """

    done: float | None
    idle: float
    calm: float
    heard: float
    deserted: bool = False
    told: bool = False
    tool: bool = False
    late: bool = False
    unasked: bool = False


def over(seen: Seen, idle_end: float) -> Ending | None:
    """How the turn ended; None while it may still be at work."""
    if seen.done is not None:
        clear = not seen.late and seen.idle >= seen.done - SETTLE_S - LATE_S
        settled = not clear or seen.done >= SETTLE_S + QUIET_S
        enough = seen.idle >= min(QUIET_S - LATE_S if clear else DOUBT_S, idle_end)
        if enough and settled:
            return Ending("done", "the mind reported that it is done, and has been quiet since")
    if seen.deserted and min(seen.idle, seen.heard) >= min(GONE_S, idle_end):
        return Ending("gone", "its processes are gone")
    at_rest = seen.idle >= min(REST_S, idle_end) or seen.calm >= min(SILENT_S, idle_end)
    if (seen.told or seen.unasked) and not seen.tool and at_rest and seen.heard >= min(REST_S, idle_end):
        if seen.told:
            return Ending("done", "the mind reported that it is done, and has been quiet since")
        return Ending("idle", "nothing of it has worked since")
    if seen.idle >= idle_end:
        return Ending("idle", f"the mind has been idle for {idle_end:g} s and sent no done")
    return None
