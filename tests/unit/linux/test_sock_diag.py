"""Whose connections are, as this machine's kernel tells."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from hostguard.linux.sockets import SockDiag

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root gives sockets to other users")


@pytest.fixture(params=["127.0.0.1", "::1"])
def listening(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as made:
        yield made


def of_user(uid: int, to: tuple[str, int]) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET)
    os.fchown(made.fileno(), uid, uid)
    made.connect(to)
    return made


def owner(diag: SockDiag, accepted: socket.socket) -> int | None:
    return diag.owner(accepted.getpeername()[:2], accepted.getsockname()[:2])


def test_it_tells_the_users_of_connections_apart_until_they_are_closed(listening: socket.socket) -> None:
    diag, address = SockDiag(), listening.getsockname()[:2]
    pairs = [(uid, of_user(uid, address), listening.accept()[0]) for uid in (0, 1001, 4_000_000_000)]
    assert [owner(diag, accepted) for _, _, accepted in pairs] == [uid for uid, _, _ in pairs]
    _, client, accepted = pairs[1]
    client.shutdown(socket.SHUT_WR)
    assert owner(diag, accepted) == 1001  # it may still read
    ends = accepted.getpeername()[:2], accepted.getsockname()[:2]
    client.close()
    assert diag.owner(*ends) is None  # not 0, which is root
    for _, *both in pairs:
        for one in both:
            one.close()
    diag.close()


def test_a_client_that_writes_an_ipv4_address_as_one_of_ipv6() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        diag = SockDiag()
        with of_user(1001, ("::ffff:127.0.0.1", listening.getsockname()[1])):
            accepted, _ = listening.accept()
            with accepted:
                assert owner(diag, accepted) == 1001
        diag.close()
