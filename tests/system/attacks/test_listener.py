"""Strangers that listen where a mind or the guard does, and minds whose answers do not end (issue 13: 6, 7)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from guard import SOCKET, Guard, drop_in, run, systemctl, wait_for
from guarded import LONG_S, GuardedHost
from minds import free_port

from hostguard.linux.sockets import NOT_PASSED_FIX

SCRIPT = Path(__file__).parents[1] / "listening.py"
PLACE = Path("/run/attacks")
HOSTS = Path("/etc/hosts")
SECRET = "the secret of root"
EVENTS, WEB = free_port(), free_port()
# Each case has a mind of its own: one that was down is tried again only after a pause.
BY_UNIT, BY_USER = (
    ("answer", "late", "half", "twin", "active"),
    ("any4", "any6", "blind", "100", "103", "head", "drip"),
)
URLS = {
    **{name: f"http://127.0.0.1:{free_port()}" for name in BY_UNIT + BY_USER},
    "local": f"http://localhost:{free_port()}",
    "named": f"http://where-ada-is:{free_port()}",
}
PORTS = {name: int(url.rpartition(":")[2]) for name, url in URLS.items()}
CONFIG = f"""
[events]
listen = "127.0.0.1:{EVENTS}"
[web]
listen = "127.0.0.1:{WEB}"
""" + "".join(
    f'[minds.{name}]\nurl = "{url}"\n'
    + (f'unit = "ada-{name}.service"\n' if name in BY_UNIT else 'user = "ada"\n')
    for name, url in URLS.items()
)
PORT_TAKEN = "MESSAGE_ID=6b0e4d2f0a5c4b7c9d1f3a8e52c70427"


class Host(GuardedHost):
    """The guard, the minds' servers as services of ada, and eve."""

    def send_secret(self, mind: str) -> int:
        return self.send(mind, SECRET, session="$new")

    def problems(self) -> dict[str, str]:
        return {one["code"]: one["text"] for one in self.get("/v1/status")["problems"]}

    def kept(self, row: int, told: str) -> None:
        """Wait until the row waits because of who listens, and see that everybody is told."""
        wait_for(lambda: self.get(f"/v1/deliveries/{row}/why")["reason"] == "mind_down", LONG_S)
        why, mind = self.get(f"/v1/deliveries/{row}/why"), self.row(row)["mind"]
        assert told in why["blocker"], why
        assert f"{mind} is down: its port {PORTS[mind]} is taken by user" in why["blocker"]
        [shown] = [one for one in self.get("/v1/minds")["minds"] if one["name"] == mind]
        assert (shown["port_taken"], shown["state"]) == (True, "down")
        assert (self.row(row)["state"], self.row(row)["attempts"]) == ("queued", 0)

    def end(self, row: int) -> None:
        """End the row's turn, unless it ended with the mind's server."""
        self.api.post(f"/v1/turns/{row}/stop")
        self.done(row)

    def cancel(self, row: int) -> None:
        self.post(f"/v1/deliveries/{row}/cancel")


@contextmanager
def listener(user: str, host: str, port: int, mode: str) -> Iterator[tuple[int, Path]]:
    """A process of the user that listens, and the file with what it got."""
    file = PLACE / f"{user}-{time.monotonic_ns()}"
    argv = [
        "setpriv",
        f"--reuid={user}",
        f"--regid={user}",
        "--clear-groups",
        sys.executable,
        "-S",
        str(SCRIPT),
    ]
    with subprocess.Popen([*argv, host, str(port), str(file), mode], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listens\n"
            yield process.pid, file
        finally:
            process.kill()


@contextmanager
def service(unit: str, port: int, mode: str, *more: str) -> Iterator[Path]:
    """A service of ada that listens, and the file with what it got."""
    file = PLACE / f"{unit}-{time.monotonic_ns()}"
    host = "fd" if more else "127.0.0.1"
    argv = ["systemd-run", "--quiet", f"--unit={unit}", "--uid=ada", "--property=Type=notify", *more]
    run(*argv, sys.executable, "-S", str(SCRIPT), host, str(port), str(file), mode)
    try:
        yield file
    finally:
        subprocess.run(
            ["systemctl", "stop", f"{unit}.socket", f"{unit}.service"], capture_output=True, check=False
        )


def got(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


@pytest.fixture(scope="module")
def host(_installed: None) -> Iterator[Host]:
    for user in ("ada", "eve"):
        run("useradd", "--create-home", user)
    PLACE.mkdir()
    PLACE.chmod(0o1777)
    before = HOSTS.read_text()
    HOSTS.write_text(f"127.0.0.1 localhost where-ada-is\n::1 localhost where-ada-is\n{before}")
    guard = Guard()
    guard.start(CONFIG)
    made = Host(guard)
    made.api.headers["Connection"] = "close"  # the guard is asked seldom, and restarted
    yield made
    made.api.close()
    left = guard.close()
    HOSTS.write_text(before)
    run("rm", "-rf", str(PLACE))
    for user in ("ada", "eve"):
        run("userdel", "--force", "--remove", user)
    assert not left


# -- whoever listens on a mind's port


@pytest.mark.parametrize("mode", ["answer", "late", "half"])
def test_a_stranger_on_the_port_of_a_mind_that_is_down_gets_nothing(host: Host, mode: str) -> None:
    with listener("eve", "127.0.0.1", PORTS[mode], mode) as (pid, file):
        row = host.send_secret(mode)
        host.kept(row, told := f"user eve (pid {pid} in ")
        if mode == "answer":
            assert f"answer: its port {PORTS[mode]} is taken by {told}" in host.problems()["port_taken"]
            assert told in host.guard.cli("status", check=False).stdout
            assert told in host.guard.cli("why", str(row)).stdout
            assert told in " ".join(host.guard.cli("doctor", check=False).stdout.split())
            [line] = host.guard.journal(PORT_TAKEN)
            assert line["HOSTGUARD_MIND"] == "answer"
            assert told in line["MESSAGE"]
            assert SECRET not in json.dumps(line)
        elif mode == "late":
            time.sleep(2.2)  # it has accepted by then
        assert got(file) == b""
    with service(f"ada-{mode}", PORTS[mode], "answer") as file:
        wait_for(lambda: SECRET.encode() in got(file), LONG_S)  # that the unit was started is enough
        assert f"{mode}:" not in host.problems().get("port_taken", "")
        host.end(row)


@pytest.mark.parametrize(("name", "bound"), [("any4", "0.0.0.0"), ("any6", "::")])
def test_a_stranger_at_any_address(host: Host, name: str, bound: str) -> None:
    with listener("eve", bound, PORTS[name], "answer") as (pid, file):
        row = host.send_secret(name)
        host.kept(row, f"user eve (pid {pid} in ")
        assert got(file) == b""
    host.cancel(row)


def test_another_mind_of_the_same_user_is_a_stranger_too(host: Host) -> None:
    with service("ada-other", PORTS["twin"], "answer") as file:
        row = host.send_secret("twin")
        host.kept(row, "in ada-other.service)")
        assert got(file) == b""
    host.cancel(row)


def test_a_mind_that_systemd_listens_for_is_no_stranger(host: Host) -> None:
    listen = f"--socket-property=ListenStream=127.0.0.1:{PORTS['active']}"
    with service("ada-active", PORTS["active"], "answer", listen) as file:
        row = host.send_secret("active")
        wait_for(lambda: SECRET.encode() in got(file), LONG_S)
        host.end(row)


def test_localhost_is_not_looked_up(host: Host) -> None:
    with (
        listener("ada", "127.0.0.1", PORTS["local"], "answer") as (_, ours),
        listener("eve", "::1", PORTS["local"], "answer") as (_, file),
    ):
        row = host.send_secret("local")
        wait_for(lambda: SECRET.encode() in got(ours), LONG_S)
        assert got(file) == b""
        host.end(row)


def test_a_name_that_leads_to_a_stranger(host: Host) -> None:
    with listener("eve", "::1", PORTS["named"], "answer") as (pid, file):
        row = host.send_secret("named")
        host.kept(row, f"user eve (pid {pid} in ")
        assert got(file) == b""
    host.cancel(row)


def test_nothing_is_sent_while_the_kernel_does_not_tell_who_listens(host: Host) -> None:
    """As after an upgrade from a socket unit without the line, or with a kernel without the module."""
    only = "ListenNetlink=\nListenStream=/run/hostguard/hostguard.sock"
    with listener("ada", "127.0.0.1", PORTS["blind"], "answer") as (_, file):
        with drop_in(only, SOCKET):
            host.guard.stop()
            systemctl("restart", SOCKET)
            host.guard.restart()
            row = host.send_secret("blind")
            wait_for(lambda: host.get(f"/v1/deliveries/{row}/why")["reason"] == "mind_down", LONG_S)
            blocker = host.get(f"/v1/deliveries/{row}/why")["blocker"]
            assert "the kernel does not tell who listens there" in blocker
            assert NOT_PASSED_FIX in blocker
            assert got(file) == b""
        for command in NOT_PASSED_FIX.removeprefix("run: ").split("; "):
            run(*command.split())
        wait_for(lambda: SECRET.encode() in got(file), LONG_S)
        host.end(row)


# -- answers that do not end


@pytest.mark.parametrize(("mode", "why"), [
    ("100", "more than 8 interim answers (100)"), ("103", "more than 8 interim answers (103)"),
    ("head", "head of the answer has more than 16 KiB"),
])  # fmt: skip
def test_an_answer_without_end_is_a_failure_at_once(host: Host, mode: str, why: str) -> None:
    with listener("ada", "127.0.0.1", PORTS[mode], mode):
        row = host.send_secret(mode)
        wait_for(lambda: host.row(row)["attempts"] == 1)
        assert why in host.row(row)["result"]["reason"]
        host.cancel(row)


@pytest.mark.parametrize("how", ["hostguard stop", "systemctl stop"])
def test_a_mind_that_does_not_answer_cannot_hold_up_a_stop(host: Host, how: str) -> None:
    with listener("ada", "127.0.0.1", PORTS["drip"], "drip") as (_, file):
        row = host.send_secret("drip")
        wait_for(lambda: SECRET.encode() in got(file), LONG_S)
        [turn] = [one for one in host.turns() if one["mind"] == "drip"]
        if how == "hostguard stop":
            host.guard.cli("stop", turn["id"])
        else:
            systemctl("stop", turn["unit"])
        wait_for(lambda: b"the client left" in got(file), 5)  # the POST would have taken 120 s
        if how == "hostguard stop":
            assert host.done(row)[0]["result"]["outcome"] == "stopped"
        else:
            host.end(row)  # if the guard saw the end before systemd's report of the stop, it goes on


# -- the guard's own ports

TAKE = """
import socket, sys, time
ports = [int(port) for port in sys.argv[1:]]
print("tries", flush=True)
while True:
    for port in ports:
        for host in ("127.0.0.1", "0.0.0.0"):
            try:
                with socket.create_server((host, port)):
                    print("took", port, flush=True)
            except OSError:
                time.sleep(0.001)
"""


@contextmanager
def grabbing(*ports: int) -> Iterator[subprocess.Popen[str]]:
    """eve tries to take the ports all the time."""
    argv = ["setpriv", "--reuid=eve", "--regid=eve", "--clear-groups", sys.executable, "-S", "-c", TAKE]
    with subprocess.Popen([*argv, *map(str, ports)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "tries\n"
            yield process
        finally:
            process.kill()


def serves() -> None:
    with httpx.Client(timeout=30, trust_env=False, verify=False) as client:
        assert client.post(f"http://127.0.0.1:{EVENTS}/api/minds/local/events").status_code == 401
        assert client.get(f"http://127.0.0.1:{WEB}/metrics").status_code == 200


def restarted(host: Host) -> None:
    host.guard.restart()


def killed(host: Host) -> None:
    host.guard.kill()
    host.guard.restart()


def killed_under_a_new_systemd(host: Host) -> None:
    systemctl("daemon-reexec")
    host.guard.kill()
    host.guard.restart()


@pytest.mark.parametrize("how", [restarted, killed, killed_under_a_new_systemd])
def test_nobody_takes_the_guards_ports_while_it_restarts(host: Host, how: Any) -> None:
    serves()
    with grabbing(EVENTS, WEB) as eve:
        how(host)
        serves()
        eve.kill()
        assert eve.communicate()[0] == ""
    assert run("systemctl", "show", "--value", "--property=NFileDescriptorStore", "hostguard").stdout == "2\n"


def test_a_stop_frees_the_ports_and_the_guard_says_who_took_one(host: Host) -> None:
    host.guard.stop()
    with listener("eve", "127.0.0.1", EVENTS, "answer") as (pid, _):
        host.guard.restart()
        assert f"it is taken by user eve (pid {pid} in " in host.problems()["minds_endpoint"]
    wait_for(lambda: "minds_endpoint" not in host.problems())
    serves()


VERSION = int(run("systemctl", "--version").stdout.split()[1])


@pytest.mark.skipif(VERSION < 254, reason="systemd drops the store at a stop")
def test_the_ports_are_kept_over_a_stop_if_that_is_configured(host: Host) -> None:
    with drop_in("FileDescriptorStorePreserve=yes"):
        host.guard.restart()
        host.guard.stop()
        with grabbing(EVENTS, WEB) as eve:
            time.sleep(0.5)
            host.guard.restart()
            eve.kill()
            assert eve.communicate()[0] == ""
        serves()
