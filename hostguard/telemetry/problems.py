"""Everything that can be wrong, in the one order in which `status`, `top` and others show it. Pure.

The daemon lists what is wrong in its status, by code; the doctor, the report and the metrics take it from
there. A new problem needs a line in CODES here, and a text from the part of the daemon that notices it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs its import, which `hostguard status` can do without
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

INFO, WARN, BAD = range(3)
Line = tuple[int, str, str]  # severity, subject, and a sentence that is not `safe` yet
SEVERITIES = ("", "warning", "problem")  # as in the API and the doctor: it works, but worse; it does not work
UNKNOWN = (BAD, "problem")  # of a code of a later version

# The severity of each code, and the subject of its line (at most 8 columns). The worst come first, and those
# of one severity in this order.
CODES = {
    "no_systemd": (BAD, "systemd"),
    "no_writes": (BAD, "problem"),
    "write_failed": (BAD, "problem"),
    "mind_broken": (BAD, "broken"),
    "schedule_broken": (BAD, "broken"),
    "port_taken": (BAD, "taken"),
    "queue_damaged": (BAD, "problem"),
    "reload_failed": (BAD, "problem"),
    "minds_endpoint": (BAD, "problem"),
    "web_endpoint": (BAD, "problem"),
    "volute_front": (BAD, "problem"),
    "no_disk": (WARN, "disk"),
    "not_durable": (WARN, "queue"),
    "mind_frozen": (WARN, "frozen"),
    "mind_outside": (WARN, "outside"),
    "mind_down": (WARN, "down"),
    "mind_failing": (WARN, "failing"),
    "dead_letters": (WARN, "dead"),
}
IN_A_ROW = 2  # failures of a mind that are a problem: one alone may be an accident
SHOWN = 3  # minds that are named
HOW = "its messages are kept; if that is the mind's server, correct its unit or user"


def listed(found: Mapping[str, str | None]) -> list[dict[str, str]]:
    """The problems of a status, in order. `found` has their texts by code; None: there is no such problem."""
    shown = [(code, text) for code in {**CODES, **found} if (text := found.get(code))]
    shown.sort(key=lambda one: -CODES.get(one[0], UNKNOWN)[0])
    return [
        {"code": code, "severity": SEVERITIES[CODES.get(code, UNKNOWN)[0]], "text": text}
        for code, text in shown
    ]


def of_minds(minds: list[Any], by_guard: Collection[str]) -> dict[str, str | None]:
    """The problems of minds, as a status has these; `by_guard` are units that the guard itself has frozen."""
    frozen = [
        (mind["name"], units)
        for mind in minds
        if (units := [unit for unit in mind["frozen"] if unit not in by_guard])
    ]
    failing = [mind for mind in minds if mind["failures"] and mind["failures"]["in_a_row"] >= IN_A_ROW]
    failing.sort(key=lambda mind: -mind["failures"]["in_a_row"])
    broken = [f"{mind['name']}: {mind['broken']}" for mind in minds if mind["broken"]]
    return {
        "mind_broken": _named(broken, "minds", then="held until that is there"),
        "mind_frozen": _named(
            [f"{name}: systemctl thaw {' '.join(units)}" for name, units in frozen], "minds"
        ),
        "mind_outside": _named(
            [f"{mind['name']}: {text}" for mind in minds for text in mind["outside"]], "turns"
        ),
        "port_taken": _named(
            [f"{mind['name']}: {mind['down']}" for mind in minds if mind["port_taken"]], "minds", then=HOW
        ),
        "mind_down": _named(
            [f"{mind['name']}: {mind['down']}" for mind in minds if mind["down"] and not mind["port_taken"]],
            "minds",
        ),
        "mind_failing": _named(
            [
                f"{mind['name']} {mind['failures']['in_a_row']} times in a row, at last:"
                f" {mind['failures']['reason']}"
                for mind in failing
            ],
            "queue --state failed",
            always=True,
        ),
        "dead_letters": _named(
            [f"{mind['dead']} of {mind['name']}" for mind in minds if mind["dead"]], "dead list", always=True
        ),
    }


def of_schedules(held: Mapping[str, str]) -> str | None:
    """The problem of schedules that are held, from the reason of each; None if there are none."""
    texts = [f"schedule {name}: {why}" for name, why in held.items()]
    return _named(texts, "schedule list", then="held until that is fixed")


def _named(texts: list[str], verb: str, *, always: bool = False, then: str = "") -> str | None:
    """The first SHOWN texts, how many more there are, and the verb that shows all; None of no texts."""
    if not texts:
        return None
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    see = f" (hostguard {verb})" if more or always else ""
    return f"{'; '.join(texts[:SHOWN])}{more}{f'; {then}' if then else ''}{see}"


def lines(problems: list[Any]) -> list[Line]:
    """The lines for the problems of a status, in its order."""
    found = []
    for problem in problems:
        severity, about = CODES.get(problem["code"], UNKNOWN)
        found.append((severity, about, problem["text"]))
    return found
