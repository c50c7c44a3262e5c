"""What the connections of one client have sent and received (Kafka: SelectorMetrics)."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from typing import NamedTuple


class Traffic(NamedTuple):
    """Numbers since the client was made.

    connections: open now. operations: reads and writes of sockets. largest_request: in bytes, since the last look.
    """

    connections: int = 0
    created: int = 0
    closed: int = 0
    authenticated: int = 0
    failed_authentications: int = 0
    requests: int = 0
    responses: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    operations: int = 0
    largest_request: int = 0


@dataclass(slots=True)
class ConnectionTraffic:
    """The numbers of one connection; only the thread that uses it changes them."""

    requests: int = 0
    responses: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    operations: int = 0
    largest_request: int = 0

    def wrote(self, size: int) -> None:
        """Count bytes that a socket has taken."""
        self.bytes_out += size
        self.operations += 1

    def read(self, size: int) -> None:
        """Count received bytes."""
        self.bytes_in += size
        self.operations += 1

    def add(self, other: ConnectionTraffic) -> None:
        """Add the numbers of another connection; of the largest requests, the larger one remains."""
        self.requests += other.requests
        self.responses += other.responses
        self.bytes_out += other.bytes_out
        self.bytes_in += other.bytes_in
        self.operations += other.operations
        self.largest_request = max(self.largest_request, other.largest_request)

    def requested(self, size: int) -> None:
        """Count a request."""
        self.requests += 1
        self.largest_request = max(self.largest_request, size)


class Connections:
    """The connections of one client. Opened on the IO thread, looked at by another one."""

    def __init__(self) -> None:
        self.created = self.authenticated = self.failed_authentications = 0
        self._open: list[tuple[socket.socket, ConnectionTraffic]] = []
        self._before = ConnectionTraffic()  # the sum of the closed ones
        self._lock = threading.Lock()

    def add(self, opened: socket.socket) -> ConnectionTraffic:
        """Return the numbers of a new connection, which is closed when its socket is."""
        traffic = ConnectionTraffic()
        with self._lock:
            self._forget_closed()  # nothing looks at some clients
            self._open.append((opened, traffic))
            self.created += 1
        return traffic

    def _forget_closed(self) -> None:
        kept = []
        for opened, traffic in self._open:
            if opened.fileno() < 0:
                self._before.add(traffic)
            else:
                kept.append((opened, traffic))
        self._open = kept

    def look(self) -> Traffic:
        """Return the numbers of all connections."""
        total = ConnectionTraffic()
        with self._lock:
            self._forget_closed()
            for traffic in (self._before, *(traffic for _, traffic in self._open)):
                total.add(traffic)
                traffic.largest_request = 0
            connections, created = len(self._open), self.created
        return Traffic(
            connections=connections,
            created=created,
            closed=created - connections,
            authenticated=self.authenticated,
            failed_authentications=self.failed_authentications,
            requests=total.requests,
            responses=total.responses,
            bytes_out=total.bytes_out,
            bytes_in=total.bytes_in,
            operations=total.operations,
            largest_request=total.largest_request,
        )
