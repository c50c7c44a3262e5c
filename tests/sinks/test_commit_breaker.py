"""The proxy of the tests behaves as a network does: a server that is down refuses, and is found when it returns."""

from __future__ import annotations

import socket

from tests.sinks.commit_breaker import commit_breaker
from tests.waiting import PATIENCE_SECONDS

HOST = "127.0.0.1"


def test_a_server_that_was_down_is_found_again() -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))  # which keeps the port, and refuses connections
        with commit_breaker(*listener.getsockname()) as proxy:
            for _ in range(2):
                with socket.create_connection((HOST, proxy.port), PATIENCE_SECONDS) as client:
                    assert client.recv(1) == b"", "the connection is closed, as the server is down"
            assert proxy.refused == 2
            listener.listen()
            with socket.create_connection((HOST, proxy.port), PATIENCE_SECONDS) as client:
                server, _ = listener.accept()
                with server:
                    client.sendall(b"hello")
                    assert server.recv(5) == b"hello"
