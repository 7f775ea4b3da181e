"""`hostguard volute guard`, `unguard` and `status` on real systemd and nftables, before a stand-in for Volute."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from front_host import HOME, PORT, TEXT, UNIT, USER, FrontHost
from guard import UNIT as GUARD
from guard import Guard, run, systemctl, wait_for
from guarded import LONG_S

SHARES_GUARD = True
OTHER = 4150  # of the range, and no mind's
OWN = "10.9.8.7"  # an address of the host
FAR, NEAR = "10.77.0.2", "10.77.0.1"  # the network: a namespace, and the host's address there
SECTION = Path("/etc/hostguard/hostguard.toml.d/volute.toml")
RULES = Path("/etc/hostguard/volute.nft")
DROP_IN = Path("/etc/systemd/system/volute.service.d/50-hostguard-volute.conf")
UNITS = ("hostguard-front.socket", "hostguard-volute.service")

# As dockerd has them with a container that publishes port 8080 (iptables-nft).
DOCKER = """
table ip nat {
    chain DOCKER {
        iifname "docker0" return
        iifname != "docker0" tcp dport 8080 dnat to 172.17.0.2:80
    }
    chain PREROUTING {
        type nat hook prerouting priority -100; policy accept;
        fib daddr type local jump DOCKER
    }
    chain OUTPUT {
        type nat hook output priority -100; policy accept;
        ip daddr != 127.0.0.0/8 fib daddr type local jump DOCKER
    }
    chain POSTROUTING {
        type nat hook postrouting priority 100; policy accept;
        oifname != "docker0" ip saddr 172.17.0.0/16 masquerade
    }
}
"""


class Handler(BaseHTTPRequestHandler):
    """Answers with the port that it sees the client at."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        raw = str(self.client_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Anywhere(ThreadingHTTPServer):
    """Listens on all addresses, as minds do."""

    address_family = socket.AF_INET6
    daemon_threads = True


class SetUpHost(FrontHost):
    """Volute runs, with minds, and the guard; nothing is set up between them. OTHER has a server, too."""

    def __enter__(self) -> SetUpHost:
        self._server = Anywhere(("::", OTHER), Handler)
        threading.Thread(target=self._server.serve_forever).start()
        HOME.mkdir()
        run("chown", USER, str(HOME))
        UNIT.parent.mkdir(parents=True, exist_ok=True)
        UNIT.write_text(TEXT.replace("Delegate=yes", f"Environment=VOLUTE_HOME={HOME}"))
        systemctl("daemon-reload")
        systemctl("start", UNIT.name)
        wait_for(self.answers, LONG_S)
        self.guard.start("[limits]\nglobal_concurrent_turns = 1\n")
        for name in ("ada", "bob"):
            self.add(name)
            self.volute("start", name=name)
        return self

    def __exit__(self, *of: Any) -> None:
        try:
            # Whatever a failed test left.
            subprocess.run(["systemctl", "disable", "--now", *UNITS], capture_output=True, check=False)
            for file in (DROP_IN, SECTION, RULES):
                file.unlink(missing_ok=True)
            super().__exit__(*of)
        finally:
            self._server.shutdown()
            self._server.server_close()

    def redirects(self) -> bool:
        return "redirect to :4301" in run("nft", "list", "ruleset").stdout

    def status(self) -> Any:
        done = self.guard.cli("volute", "status", "--json", check=False)
        seen = json.loads(done.stdout)
        assert done.returncode == (1 if seen["problems"] else 0), done
        return seen


@pytest.fixture(scope="module")
def host(shared_guard: Guard) -> Iterator[SetUpHost]:
    """One for all tests: each leaves it unguarded."""
    run("ip", "address", "add", f"{OWN}/32", "dev", "lo")
    with SetUpHost(shared_guard) as host:
        yield host
    run("ip", "address", "del", f"{OWN}/32", "dev", "lo")


@contextmanager
def connected(address: str) -> Iterator[http.client.HTTPConnection]:
    """A connection to OTHER that stays open."""
    with closing(http.client.HTTPConnection(address, OTHER, timeout=LONG_S)) as connection:
        connection.connect()
        yield connection


def straight(connection: http.client.HTTPConnection) -> bool:
    """True if the server sees the client's own port; through the guard it sees the guard's."""
    connection.request("GET", "/")
    seen = int(connection.getresponse().read())
    own: int = connection.sock.getsockname()[1]
    return seen == own


def far_reaches() -> bool:
    argv = ["ip", "netns", "exec", "far", "curl", "--silent", "--max-time", "2", f"http://{NEAR}:{OTHER}/"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def unguard(host: SetUpHost) -> None:
    assert host.guard.json("volute", "unguard")["done"]


def test_guard_stands_in_front_and_unguard_leaves_nothing(host: SetUpHost) -> None:
    subprocess.run(["nft", "-f", "-"], input=DOCKER, text=True, check=True)
    docker = run("nft", "list", "ruleset").stdout
    assert host.guard.json("volute", "guard", "--dry-run")["done"] is False
    assert not SECTION.exists()
    volute = run("systemctl", "show", "--property=MainPID", UNIT.name).stdout
    with connected("127.0.0.1") as open_before:
        assert straight(open_before)
        done = host.guard.json("volute", "guard")
        assert (done["minds"], done["ports"], done["home"]) == (["ada", "bob"], [4100, 4199], str(HOME))
        assert done["open_connections"] >= 1
        assert straight(open_before), "what was open is not cut, and not gated"
    assert run("systemctl", "is-enabled", *UNITS).stdout.split() == ["enabled"] * 2
    assert run("systemd-analyze", "verify", "--man=no", *UNITS).stdout == ""
    shown = run("systemctl", "show", "--property=MainPID,Delegate,After", UNIT.name).stdout
    assert volute in shown, "Volute was not restarted"
    assert "Delegate=yes" in shown
    assert set(UNITS) <= set(shown.split("After=")[1].split())

    for address in ("127.0.0.1", "::1", OWN):
        with connected(address) as connection:
            assert not straight(connection), address
    assert host.tell("ada", "hello")["status"] == 200
    (row,) = host.done(*(row["id"] for row in host.rows()))
    assert (row["mind"], host.contents("ada")) == ("ada", ["hello"])
    wait_for(lambda: host.status()["streams"] == 2, LONG_S)
    seen = host.status()
    assert (seen["guarded"], seen["table"], seen["drop_remote"]) == (True, True, False)
    assert (seen["daemon_port"], seen["held"], seen["problems"]) == (PORT, 0, [])

    with connected("127.0.0.1") as through:
        assert not straight(through)
        left = host.guard.cli("volute", "unguard", check=False)
        assert (left.returncode, "1 connection through the guard" in left.stdout) == (75, True), left
        assert not host.redirects()
        assert not straight(through), "it goes on as it was"
        with connected("127.0.0.1") as new:
            assert straight(new)
        systemctl("restart", UNIT.name)  # in between, this must not bring the rules back
        assert not host.redirects()
        assert not straight(through)
    wait_for(lambda: not run("ss", "-Htn", "sport = :4301").stdout)
    unguard(host)
    assert run("nft", "list", "ruleset").stdout == docker
    assert not any(file.exists() for file in (SECTION, RULES, DROP_IN, DROP_IN.parent))
    states = subprocess.run(["systemctl", "is-enabled", *UNITS], capture_output=True, text=True, check=False)
    assert states.stdout.split() == ["disabled"] * 2
    assert "Delegate=no" in run("systemctl", "show", "--property=Delegate", UNIT.name).stdout
    assert not run("ss", "-Htln", "sport = :4301").stdout
    assert host.status()["configured"] is False
    run("nft", "flush", "ruleset")
    wait_for(host.answers, LONG_S)


def test_what_is_held_for_a_mind_that_is_down_is_counted_and_kept(host: SetUpHost) -> None:
    host.guard.cli("volute", "guard")
    host.tell("bob", "long !work=2")
    wait_for(lambda: host.turns())
    assert host.tell("ada", "held")["status"] == 200
    host.volute("stop", name="ada")
    assert host.status()["held"] == 1
    refused = host.guard.cli("volute", "unguard", check=False)
    assert (refused.returncode, "1 message held" in refused.stdout) == (75, True), refused
    wait_for(lambda: host.status()["mind_down"] == 1, LONG_S)
    assert SECTION.exists(), "without it the guard would not know where to send"
    host.volute("start", name="ada")
    host.done(*(row["id"] for row in host.rows()))
    assert host.contents("ada")[-1] == "held"
    wait_for(lambda: not run("ss", "-Htn", "sport = :4301").stdout, LONG_S)
    unguard(host)


def test_the_network_is_dropped_on_demand(host: SetUpHost) -> None:
    run("ip", "netns", "add", "far")
    run("ip", "link", "add", "near0", "type", "veth", "peer", "name", "far0", "netns", "far")
    run("ip", "address", "add", f"{NEAR}/24", "dev", "near0")
    run("ip", "link", "set", "near0", "up")
    run("ip", "-n", "far", "address", "add", f"{FAR}/24", "dev", "far0")
    run("ip", "-n", "far", "link", "set", "far0", "up")
    wait_for(far_reaches)
    assert "--drop-remote drops that" in host.guard.cli("volute", "guard").stdout
    assert far_reaches()
    host.guard.cli("volute", "guard", "--drop-remote")
    assert not far_reaches()
    assert host.status()["drop_remote"] is True
    for address in ("127.0.0.1", NEAR):
        with connected(address) as connection:
            assert not straight(connection)
    host.guard.cli("volute", "guard")
    assert far_reaches()
    run("ip", "netns", "del", "far")
    unguard(host)


def test_rules_that_others_flush_come_back_and_a_boot_loads_them_before_volute(host: SetUpHost) -> None:
    host.guard.cli("volute", "guard")
    systemctl("start", "nftables.service")
    for verb in ("restart", "reload"):
        systemctl(verb, "nftables.service")  # Debian's begins with a flush of all rules
        wait_for(host.redirects)
    systemctl("stop", "nftables.service")
    run("nft", "flush", "ruleset")
    assert [one["fix"] for one in host.status()["problems"]] == ["sudo hostguard volute guard"]
    host.guard.cli("volute", "guard")
    assert host.status()["guarded"]

    # As a boot does.
    systemctl("stop", UNIT.name, *UNITS, GUARD, "hostguard.socket")
    run("nft", "flush", "ruleset")
    systemctl("start", UNIT.name, GUARD)
    assert host.redirects()
    times = [
        int(run("systemctl", "show", "--value", f"--property={name}TimestampMonotonic", unit).stdout)
        for unit, name in ((UNITS[1], "ExecMainExit"), (UNIT.name, "ExecMainStart"))
    ]
    assert 0 < times[0] < times[1]
    wait_for(host.answers, LONG_S)
    assert host.status()["sockets"]
    unguard(host)


def test_what_cannot_be_done_is_said_with_the_way_out(host: SetUpHost) -> None:
    plain = ["setpriv", "--reuid=nobody", "--clear-groups", "hostguard", "volute", "guard"]
    done = subprocess.run(plain, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "hostguard: this needs root: sudo hostguard volute guard\n")
    run("mount", "--bind", "/dev/null", "/usr/sbin/nft")
    done = host.guard.cli("volute", "guard", check=False)
    run("umount", "/usr/sbin/nft")
    assert (done.returncode, done.stderr) == (1, "hostguard: nft is missing: apt-get install nftables\n")
    assert not SECTION.exists()

    run("useradd", "--create-home", "lena")
    unit = Path("/home/lena/.config/systemd/user/volute.service")
    unit.parent.mkdir(parents=True)
    unit.touch()
    text = UNIT.read_text()
    systemctl("stop", UNIT.name)
    UNIT.unlink()
    systemctl("daemon-reload")
    done = host.guard.cli("volute", "guard", check=False)
    assert done.returncode == 1
    assert "lena's own service manager" in done.stderr
    assert "User=lena and Environment=VOLUTE_HOME=/home/lena/.volute" in done.stderr
    run("userdel", "--remove", "lena")
    UNIT.write_text(text)
    systemctl("daemon-reload")
    systemctl("start", UNIT.name)
