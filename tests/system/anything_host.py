"""The host of test_anything.py: minds that behave in every way, a clock that is turned, and what was sent."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from guard import DISK, Guard, wait_for
from guarded import LONG_S
from resident_host import ResidentHost
from turned import Clock

CAP = 2
PRESETS = {
    "a": "normal", "b": "normal", "c": "normal", "silent": "silent", "dies": "dies", "refuses": "refuses",
    "slow": "slow", "spawns": "spawns", "all": "all",
}  # fmt: skip
EXEC = "exec"
LOG, RUN_LOG = DISK / "exec.log", DISK / "runs.log"
MINDS = (*PRESETS, EXEC)
# A mind gives its done up after three tries, and a guard on a busy machine may be away for longer.
RESIDENT = 'routes = "{routes}"\nuser = "root"\nidle_end = {idle_end}\n[minds.{name}.turn]\nmax_turn = 3\n'
REST = """
[minds.exec]
command = ["{script}"]
user = "root"
routes = "{routes}"
[channels."#all"]
minds = ["a", "b", "c", "exec"]
[schedules.tick]
mind = "a"
cron = "0 0 1 1 *"
message = "tick"
[schedules.hour]
mind = "b"
cron = "0 * * * *"
timezone = "UTC"
message = "hour"
catch_up = "once"
catch_up_window = "7d"
overlap = "queue"
"""
SCRIPT = """#!/bin/sh
# An exec mind: logs its message, works, and ends as the message says.
message=$(cat)
printf '%s\\n' "$message" >>{log}
sleep 0.05
case $message in
    *'!fail'*) exit 3 ;;
    *'!crash'*) [ "$HOSTGUARD_ATTEMPT" -gt 1 ] || kill -SEGV $$ ;;
esac
"""
ROUTES = {
    "open": {"gateUnmatched": False},
    "gate": {"rules": []},
    "by sender": {"rules": [{"sender": "*", "session": "of-${sender}"}]},
    "fresh": {"rules": [{"channel": "*", "session": "$new"}]},
    "batch": {
        "rules": [{"channel": "*", "session": "gathered"}],
        "sessions": {"gathered": {"delivery": {"mode": "batch", "debounce": 0.2, "maxWait": 2}}},
    },
}


class AnythingHost(ResidentHost):
    """A context manager. `rows` of what was accepted are in `sent`, texts of runs in `runs`."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard)
        self.count = 0
        self.sent: list[Any] = []
        self.runs: dict[str, subprocess.Popen[bytes]] = {}
        self.texts: dict[str, str] = {}  # by key
        self.mortal = {"dies"}  # minds whose server dies
        self.interruptions = 0  # kills and restarts of the guard
        self.stopped: set[str] = set()  # scopes that were stopped, or killed
        self.leap = ""  # the key of the last time of the schedule `hour` before all was let go
        self.latest = 0.0
        self.clock = Clock(DISK / "clock")
        self.scopes = Scopes()

    def __enter__(self) -> AnythingHost:
        self.clock.__enter__()
        for name, preset in PRESETS.items():
            self.route(name, "open")
            idle_end = 1 if preset == "silent" else 3
            config = RESIDENT.format(name=name, routes=routes_of(name), idle_end=idle_end)
            self.minds.add(name, preset, work=0.05, config=config)
        self.route(EXEC, "open")
        script = DISK / "exec-mind"
        script.write_text(SCRIPT.format(log=LOG))
        script.chmod(0o755)
        for log in (LOG, RUN_LOG):
            log.write_text("")
        self.start(REST.format(script=script, routes=routes_of(EXEC)), global_concurrent_turns=CAP)
        self.scopes.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.scopes.stop()
        for run in self.runs.values():
            run.kill()
            run.communicate()
        super().__exit__(kind, error, trace)
        self.clock.__exit__(kind, error, trace)

    # -- what is sent

    def message(self, to: str, words: str = "", **fields: Any) -> Any:
        """Send a text of its own, with a key; the request's body."""
        self.count += 1
        text = f"text {self.count}{words}"
        key = f"key {self.count}"
        self.texts[key] = text
        body = {"to": to, "content": text, "key": key, "sender": "eve", **fields}
        self.sent += self.post("/v1/deliveries", **body)["deliveries"]
        return body

    def run(self, mind: str) -> None:
        """`hostguard run` of a command that leaves a text; it waits for its turn meanwhile."""
        self.count += 1
        text = f"run {self.count}"
        command = f"echo {text} >>{RUN_LOG}; sleep 0.05"
        argv = ["hostguard", "run", "--mind", mind, "--", "sh", "-c", command]
        with errors_of(text).open("w") as errors:
            self.runs[text] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=errors)

    def stop_scope(self, scope: str, signal: str | None) -> None:
        """`systemctl stop` it, or kill what is in it; it may have ended by itself."""
        self.stopped.add(scope)
        verb = ["stop"] if signal is None else ["kill", f"--signal={signal}"]
        subprocess.run(["systemctl", *verb, scope], check=False, capture_output=True)

    def kill(self) -> None:
        self.interruptions += 1
        super().kill()

    def restart(self) -> None:
        self.interruptions += 1
        self.guard.restart()

    def start_with_bad_configuration(self, how: str) -> None:
        """Start the guard with a file that it cannot read: it is on standby until the file is mended."""
        self.interruptions += 1
        file = Path("/etc/hostguard/hostguard.toml")
        good = file.read_text()
        file.write_text(f"{good}\n[limits\n")
        (self.guard.restart if how == "restart" else self.guard.kill)()
        wait_for(lambda: self._state() == "standby", LONG_S)
        file.write_text(good)
        wait_for(lambda: self._state() in ("running", "paused"), LONG_S)

    def _state(self) -> str:
        with suppress(httpx.TransportError):
            answer = self.api.get("/v1/status").json()
            return str(answer.get("state", answer.get("code")))
        return ""

    def cap(self, value: int) -> None:
        """Set the global cap."""
        change = {"name": "global_concurrent_turns", "mind": None, "value": value}
        self.api.patch("/v1/limits", json=change).raise_for_status()

    def route(self, name: str, which: str) -> None:
        """Give the mind other routes."""
        routes_of(name).write_text(json.dumps(ROUTES[which]))

    # -- the guard's clock

    def turn_to(self, offset: float) -> None:
        """Set the guard's clock off by so many seconds."""
        self.clock.set(offset)
        self.latest = max(self.latest, offset)

    # -- until all is over

    def calm(self) -> None:
        """Let everything go, and wait until nothing waits any more."""
        self.cap(CAP)
        for name in MINDS:
            self.post("/v1/resume", mind=name)
            self.route(name, "open")
        self.post("/v1/resume", mind=None)
        self.turn_to(self.latest + 86400)  # what is not due yet is due now
        self.leap = f"schedule:hour:{self.clock.in_ms(0) // 3_600_000 * 3_600_000}"
        self.guard.reload()  # schedules are looked at at once
        wait_for(self._is_over, 2 * LONG_S)

    def _is_over(self) -> bool:
        for one in self.get("/v1/minds")["minds"]:
            if one["sleep"] != "awake":
                self.post(f"/v1/minds/{one['name']}/wake")
        waiting = self.get("/v1/deliveries")["deliveries"]
        if waiting and not self.get("/v1/turns")["turns"]:
            self.turn_to(self.clock.offset + 400)  # whatever pause there is after a failure
            self.post("/v1/resume", mind=None)
            time.sleep(0.2)
        return not waiting and not self.turns() and all(run.poll() is not None for run in self.runs.values())


class Scopes(threading.Thread):
    """Looks at the turns' cgroups all the time: how many are alive at one moment, whatever the guard says.

    A scope for work outside of a turn comes in addition: that work was there, with or without a slot.
    """

    UNASKED = re.compile(r"-w[0-9a-f]{8}\.scope$")
    ROOT = Path("/sys/fs/cgroup/hostguard.slice")

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = self.most_of_mind = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.02):
            first = self._alive(self.ROOT.glob("hostguard-*.slice/hostguard-turn-*.scope"))
            alive = self._alive(first)  # those of both times lived together in between
            self.most = max(self.most, len(alive))
            for one in alive:
                of_mind = sum(other.parent == one.parent for other in alive)
                self.most_of_mind = max(self.most_of_mind, of_mind)

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _alive(self, scopes: Iterable[Path]) -> list[Path]:
        found = []
        for scope in scopes:
            with suppress(OSError):
                if (
                    not self.UNASKED.search(scope.name)
                    and "populated 1" in (scope / "cgroup.events").read_text()
                ):
                    found.append(scope)
        return found


def routes_of(name: str) -> Path:
    return DISK / f"routes-of-{name}.json"


def errors_of(run: str) -> Path:
    """What that `hostguard run` wrote to standard error."""
    return DISK / f"{run}.err"
