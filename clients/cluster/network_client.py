"""The links to brokers for one request type, and the partitions' leaders (Kafka: NetworkClient and Metadata)."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from ..connection.broker_link import BrokerLink, LinkApi, R
from ..connection.connection import ConnectionState
from ..log_context import PrefixedLogger
from ..network_settings import NetworkSettings
from ..retry_log import RetryLog
from ..throttle import Health, Throttle, Times
from .brokers import Brokers
from .leader_table import LeaderTable


@dataclass(frozen=True, slots=True)
class Completed(Generic[R]):
    """A completed request. asked: as passed to send(). response: None if the connection was lost or timed out."""

    node: int
    asked: Any
    response: R | None


@dataclass(eq=False)
class NetworkClient(Generic[R]):
    """Links to brokers, created on demand, and one place to wait for all of them.

    Not thread-safe; owns brokers. on_failure: called once per failure with what failed and why.
    """

    brokers: Brokers
    settings: NetworkSettings
    api: LinkApi[R]
    on_failure: Callable[[str, str], None]
    log: PrefixedLogger

    def __post_init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._watched: int | None = None
        #: Whether the descriptor of watch() has ended the last wait().
        self.is_called = False
        self.leaders = LeaderTable(self.brokers, self.settings, self.wake)
        self._links: dict[int, BrokerLink[R]] = {}
        #: Everything that the client repeats.
        self.retries = RetryLog(self.log)
        self.throttle = Throttle(self.retries, self.settings.client_id)
        self._latencies = Times()
        self._told: dict[int | None, str] = {}  # reported failures by broker; None: of the leader lookup
        #: Whether anything happened since this was set to False, after which unsent requests may be sendable.
        self.has_changed = True
        #: Brokers whose connection was lost or could not be opened; the caller clears it.
        self.lost_nodes: set[int] = set()

    def wake(self) -> None:
        """Let wait() return; thread-safe."""
        try:
            self._waker.send(b"\0")
        except OSError:  # the socket is full, and the waiting thread will wake up anyway; or closed, and none waits
            return

    def watch(self, descriptor: int) -> None:
        """From now on also end wait() when a descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._watched = descriptor

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Do not end wait() for the descriptor of watch() during the block."""
        watched = self._watched
        if watched is None:
            yield
            return
        self._selector.unregister(watched)
        try:
            yield
        finally:
            self._selector.register(watched, selectors.EVENT_READ)

    def link(self, node: int) -> BrokerLink[R]:
        """Return the link to a broker."""
        found = self._links.get(node)
        if found is None:
            found = BrokerLink(node, self.brokers, self.settings, self.api, self._selector, self.wake, self.log)
            self._links[node] = found
        return found

    def advance(self, partitions: Collection[TopicPartition], now_ms: int) -> list[Completed[R]]:
        """Handle arrived responses, and look up these partitions' leaders when due. Returns the completed requests.

        Raises StreamsError if the brokers cannot be used any more, or one supports no version of the requests.
        """
        if self.brokers.failure is not None:
            raise StreamsError(f"The client's IO thread has failed: {self.brokers.failure!r}")
        if self.leaders.advance(partitions, now_ms):
            self.has_changed = True
        over: list[Completed[R]] = []
        for node, link in self._links.items():
            over += self._advance_link(node, link, now_ms)
        self._note("The leaders of partitions cannot be looked up", None, self.leaders.failure, now_ms)
        return over

    def _advance_link(self, node: int, link: BrokerLink[R], now_ms: int) -> Iterable[Completed[R]]:
        over: list[Completed[R]] = []
        before = ConnectionState.ACTIVE if link.unanswered else link.state  # lost while sending
        while (found := link.advance(now_ms)) is not None:
            over.append(Completed(node, *found))
            self.throttle.note(node, self.api.name, found[1].throttle_time_ms, now_ms)
            self._latencies = self._latencies.with_one(link.latency_ms)
            self.has_changed = True
            if link.state is not ConnectionState.ACTIVE:
                break
        over += [Completed(node, asked, None) for asked in link.unanswered]
        link.unanswered.clear()
        if link.state is not before:
            self.has_changed = True
            if link.state is ConnectionState.CLOSED:
                self.lost_nodes.add(node)
                self.leaders.refresh(now_ms)  # it may no longer lead its partitions
        self._note(f"Broker {node} cannot be {self.api.verb}", node, link.failure, now_ms)
        return over

    def _note(self, what: str, node: int | None, failure: str | None, now_ms: int) -> None:
        """Report a failure once; report again only a different failure, or after a success."""
        if failure == self._told.get(node):
            return
        doing = "The lookup of leaders" if node is None else f"The connection to broker {node}, {self.api.name}"
        if failure is None:
            del self._told[node]
            self.retries.succeeded(doing, now_ms)
            return
        self._told[node] = failure
        self.on_failure(what, failure)
        self.retries.failed(doing, failure, now_ms, is_told=True)

    def wait(self, now_ms: int, until_ms: int) -> None:
        """Wait until data arrives, something is due, or until_ms."""
        due = (self.leaders.next_at(), *(link.next_at(now_ms) for link in self._links.values()))
        until = min((until_ms, *(at for at in due if at is not None)))
        ready = [key.fileobj for key, _ in self._selector.select(max(until - now_ms, 1) / 1000)]
        if self._woken in ready:
            self._woken.recv(1024)
        self.is_called = self._watched in ready
        if not self.is_called or len(ready) > 1:
            self.has_changed = True

    def note_pause(self, ms: int) -> None:
        """Count a pause of the caller, which the times passed to other methods exclude."""
        self.leaders.note_pause(ms)
        for link in self._links.values():
            link.note_pause(ms)

    def health(self, now_ms: int) -> Health:
        """Return what the client waits for, its traffic, and its latencies and throttle times since the last call."""
        latencies, self._latencies = self._latencies, Times()
        waits = self.retries.current(now_ms)
        return Health(waits, self.throttle.take_times(), latencies, self.brokers.traffic())

    def wake_when(self, done: Future[Any]) -> None:
        """Let wait() return when a future is done."""
        done.add_done_callback(lambda _: self.wake())

    def abort(self, now_ms: int) -> None:
        """Close the connections that have requests in flight, which have failed."""
        for link in self._links.values():
            link.abort(now_ms)

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.close()
        self.brokers.close()
        self._selector.close()
        self._woken.close()
        self._waker.close()
