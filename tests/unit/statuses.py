"""What GET /v1/status answers, for tests of what is made of it on a screen."""

from __future__ import annotations

from typing import Any

from hostguard.telemetry.problems import listed

NOW = 1_798_761_600_000  # 2027-01-01T00:00Z, in ms
MIB = 1 << 20


def mind(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "state": "idle", "sessions": [], "sleep": "awake", "asleep_until": None, "cap": 1,
        "live": 0, "queued": 0, "batching": 0, "gated": 0, "held": 0, "hold": None, "oldest_wait_ms": None,
        "failures": None, "dead": 0, "down": None, "port_taken": False, "broken": None, "frozen": [], "outside": [],
        "write_bytes": 0,
        "command": ["/bin/true"], "user": "u", "url": None, "unit": None, **more,
    }  # fmt: skip


def turn(id_: str | None, name: str, age_s: float, **more: Any) -> dict[str, Any]:
    return {
        "id": id_, "unit": f"hostguard-turn-{name}-{id_}.scope", "mind": name, "session": "main",
        "delivery": id_ and int(id_), "started_at": NOW - round(age_s * 1000), "ran_ms": round(age_s * 1000),
        "held_ms": 0, "state": "running",
        "stopping": False, "frozen": False, "description": "", "cpu_ms": 1500, "read_bytes": 4096, "write_bytes": 6 * MIB,
        "counted": "scope", **more,
    }  # fmt: skip


def hold(row: int, since_s: float, reason: str, blocker: str = "") -> dict[str, Any]:
    ms = round(since_s * 1000)
    return {
        "delivery": row, "session": "main", "reason": reason, "blocker": blocker, "since": NOW - ms, "waited_ms": ms,
        "measured": True,
    }  # fmt: skip


def pressure(level: str = "calm", **more: Any) -> dict[str, Any]:
    return {
        "level": level, "since": NOW - 3_600_000, "evidence": "requests take 6 ms", "cap": None, "admit": None,
        "next_step_in_s": None, "looked_ms": 400, "in_flight": 0, "await_ms": 6.0, "busy_percent": 12,
        "frozen": [], "tightened": False, "changes": [], **more,
    }  # fmt: skip


def change(ago_s: float, level: str, cap: int | None) -> dict[str, Any]:
    return {"at": NOW - round(ago_s * 1000), "level": level, "cap": cap, "evidence": "because"}


def status(**more: Any) -> dict[str, Any]:
    """All is well, and nothing happens."""
    return {
        "version": "0.2.0", "pid": 812, "at": NOW, "started_at": NOW - 7_200_000, "state": "running", "turns": 0, "cap": 2,
        "effective_cap": 2, "pressure": pressure(), "queued": 0, "held": 0, "due_later": 0, "paused_minds": [],
        "minds": [mind("ada"), mind("bob"), mind("carol")], "live": [],
        "device": {"path": "auto", "node": "/dev/mmcblk0", "name": "mmcblk0", "reason": "the root is on it"},
        "problems": [], "enforcement": [], **more,
    }  # fmt: skip


def problem(code: str, text: str = "because") -> dict[str, str]:
    return listed({code: text})[0]


def stalled() -> dict[str, Any]:
    """The card stands still: two turns run, three minds wait, the guard has halved the cap."""
    behind = "hostguard-turn-ada-17.scope"
    return status(
        turns=2,
        effective_cap=1,
        held=13,
        queued=14,
        due_later=1,
        pressure=pressure(
            "stalled", since=NOW - 12_000, evidence="3 requests in flight, none completed for 13.5 s", cap=1,
            admit=1, in_flight=3, await_ms=0.0, busy_percent=100, changes=[change(12, "stalled", 1)],
        ),
        minds=[
            mind("ada", state="in_turn", live=1, held=1, hold=hold(30, 3, "session_busy", behind), write_bytes=40 * MIB,
                 oldest_wait_ms=3000),
            mind("bob", state="in_turn", live=1),
            mind("carol", held=11, hold=hold(19, 24, "pressure", behind), oldest_wait_ms=24_000),
            mind("dave", state="paused", held=1, hold=hold(22, 7200, "mind_paused", "dave is paused")),
            mind("erin"),
            mind("frank", state="asleep", sleep="asleep"),
        ],
        live=[turn("17", "ada", 65), turn("18", "bob", 24, session="review", cpu_ms=None, write_bytes=None)],
        paused_minds=["dave"],
        enforcement=[{"limit": "io_weight", "label": "inert", "why": "no controller"}],
    )  # fmt: skip
