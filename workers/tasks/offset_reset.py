"""Where an input partition starts that has no valid position (Kafka Streams: StreamThread.resetOffsets).

The brokers are asked once for all tasks that start together: their answer waits behind a fetch that waits for records,
up to fetch.wait.max.ms, and a hundred tasks would wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import InitVar, dataclass

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.graph.processor_topology import (
    AutoOffsetReset,
    OffsetResetPolicy,
    ProcessorTopology,
    ResetByDuration,
    SourceNode,
)
from penstock.topology.records import TopicPartition

from ..group.topic_names import TopicNames
from .partition_offsets import OFFSET_BEGINNING, OFFSET_END

#: Returns first offsets from timestamps on, within a time in seconds; see PartitionOffsets.offsets_at.
OffsetsAt = Callable[[Mapping[TopicPartition, int], float], Mapping[TopicPartition, int]]

#: The policy of each partition, and those of topics that have their own.
Policies = dict[TopicPartition, OffsetResetPolicy]
OwnPolicies = Mapping[str, OffsetResetPolicy | None]

#: How long the start of a task waits for its offsets, in seconds; it is then tried again, until task.timeout.ms.
START_WAIT_SECONDS = 5.0
#: How long the reset of a position waits.
RESET_WAIT_SECONDS = 1.0
#: How offsets_at names these positions.
_TIMESTAMPS = {AutoOffsetReset.EARLIEST: OFFSET_BEGINNING, AutoOffsetReset.LATEST: OFFSET_END}


@dataclass(eq=False)
class OffsetReset:
    """The reset policies of all sources. original_reset: ``auto.offset.reset``, for sources without their own.

    offsets_at: asks the brokers; wall_clock_ms: what time it is.
    """

    topologies: Iterable[ProcessorTopology]
    topics: TopicNames
    original_reset: InitVar[str]
    offsets_at: OffsetsAt
    wall_clock_ms: Callable[[], int]
    log: PrefixedLogger

    def __post_init__(self, original_reset: str) -> None:
        self._original_reset = AutoOffsetReset.of(original_reset)
        self._expected: frozenset[TopicPartition] = frozenset()
        self._starts: dict[TopicPartition, int] = {}
        self._logged: set[str] = set()  # topics that the others that start together need not log again

    def offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of each partition, OFFSET_END where no record is as young as its policy says.

        Raises StreamsError where none is allowed, BrokerUnavailableError if the brokers do not say within a second: the
        caller has others to read, and asks again.
        """
        policies = self._permitted(partitions)
        found = self._find(policies, RESET_WAIT_SECONDS)
        self._log_policies(policies)
        return found

    def _permitted(self, partitions: Collection[TopicPartition]) -> Policies:
        """Return the policies by which partitions are reset; raises StreamsError if one forbids it."""
        policies = self._policies(partitions, self._own_policies())
        refused = sorted({p.topic for p, policy in policies.items() if policy is AutoOffsetReset.NONE})
        if refused:
            raise StreamsError(
                f"No valid committed offset found for input [{','.join(refused)}] and no valid reset policy "
                'configured. You need to set configuration parameter "auto.offset.reset" or specify a topic specific '
                "reset policy via StreamsBuilder.stream(..., offset_reset=...) or "
                "StreamsBuilder.table(..., offset_reset=...)"
            )
        return policies

    def _log_policies(self, policies: Policies) -> None:
        own = self._own_policies()
        by_topic = {p.topic: policy for p, policy in policies.items()}
        for topic in sorted(by_topic.keys() - self._logged):
            policy = by_topic[topic]
            if own.get(topic) is not None:
                self.log.info("Setting topic '%s' to consume from %s offset", topic, _shown(policy))
            else:
                self.log.info(
                    "No custom setting defined for topic '%s' using original config '%s' for offset reset",
                    topic,
                    _shown(policy),
                )

    def _find(self, policies: Policies, timeout_seconds: float) -> dict[TopicPartition, int]:
        now_ms = self.wall_clock_ms()
        timestamps = {p: _timestamp(policy, now_ms) for p, policy in policies.items()}
        return dict(self.offsets_at(timestamps, timeout_seconds))

    @contextmanager
    def together(self, partitions: Collection[TopicPartition]) -> Iterator[None]:
        """Within it, have the brokers asked for all of these partitions when ``start_offset`` needs the first."""
        self._expected = frozenset(partitions)
        try:
            yield
        finally:
            self._expected, self._starts, self._logged = frozenset(), {}, set()

    def start_offset(self, partition: TopicPartition) -> int:
        """Return where one partition without a committed offset starts; raises as ``offsets`` does, but sooner."""
        policies = self._permitted([partition])
        self._log_policies(policies)
        self._logged.add(partition.topic)
        if partition in self._expected:
            self._ask_for_all()
        found = self._starts.get(partition)
        return self._find(policies, START_WAIT_SECONDS)[partition] if found is None else found

    def _ask_for_all(self) -> None:
        """Ask for what is expected; some may turn out to have committed offsets: nothing is reset, or logged, yet."""
        expected, self._expected = self._policies(self._expected, self._own_policies()), frozenset()
        resettable: Policies = {p: policy for p, policy in expected.items() if policy is not AutoOffsetReset.NONE}
        try:
            self._starts = self._find(resettable, START_WAIT_SECONDS)
        except BrokerUnavailableError as error:  # of one partition, perhaps: the tasks of the others need not wait
            self.log.warning("%s Asking for each partition alone", error)

    def _policies(self, partitions: Collection[TopicPartition], own: OwnPolicies) -> Policies:
        return {p: own.get(p.topic) or self._original_reset for p in sorted(partitions)}

    def _own_policies(self) -> OwnPolicies:
        nodes = (node for topology in self.topologies for node in topology.nodes.values())
        # Only the application writes its internal topics, so none of their records may be skipped.
        return {
            self.topics.full(topic): (
                AutoOffsetReset.EARLIEST if topic in self.topics.internal else node.auto_offset_reset
            )
            for node in nodes
            if isinstance(node, SourceNode)
            for topic in node.topics
        }


def _shown(policy: OffsetResetPolicy) -> str:
    return f"by_duration={policy.duration_ms} ms" if isinstance(policy, ResetByDuration) else str(policy.value)


def _timestamp(policy: OffsetResetPolicy, now_ms: int) -> int:
    return max(now_ms - policy.duration_ms, 0) if isinstance(policy, ResetByDuration) else _TIMESTAMPS[policy]
