"""The source topics as they are in the cluster: patterns may match new topics, and topics may get partitions.

In Kafka Streams a change of the consumer's metadata triggers the rebalance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from penstock.clients.clock import Clock
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import limit_ms
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
    """The sub-topologies, rebuilt when a source's pattern matches other topics.

    They notice when the topics that they read have changed, once per ``metadata.max.age.ms`` of the consumer.
    """

    def __init__(
        self,
        builder: InternalTopologyBuilder,
        config: StreamsConfig,
        topic_counts: TopicCounts,
        clock: Clock,
        log: PrefixedLogger,
    ) -> None:
        self._builder = builder
        self._config = config
        self._topic_counts = topic_counts
        self._clock = clock
        self._log = log
        self._interval_ms = limit_ms(config.of_client("metadata.max.age.ms", "consumer.", "main.consumer."))
        #: Partition counts as of the last join.
        self.counts: Mapping[str, int] = {}
        self._read: Mapping[str, int] = {}
        self._looked_ms = clock.monotonic_ms()
        self._build(self._matching(topic_counts()) if builder.source_patterns() else frozenset())

    def __iter__(self) -> Iterator[ProcessorTopology]:
        return iter(self._topologies)

    def _build(self, known: frozenset[str]) -> None:
        """Build them for the topics that match patterns."""
        self._known = known
        self._topologies = self._builder.build_subtopologies(self._config, known)
        #: The topics of each sub-topology.
        self.infos: Mapping[int, TopicsInfo] = topics_infos(self._config["application.id"], self._topologies)
        self._store_topics: Mapping[str, frozenset[str]] | None = None

    def refresh(self) -> None:
        """Match patterns against the cluster's current topics; raises BrokerUnavailableError."""
        if not self._builder.source_patterns():
            return
        known = self._matching(self._topic_counts())
        if known != self._known:
            self._build(known)

    def store_topics(self, names: TopicNames) -> Mapping[str, frozenset[str]]:
        """Return, for each store with input, the full names of the topics whose records reach it.

        They are kept, because each read of a key needs them. names: those of this application, always the same.
        """
        if self._store_topics is None:
            self._store_topics = store_topics(self, names)
        return self._store_topics

    def note(self, counts: Mapping[str, int]) -> None:
        """Take the partition counts of a join, with which ``changed`` compares."""
        self.counts = counts
        self._read = self._read_topics(counts)
        self._looked_ms = self._clock.monotonic_ms()

    def changed(self) -> bool:
        """Return whether the topics read here, or their partitions, have changed; checks once per interval."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < self._interval_ms:
            return False
        self._looked_ms = now_ms
        try:
            read = self._read_topics(self._topic_counts())
        except BrokerUnavailableError as error:
            self._log.warning(
                "Could not check whether the topics that are read have changed; will check again later: %s", error
            )
            return False
        if read == self._read:
            return False
        self._log.info("The topics that are read have changed from %s to %s", self._read, read)
        return True

    def _read_topics(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the cluster's topics that are read here, with their partition counts."""
        named = {topic for info in self.infos.values() for topic in info.user_source_topics}
        return {topic: counts[topic] for topic in (named | self._matching(counts)) & counts.keys()}

    def _matching(self, topics: Mapping[str, int]) -> frozenset[str]:
        patterns = self._builder.source_patterns()
        return frozenset(topic for topic in topics if any(pattern.fullmatch(topic) for pattern in patterns))
