"""hostguard setup on the card, whose kernel weighs: what it writes, and what then binds."""

from __future__ import annotations

import re

from machine import Machine


def test_what_setup_proposes_holds(machine: Machine) -> None:
    machine.start_guard('[minds.ada]\ncommand = ["/bin/sleep", "600"]\nuser = "root"\n')
    machine.sh("modprobe bfq; echo bfq >/sys/block/mmcblk0/queue/scheduler")
    said = machine.sh("hostguard setup --yes", seconds=200)
    assert "disk: /dev/mmcblk0" in said
    measured = re.search(r"measured: ([0-9.]+) MB/s", said)
    assert measured is not None, said
    rate = float(measured[1])
    assert "systemctl set-property hostguard.slice IOWeight=50" in said
    share = re.search(r'write_bandwidth = "([0-9]+)K"', said)
    assert share is not None, said
    assert abs(int(share[1]) * 1000 - rate * 1e6 * 0.75 / 2) < 0.05 * rate * 1e6

    machine.sh("hostguard reload")
    machine.send("@ada")
    turn = "hostguard.slice/hostguard-ada.slice/hostguard-turn-ada-1.scope"
    machine.sh(f"for i in {{1..300}}; do [ -e /sys/fs/cgroup/{turn}/io.max ] && break; sleep 0.1; done")
    assert f"wbps={int(share[1]) * 1000} " in machine.sh(f"cat /sys/fs/cgroup/{turn}/io.max")
    assert machine.sh("cat /sys/fs/cgroup/hostguard.slice/io.bfq.weight").split() == ["default", "50"]
    assert "cap 2" in machine.sh("hostguard status")
