"""Where an input partition starts that has no valid position (Kafka Streams: StreamThread.resetOffsets)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.topology.errors import StreamsError
from penstock.topology.processor_topology import AutoOffsetReset, ProcessorTopology, SourceNode
from penstock.topology.records import TopicPartition

from .log_context import PrefixedLogger
from .partition_consumer import OFFSET_BEGINNING, OFFSET_END
from .topic_names import TopicNames

_OFFSETS = {AutoOffsetReset.EARLIEST: OFFSET_BEGINNING, AutoOffsetReset.LATEST: OFFSET_END}


class OffsetReset:
    """The reset policies of all sources. original_reset: ``auto.offset.reset``, for sources without their own."""

    def __init__(
        self, topologies: Iterable[ProcessorTopology], topics: TopicNames, original_reset: str, log: PrefixedLogger
    ) -> None:
        self._topologies = topologies
        self._topics = topics
        self._original_reset = AutoOffsetReset(original_reset)
        self._log = log

    def offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return OFFSET_BEGINNING or OFFSET_END for each partition; raises StreamsError where none is allowed."""
        own = _policies(self._topologies, self._topics)
        policies = {p: own.get(p.topic) or self._original_reset for p in sorted(partitions)}
        refused = sorted({p.topic for p, policy in policies.items() if policy is AutoOffsetReset.NONE})
        if refused:
            raise StreamsError(
                f"No valid committed offset found for input [{','.join(refused)}] and no valid reset policy "
                'configured. You need to set configuration parameter "auto.offset.reset" or specify a topic specific '
                "reset policy via StreamsBuilder.stream(..., offset_reset=...) or "
                "StreamsBuilder.table(..., offset_reset=...)"
            )
        for topic, policy in sorted({(p.topic, policy) for p, policy in policies.items()}, key=lambda item: item[0]):
            if own.get(topic) is not None:
                self._log.info("Setting topic '%s' to consume from %s offset", topic, policy.value)
            else:
                self._log.info(
                    "No custom setting defined for topic '%s' using original config '%s' for offset reset",
                    topic,
                    policy.value,
                )
        return {partition: _OFFSETS[policy] for partition, policy in policies.items()}

    def start_offset(self, partition: TopicPartition) -> int:
        """Return where one partition without a committed offset starts."""
        return self.offsets([partition])[partition]


def _policies(topologies: Iterable[ProcessorTopology], topics: TopicNames) -> Mapping[str, AutoOffsetReset | None]:
    nodes = (node for topology in topologies for node in topology.nodes.values())
    # Nobody but the application writes its internal topics, so that nothing in them may be left out.
    return {
        topics.full(topic): AutoOffsetReset.EARLIEST if topic in topics.internal else node.auto_offset_reset
        for node in nodes
        if isinstance(node, SourceNode)
        for topic in node.topics
    }
