"""Start offsets of input partitions without a valid position (Kafka Streams: StreamThread.resetOffsets).

One request to each broker serves all tasks that start together. A response may be delayed by a pending fetch, for up to
fetch.wait.max.ms, and with one request per task these delays would add up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

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

#: Returns the first offsets from given timestamps, within a timeout in seconds; see PartitionOffsets.offsets_at.
OffsetsAt = Callable[[Mapping[TopicPartition, int], float], Mapping[TopicPartition, int]]

#: The policy of each partition, and the names of topics that have their own policy.
Policies = dict[TopicPartition, OffsetResetPolicy]
OwnPolicies = Mapping[str, OffsetResetPolicy | None]

#: How long the start of a task waits for its offsets, in seconds. Then it retries, until task.timeout.ms.
START_WAIT_SECONDS = 5.0
#: How long the reset of a position waits.
RESET_WAIT_SECONDS = 1.0
#: The timestamps that offsets_at takes for these positions.
_TIMESTAMPS = {AutoOffsetReset.EARLIEST: OFFSET_BEGINNING, AutoOffsetReset.LATEST: OFFSET_END}


class OffsetReset:
    """The reset policies of all sources. original_reset: ``auto.offset.reset``, for sources without a policy.

    offsets_at: requests offsets from the brokers. wall_clock_ms: returns the current time.
    """

    def __init__(
        self,
        topologies: Iterable[ProcessorTopology],
        topics: TopicNames,
        original_reset: str,
        offsets_at: OffsetsAt,
        wall_clock_ms: Callable[[], int],
        log: PrefixedLogger,
    ) -> None:
        self._topologies = topologies
        self._topics = topics
        self._original_reset = AutoOffsetReset.of(original_reset)
        self._offsets_at = offsets_at
        self._wall_clock_ms = wall_clock_ms
        self._log = log
        self._expected: frozenset[TopicPartition] = frozenset()
        self._starts: dict[TopicPartition, int] = {}
        self._logged: set[str] = set()  # topics already logged by tasks that start together

    def offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of each partition, OFFSET_END if no record is as new as its policy requires.

        Raises StreamsError if the policy allows no reset, BrokerUnavailableError if the brokers do not answer within a
        second: the caller must continue with other partitions, and retries.
        """
        policies = self._permitted(partitions)
        found = self._find(policies, RESET_WAIT_SECONDS)
        self._log_policies(policies)
        return found

    def _permitted(self, partitions: Collection[TopicPartition]) -> Policies:
        """Return the policies of partitions; raises StreamsError if one of them forbids a reset."""
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
                self._log.info("Setting topic '%s' to consume from %s offset", topic, _shown(policy))
            else:
                self._log.info(
                    "No custom setting defined for topic '%s' using original config '%s' for offset reset",
                    topic,
                    _shown(policy),
                )

    def _find(self, policies: Policies, timeout_seconds: float) -> dict[TopicPartition, int]:
        now_ms = self._wall_clock_ms()
        timestamps = {p: _timestamp(policy, now_ms) for p, policy in policies.items()}
        return dict(self._offsets_at(timestamps, timeout_seconds))

    @contextmanager
    def together(self, partitions: Collection[TopicPartition]) -> Iterator[None]:
        """Within this context, the first ``start_offset`` requests the offsets of all these partitions."""
        self._expected = frozenset(partitions)
        try:
            yield
        finally:
            self._expected, self._starts, self._logged = frozenset(), {}, set()

    def start_offset(self, partition: TopicPartition) -> int:
        """Return the start offset of a partition without a committed offset; raises as ``offsets`` does, but sooner."""
        policies = self._permitted([partition])
        self._log_policies(policies)
        self._logged.add(partition.topic)
        if partition in self._expected:
            self._ask_for_all()
        found = self._starts.get(partition)
        return self._find(policies, START_WAIT_SECONDS)[partition] if found is None else found

    def _ask_for_all(self) -> None:
        """Request the offsets of all expected partitions. Some may have committed offsets, so nothing is reset or
        logged yet.
        """
        expected, self._expected = self._policies(self._expected, self._own_policies()), frozenset()
        resettable: Policies = {p: policy for p, policy in expected.items() if policy is not AutoOffsetReset.NONE}
        try:
            self._starts = self._find(resettable, START_WAIT_SECONDS)
        except BrokerUnavailableError as error:  # may concern one partition only: tasks of the others need not wait
            self._log.warning("%s Requesting the offsets of each partition separately", error)

    def _policies(self, partitions: Collection[TopicPartition], own: OwnPolicies) -> Policies:
        return {p: own.get(p.topic) or self._original_reset for p in sorted(partitions)}

    def _own_policies(self) -> OwnPolicies:
        nodes = (node for topology in self._topologies for node in topology.nodes.values())
        # Only the application writes its internal topics, so none of their records may be skipped.
        return {
            self._topics.full(topic): (
                AutoOffsetReset.EARLIEST if topic in self._topics.internal else node.auto_offset_reset
            )
            for node in nodes
            if isinstance(node, SourceNode)
            for topic in node.topics
        }


def _shown(policy: OffsetResetPolicy) -> str:
    return f"by_duration={policy.duration_ms} ms" if isinstance(policy, ResetByDuration) else str(policy.value)


def _timestamp(policy: OffsetResetPolicy, now_ms: int) -> int:
    return max(now_ms - policy.duration_ms, 0) if isinstance(policy, ResetByDuration) else _TIMESTAMPS[policy]
