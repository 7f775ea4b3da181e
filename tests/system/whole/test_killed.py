"""The daemon is killed with SIGKILL at random moments under load, and nothing is lost, leaked or doubled."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

from guard import DISK, Guard, drop_in, wait_for
from guarded import overlaps
from searches import sized

KILLS = sized(100)
MINDS = [f"m{i}" for i in range(5)]
CAP = 2

TURN = """#!/bin/bash
# One line each, by one write: phase, row, turn, cgroup, time, time held.
cgroup=$(grep ^0:: /proc/self/cgroup)
echo "start $HOSTGUARD_DELIVERY $HOSTGUARD_TURN $cgroup $EPOCHREALTIME $HOSTGUARD_MIND" >>{log}
sleep 0.0$((RANDOM % 8))
echo "end $HOSTGUARD_DELIVERY $HOSTGUARD_TURN $cgroup $EPOCHREALTIME $HOSTGUARD_MIND" >>{log}
"""


class Connection(http.client.HTTPConnection):
    """HTTP over the guard's socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect("/run/hostguard/hostguard.sock")


def ask(method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    connection = Connection("hostguard")
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


class Sender(threading.Thread):
    """Sends to one mind until told to stop, and keeps each id it was told. A lost answer: the same key again."""

    def __init__(self, mind: str) -> None:
        super().__init__()
        self.mind = mind
        self.told: list[int] = []
        self.stopped = threading.Event()
        self.wrong: list[object] = []

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            body = {"to": self.mind, "content": number, "key": f"{self.mind}-{number}"}
            while True:
                try:
                    status, answer = ask("POST", "/v1/deliveries", body)
                except (OSError, http.client.HTTPException):
                    if self.stopped.is_set():
                        return
                    time.sleep(0.01)
                    continue
                if status in (200, 201):
                    self.told.append(answer["deliveries"][0]["id"])
                elif status != 503:
                    self.wrong.append((status, answer))
                break
            time.sleep(random.uniform(0, 0.5))


def kill(guard: Guard) -> None:
    """SIGKILL to the daemon, once there is one."""
    wait_for(lambda: guard.pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(guard.pid, signal.SIGKILL)


def count(senders: list[Sender]) -> int:
    """How many messages were accepted."""
    return sum(len(sender.told) for sender in senders)


def test_killed_at_random_moments(guard: Guard) -> None:
    log, turn = DISK / "turns.log", DISK / "turn"
    log.unlink(missing_ok=True)
    turn.write_text(TURN.format(log=log))
    turn.chmod(0o755)
    minds = "".join(f'[minds.{m}]\ncommand = ["{turn}"]\nuser = "root"\n' for m in MINDS)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    random.seed(seed)
    senders = [Sender(mind) for mind in MINDS]
    with drop_in("Restart=always\nRestartSec=10ms"):
        try:
            began = time.monotonic()
            guard.start(f"[limits]\nglobal_concurrent_turns = {CAP}\n{minds}")
            start_s = time.monotonic() - began
            for sender in senders:
                sender.start()
            for number in range(KILLS):
                # In the middle of a start, or well into the work, however long a start takes here.
                if number % 2:
                    time.sleep(random.uniform(0.05, 1.5 * start_s))
                else:
                    before = count(senders)
                    wait_for(lambda before=before: count(senders) > before, 120)  # type: ignore[misc]
                    time.sleep(random.uniform(0, 0.5))
                kill(guard)
            guard.wait_ready()
        finally:
            for sender in senders:
                sender.stopped.set()
            for sender in senders:
                if sender.is_alive():
                    sender.join()

    assert [sender.wrong for sender in senders] == [[]] * len(senders)
    wait_for(lambda: not ask("GET", "/v1/deliveries")[1]["deliveries"], 120)
    wait_for(lambda: not ask("GET", "/v1/turns")[1]["turns"], 10)
    told = {id_ for sender in senders for id_ in sender.told}
    starts: dict[int, list[tuple[float, str, str]]] = {}
    ends: dict[int, float] = {}
    for line in log.read_text().splitlines():
        phase, row, turn_id, cgroup, at, mind = line.split()
        scope = f"0::/hostguard.slice/hostguard-{mind}.slice/hostguard-turn-{mind}-{turn_id}.scope"
        assert cgroup == scope, "no command ran outside its scope"
        if phase == "start":
            starts.setdefault(int(row), []).append((float(at), turn_id, mind))
        else:
            ends[int(row)] = float(at)
    assert told <= starts.keys(), "no accepted row was lost"
    assert {row: begun for row, begun in starts.items() if len(begun) > 1} == {}, "none ran twice"
    assert ends.keys() == starts.keys(), "a turn outlives the daemon"
    spans = {row: (begun[0][0], ends[row]) for row, begun in starts.items()}
    assert overlaps(list(spans.values())) <= CAP
    for mind in MINDS:
        rows = sorted((begun[0][0], row) for row, begun in starts.items() if begun[0][2] == mind)
        assert [row for _, row in rows] == sorted(row for _, row in rows), "order is kept"
        assert overlaps([spans[row] for _, row in rows]) == 1

    done: dict[int, object] = {}
    after = 0
    while page := ask("GET", f"/v1/deliveries?state=all&limit=1000&after={after}")[1]["deliveries"]:
        done |= {row["id"]: (row["state"], row["attempts"], row["result"].get("exit")) for row in page}
        after = page[-1]["id"]
    assert set(done.values()) == {("done", 0, 0)}, "every exit status was kept, no hold or kill counted"
    assert done.keys() == starts.keys()
    assert guard.scopes() == []
    assert list(Path("/run/hostguard/turns").iterdir()) == [], "no record is left over"
