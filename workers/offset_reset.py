"""Where an input partition starts that has no valid position (Kafka Streams: StreamThread.resetOffsets)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from penstock.topology.errors import StreamsError
from penstock.topology.processor_topology import (
    AutoOffsetReset,
    OffsetResetPolicy,
    ProcessorTopology,
    ResetByDuration,
    SourceNode,
)
from penstock.topology.records import TopicPartition

from .log_context import PrefixedLogger
from .partition_consumer import OFFSET_BEGINNING, OFFSET_END
from .topic_names import TopicNames

_OFFSETS = {AutoOffsetReset.EARLIEST: OFFSET_BEGINNING, AutoOffsetReset.LATEST: OFFSET_END}


class OffsetReset:
    """The reset policies of all sources. original_reset: ``auto.offset.reset``, for sources without their own.

    offset_at: asks the broker for the first offset of a partition from a timestamp on; wall_clock_ms: what time it is.
    """

    def __init__(
        self,
        topologies: Iterable[ProcessorTopology],
        topics: TopicNames,
        original_reset: str,
        offset_at: Callable[[TopicPartition, int], int],
        wall_clock_ms: Callable[[], int],
        log: PrefixedLogger,
    ) -> None:
        self._topologies = topologies
        self._topics = topics
        self._original_reset = AutoOffsetReset.of(original_reset)
        self._offset_at = offset_at
        self._wall_clock_ms = wall_clock_ms
        self._log = log

    def offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return OFFSET_BEGINNING, OFFSET_END or an offset for each partition.

        Raises StreamsError where none is allowed, BrokerUnavailableError if a search by time gets no answer.
        """
        own = _policies(self._topologies, self._topics)
        policies: dict[TopicPartition, OffsetResetPolicy] = {
            p: own.get(p.topic) or self._original_reset for p in sorted(partitions)
        }
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
                self._log.info("Setting topic '%s' to consume from %s offset", topic, _shown(policy))
            else:
                self._log.info(
                    "No custom setting defined for topic '%s' using original config '%s' for offset reset",
                    topic,
                    _shown(policy),
                )
        return {partition: self._offset(partition, policy) for partition, policy in policies.items()}

    def _offset(self, partition: TopicPartition, policy: OffsetResetPolicy) -> int:
        if isinstance(policy, ResetByDuration):
            return self._offset_at(partition, self._wall_clock_ms() - policy.duration_ms)
        return _OFFSETS[policy]

    def start_offset(self, partition: TopicPartition) -> int:
        """Return where one partition without a committed offset starts."""
        return self.offsets([partition])[partition]


def _shown(policy: OffsetResetPolicy) -> str:
    return f"by_duration={policy.duration_ms} ms" if isinstance(policy, ResetByDuration) else str(policy.value)


def _policies(topologies: Iterable[ProcessorTopology], topics: TopicNames) -> Mapping[str, OffsetResetPolicy | None]:
    nodes = (node for topology in topologies for node in topology.nodes.values())
    # Nobody but the application writes its internal topics, so that nothing in them may be left out.
    return {
        topics.full(topic): AutoOffsetReset.EARLIEST if topic in topics.internal else node.auto_offset_reset
        for node in nodes
        if isinstance(node, SourceNode)
        for topic in node.topics
    }
