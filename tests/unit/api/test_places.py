"""Who gives up a place when all are taken, and who begins next."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from hostguard.api.places import AT_ONCE, FEW_PART, KEPT_PART, Fair, Place, Places, State

MOST = 64
FEW = MOST // FEW_PART
ADA, BOB, EVE, ROOT = 1001, 1002, 1003, 0


class Room:
    """Places, and clients by name: "ada-3" is ada's fourth."""

    def __init__(self, most: int = MOST) -> None:
        self.places: Places[str] = Places(most)
        self.by_name: dict[str, Place[str]] = {}

    def come(self, name: str, uid: int | None, *, first: bool = False) -> str | None:
        """Who gave its place up for it."""
        place = self.by_name[name] = Place(name, uid, first)
        loser = self.places.take(place)
        return None if loser is None else loser.holder

    def fill(self, name: str, uid: int | None, count: int, state: State = State.IDLE) -> None:
        for number in range(count):
            assert self.come(f"{name}-{number}", uid) is None
            self.be(f"{name}-{number}", state)

    def be(self, name: str, state: State) -> None:
        place = self.by_name[name]
        if state is not State.IDLE:
            self.places.busy(place)
        if state is State.KEPT:
            self.places.keep(place)


def test_nobody_gives_way_while_there_is_room() -> None:
    room = Room()
    room.fill("ada", ADA, MOST)
    assert len(room.places) == MOST == room.places.of(ADA)
    room.places.leave(room.by_name["ada-7"])
    room.places.leave(room.by_name["ada-7"])  # it gave way, and then its connection was lost
    assert room.come("bob", BOB) is None


def test_the_oldest_without_a_request_gives_way_not_the_newest() -> None:
    room = Room()
    room.fill("x", None, MOST)
    for number in range(3 * MOST):
        assert room.come(f"x-{MOST + number}", None) == f"x-{number}"
    room.be(f"x-{3 * MOST}", State.BUSY)
    assert room.come("new", None) == f"x-{3 * MOST + 1}"


def test_an_answered_one_counts_as_young_as_its_answer() -> None:
    room = Room()
    room.fill("x", None, MOST)
    room.be("x-0", State.BUSY)
    room.places.idle(room.by_name["x-0"])
    assert room.come("new", None) == "x-1"


@pytest.mark.parametrize("state", [State.IDLE, State.BUSY])
def test_who_has_many_gives_way_for_who_has_few(state: State) -> None:
    room = Room()
    room.fill("bob", BOB, FEW)
    room.fill("eve", EVE, MOST - FEW, state)
    for number in range(MOST - FEW - 1):
        assert room.come(f"ada-{number}", ADA) == f"eve-{number}"
        room.be(f"ada-{number}", state)
        if room.places.of(ADA) >= room.places.of(EVE) - 1:
            break
    assert room.places.of(BOB) == FEW


def test_a_fresh_one_of_few_does_not_give_way_for_many_requests_of_one() -> None:
    room = Room()
    assert room.come("ada", ADA) is None
    room.fill("eve", EVE, MOST - 1, State.BUSY)
    assert room.come("eve-more", EVE) == "eve-more"  # its own give way to nobody of its own
    assert room.come("bob", BOB) == "eve-0"


def test_idle_ones_go_before_the_work_of_somebody_who_has_more() -> None:
    room = Room()
    room.fill("ada", ADA, MOST // 2 + 5, State.BUSY)
    room.fill("eve", EVE, MOST // 2 - 5)
    assert room.come("bob", BOB) == "eve-0"


def test_users_of_one_connection_each() -> None:
    room = Room()
    for number in range(MOST):
        assert room.come(f"u-{number}", 5000 + number) is None
    assert room.come("ada", ADA) == "u-0"
    for number in range(MOST - 1):  # so many may come before its request is read
        assert room.come(f"v-{number}", 9000 + number) != "ada"


def test_users_of_one_request_each() -> None:
    room = Room()
    for number in range(MOST):
        assert room.come(f"u-{number}", 5000 + number) is None
        room.be(f"u-{number}", State.BUSY)
    assert room.come("ada", ADA) == "u-0"


def test_a_request_with_a_token_keeps_its_place_and_half_of_all_can() -> None:
    room = Room()
    room.fill("eve", EVE, MOST, State.KEPT)
    kept = [name for name, place in room.by_name.items() if place.state is State.KEPT]
    assert len(kept) == MOST // KEPT_PART
    for number in range(3 * MOST):
        gone = room.come(f"u-{number}", 5000 + number)
        assert gone is not None
        assert gone not in kept
        assert gone != f"u-{number}"
    room.places.idle(room.by_name[kept[0]])
    assert room.by_name[kept[0]].state is State.IDLE


def test_everybody_gives_way_for_root_and_nobody_makes_root_give_way() -> None:
    room = Room()
    room.fill("eve", EVE, MOST, State.BUSY)
    for number in range(MOST):
        assert room.come(f"root-{number}", ROOT, first=True) == f"eve-{number}"
        room.be(f"root-{number}", State.BUSY)
    assert room.come("eve", EVE) == "eve"
    assert room.come("more", ROOT, first=True) == "more"  # all are at work, and root's
    room.places.idle(room.by_name["root-3"])
    assert room.come("more", ROOT, first=True) == "root-3"


def test_root_among_users_of_one_request_each() -> None:
    room = Room()
    assert room.come("root-0", ROOT, first=True) is None
    room.be("root-0", State.BUSY)
    for number in range(MOST - 1):
        assert room.come(f"u-{number}", 5000 + number) is None
        room.be(f"u-{number}", State.BUSY)
    assert room.come("root-1", ROOT, first=True) == "u-0"


def test_owners_are_asked_for_once_and_only_when_places_are_scarce() -> None:
    room = Room()
    room.fill("x", None, MOST // 2 - 1)
    assert not room.places.scarce
    assert room.come("last", None) is None
    assert room.places.scarce
    asked = room.places.unknown()
    assert len(asked) == MOST // 2
    for place in asked:
        room.places.know(place, EVE if place.holder != "last" else ADA)
    assert room.places.unknown() == []
    room.fill("bob", BOB, MOST // 2)
    assert (room.places.of(EVE), room.places.of(ADA), room.places.of(None)) == (MOST // 2 - 1, 1, 0)
    assert room.come("new", BOB) == "x-0"  # known by now, and as old as before


def test_what_was_asked_about_and_left_is_no_trouble() -> None:
    room = Room()
    assert room.come("x", None) is None
    [place] = room.places.unknown()
    room.places.leave(place)
    room.places.busy(place)
    room.places.keep(place)
    room.places.idle(place)
    assert len(room.places) == 0 == room.places.of(None)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_places_are_counted_right(seed: int) -> None:
    chance, room = random.Random(seed), Room(8)
    inside: set[str] = set()
    for number in range(400):
        uid = chance.choice([None, ROOT, ADA, BOB, EVE])
        kept = {place.holder for place in room.places if place.state is State.KEPT}
        loser = room.come(str(number), uid, first=uid == ROOT)
        inside |= {str(number)}
        inside -= {str(loser)}
        for _ in range(2):
            name = chance.choice([*room.by_name])
            act = chance.choice([room.places.busy, room.places.keep, room.places.idle, room.places.leave])
            act(room.by_name[name])
            inside -= {name} if act == room.places.leave else set()
        assert loser not in kept
        assert {place.holder for place in room.places} == inside
        assert len(inside) <= 8
        counts = Counter(room.by_name[name].owner for name in inside)
        assert all(room.places.of(owner) == counts[owner] for owner in (None, ROOT, ADA, BOB, EVE))


# -- in turn


def begun(*asked: tuple[str, int | None], gone: tuple[str, ...] = ()) -> list[list[str]]:
    """The names that begin in each turn of the event loop."""

    async def main() -> list[list[str]]:
        fair, turns = Fair(), [list[str]()]

        async def one(name: str, owner: int | None) -> None:
            await fair.wait(owner)
            turns[-1].append(name)

        tasks = {name: asyncio.create_task(one(name, owner)) for name, owner in asked}
        while not all(task.done() for task in tasks.values()):
            await asyncio.sleep(0)
            for name in gone:
                tasks[name].cancel()
            turns.append([])
        assert fair._waiting == {}
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not fair._soon, "it does nothing while there is nothing to do"
        return [turn for turn in turns if turn]

    return asyncio.run(main())


def test_few_begin_at_once() -> None:
    names = [(f"eve-{number}", EVE) for number in range(AT_ONCE)]
    assert begun(*names) == [[name for name, _ in names]]


def test_more_begin_in_order_so_many_in_a_turn() -> None:
    names = [(f"eve-{number}", EVE) for number in range(3 * AT_ONCE + 1)]
    turns = begun(*names)
    assert [name for turn in turns for name in turn] == [name for name, _ in names]
    assert max(map(len, turns)) == AT_ONCE


def test_each_owner_has_its_turn() -> None:
    eves = [(f"eve-{number}", EVE) for number in range(50 * AT_ONCE)]
    bobs = [(f"bob-{number}", BOB) for number in range(20 * AT_ONCE)]
    turns = begun(*eves, *bobs, ("ada", ADA), ("x", None))
    assert {"ada", "x"} <= {name for turn in turns[:3] for name in turn}
    assert {name.partition("-")[0] for name in turns[2]} == {"eve", "bob"}


def test_who_left_takes_no_turn() -> None:
    eves = [(f"eve-{number}", EVE) for number in range(50 * AT_ONCE)]
    turns = begun(*eves, ("last", EVE), gone=tuple(name for name, _ in eves[AT_ONCE:]))
    assert "last" in turns[1]
