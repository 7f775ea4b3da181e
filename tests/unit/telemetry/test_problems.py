"""What is wrong, in one order: as the status lists it, and as lines."""

from __future__ import annotations

import pytest
from statuses import mind

from hostguard.telemetry.problems import BAD, CODES, SEVERITIES, lines, listed, of_minds


def test_they_are_in_one_order_the_worst_first() -> None:
    found = listed(dict.fromkeys(reversed(CODES), "because"))
    assert [problem["code"] for problem in found] == sorted(CODES, key=lambda code: -CODES[code][0])
    assert [severity for severity, _, _ in lines(found)] == sorted(
        (severity for severity, _, _ in lines(found)), reverse=True
    )
    assert {problem["severity"] for problem in found} == {"problem", "warning"}


def test_what_is_not_wrong_is_not_there() -> None:
    assert listed({"no_disk": None, "no_writes": "", "mind_down": "ada: refused"}) == [
        {"code": "mind_down", "severity": "warning", "text": "ada: refused"}
    ]


def test_a_code_that_this_version_does_not_know_is_a_problem() -> None:
    assert lines(listed({"of_later": "x", "no_writes": "y"})) == [
        (BAD, "problem", "y"),
        (BAD, "problem", "x"),
    ]


def test_the_subject_of_each_line_fits_its_column() -> None:
    assert max(len(about) for _, about in CODES.values()) <= 8
    assert all(SEVERITIES[severity] for severity, _ in CODES.values())


def streak(count: int, reason: str = "exit status 3") -> dict[str, object]:
    return {"in_a_row": count, "turn": "7", "reason": reason, "at": 1}


@pytest.mark.parametrize(
    ("minds", "code", "text"),
    [
        ([mind("a", failures=streak(1))], "mind_failing", None),
        (
            [mind("a", failures=streak(2)), mind("b", failures=streak(6, "died of SIGSEGV"))],
            "mind_failing",
            "b 6 times in a row, at last: died of SIGSEGV; a 2 times in a row, at last: exit status 3"
            " (hostguard queue --state failed)",
        ),
        ([mind("a", down="refused"), mind("b")], "mind_down", "a: refused"),
        (
            [mind("a", down="its port 9 is taken by user eve", port_taken=True), mind("b")],
            "port_taken",
            "a: its port 9 is taken by user eve; its messages are kept; if that is the mind's server, correct its"
            " unit or user",
        ),
        ([mind("a", broken="no user"), mind("b")], "mind_broken", "a: no user; held until that is there"),
        (
            [mind(f"m{n}", down="refused") for n in range(9)],
            "mind_down",
            "m0: refused; m1: refused; m2: refused and 6 more (hostguard minds)",
        ),
        ([mind("a", dead=2), mind("b"), mind("c", dead=1)], "dead_letters", "2 of a; 1 of c (hostguard dead list)"),
        ([mind("a", frozen=["a.scope", "ours.scope"])], "mind_frozen", "a: systemctl thaw a.scope"),
        ([mind("a", frozen=["ours.scope"])], "mind_frozen", None),
    ],
)  # fmt: skip
def test_minds_in_trouble(minds: list[object], code: str, text: str | None) -> None:
    found = of_minds(minds, ["ours.scope"])
    assert found[code] == text
    assert not any(other for name, other in found.items() if name != code)
