"""Who listens, and who has the other end of a connection: on this machine, and in tables of /proc/net as the kernel writes them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from hostguard.linux import sockets
from hostguard.linux.sockets import Socket, described, holders, listeners, listening_at, other_end

GONE = 2**22 + 1  # above the kernel's PID_MAX_LIMIT
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LO, ANY, MAPPED, ANY6 = "0100007F", "00000000", "0000000000000000FFFF00000100007F", "0" * 32
HERE, THERE = ("127.0.0.1", 50000), ("127.0.0.1", 4100)


def row(local, state, uid, inode, remote="00000000:0000"):
    return (
        f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {uid:5} 0 {inode} 1 0 100\n"
    )


def listening(host, uid, inode, port=4100):
    return row(f"{host}:{port:04X}", "0A", uid, inode)


def connected(uid, inode, state="01", host=LO):
    """The other end of a connection from port 50000 to port 4100."""
    return row(f"{host}:1004", state, uid, inode, f"{host}:C350")


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.setattr(sockets, "TABLES", tmp_path)

    def write(*lines, six=()):
        (tmp_path / "tcp").write_text(HEADER + "".join(lines))
        (tmp_path / "tcp6").write_text(HEADER + "".join(six))

    return write


OURS = row(f"{LO}:C350", "01", 0, 7, f"{LO}:1004")  # the guard's own end


@pytest.mark.parametrize(("lines", "six", "found", "why"), [
    ([listening(LO, 5, 50), OURS, connected(5, 51)], [], [(5, 51)], "accepted"),
    ([listening(LO, 5, 50), OURS, connected(6, 61)], [], [(6, 61)], "by another user than listens by now"),
    ([listening(LO, 5, 50), OURS, connected(0, 0)], [], [(5, 50)], "not accepted: its uid is not to be trusted"),
    ([listening(LO, 5, 50), OURS, connected(0, 0, "03")], [], [(5, 50)], "waits for data (TCP_DEFER_ACCEPT)"),
    ([listening(ANY, 5, 50), OURS, connected(0, 0)], [listening(ANY6, 6, 60)], [(5, 50)],
     "IPv4 alone goes before a [::] that is IPv6 only"),
    ([listening(ANY, 5, 50), OURS, connected(0, 0)], [], [(5, 50)], "at any address"),
    ([listening(ANY, 5, 50), listening(LO, 6, 60), OURS, connected(0, 0)], [], [(6, 60)], "its own address first"),
    ([listening(LO, 5, 50), listening(LO, 5, 52), OURS, connected(0, 0)], [], [(5, 50), (5, 52)], "SO_REUSEPORT"),
    ([listening("0200007F", 6, 60), listening(LO, 6, 61, 4101), listening(LO, 5, 50), OURS, connected(0, 0)], [],
     [(5, 50)], "neither another address nor another port"),
    ([OURS], [listening(ANY6, 5, 50), connected(0, 0, host=MAPPED)], [(5, 50)], "[::] with IPv4"),
    ([OURS], [listening(ANY6, 5, 50), connected(5, 51, host=MAPPED)], [(5, 51)], "[::] with IPv4, accepted"),
    ([OURS, connected(5, 51, "05")], [], [(5, 51)], "it sends no more, and may still read"),
    ([OURS, connected(0, 0, "05")], [], [], "closed: nobody reads it"),
    ([OURS, connected(0, 0, "06")], [], [], "over"),
    ([listening(LO, 0, 50), OURS], [], [(0, 50)], "root leads it into a container"),
    ([OURS, connected(0, 0)], [], None, "nobody is seen who could accept it"),
    ([OURS], [], None, "nobody at all"),
])  # fmt: skip
def test_the_other_end(tables, lines, six, found, why):
    tables(*lines, six=six)
    ends = other_end(HERE, THERE)
    assert (None if ends is None else [(one.uid, one.inode) for one in ends]) == found, why


def test_what_is_elsewhere_cannot_be_seen(tables):
    tables(listening(ANY, 6, 60))
    assert other_end(("192.0.2.1", 50000), ("192.0.2.2", 4100)) == ()
    assert other_end(("192.0.2.1", 50000), ("192.0.2.1", 4100)) == (Socket(6, 60),)


def test_ipv6_has_its_own(tables):
    tables(listening(ANY, 6, 60), six=[listening(ANY6, 5, 50)])
    assert listening_at(("::1", 4100)) == (Socket(5, 50),)
    assert listening_at(("127.0.0.1", 4100)) == (Socket(6, 60),)
    assert listening_at(("::1", 4101)) == ()


def test_a_host_without_ipv6(tables, tmp_path):
    tables(listening(LO, 5, 50))
    (tmp_path / "tcp6").unlink()
    assert listening_at(("127.0.0.1", 4100)) == (Socket(5, 50),)


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_real_connection_before_and_after_it_is_accepted(bound):
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.create_server((bound, 0), family=family, dualstack_ipv6=bound == "::") as server:
        at = ("::1" if bound == "::1" else "127.0.0.1", server.getsockname()[1])
        with socket.create_connection(at) as ours:
            ends = lambda: other_end(ours.getsockname()[:2], ours.getpeername()[:2])  # noqa: E731
            [waits] = ends()
            assert waits == Socket(os.getuid(), os.fstat(server.fileno()).st_ino)
            with server.accept()[0] as accepted:
                [held] = ends()
                assert held == Socket(os.getuid(), os.fstat(accepted.fileno()).st_ino)
                assert holders([held], [os.getpid(), GONE]) == [os.getpid()]
                assert f"pid {os.getpid()} in " in described(held, holders([held], [os.getpid()]))
            assert not ends(), "it was closed"


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_who_accepts_counts_and_not_who_listens():
    program = (
        "import socket; s = socket.socket(fileno=0); a = s.accept()[0]; print('here', flush=True); a.recv(1)"
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(
            [sys.executable, "-S", "-c", program],
            stdin=server,
            stdout=subprocess.PIPE,
            user=65534,
            group=65534,
        ) as other,
        socket.create_connection(server.getsockname()) as ours,
    ):
        assert other.stdout.readline() == b"here\n"
        [held] = other_end(ours.getsockname(), ours.getpeername())
        assert held.uid == 65534
        assert holders([held], [os.getpid(), other.pid]) == [other.pid]
        assert described(held, [other.pid]).startswith(f"user nobody (pid {other.pid} in ")


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_the_kernel_lets_no_other_user_share_a_port():
    program = (
        "import socket, sys; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1);"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind((sys.argv[1], int(sys.argv[2]))); s.listen()"
    )
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as server:
        port = str(server.getsockname()[1])
        for host, user, shared in (
            ("127.0.0.1", 0, True),
            ("127.0.0.1", 65534, False),
            ("0.0.0.0", 65534, False),
        ):
            argv = [sys.executable, "-S", "-c", program, host, port]
            done = subprocess.run(argv, user=user, group=user, capture_output=True, text=True)
            assert (done.returncode == 0) is shared, done.stderr


def test_more_processes_than_are_named():
    assert described(Socket(4_000_000_000, 1), [os.getpid()] * 5).endswith(" and 2 more)")
    assert described(Socket(4_000_000_000, 1), [GONE]) == "user 4000000000"


@pytest.mark.parametrize(("bound", "url"), [
    ("127.0.0.1", "http://127.0.0.1:{}"), ("0.0.0.0", "http://127.0.0.1:{}"),
])  # fmt: skip
def test_the_listener_at_a_url(bound, url):
    with socket.create_server((bound, 0)) as server:
        at = url.format(server.getsockname()[1])
        assert listeners(at, [os.getpid(), GONE]) == [os.getpid()]
        assert os.getpid() in listeners(at)
    assert listeners(at, [os.getpid()]) == []


@pytest.mark.parametrize("url", ["http://192.0.2.1:80", "http://a-name:80", "http:///"])
def test_a_url_elsewhere_has_no_listener_here(monkeypatch, url):
    monkeypatch.setattr(sockets, "_tables", lambda port: pytest.fail("not needed"))
    assert listeners(url) == []


def test_a_bound_address_that_is_not_the_urls_does_not_count():
    with socket.create_server(("127.0.0.2", 0)) as server:
        assert listeners(f"http://127.0.0.1:{server.getsockname()[1]}", [os.getpid()]) == []


def test_this_machine_has_tcp_sockets_in_proc():
    assert (sockets.TABLES / "tcp").exists()
