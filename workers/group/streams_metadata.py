"""The location of an application's state: the stores and partitions of each host (StreamsMetadataState).

It follows the group's assignments; hosts are the members' ``application.server``. A partition may have moved since the
last assignment, so callers must be prepared to retry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.topology.context.partitioners import Partitioner, choose_one, partition_for_key
from penstock.topology.errors import UnknownStateStoreError
from penstock.topology.graph.processor_topology import ProcessorNode, ProcessorTopology, SourceNode
from penstock.topology.records import TopicPartition
from penstock.topology.serdes.serdes import SerdeLike, as_serde

from ..control.messages import HostsChanged
from .topic_names import TopicNames


class HostInfo(NamedTuple):
    """An ``application.server``."""

    host: str
    port: int

    @classmethod
    def parse(cls, endpoint: str) -> HostInfo:
        """Return the parts of ``host:port`` or ``protocol://host:port``; raises ValueError."""
        host, _, port = endpoint.rpartition("://")[2].rpartition(":")
        return cls(host, int(port))


@dataclass(frozen=True, slots=True)
class StreamsMetadata:
    """One host: the input partitions of its active and standby tasks, and the stores of these tasks.

    Global stores are on every host.
    """

    host_info: HostInfo
    state_store_names: frozenset[str]
    topic_partitions: frozenset[TopicPartition]
    standby_state_store_names: frozenset[str]
    standby_topic_partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class KeyQueryMetadata:
    """The location of a key. active_host: None if no host with an application.server has it now.

    partition: -1 for a global store, which has all keys on every host.
    """

    active_host: HostInfo | None
    standby_hosts: frozenset[HostInfo]
    partition: int


class StreamsMetadataState:
    """The hosts as of the last assignment. on_change replaces all data at once, so any thread may read.

    application_server: this host's, empty if it has none. on_hosts: called with all hosts after each change.
    """

    def __init__(self, application_server: str) -> None:
        self._this_host = HostInfo.parse(application_server) if application_server else None
        self._hosts: HostsChanged | None = None  # before the first assignment
        self._metadata: tuple[StreamsMetadata, ...] = ()
        self.on_hosts: Callable[[Collection[HostInfo]], None] = lambda _: None

    def on_change(self, hosts: HostsChanged) -> None:
        """Replace the data with the group's last assignment."""
        endpoints = sorted(hosts.active.keys() | hosts.standby.keys(), key=HostInfo.parse)
        self._hosts, self._metadata = hosts, tuple(self._of_host(hosts, endpoint) for endpoint in endpoints)
        self.on_hosts([metadata.host_info for metadata in self._metadata])

    @staticmethod
    def _of_host(hosts: HostsChanged, endpoint: str) -> StreamsMetadata:
        active, standby = hosts.active.get(endpoint, frozenset()), hosts.standby.get(endpoint, frozenset())
        return StreamsMetadata(
            HostInfo.parse(endpoint),
            _stores_of(hosts, active) | hosts.global_stores,
            active,
            _stores_of(hosts, standby),
            standby,
        )

    def all_metadata(self) -> list[StreamsMetadata]:
        """Return all hosts that have an application.server; none before the first assignment."""
        return list(self._metadata)

    def others(self) -> list[StreamsMetadata]:
        """Return all of them but this host."""
        return [metadata for metadata in self._metadata if metadata.host_info != self._this_host]

    def metadata_for_store(self, store: str) -> list[StreamsMetadata]:
        """Return the hosts with a part of a store, active or standby; raises UnknownStateStoreError."""
        if self._hosts is not None:
            _require(store, self._hosts)
        return [m for m in self._metadata if store in m.state_store_names or store in m.standby_state_store_names]

    def key_query_metadata(
        self, store: str, key: object, key_serde: SerdeLike | None, partitioner: Partitioner | None
    ) -> KeyQueryMetadata | None:
        """Return the location of a key of a store, None before the first assignment, or if no host has an address.

        Raises UnknownStateStoreError for an unknown store, ValueError if the partitioner does not return one partition.
        """
        hosts = self._hosts
        if hosts is None:
            return None
        _require(store, hosts)
        if not self._metadata:
            return None
        if store in hosts.global_stores:
            return KeyQueryMetadata(self._this_host or self._metadata[0].host_info, frozenset(), -1)
        topics = hosts.store_topics[store]
        widest = max(sorted(topics), key=lambda topic: topics[topic])
        partition = _partition(key, widest, topics[widest], key_serde, partitioner)
        wanted = {TopicPartition(topic, partition) for topic in topics}
        return KeyQueryMetadata(
            next((m.host_info for m in self._metadata if m.topic_partitions & wanted), None),
            frozenset(m.host_info for m in self._metadata if m.standby_topic_partitions & wanted),
            partition,
        )


def _require(store: str, hosts: HostsChanged) -> None:
    if store not in hosts.store_topics and store not in hosts.global_stores:
        known = ", ".join(sorted(hosts.store_topics.keys() | hosts.global_stores)) or "none"
        raise UnknownStateStoreError(f"The topology has no state store {store!r}; it has: {known}.")


def _stores_of(hosts: HostsChanged, partitions: Iterable[TopicPartition]) -> frozenset[str]:
    topics = {partition.topic for partition in partitions}
    return frozenset(store for store, sources in hosts.store_topics.items() if not topics.isdisjoint(sources))


def _partition(
    key: object, topic: str, count: int, key_serde: SerdeLike | None, partitioner: Partitioner | None
) -> int:
    if partitioner is not None:
        partition = choose_one(partitioner, topic, key, None, None, count)
    else:
        serde = as_serde(key_serde)
        data = None if serde is None else serde.serialize(topic, key)
        partition = None if data is None else partition_for_key(data, count)
    if partition is None or not 0 <= partition < count:
        raise ValueError(
            f"Key {key!r} belongs to no partition of {topic}, which has {count}: give the key's serde, or the "
            "partitioner that chose the partition when it was written."
        )
    return partition


def store_topics(topologies: Iterable[ProcessorTopology], names: TopicNames) -> dict[str, frozenset[str]]:
    """Return, for each store with input, the full names of the topics whose records reach it."""
    found: dict[str, frozenset[str]] = {}
    for topology in topologies:
        reached = _topics_reaching(topology)
        for node in topology.nodes.values():
            for store in node.stores if isinstance(node, ProcessorNode) else ():
                topics = frozenset(map(names.full, reached[node.name]))
                found[store] = found.get(store, frozenset()) | topics
    return {store: topics for store, topics in found.items() if topics}


def _topics_reaching(topology: ProcessorTopology) -> Mapping[str, set[str]]:
    reached: dict[str, set[str]] = {name: set() for name in topology.nodes}
    for name, node in topology.nodes.items():  # parents come before their children
        if isinstance(node, SourceNode):
            reached[name].update(node.topics)
        for child in getattr(node, "children", ()):
            reached[child] |= reached[name]
    return reached


class HostReporter:
    """Reports the location of tasks to the supervisor whenever it has changed. report: takes a HostsChanged."""

    def __init__(
        self, report: Callable[[HostsChanged], None], topologies: Iterable[ProcessorTopology], names: TopicNames
    ) -> None:
        self._report = report
        self._topologies = topologies
        self._names = names
        self._last = HostsChanged()

    def on_assignment(
        self,
        active: Mapping[str, frozenset[TopicPartition]],
        standby: Mapping[str, frozenset[TopicPartition]],
        partition_counts: Mapping[str, int],
    ) -> None:
        """Report input partitions by host:port; those of before if an assignment has none."""
        if not active and not standby:
            active, standby = self._last.active, self._last.standby
        hosts = HostsChanged(
            active,
            standby,
            {
                store: {topic: partition_counts[topic] for topic in topics & partition_counts.keys()}
                for store, topics in store_topics(self._topologies, self._names).items()
            },
            frozenset(store for topology in self._topologies for store in topology.global_stores),
        )
        if hosts != self._last:
            self._last = hosts
            self._report(hosts)
