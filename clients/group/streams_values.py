"""The values that a streams group member (KIP-1071) and its coordinator exchange.

streams_membership.py works with them, streams_messages.py converts them to and from Kafka's messages.
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
#: The offset sum reported for a running active task, which has no lag (Kafka: Long.MAX_VALUE).
NO_LAG = 2**63 - 1


Partitions = frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the broker creates. partitions: 0 if the broker derives it; replication_factor: -1 for default."""

    name: str
    partitions: int = 0
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamsSubtopology:
    """One sub-topology. source_topics: the user's.

    All fields are in Kafka Streams' order, because the broker compares the descriptions of all members of a group,
    some of which may run Java.
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
        """Return the input partitions of this task; topics of a sub-topology may differ in partition counts."""
        return frozenset(TopicPartition(topic, number) for topic in self.read_topics if number < counts[topic])


class NodeType(IntEnum):
    """The type of a node in a description (StreamsGroupTopologyDescriptionUpdateRequest.json)."""

    SOURCE = 1
    PROCESSOR = 2
    SINK = 3


@dataclass(frozen=True, slots=True)
class DescribedNode:
    """A node of a topology. sink_topic: None if a function chooses it, and for other nodes."""

    name: str
    type: NodeType
    source_topics: tuple[str, ...] = ()
    sink_topic: str | None = None
    stores: tuple[str, ...] = ()
    successors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedTopology:
    """A topology for the broker's plugin (KIP-1331): id and nodes of sub-topologies, source and processor of global
    stores.
    """

    subtopologies: tuple[tuple[str, tuple[DescribedNode, ...]], ...]
    global_stores: tuple[tuple[DescribedNode, DescribedNode], ...] = ()


@dataclass(frozen=True, slots=True)
class StreamsTopology:
    """The topology as sent to the broker. epoch: Kafka 4.4 supports only 0. description: None if it is not pushed."""

    subtopologies: tuple[StreamsSubtopology, ...]
    epoch: int = 0
    description: DescribedTopology | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A stream thread's report when it joins.

    active_tasks, standby_tasks: the open ones. task_offsets: for tasks with state on disk, the sum of their changelog
    offsets, or NO_LAG. user_endpoint: ``host:port``, empty if unset.
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
        """Tasks that only keep a copy of the state; a warm-up is a standby that is to become active soon."""
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
    """A member's next heartbeat. None for fields unchanged since the last answered heartbeat.

    membership: distinguishes consecutive memberships of the same member; not sent. joining: the stream thread's report
    for the join, if this is the first heartbeat of a membership. owned: the tasks it may have open.
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
    """A status of the group (Kafka: StreamsGroupHeartbeatResponse.Status)."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


#: Statuses of a group that is not ready: members do not have all of their tasks yet.
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


class TasksGiven(NamedTuple):
    """The tasks of a member with their input partitions, and those of all hosts; taken, shutdown_application: as in
    TasksAssigned.
    """

    active: Mapping[TaskId, Partitions]
    standby: Mapping[TaskId, Partitions]
    hosts: HostPartitions
    taken: bool = False
    shutdown_application: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """The coordinator's response to a heartbeat. Durations in milliseconds.

    statuses: the broker's texts by code, which may be unknown to this version of Penstock. tasks: the member's whole
    target assignment, None if unchanged. hosts: None if unchanged since endpoint_epoch. acceptable_recovery_lag: in
    offsets, -1 if the broker does not send it. description_required: the broker has no description of the topology.
    """

    epoch: int
    heartbeat_interval_ms: int
    task_offset_interval_ms: int
    acceptable_recovery_lag: int
    statuses: Mapping[int, str]
    tasks: Tasks | None
    endpoint_epoch: int
    hosts: HostPartitions | None = None
    description_required: bool = False


@dataclass(frozen=True, slots=True)
class TasksAssigned:
    """The target assignment of this member, after a join or when the hosts have changed.

    taken: True if it owns tasks that were revoked; the group waits until it reports that it has closed them.
    shutdown_application: a member has requested the shutdown of the whole application.
    """

    epoch: int
    tasks: Tasks
    hosts: HostPartitions
    taken: bool
    shutdown_application: bool = False
