"""Kafka brokers as a state machine, driven by requests and the time.

It has no I/O, no threads and no clock: the caller calls ``receive`` with a request's bytes and ``advance`` as time
passes, and takes the responses from each connection's ``outbox``. ``EmbeddedKafka`` does that with sockets.
"""

from __future__ import annotations

import base64
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from penstock.clients.protocol.compact import CompactReader

from .access_control import AccessControl
from .call import Call, Response, Served, Waiting
from .errors import ApiError, ErrorCode
from .group_coordinator import GroupCoordinator
from .quotas import Quotas
from .topics import Partition, Topic, check_config, check_name
from .transaction_coordinator import SendMarker, TransactionCoordinator

if TYPE_CHECKING:
    from .apis.fetch import Session

_HEADER = struct.Struct(">hhi")
_API_VERSIONS = 18
_ID_BYTES = 16
#: The settings of brokers that have an effect here, with the dev broker's defaults.
BROKER_DEFAULTS: Mapping[str, str] = {
    "allow.everyone.if.no.acl.found": "false",
    "authorizer.class.name": "",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "group.consumer.heartbeat.interval.ms": "5000",
    "group.consumer.session.timeout.ms": "45000",
    "group.initial.rebalance.delay.ms": "0",
    "group.max.session.timeout.ms": "1800000",
    "group.min.session.timeout.ms": "1000",
    "group.streams.heartbeat.interval.ms": "5000",
    "group.streams.num.standby.replicas": "0",
    "group.streams.session.timeout.ms": "45000",
    "log.retention.check.interval.ms": "300000",
    "max.incremental.fetch.session.cache.slots": "1000",
    "num.partitions": "1",
    "super.users": "",
    "transaction.max.timeout.ms": "900000",
}
#: The finalized levels of Kafka 4.4's features that have an effect on clients here: the transactions of KIP-890.
FEATURES: Mapping[str, int] = {"transaction.version": 2}


def _at_once(write: Callable[[], None]) -> None:
    write()


@dataclass(eq=False)
class Node:
    """One broker. host, port: its advertised address. fetch_sessions: by id (KIP-227)."""

    id: int
    host: str = ""
    port: int = -1
    up: bool = True
    fetch_sessions: dict[int, Session] = field(default_factory=dict)


@dataclass(eq=False)
class Connection:
    """A client's connection to a node. outbox: responses that the caller must take. closed:
    the broker has closed it.
    """

    node: Node
    peer: str = "/127.0.0.1"
    outbox: deque[bytes] = field(default_factory=deque)
    closed: bool = False
    principal: str | None = None
    mechanism: str | None = None
    queue: deque[bytes] = field(default_factory=deque)
    #: Its requests are delayed until then, because its client has exceeded a quota.
    muted_until: float = 0
    #: The request that blocks the following ones: its API, version, correlation id, and its Waiting.
    busy: tuple[Served, int, int, Waiting] | None = None


class Cluster:
    """nodes: how many; their ids begin with 1. config: settings of brokers, see BROKER_DEFAULTS. users: passwords by
    name; if there are any, clients must authenticate with SASL/PLAIN. random: for ids. features: finalized levels.

    send_marker: called with each function that writes a marker of a decided transaction, and calls it, now or later. If
    it does so later, it must call advance() afterwards.

    Raises ValueError for a setting that has no effect here.
    """

    def __init__(
        self,
        nodes: int = 1,
        config: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
        random: Random | None = None,
        features: Mapping[str, int] | None = None,
        send_marker: SendMarker = _at_once,
    ) -> None:
        from .apis import SERVED  # the APIs need this class

        self._served = SERVED
        self.now_ms = 0
        self.config = {**BROKER_DEFAULTS, **(config or {})}
        if unknown := self.config.keys() - BROKER_DEFAULTS.keys():
            raise ValueError(f"settings without an effect here: {', '.join(sorted(unknown))}")
        self.quotas = Quotas()
        self.access = AccessControl(self.config)
        self.users = dict(users or {})
        #: Finalized features and their levels (KIP-584).
        self.features = {**FEATURES, **(features or {})}
        self.random = random or Random()
        self.id = base64.urlsafe_b64encode(self.new_id()).decode().rstrip("=")
        self.nodes = {number: Node(number) for number in range(1, nodes + 1)}
        self.topics: dict[str, Topic] = {}
        #: The settings of single groups, without the prefix of the brokers' settings.
        self.group_configs: dict[str, dict[str, str]] = {}
        self.groups = GroupCoordinator(self)
        self.transactions = TransactionCoordinator(self, send_marker)
        self._connections: list[Connection] = []
        self._producer_ids = 0
        self._checked_ms: int | None = None  # the last check for expired records, None before the first

    def new_id(self) -> bytes:
        """Return a new topic or cluster id."""
        return self.random.randbytes(_ID_BYTES)

    def new_producer_id(self) -> int:
        """Return the next producer id."""
        self._producer_ids += 1
        return self._producer_ids - 1

    # -- driving the state machine

    def connect(self, node: int) -> Connection:
        """Return a new connection to a node."""
        connection = Connection(self.nodes[node])
        self._connections.append(connection)
        return connection

    def disconnect(self, connection: Connection) -> None:
        """Forget a connection that its client has closed."""
        connection.closed = True
        self._connections.remove(connection)

    def receive(self, connection: Connection, data: bytes, now_ms: int) -> None:
        """Handle a request, without its length prefix."""
        self.now_ms = max(now_ms, self.now_ms)
        connection.queue.append(data)
        self._run()

    def advance(self, now_ms: int) -> None:
        """Advance the time: sessions and transactions time out, and delayed requests are completed."""
        self.now_ms = max(now_ms, self.now_ms)
        if self._has_coordinators:
            self.groups.expire()
            self.transactions.expire()
        if self._checked_ms is None:
            self._checked_ms = self.now_ms
        if self.now_ms >= self._check_at:
            self.delete_expired()
        self._run()

    def deadline_ms(self) -> float | None:
        """Return when advance() is due next, None if no request or timeout is pending."""
        waits = [connection.busy[3].until_ms for connection in self._connections if connection.busy]
        waits += [one.muted_until for one in self._connections if one.queue and not one.busy]
        if any(topic.expires for topic in self.topics.values()):
            waits.append(self._check_at)
        if self._has_coordinators:
            waits += [*self.groups.deadlines(), *self.transactions.deadlines()]
        return min(waits, default=None)

    @property
    def _has_coordinators(self) -> bool:
        return any(node.up for node in self.nodes.values())

    @property
    def _check_at(self) -> int:
        return (self._checked_ms or 0) + int(self.config["log.retention.check.interval.ms"])

    def _run(self) -> None:
        """Send the responses that are ready; one of them may complete another request."""
        while sum(self._step(connection) for connection in list(self._connections)):
            pass

    def _step(self, connection: Connection) -> bool:
        if connection.closed:
            return False
        if connection.busy is not None:
            served, version, correlation_id, waiting = connection.busy
            answer = waiting.ready()
            if answer is None and self.now_ms >= waiting.until_ms:
                answer = waiting.late()
            if answer is None:
                return False
            connection.busy = None
            self._reply(connection, served, version, correlation_id, answer)
            return True
        if not connection.queue or self.now_ms < connection.muted_until:
            return False
        self._begin(connection, connection.queue.popleft())
        return True

    def _begin(self, connection: Connection, data: bytes) -> None:
        key, version, correlation_id = _HEADER.unpack_from(data)
        served = self._served.get(key)
        if served is None or not (served.lowest <= version <= served.api.highest):
            if key != _API_VERSIONS:  # a broker closes the connection, too
                connection.closed = True
                return
            served, version = self._served[_API_VERSIONS], 0
            self._reply(
                connection, served, 0, correlation_id, {**self.versions(), "error_code": ErrorCode.UNSUPPORTED_VERSION}
            )
            return
        if self.users and connection.principal is None and not served.before_login:
            connection.closed = True
            return
        flexible = version >= served.api.flexible
        reader = CompactReader(data[_HEADER.size :])
        size = reader.number(2)
        client_id = reader.take(size).decode() if size > 0 else ""
        if flexible:
            reader.tags()
        body = served.api.request.decode(reader, version, flexible)
        answer = served.answer(Call(self, connection, version, body, client_id))
        if isinstance(answer, Waiting):
            connection.busy = served, version, correlation_id, answer
        elif answer is not None:
            self._reply(connection, served, version, correlation_id, answer)

    def _reply(
        self, connection: Connection, served: Served, version: int, correlation_id: int, answer: Response
    ) -> None:
        flexible = version >= served.api.flexible
        header = correlation_id.to_bytes(4, "big", signed=True)
        tags = b"\0" if flexible and served.api.key != _API_VERSIONS else b""
        connection.outbox.append(header + tags + served.api.response.encode(answer, version, flexible))

    def versions(self) -> Response:
        """Return the APIs and versions that are served, and the finalized features (KIP-584)."""
        return {
            "api_keys": [
                {"api_key": key, "min_version": served.lowest, "max_version": served.api.highest}
                for key, served in sorted(self._served.items())
            ],
            "supported_features": [
                {"name": name, "min_version": 0, "max_version": level} for name, level in self.features.items()
            ],
            "finalized_features_epoch": 0,
            "finalized_features": [
                {"name": name, "min_version_level": level, "max_version_level": level}
                for name, level in self.features.items()
            ],
        }

    # -- topics

    def topic(self, name: str) -> Topic:
        """Return a topic; raises ApiError."""
        found = self.topics.get(name)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def topic_by_id(self, id_: bytes) -> Topic:
        """Return a topic; raises ApiError."""
        found = next((topic for topic in self.topics.values() if topic.id == id_), None)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        return found

    def partition(self, topic: Topic, number: int) -> Partition:
        """Return a partition; raises ApiError."""
        if not 0 <= number < len(topic.partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic.partitions[number]

    def led_here(self, node: Node, topic: Topic, number: int, epoch: int = -1) -> Partition:
        """Return a partition that this node leads; raises ApiError. epoch: the client's, -1 for none."""
        partition = self.partition(topic, number)
        if partition.leader != node.id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if 0 <= epoch != partition.leader_epoch:
            older = epoch < partition.leader_epoch
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)
        return partition

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        assignments: Mapping[int, list[int]] | None = None,
        validate_only: bool = False,
    ) -> Topic:
        """Create a topic and return it; raises ApiError as Kafka does. -1: the brokers' default."""
        check_name(name)
        if name in self.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if assignments:
            replicas = [assignments[number] for number in sorted(assignments)]
        else:
            replicas = self._replicas(partitions, replication_factor)
        check_config(config or {})
        topic = Topic(name, self.new_id(), [Partition(nodes[0], nodes) for nodes in replicas], dict(config or {}))
        if not validate_only:
            self.topics[name] = topic
        return topic

    def _replicas(self, partitions: int, replication_factor: int) -> list[list[int]]:
        count = int(self.config["num.partitions"]) if partitions == -1 else partitions
        if count <= 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        factor = int(self.config["default.replication.factor"]) if replication_factor == -1 else replication_factor
        if factor <= 0:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if factor > len(self.nodes):
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot "
                f"be reached because only {len(self.nodes)} broker(s) are registered or some brokers have all their "
                "log directories cordoned.",
            )
        nodes, begin = sorted(self.nodes), self.random.randrange(len(self.nodes))
        return [
            [nodes[(begin + number + replica) % len(nodes)] for replica in range(factor)] for number in range(count)
        ]

    def add_partitions(self, topic: Topic, count: int) -> None:
        """Give a topic more partitions; raises ApiError."""
        has = len(topic.partitions)
        if count == has:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {has} partition(s).")
        if count < has:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {has} partition(s); {count} would not be an increase.",
            )
        factor = len(topic.partitions[0].replicas)
        for nodes in self._replicas(count - has, factor):
            topic.partitions.append(Partition(nodes[0], nodes))

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic with its records and its committed offsets."""
        del self.topics[topic.name]
        self.groups.forget_topic(topic.name)

    def delete_expired(self) -> None:
        """Delete the records beyond retention.ms and retention.bytes, without waiting for the next check."""
        self._checked_ms = self.now_ms
        for topic in self.topics.values():
            topic.delete_expired(self.now_ms)

    def compact(self, topic: str) -> None:
        """Compact a topic, as Kafka does at intervals with cleanup.policy=compact; raises ApiError."""
        found = self.topic(topic)
        if "compact" not in found.setting("cleanup.policy"):
            raise ApiError(ErrorCode.POLICY_VIOLATION, f"Topic {topic} has no cleanup.policy=compact.")
        for partition in found.partitions:
            partition.log.compact()

    # -- nodes

    def coordinator(self, key: str) -> Node:
        """Return the node that coordinates a group or a transactional id: one that is up, if possible."""
        nodes = [node for node in self.nodes.values() if node.up] or list(self.nodes.values())
        return nodes[sum(key.encode()) % len(nodes)]

    def move_leader(self, topic: str, number: int, node: int) -> None:
        """Make another replica the leader, with a new leader epoch."""
        partition = self.partition(self.topic(topic), number)
        if node not in partition.replicas:
            partition.replicas.append(node)
        partition.leader, partition.leader_epoch = node, partition.leader_epoch + 1

    def stop_node(self, node: int) -> None:
        """Take a node down: its connections end, and other replicas lead its partitions; those without one have no
        leader.
        """
        gone = self.nodes[node]
        self._set_up(gone, False)
        for connection in [one for one in self._connections if one.node is gone]:
            self.disconnect(connection)
        self._elect(topic.partitions for topic in self.topics.values())

    def start_node(self, node: int) -> None:
        """Bring a node back; it leads the partitions without a leader."""
        self._set_up(self.nodes[node], True)
        self._elect(topic.partitions for topic in self.topics.values())

    def _set_up(self, node: Node, up: bool) -> None:
        """Set a node's state. Sessions restart in groups whose coordinator changes or returns."""
        before = {name: found for name in self.groups.groups if (found := self.coordinator(name)).up}
        node.up = up
        for name, group in self.groups.groups.items():
            if self.coordinator(name) is not before.get(name):
                group.members.restart_sessions()

    def _elect(self, topics: Iterable[Collection[Partition]]) -> None:
        for partition in (one for partitions in topics for one in partitions):
            if partition.leader == -1 or not self.nodes[partition.leader].up:
                up = [node for node in partition.replicas if self.nodes[node].up]
                partition.leader = up[0] if up else -1
                partition.leader_epoch += 1
