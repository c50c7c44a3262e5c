"""The requests of a classic group member: what goes into them and what comes out. Nothing is sent from here."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from .membership import Assigned, MemberAssignment, MemberSubscription, OffsetAndMetadata

#: Broker and group tools understand the envelopes of this protocol type; ours is the user data inside. A malformed
#: envelope makes the broker (4.3.0) leave the JoinGroup unanswered.
PROTOCOL_TYPE = "consumer"
#: Kafka Streams' name of its assignor.
PROTOCOL_NAME = "stream"
#: With owned partitions (1), their generation (2), and the rack (3).
_SUBSCRIPTION_VERSION = 3
#: The last version that needs no member: the offsets are read without one.
_OFFSET_FETCH_VERSION_MAX = 8
_STRING_BYTES_MAX = 32_767  # the broker drops the connection over a longer one
_REASON_CHARACTERS_MAX = 255  # KIP-800


@dataclass(frozen=True, slots=True)
class GroupMemberConfig:
    """Settings of a member by Kafka's names; durations in milliseconds.

    unavailable_timeout_ms: how long no coordinator may be reachable before the member gives up (task.timeout.ms).
    committed_wait_ms: how long GroupMembership.committed waits before it says that it must be asked again.
    process_id_file: what instance_id was made from, "" if it was configured.
    """

    group_id: str
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    eager_heartbeat_interval_ms: int = 300
    max_poll_interval_ms: int = 300_000
    retry_backoff_ms: int = 100
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000
    unavailable_timeout_ms: int = 300_000
    committed_wait_ms: int = 60_000
    process_id_file: str = ""

    @property
    def fenced_advice(self) -> str:
        """Why another process may have the same instance_id, and what to do."""
        if self.process_id_file:
            return (
                f"This id is made from {self.process_id_file}: was state.dir copied while this host runs the "
                "application? Delete that file in the copy, and restart the application there"
            )
        return "Each stream thread needs its own: do two hosts run this application with the same group.instance.id?"

    @property
    def rebalance_request_timeout_ms(self) -> int:
        """JoinGroup and SyncGroup are answered when all members have come: up to the rebalance timeout, and a bit."""
        return max(self.request_timeout_ms, self.max_poll_interval_ms + 5_000)


class Identity(NamedTuple):
    """Who the member is to its coordinator; without a generation it is no member."""

    generation: int = -1
    member_id: str = ""


def join_group(config: GroupMemberConfig, member_id: str, subscription: bytes, reason: str) -> Any:
    """Return the JoinGroup request; subscription is an envelope."""
    return JoinGroupRequest(
        group_id=config.group_id,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        member_id=member_id,
        group_instance_id=config.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=[(PROTOCOL_NAME, subscription)],
        reason=reason[:_REASON_CHARACTERS_MAX],
    )


def sync_group(config: GroupMemberConfig, identity: Identity, assignments: Mapping[str, bytes]) -> Any:
    """Return the SyncGroup request; assignments are the leader's envelopes by member id, empty from followers."""
    return SyncGroupRequest(
        group_id=config.group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=config.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=PROTOCOL_NAME,
        assignments=list(assignments.items()),
    )


def heartbeat(config: GroupMemberConfig, identity: Identity) -> Any:
    """Return the Heartbeat request."""
    return HeartbeatRequest(
        group_id=config.group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=config.instance_id,
    )


def leave_group(config: GroupMemberConfig, member_id: str, reason: str) -> Any:
    """Return the LeaveGroup request: by member id, and by instance id too where the member is static."""
    member = LeaveGroupRequest.MemberIdentity(
        member_id=member_id, group_instance_id=config.instance_id, reason=reason[:_REASON_CHARACTERS_MAX]
    )
    return LeaveGroupRequest(group_id=config.group_id, member_id=member_id, members=[member])


def leave_group_errors(response: Any) -> list[int]:
    """Return the error codes of a LeaveGroup response."""
    codes = [response.error_code, *(member.error_code for member in response.members or ())]
    return [code for code in codes if code]


def offset_commit(
    config: GroupMemberConfig,
    identity: Identity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    version_max: int,
) -> Any:
    """Return the OffsetCommit request; raises StreamsError for a text that no broker reads."""
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    partition_type = topic_type.OffsetCommitRequestPartition
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for (topic, partition), (offset, metadata) in offsets.items():
        if len(metadata.encode()) > _STRING_BYTES_MAX:
            raise StreamsError(
                f"Metadata of {len(metadata.encode())} bytes cannot be committed for {topic}-{partition}."
            )
        by_topic[topic].append(
            partition_type(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        max_version=version_max,
        group_id=config.group_id,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=config.instance_id,
        topics=[topic_type(name=name, partitions=partitions) for name, partitions in by_topic.items()],
    )


def offset_commit_errors(response: Any) -> dict[TopicPartition, int]:
    """Return the error code of each partition that was not committed."""
    return {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code
    }


def offset_fetch(config: GroupMemberConfig, partitions: Collection[TopicPartition]) -> Any:
    """Return the OffsetFetch request; require_stable: offsets of open transactions make it fail (KIP-447)."""
    group_type = OffsetFetchRequest.OffsetFetchRequestGroup
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        by_topic[topic].append(partition)
    return OffsetFetchRequest(
        max_version=_OFFSET_FETCH_VERSION_MAX,
        group_id=config.group_id,
        topics=[_topic(OffsetFetchRequest.OffsetFetchRequestTopic, *topic) for topic in by_topic.items()],  # before v8
        groups=[
            group_type(
                group_id=config.group_id,
                topics=[_topic(group_type.OffsetFetchRequestTopics, *topic) for topic in by_topic.items()],
            )
        ],
        require_stable=True,
    )


def _topic(topic_type: Any, name: str, partitions: list[int]) -> Any:
    return topic_type(name=name, partition_indexes=partitions)


def fetched_offsets(response: Any) -> tuple[int, dict[TopicPartition, OffsetAndMetadata | None]]:
    """Return the first error code of an OffsetFetch response, 0 without one, and the offsets."""
    answer = response.groups[0] if response.groups else response
    code = answer.error_code
    offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for topic in answer.topics:
        for found in topic.partitions:
            code = code or found.error_code
            # librdkafka sends its transactional metadata with the C string's NUL
            metadata = (found.metadata or "").rstrip("\0")
            offset = OffsetAndMetadata(found.committed_offset, metadata) if found.committed_offset >= 0 else None
            offsets[TopicPartition(topic.name, found.partition_index)] = offset
    return code, offsets


def encode_subscription(subscription: MemberSubscription, generation: int) -> bytes:
    """Return a member's envelope (ConsumerProtocolSubscription v3). generation: in which it owns its partitions."""
    envelope = ConsumerProtocolSubscription(
        version=_SUBSCRIPTION_VERSION,
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=list(_by_topic(subscription.owned).items()),
        generation_id=generation,
        rack_id=subscription.rack or None,
    )
    return bytes(envelope.encode())


def decode_subscriptions(members: Collection[Any]) -> dict[str, MemberSubscription]:
    """Return what the members of a JoinGroup response sent to the leader, by member id; raises StreamsError."""
    return {member.member_id: _subscription(member) for member in members}


def _subscription(member: Any) -> MemberSubscription:
    envelope = _decoded(ConsumerProtocolSubscription, member.metadata, member.member_id)
    owned = (TopicPartition(found.topic, number) for found in envelope.owned_partitions for number in found.partitions)
    return MemberSubscription(
        bytes(envelope.user_data or b""),
        frozenset(envelope.topics),
        frozenset(owned),
        envelope.rack_id or "",
        member.group_instance_id,
    )


def encode_assignment(assignment: MemberAssignment) -> bytes:
    """Return the leader's envelope for a member (ConsumerProtocolAssignment v0)."""
    envelope = ConsumerProtocolAssignment(
        version=0, assigned_partitions=list(_by_topic(assignment.active).items()), user_data=assignment.user_data
    )
    return bytes(envelope.encode())


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        by_topic[topic].append(partition)
    return by_topic


def decode_assignment(generation: int, envelope: bytes) -> Assigned:
    """Return the event that a SyncGroup response brings; raises StreamsError for a malformed envelope."""
    decoded = _decoded(ConsumerProtocolAssignment, envelope, "the group's leader")
    active = frozenset(TopicPartition(*partition) for partition in decoded.partitions())
    return Assigned(generation, bytes(decoded.user_data or b""), active)


def _decoded(envelope: Any, raw: Any, sender: str) -> Any:
    try:
        return envelope.decode(bytes(raw))
    except (ValueError, IndexError, struct.error) as error:
        raise StreamsError(
            f"Malformed {envelope.__name__} of {len(raw)} bytes from {sender}: {error}. "
            "Is a program that is neither Penstock nor Kafka Streams a member of this group?"
        ) from error
