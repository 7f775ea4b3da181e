"""Who listens, and who has an end of a connection, as this machine's kernel tells."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from hostguard.linux import sockets
from hostguard.linux.sockets import SockDiag, Socket, described, holders, is_near, listeners, listening_at

GONE = 2**22 + 1  # above the kernel's PID_MAX_LIMIT
root = pytest.mark.skipif(os.getuid() != 0, reason="gives sockets to other users, or becomes one")


@pytest.fixture
def diag():
    with SockDiag() as made:
        yield made


def ends(diag, ours):
    """Whose the other end of our connection is."""
    return diag.other_end(ours.getsockname()[:2], ours.getpeername()[:2])


def listening(stack, host, port, uid):
    """One of several that listen on a port, of some user; its port."""
    made = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if ":" in host:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host == "::1"))
    made.bind((host, port))
    made.listen()
    os.fchown(made.fileno(), uid, uid)
    return made.getsockname()[1]


@root
@pytest.mark.parametrize(("bound", "to", "uids"), [
    (["0.0.0.0", "127.0.0.1"], "127.0.0.1", [1]),  # its own address first
    (["0.0.0.0", "127.0.0.2"], "127.0.0.1", [0]),  # not another address
    (["::", "::ffff:127.0.0.1"], "127.0.0.1", [1]),
    (["::", "0.0.0.0"], "127.0.0.1", [1]),  # IPv4 alone goes before both
    (["::", "::1"], "::1", [1]),
    (["0.0.0.0", "::1"], "127.0.0.1", [0]),
    (["127.0.0.1", "127.0.0.1"], "127.0.0.1", [0, 1]),
])  # fmt: skip
def test_who_gets_a_connection_to_an_address(diag, bound, to, uids):
    with ExitStack() as stack:
        port = 0
        for number, host in enumerate(bound):
            port = listening(stack, host, port, 7000 + number)
        assert sorted(one.uid - 7000 for one in listening_at((to, port))) == uids
        with socket.create_connection((to, port)) as ours:
            assert sorted(one.uid - 7000 for one in ends(diag, ours)) == uids, "before it is accepted"


def test_one_that_waits_for_data_belongs_to_who_listens(diag):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
        with socket.create_connection(server.getsockname()) as ours:
            assert ends(diag, ours) == (Socket(os.getuid(), os.fstat(server.fileno()).st_ino),)


def test_who_sends_no_more_may_still_read(diag):
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        server.accept()[0] as accepted,
    ):
        accepted.shutdown(socket.SHUT_WR)
        assert ends(diag, ours) == (Socket(os.getuid(), os.fstat(accepted.fileno()).st_ino),)


def test_where_root_leads_a_port_into_a_container_who_listens_here_counts(diag):
    nobodys = ("127.0.0.1", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = server.getsockname()
        [held] = diag.other_end(nobodys, at)
        assert held.inode == os.fstat(server.fileno()).st_ino
    assert diag.other_end(nobodys, at) is None, "nobody is seen"
    assert listening_at(at) == ()


def test_what_is_near():
    assert is_near(("127.0.0.1", 50000), ("127.0.0.2", 4100))
    assert is_near(("::1", 50000), ("::1", 4100))
    assert is_near(("192.0.2.1", 50000), ("192.0.2.1", 4100))
    assert not is_near(("192.0.2.1", 50000), ("192.0.2.2", 4100))
    assert not is_near(("fe80::1%lo", 50000), ("fe80::2%lo", 4100))


def test_a_kernel_without_the_module_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr(sockets.socket, "IPPROTO_TCP", 255)  # the kernel has no module for this one
    with pytest.raises(OSError, match=r"no sock_diag for TCP \(No such file.*\); run: modprobe tcp_diag"):
        SockDiag()
    assert listening_at(("127.0.0.1", 1)) == ()


def test_an_answer_to_a_guard_that_was_killed_is_not_ours(diag, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        [left] = diag.listening_at(server.getsockname())
        passed = socket.socket(fileno=os.dup(diag._netlink.fileno()))
        monkeypatch.setattr(sockets, "_passed", lambda: passed)
        monkeypatch.setattr(diag, "_netlink", Deaf(diag._netlink))
        with pytest.raises(BlockingIOError):
            diag.listening_at(server.getsockname())
        with SockDiag() as next_one:
            assert next_one.listening_at(("127.0.0.1", 1)) == ()
            assert next_one.listening_at(server.getsockname()) == (left,)


class Deaf:
    """A socket whose user is killed before it reads an answer."""

    def __init__(self, netlink):
        self.send, self.close = netlink.send, netlink.close

    def recv(self, size):
        raise BlockingIOError


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_real_connection_before_and_after_it_is_accepted(diag, bound):
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.create_server((bound, 0), family=family, dualstack_ipv6=bound == "::") as server:
        at = ("::1" if bound == "::1" else "127.0.0.1", server.getsockname()[1])
        with socket.create_connection(at) as ours:
            [waits] = ends(diag, ours)
            assert waits == Socket(os.getuid(), os.fstat(server.fileno()).st_ino)
            with server.accept()[0] as accepted:
                [held] = ends(diag, ours)
                assert held == Socket(os.getuid(), os.fstat(accepted.fileno()).st_ino)
                assert holders([held], [os.getpid(), GONE]) == [os.getpid()]
                assert f"pid {os.getpid()} in " in described(held, holders([held], [os.getpid()]))
            assert ends(diag, ours) == (), "it was closed"


@root
def test_who_accepts_counts_and_not_who_listens(diag):
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
        [held] = ends(diag, ours)
        assert held.uid == 65534
        assert holders([held], [os.getpid(), other.pid]) == [other.pid]
        assert described(held, [other.pid]).startswith(f"user nobody (pid {other.pid} in ")


@root
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
    monkeypatch.setattr(sockets, "SockDiag", lambda: pytest.fail("not needed"))
    assert listeners(url) == []


def test_a_bound_address_that_is_not_the_urls_does_not_count():
    with socket.create_server(("127.0.0.2", 0)) as server:
        assert listeners(f"http://127.0.0.1:{server.getsockname()[1]}", [os.getpid()]) == []
