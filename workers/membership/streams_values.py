"""What a member of a streams group (KIP-1071) and its coordinator tell each other, as plain values.

streams_membership.py decides by them, streams_messages.py turns them into Kafka's messages and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from penstock.topology.records import TaskId

from ..assignment.subscription_info import Partitions, SubscriptionInfo

#: Member epochs with a meaning of their own (StreamsGroupHeartbeatRequest.json).
JOIN_GROUP_MEMBER_EPOCH = 0
LEAVE_GROUP_MEMBER_EPOCH = -1
LEAVE_GROUP_STATIC_MEMBER_EPOCH = -2


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
    """How far tasks with state on this member's disk are: sums over their changelogs, and over the changelogs' ends."""

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
    joining: SubscriptionInfo | None = None
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


#: While the group has one of these it is not ready: nobody has been given all that will be his.
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
