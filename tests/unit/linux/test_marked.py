"""Sockets with the guard's mark, and those that come back to it all the same."""

from __future__ import annotations

import os
import socket

import pytest

from hostguard.linux.sockets import MARK, Marked, meant


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mark a socket")
def test_its_own_connection_is_known_when_it_comes_back() -> None:
    marked = Marked()
    with socket.create_server(("127.0.0.1", 0)) as listening, marked.make(socket.AF_INET) as own:
        own.connect(listening.getsockname())
        other = socket.create_connection(listening.getsockname())
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_MARK) == MARK
        assert not marked.take_back(other.getsockname())
        assert not marked.came_back(own)
        assert marked.take_back(own.getsockname())
        assert marked.came_back(own)
        other.close()


def test_who_was_not_redirected_meant_nobody_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
        with accepted:
            assert meant(accepted) is None
