"""Brokers that a test plays: it reads the clients' requests and chooses the responses."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

from penstock.clients.cluster.brokers import Leader, Leaders, ProducerId
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.connection.opening import Opened
from penstock.clients.traffic import Traffic
from penstock.topology.records import TopicPartition
from tests.waiting import PATIENCE_SECONDS

_LENGTH_BYTES = 4


class PlayedBrokers:
    """The Brokers of a client under test. refused: errors of nodes that refuse connections. ids: the next producer ids.

    versions: supported versions by API key, for all brokers. session_ms: lifetime of authenticated sessions. renewals:
    the results of the next reauthentications, None for another session of that length.
    """

    def __init__(self, leaders: Mapping[TopicPartition, Leader]) -> None:
        self.answer: Leaders | Exception = Leaders(leaders)
        self.asked: list[set[str]] = []
        self.refused: dict[int, Exception] = {}
        self.opened: list[int] = []
        self.versions = {0: (0, 9), 1: (4, 12)}
        self.ids: list[ProducerId | Exception] = [ProducerId(7, 0)]
        self.ends: dict[int, socket.socket] = {}
        #: The clients' ends of the connections.
        self.lent: dict[int, socket.socket] = {}
        self.session_ms: int | None = None
        self.renewed: list[Opened] = []
        self.renewals: list[Exception | None] = []
        self.closed = False
        self.failure: BaseException | None = None

    def leaders(self, topics: Collection[str], on_done: Callable[[], None]) -> Future[Leaders]:
        self.asked.append(set(topics))
        on_done()
        return _done(self.answer)

    def ask_coordinator(
        self, kind: CoordinatorKind, key: str, request: Any, on_done: Callable[[], None]
    ) -> Future[Any]:
        raise AssertionError("no transactions are played here")

    def producer_id(self, on_done: Callable[[], None]) -> Future[ProducerId]:
        on_done()
        return _done(self.ids.pop(0))

    def open(self, node: int, on_done: Callable[[], None]) -> Future[Opened]:
        self.opened.append(node)
        on_done()
        if node in self.refused:
            return _done(self.refused[node])
        ours, theirs = socket.socketpair()
        theirs.settimeout(PATIENCE_SECONDS)
        if node in self.ends:
            self.ends[node].close()
        self.ends[node] = theirs
        self.lent[node] = ours
        return _done(Opened(ours, self.versions, session_ms=self.session_ms))

    def authenticate(self, opened: Opened, on_done: Callable[[], None]) -> Future[Opened]:
        self.renewed.append(opened)
        on_done()
        return _done((self.renewals.pop(0) if self.renewals else None) or opened)

    def traffic(self) -> Traffic:
        return Traffic()

    def close(self) -> None:
        self.closed = True
        for end in self.ends.values():
            end.close()

    def received(self, node: int = 1) -> bytes:
        """Return the next request that a broker has received, without its length prefix."""
        return self._read(node, int.from_bytes(self._read(node, _LENGTH_BYTES), "big"))

    def _read(self, node: int, size: int) -> bytes:
        found = b""
        while len(found) < size:
            some = self.ends[node].recv(size - len(found))
            assert some, f"the connection to broker {node} was closed"
            found += some
        return found

    def has_request(self, node: int = 1) -> bool:
        """Return True if there are bytes to read."""
        end = self.ends[node]
        end.setblocking(False)
        try:
            return bool(end.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            end.settimeout(PATIENCE_SECONDS)

    def say(self, answer: bytes, node: int = 1) -> None:
        """Send a response with its length prefix."""
        self.ends[node].sendall(len(answer).to_bytes(_LENGTH_BYTES, "big") + answer)


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future
