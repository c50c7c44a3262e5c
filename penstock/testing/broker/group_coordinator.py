"""Groups by name, and their committed offsets.

Kafka: GroupCoordinatorService, OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .classic_group import ClassicGroup
from .consumer_group import ConsumerGroup
from .errors import ApiError, ErrorCode
from .group_members import Claim, GroupMembers
from .streams_group import StreamsGroup

if TYPE_CHECKING:
    from .cluster import Cluster

#: The longest metadata of an offset, in bytes (offset.metadata.max.bytes).
METADATA_MAX_BYTES = 4096
NO_OFFSET = -1


@dataclass(frozen=True)
class CommittedOffset:
    """A group's committed offset of a partition."""

    offset: int
    leader_epoch: int
    metadata: str


@dataclass(eq=False)
class Group:
    """members: those of one protocol. pending: offsets in open transactions, by producer id."""

    members: GroupMembers
    offsets: dict[tuple[str, int], CommittedOffset] = field(default_factory=dict)
    pending: dict[int, dict[tuple[str, int], CommittedOffset]] = field(default_factory=dict)

    def is_unstable(self, partition: tuple[str, int]) -> bool:
        """True if an open transaction has an offset of this partition (KIP-447)."""
        return any(partition in offsets for offsets in self.pending.values())


class GroupCoordinator:
    """All groups of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.groups: dict[str, Group] = {}

    def group(self, group_id: str, create: bool = False) -> Group:
        """Return a group; raises ApiError if it does not exist, or for an invalid name."""
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        found = self.groups.get(group_id)
        if found is None:
            if not create:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            found = self.groups[group_id] = Group(ClassicGroup(group_id, self._cluster))
        return found

    def classic(self, group_id: str) -> ClassicGroup:
        """Return the members of a classic group; raises ApiError (unknown member) if there is no such group."""
        try:
            members = self.group(group_id).members
        except ApiError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID) from error
            raise
        if not isinstance(members, ClassicGroup):
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return members

    def classic_to_join(self, group_id: str, protocol_type: str) -> ClassicGroup:
        """Return the members of a classic group, a new one if there is none; raises ApiError."""
        group = self.group(group_id, create=True)
        if isinstance(group.members, ClassicGroup):
            return group.members
        if group.members.is_empty:
            group.members = ClassicGroup(group_id, self._cluster)
            return group.members
        if isinstance(group.members, ConsumerGroup) and protocol_type == ConsumerGroup.protocol_type:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)  # Kafka supports members of both protocols in a group
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def consumers(self, group_id: str) -> ConsumerGroup:
        """Return the members of a consumer group; raises ApiError."""
        members = self.group(group_id).members
        if not isinstance(members, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return members

    def consumers_to_join(self, group_id: str) -> ConsumerGroup:
        """Return the members of a consumer group, a new one if there is none; raises ApiError."""
        group = self.groups.setdefault(group_id, Group(ConsumerGroup(group_id, self._cluster)))
        if isinstance(group.members, ConsumerGroup):
            return group.members
        if group.members.is_empty:
            group.members = ConsumerGroup(group_id, self._cluster)
            return group.members
        if group.members.protocol_type == ConsumerGroup.protocol_type:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)  # Kafka converts the classic members
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group_id} to consumer group because the group does not use the consumer "
            "embedded protocol.",
        )

    def streams(self, group_id: str) -> StreamsGroup:
        """Return the members of a streams group; raises ApiError."""
        members = self.group(group_id).members
        if not isinstance(members, StreamsGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        return members

    def streams_of(self, group_id: str, joins: bool) -> StreamsGroup:
        """Return the members of a streams group, a new one if there is none and a member joins; raises ApiError."""
        group = self.groups.get(group_id)
        if group is None and not joins:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
        if group is None:
            group = self.groups[group_id] = Group(StreamsGroup(group_id, self._cluster))
        elif joins and isinstance(group.members, ClassicGroup) and group.members.is_empty:
            group.members = StreamsGroup(group_id, self._cluster)
        return self.streams(group_id)

    @staticmethod
    def check_commit(group: Group, claim: Claim, partitions: Collection[tuple[str, int]]) -> None:
        """Raise ApiError unless offsets of these partitions may be committed."""
        if claim.transactional and claim.epoch < 0 and not claim.member_id and claim.instance_id is None:
            return  # a producer that only names the group
        group.members.check_commit(claim, partitions)

    def delete(self, group_id: str) -> None:
        """Delete a group; raises ApiError."""
        group = self.group(group_id)
        if not group.members.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        del self.groups[group_id]

    def forget_topic(self, topic: str) -> None:
        """Drop the offsets of a topic that was deleted."""
        for group in self.groups.values():
            for offsets in (group.offsets, *group.pending.values()):
                for partition in [one for one in offsets if one[0] == topic]:
                    del offsets[partition]

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Commit or drop the offsets of a transaction."""
        for group in self.groups.values():
            offsets = group.pending.pop(producer_id, None)
            if offsets and commit:
                group.offsets.update(offsets)

    def expire(self) -> None:
        """Apply expired timeouts."""
        for group in self.groups.values():
            group.members.expire()

    def deadlines(self) -> Iterator[float]:
        """Yield the times at which expire() is due."""
        for group in self.groups.values():
            yield from group.members.deadlines()
