"""What the connections of a client send and receive is counted, as the broker's side of a real connection sees it."""

from __future__ import annotations

import socket
import weakref
from contextlib import closing

from penstock.clients.connection.broker_socket import BrokerSocket
from penstock.clients.traffic import Connections


def test_bytes_and_requests_are_those_of_the_other_end() -> None:
    connections = Connections()
    ours, theirs = socket.socketpair()
    with closing(theirs):
        sender = BrokerSocket(ours, 1_000, connections.add(ours))
        for size in (10, 300, 20):
            sender.send(b"x" * size)
        assert len(theirs.recv(10_000)) == 330 + 3 * 4
        theirs.sendall((5).to_bytes(4, "big") + b"12345" + (2).to_bytes(4, "big") + b"6")
        assert bytes(sender.receive() or b"") == b"12345"
        assert sender.receive() is None
        seen = connections.look()
        assert (seen.connections, seen.created, seen.closed) == (1, 1, 0)
        assert (seen.requests, seen.bytes_out, seen.largest_request) == (3, 342, 300)
        assert (seen.responses, seen.bytes_in) == (1, 14)
        assert connections.look().largest_request == 0, "since the last look"
        sender.close()
    after = connections.look()
    assert (after.connections, after.closed, after.requests, after.bytes_in) == (0, 1, 3, 14)
    assert connections.look() == after


def test_closed_connections_are_not_kept_if_nothing_looks_at_a_client() -> None:
    connections = Connections()
    opened = []
    for size in (20, 10):
        made = socket.socket()
        connections.add(made).requested(size)
        made.close()
        opened.append(weakref.ref(made))
    del made
    with socket.socket() as last:
        connections.add(last)
        assert [ref() for ref in opened] == [None, None]
        seen = connections.look()
        assert (seen.connections, seen.created, seen.requests, seen.largest_request) == (1, 3, 2, 20)
