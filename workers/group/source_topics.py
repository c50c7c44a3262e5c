"""The source topics as they are in the cluster: patterns may match new topics, and topics may get partitions.

In Kafka Streams a change of the consumer's metadata triggers the rebalance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from penstock.clients.clock import Clock
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import BrokerUnavailableError
from penstock.topology.graph.internal_topology_builder import InternalTopologyBuilder
from penstock.topology.graph.processor_topology import ProcessorTopology

from .assignment.topics_info import TopicsInfo, topics_infos
from .streams_metadata import store_topics
from .topic_names import TopicNames

#: Requests all topics with their partition counts from the brokers.
TopicCounts = Callable[[], Mapping[str, int]]


class BuiltTopologies:
    """The sub-topologies, rebuilt when a source's pattern matches other topics."""

    def __init__(self, builder: InternalTopologyBuilder, config: StreamsConfig, topic_counts: TopicCounts) -> None:
        self._builder = builder
        self._config = config
        self._topic_counts = topic_counts
        self._known = self._matching(topic_counts()) if builder.source_patterns() else frozenset()
        self._topologies = builder.build_subtopologies(config, self._known)
        self._store_topics: Mapping[str, frozenset[str]] | None = None

    def __iter__(self) -> Iterator[ProcessorTopology]:
        return iter(self._topologies)

    def infos(self) -> dict[int, TopicsInfo]:
        """Return the topics of each sub-topology."""
        return topics_infos(self._config["application.id"], self)

    def refresh(self) -> None:
        """Match patterns against the cluster's current topics; raises BrokerUnavailableError."""
        if not self._builder.source_patterns():
            return
        known = self._matching(self._topic_counts())
        if known != self._known:
            self._known = known
            self._topologies = self._builder.build_subtopologies(self._config, known)
            self._store_topics = None

    def store_topics(self, names: TopicNames) -> Mapping[str, frozenset[str]]:
        """Return, for each store with input, the full names of the topics whose records reach it.

        They are kept, because each read of a key needs them. names: those of this application, always the same.
        """
        if self._store_topics is None:
            self._store_topics = store_topics(self, names)
        return self._store_topics

    def read_topics(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the cluster's topics that are read here, with their partition counts."""
        named = {topic for info in self.infos().values() for topic in info.user_source_topics}
        return {topic: counts[topic] for topic in (named | self._matching(counts)) & counts.keys()}

    def _matching(self, topics: Mapping[str, int]) -> frozenset[str]:
        patterns = self._builder.source_patterns()
        return frozenset(topic for topic in topics if any(pattern.fullmatch(topic) for pattern in patterns))


@dataclass(eq=False)
class SourceTopics:
    """Updates the assignor's topics, and detects when they have changed.

    make_ready, look: see InternalTopicManager; update: see StreamsPartitionAssignor.update_topics. interval_ms: how
    often to check.
    """

    topologies: BuiltTopologies
    topic_counts: TopicCounts
    make_ready: Callable[[Mapping[int, TopicsInfo], int | None], Mapping[str, int]]
    look: Callable[[Mapping[int, TopicsInfo]], Mapping[str, bytes]]
    update: Callable[[Mapping[int, TopicsInfo], Mapping[str, int]], None]
    clock: Clock
    interval_ms: int
    log: PrefixedLogger

    def __post_init__(self) -> None:
        #: Partition counts as of the last join.
        self.counts: Mapping[str, int] = {}
        #: The ids of the topics of the tasks, as of the last assignment.
        self.ids: Mapping[str, bytes] = {}
        self._read: dict[str, int] = {}
        self._looked_ms = self.clock.monotonic_ms()

    def prepare(self, patience_ms: int | None = None) -> None:
        """Prepare the topics for a join: create internal topics, read partition counts. Raises as make_ready."""
        self.topologies.refresh()
        infos = self.topologies.infos()
        counts = self.make_ready(infos, patience_ms)
        self.update(infos, counts)
        self.counts = counts
        self._read = self.topologies.read_topics(counts)
        self._looked_ms = self.clock.monotonic_ms()

    def on_assigned(self) -> None:
        """Look at the topics again: the internal ones exist once there is an assignment."""
        self.ids = {**self.ids, **self.look(self.topologies.infos())}

    def changed(self) -> bool:
        """Return whether the topics read here, or their partitions, have changed; checks once per interval."""
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._looked_ms < self.interval_ms:
            return False
        self._looked_ms = now_ms
        try:
            read = self.topologies.read_topics(self.topic_counts())
        except BrokerUnavailableError as error:
            self.log.warning(
                "Could not check whether the topics that are read have changed; will check again later: %s", error
            )
            return False
        if read == self._read:
            return False
        self.log.info("The topics that are read have changed from %s to %s", self._read, read)
        return True
