"""The stream thread's interface to a Cluster: infrequent requests, and new connections to brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Protocol, TypeVar

from typing_extensions import override

from penstock.topology.records import TopicPartition

from ..connection.opening import Opened
from ..network_settings import NetworkSettings
from ..protocol.by_topic import each_partition
from ..protocol.schema import Request
from ..traffic import Traffic
from .cluster import Cluster
from .coordinators import CoordinatorKind, Coordinators

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Leader:
    """A partition's leader. node: -1 if there is none at the moment; epoch: the leader epoch, -1 if unknown."""

    node: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ProducerId:
    """A producer's id and epoch, by which brokers detect duplicate batches (KIP-98)."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Leaders:
    """The leaders of some topics' partitions.

    errors: error code by topic. ids: 16 bytes by topic, from brokers since Kafka 2.8 (KIP-516); a recreated topic has
    a new id.
    """

    by_partition: Mapping[TopicPartition, Leader]
    errors: Mapping[str, int] = field(default_factory=dict)
    ids: Mapping[str, bytes] = field(default_factory=dict)


class Brokers(Coordinators, Protocol):
    """The cluster as readers and writers use it. on_done is called on another thread when a future is done."""

    @property
    def failure(self) -> BaseException | None:
        """The error after which no request will be answered any more; None while the client works."""

    def leaders(self, topics: Collection[str], on_done: Callable[[], None]) -> Future[Leaders]:
        """Look up the leaders of these topics' partitions."""

    def producer_id(self, on_done: Callable[[], None]) -> Future[ProducerId]:
        """Request a new producer id. Errors are UnreachableError and BrokerError."""

    def open(self, node: int, on_done: Callable[[], None]) -> Future[Opened]:
        """Connect to a broker; errors as above. The caller owns the socket."""

    def authenticate(self, opened: Opened, on_done: Callable[[], None]) -> Future[Opened]:
        """Reauthenticate a connection with nothing in flight; errors as above."""

    def traffic(self) -> Traffic:
        """Return what all connections of the client have sent and received."""

    def close(self) -> None:
        """Close the client; pending futures are cancelled."""


class KafkaBrokers(Brokers):
    """The brokers of a real cluster.

    creates_topics: allow brokers to auto-create requested topics, if they are configured to. The cluster is
    opened on the first request, because many applications never restore.
    """

    def __init__(self, settings: NetworkSettings, creates_topics: bool = False) -> None:
        self._settings = settings
        self._creates_topics = creates_topics
        self._opened: Cluster | None = None

    @property
    def _cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = Cluster(self._settings)
        return self._opened

    @property
    @override
    def failure(self) -> BaseException | None:
        return None if self._opened is None else self._opened.failure

    @override
    def leaders(self, topics: Collection[str], on_done: Callable[[], None]) -> Future[Leaders]:
        return _told(self._cluster.submit(self._leaders, topics), on_done)

    async def _leaders(self, topics: Collection[str]) -> Leaders:
        response = await self._cluster.metadata(topics, self._creates_topics)
        by_partition = {p: Leader(at.leader_id, at.leader_epoch) for p, at in each_partition(response.topics)}
        return Leaders(
            by_partition,
            {t.name: t.error_code for t in response.topics if t.error_code},
            {t.name: t.topic_id for t in response.topics if any(t.topic_id)},
        )

    @override
    def producer_id(self, on_done: Callable[[], None]) -> Future[ProducerId]:
        return _told(self._cluster.submit(self._producer_id), on_done)

    async def _producer_id(self) -> ProducerId:
        return ProducerId(*await self._cluster.producer_id())

    @override
    def ask_coordinator(
        self, kind: CoordinatorKind, key: str, request: Request, on_done: Callable[[], None]
    ) -> Future[object]:
        return _told(self._cluster.submit(self._cluster.ask_coordinator, kind, key, request), on_done)

    def ask_any(self, request: Request) -> Future[SimpleNamespace]:
        """Send a request to any reachable broker. Errors are UnreachableError and BrokerError."""
        return self._cluster.submit(self._cluster.ask_any, request)

    @override
    def open(self, node: int, on_done: Callable[[], None]) -> Future[Opened]:
        return _told(self._cluster.submit(self._cluster.open, node), on_done)

    @override
    def authenticate(self, opened: Opened, on_done: Callable[[], None]) -> Future[Opened]:
        return _told(self._cluster.submit(self._cluster.authenticate, opened), on_done)

    @override
    def traffic(self) -> Traffic:
        return Traffic() if self._opened is None else self._opened.connections.look()

    @override
    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def _told(future: Future[T], on_done: Callable[[], None]) -> Future[T]:
    future.add_done_callback(lambda _: on_done())
    return future
