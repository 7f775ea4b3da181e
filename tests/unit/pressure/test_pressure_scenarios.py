"""The rule of pressure over time: for each world what level and cap it shows, and when."""

from __future__ import annotations

import pytest

from hostguard.core.settings import Settings
from tests.unit.simulated import World, between

SCENARIOS = [
    # why, the world, how long, what is shown: "at level cap"
    ("a healthy card at work", World(), 120, ""),
    ("a short spike is no stall", World(service=between(50, 50.2, 0.8)), 120, ""),
    ("a spike of 0.8 s every 5 s", World(service=lambda at: 0.8 if at % 5 < 0.05 else 0.012), 300, ""),
    (
        "a stall of 60 s: cut at once, again after each hold-off, and back step by step",
        World(stops=[(20, 80)]),
        300,
        "21.5 stalled 4, 36.5 stalled 2, 51.5 stalled 1, 84.5 calm 1, 104.5 calm 2, 124.5 calm 3, "
        "164.5 calm 4, 184.5 calm 5, 224.5 calm 6, 244.5 calm 7, 284.5 calm -",
    ),
    ("the same with a cap of 2", World(stops=[(20, 80)], cap=2), 300, "21.5 stalled 1, 84.5 calm 1, 104.5 calm -"),
    ("a cap at the floor cannot be cut", World(stops=[(20, 80)], cap=1), 300, "21.5 stalled -, 84.5 calm -"),
    (
        "a higher floor",
        World(stops=[(20, 80)], settings=Settings(floor=3)),
        240,
        "21.5 stalled 4, 36.5 stalled 3, 84.5 calm 3, 104.5 calm 4, 124.5 calm 5, 164.5 calm 6, 184.5 calm 7, "
        "224.5 calm -",
    ),
    (
        "slow drift: each halving comes when the load that is left is too much",
        World(service=lambda at: 0.012 * (1 + at / 20), think=0),
        900,
        "89 strained 4, 104 strained 2, 145 calm 2, 402 strained 1",
    ),
    (
        "an outside writer: down to the floor, and back after it",
        World(service=lambda _: 0.05, outside=between(20, 400, 20, 0)),
        800,
        "25 strained 4, 40 strained 2, 55 strained 1, 406 calm 1, 426 calm 2, 446 calm 3, 486 calm 4, 506 calm 5",
    ),
    (
        "flapping: 1 s slow, 1 s fine",
        World(psi=None, cap=2, think=0, service=lambda at: 0.8 if int(at) % 2 else 0.012),
        600,
        "",
    ),
    (
        "flapping, slow most of the time: strained, and it stays so",
        World(psi=None, cap=4, think=0, turns=1, service=lambda at: 0.8 if at % 10 < 7 else 0.012),
        300,
        "5 strained 1",
    ),
    (
        "the band between the thresholds: what was cut stays cut",
        World(turns=1, cap=2, think=0, service=lambda at: 0.8 if at < 10 else 0.3 if at < 300 else 0.012),
        400,
        "5 strained 1, 305 calm 1, 325 calm -",
    ),
    (
        "spikes of 1.2 s, each of which takes a second off the calm, make the way back longer",
        World(
            turns=1, cap=2, psi=None, think=0.5, stops=[(20, 24)], service=lambda at: 1.2 * (at > 30 and at % 8 < 0.6) + 0.01
        ),
        100,
        "21.5 stalled 1, 28.5 calm 1, 57.2 calm -",
    ),
    ("the band alone cuts nothing", World(turns=1, think=0, service=lambda _: 0.35), 300, ""),
    (
        "cold start on a stalled disk: the first look decides nothing, the next ones do",
        World(stops=[(0, 30)]),
        60,
        "1.5 stalled 4, 16.5 stalled 2, 34.5 calm 2",
    ),
    ("counters that start again", World(resets=(30, 60, 61, 62)), 120, ""),
    ("counters that start again while stalled", World(stops=[(20, 24)], resets=(22,), cap=2), 90, "21.5 stalled 1, 28.5 calm 1, 48.5 calm -"),
    ("the host sleeps for 8 hours", World(unseen=[(30, 28_830)], stops=[(30, 28_829)]), 28_900, ""),
    ("the guard is stopped for 30 s, and so is the disk", World(unseen=[(20, 50)], stops=[(19, 49)]), 100, ""),
    (
        "the disk is gone for good while its cap is cut: nothing to keep turns back for",
        World(stops=[(20, 24)], cap=2, gone=[(22, 999)]),
        120,
        "21.5 stalled 1, 47.5 calm 1, 67.5 calm -",
    ),
    (
        "a card that bears two: settles there",
        World(service=lambda _: 0.1, think=0),
        1200,
        "5 strained 4, 20 strained 2, 35 strained 1, 79 calm 1, 99 calm 2",
    ),
    (
        "a card that bears three: back to three soon, and to four ever later",
        World(service=lambda _: 0.13, think=0, settings=Settings(calm_await=0.45)),
        800,
        "5 strained 4, 20 strained 2, 35 strained 1, 65 calm 1, 85 calm 2, 105 calm 3, 145 calm 4, 151 strained 2, "
        "166 calm 2, 205 calm 3, 225 calm 4, 231 strained 2, 242 calm 2, 285 calm 3, 325 calm 4, 331 strained 2, "
        "343 calm 2, 385 calm 3, 465 calm 4, 471 strained 2, 482 calm 2, 525 calm 3, 685 calm 4, 691 strained 2, "
        "699 calm 2, 745 calm 3",
    ),
    (
        "a stall soon after the rise: the next rise waits twice as long, until it lasted as long",
        World(cap=2, stops=[(20, 24), (60, 64), (300, 304)]),
        400,
        "21.5 stalled 1, 28.5 calm 1, 48.5 calm -, 61.5 stalled 1, 68.5 calm 1, 108.5 calm -, 301.5 stalled 1, "
        "308.5 calm 1, 328.5 calm -",
    ),
    (
        "PSI is missing: the disk alone decides",
        World(psi=None, stops=[(20, 30)], cap=4),
        120,
        "21.5 stalled 2, 34.5 calm 2, 54.5 calm 3, 81.5 calm -",
    ),
    ("PSI lies: io_uring waiters that are idle", World(psi="always"), 300, ""),
    ("deep queues that nobody waits for", World(psi="never", service=lambda _: 0.2), 300, ""),
    (
        "no cap is configured: up to where it was cut, then none again",
        World(cap=None, turns=6, stops=[(20, 24)]),
        200,
        "21.5 stalled 3, 28.5 calm 3, 48.5 calm 4, 81.5 calm 5, 108.5 calm 6, 141.5 calm -",
    ),
    (
        "no cap is configured, and it is cut three times: up to where it was cut first",
        World(cap=None, turns=8, turn=30, stops=[(20, 80)]),
        400,
        "21.5 stalled 4, 36.5 stalled 2, 51.5 stalled 1, 84.5 calm 1, 104.5 calm 2, 124.5 calm 3, 164.5 calm 4, "
        "184.5 calm 5, 224.5 calm 6, 244.5 calm 7, 284.5 calm 8, 304.5 calm -",
    ),
    (
        "no cap is configured, and bursts of 24 come: what it learned stays",
        World(cap=None, turns=lambda at: 24 * (at % 600 < 100), turn=10, think=0, service=lambda _: 0.12),
        1500,
        "5 strained 12, 20 strained 6, 35 strained 3, 110 calm 3",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("world", "until", "expected"), [s[1:] for s in SCENARIOS], ids=[s[0] for s in SCENARIOS]
)
def test_scenario(world: World, until: float, expected: str) -> None:
    shown = world.run(until)[1:]
    wanted = [text.split() for text in expected.split(", ")] if expected else []
    assert [f"{level} {cap or '-'}" for _, level, cap in shown] == [
        f"{level} {cap}" for _, level, cap in wanted
    ]
    for (at, _, _), (wanted_at, _, _) in zip(shown, wanted, strict=True):
        assert abs(at - float(wanted_at)) < 1, f"{at} is not about {wanted_at}"
