"""The forms in which a mind says `done`, as scripts that run on a real mind and on the rig's stand-in alike.

A trace has one entry for each message, "post 1", and one for each `done`, with the messages of which the work was
over by then, "done 1 2": the order and the number of events, without their times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import pytest
from fakemodel import line
from guard import wait_for
from guarded import LONG_S
from minds import OneMind
from posted import Posted
from ran import Ran
from real_minds import RealMind, RealMinds, post_to

SHORT_S = 0.5
LAST = 9
CALL_S = 3.0  # so long that a message comes in the middle, on a busy machine too


class Subject(Protocol):
    """A mind that a script works with."""

    def post(self, number: int, work: float, *, tool: bool = False, interrupt: bool = False) -> None:
        """A message, the so-many-th, with seconds of work, in a model call or in a Bash tool."""

    def wait_working(self, number: int) -> None:
        """Wait until the work on that message has begun."""

    def wait_over(self, dones: int) -> None:
        """Wait until the mind has said `done` so often."""

    def trace(self) -> list[str]:
        """See above."""


Script = Callable[[Subject], None]


def play(mind: Subject, script: Script, expected: list[str]) -> list[str]:
    """Run a script, to as many `done` as expected; the trace. A last message shows that no more follow."""
    dones = sum(entry.startswith("done") for entry in expected)
    script(mind)
    mind.wait_over(dones)
    mind.post(LAST, 0)
    mind.wait_over(dones + 1)
    *trace, posted, done = mind.trace()
    assert (posted, done.split()[-1]) == (f"post {LAST}", str(LAST)), mind.trace()
    return trace


# -- the scripts


def alone(mind: Subject) -> None:
    """One message after the other."""
    mind.post(1, SHORT_S)
    mind.wait_over(1)
    mind.post(2, SHORT_S)


def in_a_model_call(mind: Subject) -> None:
    """A message comes while the model thinks."""
    mind.post(1, CALL_S)
    mind.wait_working(1)
    mind.post(2, SHORT_S)


def in_a_tool_call(mind: Subject) -> None:
    """A message comes while a tool runs."""
    mind.post(1, CALL_S, tool=True)
    mind.wait_working(1)
    mind.post(2, SHORT_S)


def three_in_a_model_call(mind: Subject) -> None:
    """Two messages come while the model thinks."""
    mind.post(1, CALL_S)
    mind.wait_working(1)
    mind.post(2, SHORT_S)
    mind.post(3, SHORT_S)


def interrupted(mind: Subject) -> None:
    """A message asks to interrupt a model call: claude does so, pi takes it after the call."""
    mind.post(1, CALL_S)
    mind.wait_working(1)
    mind.post(2, SHORT_S, interrupt=True)


# -- the minds


class RealSubject:
    """A real mind, without a guard."""

    def __init__(self, minds: RealMinds, mind: RealMind) -> None:
        self._mind, self._model = mind, minds.model
        self._posted, self._ran = minds.posted, Ran()
        self._posts: dict[int, float] = {}
        self._lines: dict[str, int] = {}  # whose is the line

    def post(self, number: int, work: float, *, tool: bool = False, interrupt: bool = False) -> None:
        bash = self._ran.command(str(number), work) if tool else ""
        steer = line(work=0 if tool else work, bash=bash)
        self._lines[steer.split()[0].removeprefix("!!id=")] = number
        self._posts[number] = time.time()
        self._mind.post(content=f"work\n{steer}", session="main", interrupt=interrupt)

    def wait_working(self, number: int) -> None:
        def begun() -> bool:
            calls = [call for call in self._model.calls if number in self._numbers(call.lines)]
            return bool(calls) and (not calls[0].bash or bool(self._ran.runs()))

        wait_for(begun, LONG_S)

    def _numbers(self, lines: list[str]) -> list[int]:
        return [self._lines[one] for one in lines if one in self._lines]

    def wait_over(self, dones: int) -> None:
        wait_for(lambda: len(self._dones()) >= dones, LONG_S)

    def _dones(self) -> list[float]:
        return [event.at for event in self._posted.events(self._mind.name, "done")]

    def trace(self) -> list[str]:
        ends = [
            (call.ended, number)
            for call in self._model.calls
            if call.ended is not None
            for number in self._numbers(call.lines)
        ]
        return _trace(self._posts, ends, self._dones())


class StandIn:
    """The rig's stand-in for a mind, without a guard."""

    def __init__(self, mind: OneMind, posted: Posted) -> None:
        self._mind, self._posted = mind, posted
        self._posts: dict[int, float] = {}
        self._works: dict[int, tuple[float, bool]] = {}  # seconds, and whether in a tool

    def post(self, number: int, work: float, *, tool: bool = False, interrupt: bool = False) -> None:
        self._posts[number], self._works[number] = time.time(), (work, tool)
        content = f"work !work={0 if tool else work} tool={work if tool else 0}"
        post_to(self._mind.port, content=content, session="main", interrupt=interrupt)

    def _log(self, what: str) -> dict[int, float]:
        """When it happened to each message. The mind counts them."""
        numbers = list(self._posts)
        return {numbers[one["id"] - 1]: one["at"] for one in self._mind.log(what)}

    def wait_working(self, number: int) -> None:
        what = "tool" if self._works[number][1] else "begin"
        wait_for(lambda: number in self._log(what), LONG_S)

    def wait_over(self, dones: int) -> None:
        wait_for(lambda: len(self._dones()) >= dones, LONG_S)

    def _dones(self) -> list[float]:
        return [event.at for event in self._posted.events(self._mind.name, "done")]

    def trace(self) -> list[str]:
        begins = self._log("begin")
        whole = [
            (at, number)
            for number, at in self._log("end").items()
            if at - begins[number] >= self._works[number][0]
        ]
        return _trace(self._posts, whole, self._dones())


def _trace(posts: dict[int, float], ends: list[tuple[float, int]], dones: list[float]) -> list[str]:
    over = [
        " ".join(["done", *(str(n) for n in sorted({n for at, n in ends if at <= done}))]) for done in dones
    ]
    entries = [*((at, f"post {n}") for n, at in posts.items()), *zip(dones, over, strict=True)]
    return [entry for _, entry in sorted(entries)]


# What the real minds do: see volute.md. An interrupted message's work never ends.
CLAUDE: list[tuple[Script, list[str]]] = [
    (alone, ["post 1", "done 1", "post 2", "done 1 2"]),
    (in_a_model_call, ["post 1", "post 2", "done 1", "done 1 2"]),
    (in_a_tool_call, ["post 1", "post 2", "done 1 2"]),
    (three_in_a_model_call, ["post 1", "post 2", "post 3", "done 1", "done 1 2 3"]),
    (interrupted, ["post 1", "post 2", "done", "done 2"]),
]
PI: list[tuple[Script, list[str]]] = [
    (alone, ["post 1", "done 1", "post 2", "done 1 2"]),
    (in_a_model_call, ["post 1", "post 2", "done 1 2"]),
    (in_a_tool_call, ["post 1", "post 2", "done 1 2"]),
    (three_in_a_model_call, ["post 1", "post 2", "post 3", "done 1 2 3"]),
    (interrupted, ["post 1", "post 2", "done 1 2"]),
]


FORMS = [
    pytest.param(template, *form, id=f"{template}-{form[0].__name__}")
    for template, forms in (("claude", CLAUDE), ("pi", PI))
    for form in forms
]
