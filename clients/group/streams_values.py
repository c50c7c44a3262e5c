"""What a member of a streams group (KIP-1071) and its coordinator exchange, as plain values.

streams_membership.py decides by them, streams_messages.py turns them into Kafka's messages and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from penstock.topology.records import TaskId, TopicPartition

#: Member epochs with a special meaning (StreamsGroupHeartbeatRequest.json).
JOIN_GROUP_MEMBER_EPOCH = 0
LEAVE_GROUP_MEMBER_EPOCH = -1
LEAVE_GROUP_STATIC_MEMBER_EPOCH = -2
#: The sum of a running active task's offsets, which has no lag (Kafka: Long.MAX_VALUE).
NO_LAG = 2**63 - 1


Partitions = frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the broker makes. partitions: 0 if the broker derives it; replication_factor: -1 for its default."""

    name: str
    partitions: int = 0
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamsSubtopology:
    """One sub-topology. source_topics: the user's.

    All in the order in which Kafka Streams lists them: the broker compares the descriptions of all members of a group,
    some of which may run on Java.
    """

    subtopology: int
    source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    changelog_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[tuple[str, ...], ...] = ()

    @property
    def read_topics(self) -> frozenset[str]:
        """All topics that its tasks read."""
        return frozenset((*self.source_topics, *(topic.name for topic in self.repartition_source_topics)))

    def input_partitions(self, number: int, counts: Mapping[str, int]) -> Partitions:
        """Return what the task with this number reads: topics of one sub-topology may differ in their partitions."""
        return frozenset(TopicPartition(topic, number) for topic in self.read_topics if number < counts[topic])


@dataclass(frozen=True, slots=True)
class StreamsTopology:
    """The topology as it is sent to the broker. epoch: Kafka 4.4 knows no other than 0."""

    subtopologies: tuple[StreamsSubtopology, ...]
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What a stream thread reports when it joins.

    active_tasks, standby_tasks: those that are open. task_offsets: of tasks with state on its disk, the sum of their
    changelog offsets, or NO_LAG. user_endpoint: ``host:port``, empty without one.
    """

    process_id: UUID
    active_tasks: frozenset[TaskId] = frozenset()
    standby_tasks: frozenset[TaskId] = frozenset()
    task_offsets: Mapping[TaskId, int] = field(default_factory=dict)
    user_endpoint: str = ""
    client_tags: Mapping[str, str] = field(default_factory=dict)
    requests_shutdown: bool = False


class Tasks(NamedTuple):
    """A member's tasks by their role."""

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    warmup: frozenset[TaskId] = frozenset()

    @property
    def replicas(self) -> frozenset[TaskId]:
        """Tasks that only keep a copy of the state; a warm-up is a standby that wants to become active soon."""
        return self.standby | self.warmup

    def union(self, other: Tasks) -> Tasks:
        """Return the tasks of both, role by role."""
        return Tasks(self.active | other.active, self.standby | other.standby, self.warmup | other.warmup)

    def __str__(self) -> str:
        roles = zip(self._fields, self, strict=True)
        return ", ".join(f"{role} {' '.join(map(str, sorted(tasks))) or 'none'}" for role, tasks in roles)


@dataclass(frozen=True, slots=True)
class TaskOffsets:
    """Positions of tasks with state on this member's disk: sums over changelogs, and over the changelogs' ends."""

    offsets: Mapping[TaskId, int]
    end_offsets: Mapping[TaskId, int]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the member says next. None where nothing has changed since the last heartbeat that was answered.

    membership: tells one membership from the next of the same member; it is not sent. joining: what the stream thread
    reported for the join, when this is the first heartbeat of a membership. owned: the tasks it may have open.
    """

    membership: int
    epoch: int
    endpoint_epoch: int
    joining: Report | None = None
    owned: Tasks | None = None
    offsets: Mapping[TaskId, int] | None = None
    end_offsets: Mapping[TaskId, int] | None = None
    shutdown_application: bool = False


class Status(IntEnum):
    """What is special about the group (Kafka: StreamsGroupHeartbeatResponse.Status)."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


#: While the group has one of these it is not ready: no member has all of its tasks yet.
NOT_READY = frozenset(
    {
        Status.MISSING_SOURCE_TOPICS,
        Status.INCORRECTLY_PARTITIONED_TOPICS,
        Status.MISSING_INTERNAL_TOPICS,
        Status.ASSIGNMENT_DELAYED,
    }
)


class HostPartitions(NamedTuple):
    """Input partitions by user endpoint (``host:port``): of active tasks, and of standby and warm-up tasks."""

    active: Mapping[str, Partitions]
    standby: Mapping[str, Partitions]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the coordinator says to a heartbeat. Durations in milliseconds.

    statuses: by code, which may be one that this Penstock does not know, with the broker's text. tasks: all that the
    member shall have, None if unchanged. hosts: None if unchanged since endpoint_epoch. acceptable_recovery_lag: in
    offsets, -1 from a broker that does not say.
    """

    epoch: int
    heartbeat_interval_ms: int
    task_offset_interval_ms: int
    acceptable_recovery_lag: int
    statuses: Mapping[int, str]
    tasks: Tasks | None
    endpoint_epoch: int
    hosts: HostPartitions | None = None


@dataclass(frozen=True, slots=True)
class TasksAssigned:
    """The answer to a join, or news of the hosts: the tasks that this member shall have.

    taken: True if it owns tasks that are not its own any more; the group waits until it says that it has given them up.
    shutdown_application: a member has asked for the end of the whole application.
    """

    epoch: int
    tasks: Tasks
    hosts: HostPartitions
    taken: bool
    shutdown_application: bool = False
