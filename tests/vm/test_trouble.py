"""A card that is full, turns read-only, or is pulled: the guard says so, starts nothing, and loses nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from machine import MOUNT, Machine

BIG = 60_000  # bytes of a message that does not fit beside what is left in the file
SMALL = 32 << 10  # bytes of room that are enough for most of what the guard writes
TOLD = "/run/told"
SAY = f"$HOSTGUARD_DELIVERY >>{TOLD}"
TURN = f"echo begin {SAY}; until [ -e /run/go ]; do sleep 0.2; done; echo end {SAY}"
CONFIG = f'[minds.ada]\nuser = "root"\ncommand = ["/bin/bash", "-c", "{TURN}"]\n'
SHOWN = "MainPID,NRestarts,ActiveState"


@pytest.fixture(scope="module", autouse=True)
def _guard(machine: Machine) -> None:
    begin(machine)


@pytest.fixture(autouse=True)
def _anew_after_a_failure(machine: Machine, request: pytest.FixtureRequest) -> Iterator[None]:
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        machine.power_cut()
        machine.new_card()
        machine.boot()
        begin(machine)


def begin(machine: Machine) -> None:
    machine.sh("mount -o remount,errors=remount-ro /card")
    machine.start_guard(CONFIG)


def told(machine: Machine, what: str) -> list[int]:
    """The rows whose turns said that they `begin` or `end`, in order."""
    lines = machine.sh(f"cat {TOLD} 2>/dev/null", check=False).splitlines()
    return [int(id_) for said, id_ in map(str.split, lines) if said == what]


def two(machine: Machine) -> tuple[int, int]:
    """A row in its turn, which goes on until `let_go`, and one behind it."""
    machine.sh("rm -f /run/go")
    first, second = machine.send("@ada"), machine.send("@ada")
    machine.wait_for(lambda: first in told(machine, "begin"))
    return first, second


def let_go(machine: Machine) -> None:
    machine.sh("touch /run/go")


def problems(machine: Machine) -> list[str]:
    return [problem["code"] for problem in machine.get("/v1/status")["problems"]]


def service(machine: Machine) -> str:
    return machine.sh(f"systemctl show hostguard -p {SHOWN}")


def nothing_is_stored_or_started(machine: Machine, first: int, second: int) -> None:
    """What people see while the card takes no writes; then the first turn ends."""
    before = service(machine)
    status, body = machine.ask("POST", "/v1/deliveries", {"to": "@ada", "content": "x" * BIG})
    assert status == 503
    assert "queue.db" in body["detail"]
    code, said = machine.status(f"hostguard send @ada $(printf %{BIG}s | tr ' ' x)")
    assert code == 1
    assert "queue.db" in said
    machine.wait_for(lambda: "no_writes" in problems(machine))
    assert "cannot be written to" in machine.sh("hostguard status")
    machine.wait_for(lambda: "cannot be written to" in machine.sh("systemctl status hostguard", check=False))

    let_go(machine)
    machine.wait_for(lambda: machine.get("/v1/status")["turns"] == 0)
    status, why = machine.ask("GET", f"/v1/deliveries/{second}/why")
    assert status == 503 or why["reason"] == "no_writes"  # newer kernels let nothing be read after an error
    time.sleep(3)
    assert told(machine, "end").count(first) == 1
    assert second not in told(machine, "begin"), "how it ends could not be stored"
    assert service(machine) == before


def all_is_well(machine: Machine, *rows: int) -> None:
    machine.done(*rows)
    machine.done(machine.send("@ada"))
    assert problems(machine) == []
    assert set(Counter(told(machine, "begin")).values()) == {1}, "a turn ran again"


def use_up(machine: Machine, left: int = 0) -> None:
    """Use the card up to its last block, also of those that are root's, but for some bytes."""
    machine.sh(
        "fallocate -l 600M /card/fill; for i in 1 2 3; do sync; dd if=/dev/zero bs=4k >>/card/more; done; "
        f"truncate -s -{left} /card/more; sync",
        check=False,
    )


def fill(machine: Machine, left: int = 0) -> None:
    """Use the card up until the guard cannot write."""

    def full() -> bool:
        use_up(machine, left)  # again: what was freed is there only after the journal's next commit
        machine.ask("POST", "/v1/deliveries", {"to": "@ada", "content": "x" * BIG})
        time.sleep(3)
        return problems(machine) == ["no_writes"]

    machine.wait_for(full)


def free(machine: Machine) -> None:
    machine.sh("rm /card/fill /card/more")


@pytest.mark.parametrize("left", [0, SMALL], ids=["to the last block", "but for small writes"])
def test_a_full_card(machine: Machine, left: int) -> None:
    first, second = two(machine)
    fill(machine, left)
    nothing_is_stored_or_started(machine, first, second)
    free(machine)
    all_is_well(machine, first, second)


def test_a_start_on_a_full_card(machine: Machine) -> None:
    """The guard waits for room, and what ended meanwhile is not run again."""
    first, second = two(machine)
    fill(machine)
    nothing_is_stored_or_started(machine, first, second)
    machine.systemctl("stop", "hostguard")  # which frees the room of the log
    use_up(machine)
    machine.systemctl("start", "hostguard")
    nothing_is_accepted(machine)
    assert second not in told(machine, "begin")
    free(machine)
    machine.wait_for(lambda: machine.status("hostguard status")[0] == 0)
    all_is_well(machine, first, second)


def nothing_is_accepted(machine: Machine) -> None:
    """What people see, whether or not there was room enough to open the queue."""
    code, said = machine.status(f"hostguard send @ada $(printf %{BIG}s | tr ' ' x)")
    assert code == 1
    assert "full" in said
    machine.wait_for(
        lambda: "full" in machine.sh("systemctl status hostguard; hostguard status", check=False)
    )
    shown = service(machine)
    assert "NRestarts=0" in shown
    assert "ActiveState=active" in shown


def read_only(machine: Machine) -> None:
    """As after an error on the card."""
    machine.sh("echo 1 >/sys/fs/ext4/$(basename $(findmnt -no SOURCE /card))/trigger_fs_error")


def pulled(machine: Machine) -> None:
    machine.remove_card()
    machine.wait_for(lambda: "mmcblk0" not in machine.sh("ls /dev"))


@pytest.mark.parametrize("happens", [read_only, pulled])
def test_a_card_that_takes_no_writes_until_it_is_mounted_anew(
    machine: Machine, happens: Callable[[Machine], Any]
) -> None:
    first, second = two(machine)
    happens(machine)
    nothing_is_stored_or_started(machine, first, second)

    machine.systemctl("stop", "hostguard")
    machine.sh("umount /var/lib/hostguard /card")
    if happens is pulled:
        machine.insert_card()
    machine.wait_for(lambda: "mmcblk0p1" in machine.sh("ls /dev"))
    machine.sh("e2fsck -p /dev/mmcblk0p1; [ $? -le 1 ]")
    machine.sh(MOUNT + "mount -o remount,errors=remount-ro /card\n")
    machine.systemctl("start", "hostguard")
    all_is_well(machine, first, second)
    assert "NRestarts=0" in service(machine)
