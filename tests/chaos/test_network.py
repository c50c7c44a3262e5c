"""The run's own network: lost, delayed and forwarded packets, with real connections through real namespaces."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.chaos.network import Network, why_not
from tests.chaos.switch import Rule
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif((REASON := why_not()) is not None, reason=f"no network can be made here: {REASON}")
PORT = 5_000


@pytest.fixture
def network() -> Iterator[Network]:
    with Network([1, 2], [1]) as network:
        yield network


@pytest.fixture
def connections(network: Network) -> Iterator[dict[int, socket.socket]]:
    """A host's connections to an echo server, by broker."""
    servers = {number: socket.create_server((address, PORT)) for number, address in network.brokers.items()}
    for server in servers.values():
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
    with network.on(1):
        found = {n: socket.create_connection((a, PORT), PATIENCE_SECONDS) for n, a in network.brokers.items()}
    yield found
    for connection in (*found.values(), *servers.values()):
        connection.close()


def _echo(server: socket.socket) -> None:
    with suppress(OSError):  # the test has closed it
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)


def ask(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return connection.recv(len(data))


def test_a_cut_affects_one_broker_and_not_the_other(network: Network, connections: dict[int, socket.socket]) -> None:
    network.rule([Rule(network.hosts[1], network.brokers[1], loss=1.0)])
    connections[1].settimeout(0.5)
    with pytest.raises(TimeoutError):
        ask(connections[1], b"cut")
    assert ask(connections[2], b"not cut") == b"not cut"
    assert network.rule([])["lost"] > 0
    connections[1].settimeout(PATIENCE_SECONDS)
    assert connections[1].recv(16) == b"cut", "the connection has outlived it"


def test_responses_are_lost_while_requests_arrive(network: Network, connections: dict[int, socket.socket]) -> None:
    network.rule([Rule(network.brokers[1], network.hosts[1], loss=1.0)])
    connections[1].settimeout(0.5)
    with pytest.raises(TimeoutError):
        ask(connections[1], b"answer")
    counts = network.rule([])
    assert counts["lost"] > 0
    assert counts["passed"] > 0, "the request, at least"
    connections[1].settimeout(PATIENCE_SECONDS)
    assert connections[1].recv(16) == b"answer"


def test_a_delay_has_its_length_and_jitter_varies_it(network: Network, connections: dict[int, socket.socket]) -> None:
    assert ask(connections[1], b"warm") == b"warm"
    network.rule([Rule(network.hosts[1], network.brokers[1], delay_ms=200.0, jitter_ms=100.0)])
    took = []
    for _ in range(5):
        start = time.monotonic()
        ask(connections[1], b"x")
        took.append(time.monotonic() - start)
    assert min(took) >= 0.1
    assert max(took) - min(took) > 0.001
    assert network.rule([])["delayed"] >= 5


def test_the_thread_returns_to_its_own_network_afterwards() -> None:
    before = sorted(name for _, name in socket.if_nameindex())
    with Network([1], [1]) as network:
        assert "wire" in [name for _, name in socket.if_nameindex()]
        with network.on(1), pytest.raises(OSError, match="Cannot assign requested address"):
            socket.create_server((network.brokers[1], PORT))  # the host is another machine
    assert sorted(name for _, name in socket.if_nameindex()) == before
