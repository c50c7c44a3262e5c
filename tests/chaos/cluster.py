"""Brokers and controllers as in production: each in a separate process, with all internal topics replicated.

Six JVMs, three brokers and three controllers, take 1.6 GiB of memory under the load of these tests.
"""

from __future__ import annotations

import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psutil
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from penstock.dev.dev_broker import ANSWER_TIMEOUT_SECONDS, HOST, STOP_TIMEOUT_SECONDS, DevBroker
from penstock.dev.kafka_distribution import newest
from tests.brokers import SMALL_COMPILER
from tests.free_port import free_ports

#: The lowest id of controllers; those of brokers are 1, 2, 3.
FIRST_CONTROLLER = 101
#: Memory of a node: the machine has other work, and topics are small.
BROKER_HEAP, CONTROLLER_HEAP = "-Xmx320m", "-Xmx128m"
#: librdkafka's error for a broker that does not respond.
UNREACHABLE = (ClientError._TRANSPORT, ClientError._ALL_BROKERS_DOWN, ClientError._RESOLVE, ClientError._TIMED_OUT)
#: How long a broker counts as alive without a heartbeat; see schedule.STOP_BROKER_MS.
SESSION = {"broker.session.timeout.ms": "5000", "broker.heartbeat.interval.ms": "500"}
#: Seconds for a node to start on a busy machine, and for all replicas of all partitions to be in sync.
START_SECONDS, SETTLE_SECONDS = 300.0, 240.0
POLL_SECONDS = 0.1
#: Where the storage tool writes the first metadata records, up to Kafka 4.3 and since.
BOOTSTRAP = ("bootstrap.checkpoint", "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint")
OFFSETS_TOPIC = "__consumer_offsets"
#: Not raised with a release: it controls whether the set of controllers may change, which ours does not.
KEPT_FEATURES = ("kraft.version",)

Partition = tuple[str, int]
T = TypeVar("T")


@dataclass(frozen=True)
class Addresses:
    """The addresses of a cluster's nodes. hosts: host by node id; ports in the same way."""

    hosts: Mapping[int, str]
    ports: Mapping[int, int]

    def of(self, node_id: int) -> str:
        """Return a node's host and port."""
        return f"{self.hosts[node_id]}:{self.ports[node_id]}"

    def voters(self) -> str:
        """Return controller.quorum.voters."""
        return ",".join(f"{node}@{self.of(node)}" for node in self.hosts if node >= FIRST_CONTROLLER)


class Node(DevBroker):
    """A broker or a controller. Its address does not change, because the others know it."""

    def __init__(self, addresses: Addresses, node_id: int, directory: Path, config: dict[str, str], kafka: str) -> None:
        self.node_id = node_id
        self.is_controller = node_id >= FIRST_CONTROLLER
        super().__init__(f"{'controller' if self.is_controller else 'broker'}-{node_id}", directory, kafka=kafka)
        self.host = addresses.hosts[node_id]
        self.memory_options = (CONTROLLER_HEAP if self.is_controller else BROKER_HEAP, SMALL_COMPILER)
        self._addresses = addresses
        self._more_config = config

    def _choose_ports(self) -> tuple[int, int]:
        return self._addresses.ports[self.node_id], self._addresses.ports[self.node_id]

    def _settings(self, port: int, controller_port: int) -> dict[str, str]:
        settings = super()._settings(port, controller_port)
        listener = "CONTROLLER" if self.is_controller else "BROKER"
        settings |= {
            "process.roles": listener.lower(),
            "node.id": str(self.node_id),
            "listeners": f"{listener}://{self._addresses.of(self.node_id)}",
            "controller.quorum.voters": self._addresses.voters(),
            **self._more_config,
        }
        if self.is_controller:
            del settings["advertised.listeners"]
        return settings

    def _serves(self, running: Any) -> bool:
        """Return True if a controller listens, or if a broker is registered in the cluster; it may lead no partition
        yet.
        """
        try:
            socket.create_connection((self.host, running.port), ANSWER_TIMEOUT_SECONDS).close()
        except OSError:
            return False
        return self.is_controller or self.node_id in _brokers(f"{self.host}:{running.port}")

    def use(self, kafka: str) -> None:
        """Use another version of Kafka from the next start on."""
        self._kafka = kafka

    def process(self) -> psutil.Process:
        """Return its process; raises ProcessLookupError if it does not run."""
        pid = self.status().pid
        if pid is None:
            raise ProcessLookupError(f"{self.name} does not run")
        return psutil.Process(pid)

    def kill(self) -> None:
        """Kill it, as a power failure would."""
        process = self.process()
        process.kill()
        process.wait(STOP_TIMEOUT_SECONDS)

    def running_version(self) -> str:
        """Return the version in the log of the running process."""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return next(line.partition("Kafka version: ")[2].split()[0] for line in lines if "Kafka version: " in line)


class Cluster:
    """All nodes; as a context manager they run for the length of the block.

    Processes end with the thread that starts them. hosts: the address of each broker, 127.0.0.1 by default. config:
    additional broker settings. kafka: the initial version.
    """

    def __init__(
        self,
        directory: Path,
        brokers: int,
        controllers: int,
        config: Mapping[str, str] | None = None,
        *,
        hosts: Mapping[int, str] | None = None,
        kafka: str | None = None,
    ) -> None:
        broker_ids = range(1, brokers + 1)
        nodes = (*range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers), *broker_ids)
        self._addresses = Addresses(
            {n: (hosts or {}).get(n, HOST) for n in nodes}, dict(zip(nodes, free_ports(len(nodes)), strict=True))
        )
        self.kafka = kafka or newest()
        replicated = _replication(brokers) | SESSION | dict(config or {})
        self.nodes = {
            n: Node(self._addresses, n, directory / f"node-{n}", replicated, self.kafka) for n in nodes
        }  # controllers first
        self.brokers = {n: self.nodes[n] for n in broker_ids}
        self.controllers = {n: node for n, node in self.nodes.items() if n not in self.brokers}
        self.bootstrap_servers = ",".join(self._addresses.of(n) for n in broker_ids)

    def __enter__(self) -> Cluster:
        with ExitStack() as unless_started:
            unless_started.callback(self.stop)
            first = self.nodes[FIRST_CONTROLLER]
            first.start(START_SECONDS, detached=False)
            for node in self.nodes.values():
                if node is not first:
                    _join(node, first)
                    node.start(START_SECONDS, detached=False)
            unless_started.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill all nodes: their data is no longer needed."""
        for node in self.nodes.values():
            if node.status().running:
                node.process().send_signal(signal.SIGCONT)
                node.kill()

    def start(self, nodes: Iterable[Node]) -> None:
        """Start nodes that are down."""
        for node in nodes:
            node.start(START_SECONDS, detached=False)

    # -- the state of the cluster

    def leaders(self) -> dict[Partition, int]:
        """Return the leader of each partition; -1 for one without."""
        topics = self._metadata().topics
        return {(name, number): p.leader for name, topic in topics.items() for number, p in topic.partitions.items()}

    def replicas(self) -> dict[Partition, list[int]]:
        """Return the replicas of each partition, the preferred leader first."""
        topics = self._metadata().topics
        return {(name, number): p.replicas for name, topic in topics.items() for number, p in topic.partitions.items()}

    def settled(self) -> bool:
        """True if every partition has a leader and all its replicas in sync."""
        metadata = self._metadata()
        topics = metadata.topics.values()
        return len(metadata.brokers) == len(self.brokers) and all(
            p.leader >= 0 and len(p.isrs) == len(p.replicas) for t in topics for p in t.partitions.values()
        )

    def is_whole(self) -> bool:
        """True if every broker has every partition, in sync."""
        return self.settled() and all(len(nodes) == len(self.brokers) for nodes in self.replicas().values())

    def await_settled(self, seconds: float = SETTLE_SECONDS) -> None:
        """Wait for ``settled``; raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not self.settled():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all partitions have a leader and all replicas in sync within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def coordinator(self, group: str) -> int:
        """Return the broker that coordinates a group: the leader of its partition, whatever its protocol."""
        leaders = {number: leader for (topic, number), leader in self.leaders().items() if topic == OFFSETS_TOPIC}
        return leaders[_java_hash(group) % len(leaders)]

    def group_type(self, group: str) -> str:
        """Return a group's type, such as "classic" or "streams", "" if there is none."""
        return self._listed(group, "group_type")

    def group_state(self, group: str) -> str:
        """Return a group's state, such as "stable" or "empty", "" if there is none."""
        return self._listed(group, "group_state")

    def _listed(self, group: str, field: str) -> str:
        groups = self.ask(lambda admin: admin.list_groups())
        return str(next((listed.get(field, "") for listed in groups if listed["group_id"] == group), "")).lower()

    def active_controller(self) -> Node:
        """Return the controller that leads the others, as a broker sees it in the quorum."""
        (topic,) = self.ask(lambda admin: admin.describe_metadata_quorum()["topics"])
        return self.controllers[topic["partitions"][0]["leader_id"]]

    def memory(self) -> int:
        """Return the resident bytes of all running nodes."""
        return sum(node.process().memory_info().rss for node in self.nodes.values() if node.status().running)

    def _metadata(self) -> Any:
        """Return the metadata of the first broker that responds; raises KafkaException if none does in
        SETTLE_SECONDS.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                return self._client.list_topics(timeout=ANSWER_TIMEOUT_SECONDS)
            except KafkaException as error:
                if error.args[0].code() not in UNREACHABLE or time.monotonic() > deadline:
                    raise

    @cached_property
    def _client(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})

    # -- changes

    def ask(self, question: Callable[[Any], T]) -> T:
        """Return what question(client) returns. The client supports requests that confluent-kafka's lacks.

        It retries while nodes are not ready, such as coordinators that load their groups; raises KafkaError after
        SETTLE_SECONDS, and at once for errors that are not retriable.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap_servers.split(","))) as client:
                    return question(client)
            except KafkaError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def reassign(self, replicas: Mapping[Partition, list[int]]) -> None:
        """Set the replicas of partitions, or only their order, the preferred leader first.

        Returns when it is done; raises RuntimeError if the controller refuses it, and TimeoutError.
        """
        wanted = {TopicPartition(*p): r for p, r in replicas.items()}
        answer = self.ask(lambda admin: admin.alter_partition_reassignments(wanted))
        refused = {partition: error for partition, error in answer.items() if error is not None}
        if refused:
            raise RuntimeError(f"reassignments are refused: {refused}")
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.ask(lambda admin: admin.list_partition_reassignments()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"reassignments are not done within {SETTLE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def elect_preferred(self, partitions: Iterable[Partition]) -> None:
        """Make the preferred replicas leaders, except those that are not in sync."""
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        self.ask(lambda admin: admin.elect_leaders(0, topics, raise_errors=False))

    def finalize(self) -> dict[str, tuple[int, int]]:
        """Raise all features to the levels that all nodes support, as after an upgrade; return old and new levels."""
        raised = {}
        features = self.ask(lambda admin: admin.describe_features())
        for name, feature in sorted(features.items(), key=lambda item: item[0] != METADATA):
            level, highest = feature.get("finalized", (0, 0))[1], feature.get("supported", (0, 0))[1]
            if name in KEPT_FEATURES or level >= highest:
                continue
            answer = self.ask(methodcaller("update_features", {name: highest}))[name]
            if answer != "OK":
                raise RuntimeError(f"{name} cannot be raised from {level} to {highest}: {answer}")
            raised[name] = (level, highest)
        return raised


#: The feature on which others depend.
METADATA = "metadata.version"


def _replication(brokers: int) -> dict[str, str]:
    """Return the settings that replicate all topics to three brokers, one of which may be down."""
    factor, in_sync = str(min(brokers, 3)), str(min(brokers, 2))
    return {
        "default.replication.factor": factor,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def _join(node: Node, first: Node) -> None:
    """Write the files that the storage tool would write, with the cluster id of the first controller."""
    data, cluster = node.directory / "data", first.directory / "data"
    data.mkdir(parents=True)
    identity = dict(
        line.split("=", 1) for line in (cluster / "meta.properties").read_text().splitlines() if line[0] != "#"
    )
    lines = f"version=1\ncluster.id={identity['cluster.id']}\nnode.id={node.node_id}\n"
    (data / "meta.properties").write_text(lines)
    if node.is_controller:
        for name in BOOTSTRAP:
            if (cluster / name).exists():
                (data / name).parent.mkdir(exist_ok=True)
                shutil.copy(cluster / name, data / name)


def _java_hash(text: str) -> int:
    """Return String.hashCode() as Kafka uses it, without the sign."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def _brokers(address: str) -> set[int]:
    """Return the brokers in one broker's metadata, none if it does not respond."""
    client = AdminClient({"bootstrap.servers": address, "log_level": 2})
    try:
        return set(client.list_topics(timeout=ANSWER_TIMEOUT_SECONDS).brokers)
    except KafkaException:
        return set()
