"""The state of the guard in a few lines, the worst first, for `status`, `top` and the report. Pure."""

from __future__ import annotations

from hostguard.core.reasons import BY_NAME
from hostguard.core.text import clock, duration, size
from hostguard.telemetry import problems
from hostguard.telemetry.problems import BAD, INFO, WARN, Line

TYPE_CHECKING = False  # typing's own costs its import, which `hostguard status` can do without
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TROUBLE_MS = 3_600_000  # past trouble is shown for an hour

# States of a status that the command line makes without the daemon's.
AWAY = {"not_running": "is not running", "standby": "is on standby: nothing is accepted or started"}
QUIET = ("idle", "asleep")  # states of a mind
WEAK = {"inert": "not enforced", "partial": "enforced only in part"}


def news(status: Any, now: int) -> list[Line]:
    """The lines for the answer of GET /v1/status; `now` is its date, ms since the epoch."""
    if status["state"] in AWAY:
        return [(BAD, "daemon", AWAY[status["state"]]), (INFO, "running", turns(status["turns"]))]
    lines = [
        *problems.lines(status["problems"]),
        *_disk(status, now),
        *_acted(status, now),
        *_paused(status),
        *_weak(status),
        (INFO, "waiting", _waiting(status)),
        (INFO, "running", running(status)),
        *_written(status),
        (INFO, "daemon", _daemon(status)),
    ]
    return sorted(lines, key=lambda line: -line[0])


def reason_text(reason: str, mind: str) -> str:
    """Why deliveries of a mind wait, in a few words; a reason of a later version is its own."""
    return BY_NAME[reason].words.format(mind=mind) if reason in BY_NAME else reason


def hold_text(hold: Any, mind: str) -> str:
    """Why a delivery of a mind waits and behind what, in words; `hold` as in the API, None if it does not."""
    if not hold:
        return ""
    reason, blocker = str(hold["reason"]), hold["blocker"]
    text = reason_text(reason, mind)
    if reason in ("mind_down", "mind_broken"):
        return f"{text}: {blocker}"
    if reason not in BY_NAME or "{behind}" not in BY_NAME[reason].sentence or not blocker:
        return text
    # A unit contains no space; a cap of 0 comes as words.
    return f"{text}: {blocker}" if " " in blocker else f"{text}, behind {_turn(blocker)}"


def _turn(unit: str) -> str:
    """A turn's scope as "turn ID", which ends its name (see units.py); another unit unchanged."""
    ours, _, turn = unit.removesuffix(".scope").rpartition("-")
    if ours.startswith("hostguard-outside-"):
        return f"outside-{turn}, what a turn left outside"
    return f"turn {turn}" if ours.startswith("hostguard-turn-") else unit


def turn_state(turn: Any) -> str:
    """The state of a live turn in one word."""
    return "stopping" if turn.get("stopping") else "frozen" if turn.get("frozen") else str(turn["state"])


def waits(mind: Any) -> str:
    """How long the first delivery of a mind has waited; "" if none waits."""
    hold = mind.get("hold")
    return duration(hold["waited_ms"] / 1000) if hold else ""


def busy_minds(status: Any) -> list[Any]:
    """The minds that work, wait, or are in trouble, the longest waits first."""
    busy = [mind for mind in status["minds"] if mind["live"] or mind["held"] or not _fine(mind)]
    # By the beginning of the wait: its length is measured at a slightly different moment for each mind.
    return sorted(busy, key=lambda mind: (not mind["held"], (mind.get("hold") or {}).get("since", 0)))


def _fine(mind: Any) -> bool:
    return mind["state"] in QUIET and not mind.get("failures") and not mind.get("dead")


def written(status: Any) -> dict[str, int]:
    """Bytes written by mind, by turns that live or ended since the guard's start; most first."""
    by_mind = {mind["name"]: mind.get("write_bytes") or 0 for mind in status.get("minds", [])}
    for turn in status["live"]:
        by_mind[turn["mind"]] = by_mind.get(turn["mind"], 0) + (turn.get("write_bytes") or 0)
    return dict(sorted(by_mind.items(), key=lambda item: -item[1]))


def running(status: Any) -> str:
    """How many turns run and how many may, by the cap and by pressure."""
    live, cap, effective = status["turns"], status["cap"], status["effective_cap"]
    text = "no cap" if cap is None else f"cap {cap}"
    if effective not in (None, cap):
        text = f"only {effective} at a time now ({text})"
    # Lowering a cap ends no turn: for a while more run than may.
    finish = ", which may finish; " if effective is not None and live > effective else ", "
    return f"{turns(live)}{finish}{text}"


def turns(count: int) -> str:
    """A number of turns in words."""
    return f"{count or 'no'} {'turn' if count == 1 else 'turns'}"


def _disk(status: Any, now: int) -> Iterator[Line]:
    pressure = status.get("pressure")
    if pressure is None:
        return
    level = pressure["level"]
    if level == "calm" and any(problem["code"] == "no_disk" for problem in status["problems"]):
        return  # nobody knows
    if (status.get("device") or {}).get("path") == "none":
        yield INFO, "disk", f"not watched: {status['device']['reason']}"
        return
    lasts = "" if level == "calm" else f" for {_ago(pressure['since'], now)}"
    yield {"calm": INFO, "strained": WARN}.get(level, BAD), "disk", f"{level}{lasts}: {pressure['evidence']}"


def _acted(status: Any, now: int) -> Iterator[Line]:
    """What the guard does against a slow disk, or did within TROUBLE_MS."""
    pressure = status.get("pressure") or {}
    if pressure.get("frozen"):
        yield WARN, "guard", f"keeps these frozen for a moment: {', '.join(pressure['frozen'])}"
    if pressure.get("tightened"):
        yield WARN, "guard", "limits the writes of all turns"
    episode = _last_trouble(pressure.get("changes", []))
    cap, effective, step = status["cap"], status["effective_cap"], pressure.get("next_step_in_s")
    if effective != cap:
        before = "all" if cap is None else cap
        since = f", for {_ago(episode[0]['at'], now)}" if episode else ""
        more = "more once it is calm" if step is None else f"1 more in {duration(step)} if calm"
        yield WARN, "guard", f"has allowed {turns(effective)} at a time, not {before}{since}; {more}"
    elif episode and pressure["level"] == "calm" and now - episode[0]["at"] < TROUBLE_MS:
        begun, lasted = _ago(episode[0]["at"], now), _ago(episode[0]["at"], episode[-1]["at"])
        caps = [one["cap"] for one in episode if one["cap"] is not None]
        did = f"allowed {turns(min(caps))} at a time" if caps else "changed nothing"
        yield INFO, "guard", f"{did} {begun} ago, for {lasted}: the disk was {_worst(episode)}"


def _last_trouble(changes: list[Any]) -> list[Any]:
    """The changes of the last trouble: until it was calm and nothing was limited again, or until now."""
    last: list[Any] = []
    over = True
    for change in changes:
        fine = change["level"] == "calm" and change["cap"] is None
        if not fine or not over:
            last = [change] if over else [*last, change]
        over = fine
    return last


def _worst(episode: list[Any]) -> str:
    levels = [one["level"] for one in episode]
    return next((level for level in ("stalled", "strained") if level in levels), "not calm")


def _paused(status: Any) -> Iterator[Line]:
    if status["state"] == "paused":
        yield WARN, "paused", "all minds: hostguard resume"
    elif status.get("paused_minds"):
        yield WARN, "paused", ", ".join(status["paused_minds"])


def _weak(status: Any) -> Iterator[Line]:
    """Configured limits that the kernel does not apply, or only in part."""
    weak = [
        f"{words}: {', '.join(names)}"
        for label, words in WEAK.items()
        if (names := [item["limit"] for item in status.get("enforcement", []) if item["label"] == label])
    ]
    if weak:
        yield WARN, "limits", f"{'; '.join(weak)} (hostguard doctor)"


def _waiting(status: Any) -> str:
    later = f", {status['due_later']} due later" if status["due_later"] else ""
    if not status["held"]:
        return f"nothing{later}"
    minds = [mind for mind in status.get("minds", []) if mind.get("hold")]
    if not minds:
        return f"{status['held']}{later}"
    first = max(minds, key=lambda mind: mind["hold"]["waited_ms"])
    longest = f"{first['name']} for {waits(first)}: {hold_text(first['hold'], first['name'])}"
    return f"{status['held']}{later}; the longest {longest}"


def _written(status: Any) -> Iterator[Line]:
    most = [(name, count) for name, count in written(status).items() if count]
    if most:
        named = ", ".join(f"{name} {size(count)}" for name, count in most[:3])
        yield INFO, "written", f"most by {named}, since the daemon's start"


def _daemon(status: Any) -> str:
    device = status.get("device") or {}
    disk = f"disk {device['node']}" if device.get("node") else f"no disk: {device.get('reason')}"
    return f"runs since {clock(status['started_at'])}, version {status['version']}, {disk}"


def _ago(since: int, now: int) -> str:
    return duration(max(0, now - since) / 1000)
