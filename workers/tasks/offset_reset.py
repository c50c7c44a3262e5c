"""Start offsets of input partitions without a valid position, and positions that are not on the brokers.

Kafka Streams: StreamThread.resetOffsets.
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
from penstock.topology.records import TaskId, TopicPartition

from ..group.topic_names import TopicNames
from .asked_together import AskedTogether
from .partition_consumer import InvalidOffsetError, PartitionConsumer
from .partition_offsets import OFFSET_BEGINNING, OFFSET_END
from .task_timeouts import TaskTimeouts

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


RESETTING = "resetting offsets"


@dataclass(eq=False)
class OffsetReset:
    """The reset policies of all sources. original_reset: ``auto.offset.reset``, for sources without a policy.

    offsets_at: requests offsets from the brokers. wall_clock_ms: returns the current time.
    """

    topologies: Iterable[ProcessorTopology]
    topics: TopicNames
    original_reset: InitVar[str]
    offsets_at: OffsetsAt
    wall_clock_ms: Callable[[], int]
    log: PrefixedLogger

    def __post_init__(self, original_reset: str) -> None:
        self._original_reset = AutoOffsetReset.of(original_reset)
        self._starts: AskedTogether[int] = AskedTogether("start offsets", self._start_offsets, self.log)
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
        """Within this context, the first ``start_offset`` requests the offsets of all these partitions."""
        try:
            with self._starts.together(partitions):
                yield
        finally:
            self._logged = set()

    def start_offset(self, partition: TopicPartition) -> int:
        """Return the start offset of a partition without a committed offset; raises as ``offsets`` does, but sooner."""
        self._log_policies(self._permitted([partition]))
        self._logged.add(partition.topic)
        return self._starts.of([partition])[partition]

    def _start_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of each partition that may be reset. Some may have committed offsets and need none."""
        policies = self._policies(partitions, self._own_policies())
        resettable: Policies = {p: policy for p, policy in policies.items() if policy is not AutoOffsetReset.NONE}
        return self._find(resettable, START_WAIT_SECONDS)

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


@dataclass(eq=False)
class InvalidPositions:
    """Resets them by the sources' policies, once the brokers return the offsets.

    A position is often lost together with a broker, so the new leader may not be available yet. task_of: returns the
    running task that reads a partition, None if there is none.
    """

    consumer: PartitionConsumer
    offset_reset: OffsetReset
    timeouts: TaskTimeouts
    task_of: Callable[[TopicPartition], TaskId | None]
    log: PrefixedLogger

    def __post_init__(self) -> None:
        self._found: dict[TopicPartition, InvalidOffsetError] = {}

    def add(self, error: InvalidOffsetError) -> None:
        """Reset these partitions."""
        self._found |= dict.fromkeys(error.partitions, error)

    def reset(self) -> None:
        """Seek to the offsets given by the policies; the next call repeats unanswered requests.

        Raises StreamsError if a policy forbids it, TaskTimeoutError after ``task.timeout.ms`` of failures.
        """
        assigned = self.consumer.assignment()
        self._found = {partition: error for partition, error in self._found.items() if partition in assigned}
        if not self._found:
            return
        task_ids = {task_id for p in self._found if (task_id := self.task_of(p)) is not None}
        try:
            self.consumer.seek(self.offset_reset.offsets(self._found))
        except BrokerUnavailableError as error:
            self.timeouts.failed(task_ids, RESETTING, error)
            return
        except StreamsError as refused:
            raise refused from next(iter(self._found.values()))
        for message in sorted({str(error) for error in self._found.values()}):
            self.log.warning("%s; reset", message)
        self._found = {}
        self.timeouts.succeeded(task_ids, RESETTING)
