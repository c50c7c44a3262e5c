"""Builds the requests of a classic group member, and parses the responses. Does no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from ..protocol.by_topic import by_topic, each_partition
from ..protocol.compact import CompactReader
from ..protocol.messages import (
    CONSUMER_ASSIGNMENT,
    CONSUMER_SUBSCRIPTION,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from ..protocol.offset_commits import OffsetAndMetadata, committed_by_topic
from ..protocol.schema import Request, Structure
from .membership import Assigned, MemberAssignment, MemberSubscription

#: Brokers and group tools parse the envelopes of this protocol type; Penstock's data is the user data inside. Broker
#: 4.3.0 does not respond to a JoinGroup with a malformed envelope.
PROTOCOL_TYPE = "consumer"
#: Kafka Streams' name for its assignor.
PROTOCOL_NAME = "stream"
#: Adds owned partitions (1), their generation (2), and the rack (3).
_SUBSCRIPTION_VERSION = 3
#: The last version without member fields: offsets are read without a membership.
_OFFSET_FETCH_VERSION_MAX = 8
_STRING_BYTES_MAX = 32_767  # the broker drops the connection over a longer one
_REASON_CHARACTERS_MAX = 255  # KIP-800


@dataclass(frozen=True, slots=True)
class GroupMemberConfig:
    """Settings of a member by Kafka's names; durations in milliseconds. Those of its connections: NetworkSettings.

    unavailable_timeout_ms: how long the coordinator may be unreachable before the member fails (task.timeout.ms).
    committed_wait_ms: how long GroupMember.committed blocks before it raises and must be called again.
    process_id_file: the file that instance_id was derived from, "" if it was configured.
    """

    group_id: str
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    eager_heartbeat_interval_ms: int = 300
    max_poll_interval_ms: int = 300_000
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


class Identity(NamedTuple):
    """The member's identity at its coordinator; a negative generation means that it is not a member."""

    generation: int = -1
    member_id: str = ""


def join_group(config: GroupMemberConfig, member_id: str, subscription: bytes, reason: str) -> Request:
    """Return the JoinGroup request; subscription is an envelope."""
    return JOIN_GROUP(
        group_id=config.group_id,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        member_id=member_id,
        group_instance_id=config.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=[{"name": PROTOCOL_NAME, "metadata": subscription}],
        reason=reason[:_REASON_CHARACTERS_MAX],
    )


def sync_group(config: GroupMemberConfig, identity: Identity, assignments: Mapping[str, bytes]) -> Request:
    """Return the SyncGroup request; assignments are the leader's envelopes by member id, empty from followers."""
    return SYNC_GROUP(
        group_id=config.group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=config.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=PROTOCOL_NAME,
        assignments=[{"member_id": member, "assignment": data} for member, data in assignments.items()],
    )


def heartbeat(config: GroupMemberConfig, identity: Identity) -> Request:
    """Return the Heartbeat request."""
    return HEARTBEAT(
        group_id=config.group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=config.instance_id,
    )


def leave_group(group_id: str, member_id: str, instance_id: str | None, reason: str) -> Request:
    """Return the LeaveGroup request: by member id, for a static member also by instance id."""
    member = {"member_id": member_id, "group_instance_id": instance_id, "reason": reason[:_REASON_CHARACTERS_MAX]}
    return LEAVE_GROUP(group_id=group_id, members=[member])


def leave_errors(response: SimpleNamespace) -> list[int]:
    """Return the error codes of a response to leaving: a LeaveGroup's has one for each member, too."""
    codes = [response.error_code, *(member.error_code for member in getattr(response, "members", None) or ())]
    return [code for code in codes if code]


def offset_commit(
    config: GroupMemberConfig,
    identity: Identity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    version_max: int,
) -> Request:
    """Return the OffsetCommit request; raises StreamsError for metadata too long for any broker."""
    for partition, committed in offsets.items():
        size = len(committed.metadata.encode())
        if size > _STRING_BYTES_MAX:
            raise StreamsError(
                f"The metadata of the offset of {partition} has {size} bytes; at most {_STRING_BYTES_MAX} bytes "
                "can be committed."
            )
    request = OFFSET_COMMIT(
        group_id=config.group_id,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=config.instance_id,
        topics=committed_by_topic(offsets),
    )
    return replace(request, version_max=version_max)


def offset_commit_errors(response: SimpleNamespace) -> dict[TopicPartition, int]:
    """Return the error code of each partition that was not committed."""
    return {partition: found.error_code for partition, found in each_partition(response.topics) if found.error_code}


def offset_fetch(config: GroupMemberConfig, partitions: Collection[TopicPartition]) -> Request:
    """Return the OffsetFetch request; require_stable: offsets of open transactions make it fail (KIP-447)."""
    topics = by_topic(((p, p.partition) for p in partitions), partitions_field="partition_indexes")
    request = OFFSET_FETCH(
        group_id=config.group_id,
        topics=topics,  # before version 8
        groups=[{"group_id": config.group_id, "topics": topics}],
        require_stable=True,
    )
    return replace(request, version_max=_OFFSET_FETCH_VERSION_MAX)


def fetched_offsets(response: SimpleNamespace) -> tuple[int, dict[TopicPartition, OffsetAndMetadata | None]]:
    """Return the first error code of an OffsetFetch response, 0 without one, and the offsets."""
    group = response.groups[0] if response.groups else response
    code = group.error_code
    offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for partition, found in each_partition(group.topics):
        code = code or found.error_code
        # librdkafka sends its transactional metadata with the C string's terminating NUL
        metadata = (found.metadata or "").rstrip("\0")
        offset = OffsetAndMetadata(found.committed_offset, metadata, found.committed_leader_epoch)
        offsets[partition] = offset if offset.offset >= 0 else None
    return code, offsets


def encode_subscription(subscription: MemberSubscription, generation: int) -> bytes:
    """Return a member's envelope (ConsumerProtocolSubscription v3). generation: of the owned partitions."""
    envelope = {
        "version": _SUBSCRIPTION_VERSION,
        "topics": sorted(subscription.topics),
        "user_data": subscription.user_data,
        "owned_partitions": _by_topic(subscription.owned),
        "generation_id": generation,
        "rack_id": subscription.rack or None,
    }
    return CONSUMER_SUBSCRIPTION.encode(envelope, _SUBSCRIPTION_VERSION, False)


def decode_subscriptions(members: Collection[SimpleNamespace]) -> dict[str, MemberSubscription]:
    """Return the subscriptions in a JoinGroup response to the leader, by member id; raises StreamsError."""
    return {
        member.member_id: decode_subscription(member.metadata, member.member_id, member.group_instance_id)
        for member in members
    }


def decode_subscription(envelope: bytes, sender: str, instance_id: str | None = None) -> MemberSubscription:
    """Return a member's subscription from any version of the envelope; raises StreamsError."""
    found = _opened(CONSUMER_SUBSCRIPTION, "ConsumerProtocolSubscription", envelope, sender)
    return MemberSubscription(
        found.user_data or b"",
        frozenset(found.topics),
        _partitions(found.owned_partitions),
        found.rack_id or "",
        instance_id,
    )


def encode_assignment(assignment: MemberAssignment) -> bytes:
    """Return the leader's envelope for a member (ConsumerProtocolAssignment v0)."""
    envelope = {"assigned_partitions": _by_topic(assignment.active), "user_data": assignment.user_data}
    return CONSUMER_ASSIGNMENT.encode(envelope, 0, False)


def decode_assignment(generation: int, envelope: bytes) -> Assigned:
    """Return the Assigned event of a SyncGroup response; raises StreamsError for a malformed envelope."""
    found = _opened(CONSUMER_ASSIGNMENT, "ConsumerProtocolAssignment", envelope, "the group's leader")
    return Assigned(generation, found.user_data or b"", _partitions(found.assigned_partitions))


def _by_topic(partitions: Collection[TopicPartition]) -> list[dict[str, object]]:
    return by_topic(((p, p.partition) for p in sorted(partitions)), "topic")


def _partitions(by_topic: Collection[SimpleNamespace]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(found.topic, index) for found in by_topic for index in found.partitions)


def _opened(envelope: Structure, name: str, raw: bytes, sender: str) -> Any:
    version = min(int.from_bytes(raw[:2], signed=True), _SUBSCRIPTION_VERSION)  # later versions only add fields
    try:
        if version < 0:
            raise ValueError(f"unsupported version {version}")
        return envelope.decode(CompactReader(raw), version, False)
    except ValueError as error:
        raise StreamsError(
            f"Malformed {name} of {len(raw)} bytes from {sender}: {error}. "
            "Is a program that is neither Penstock nor Kafka Streams a member of this group?"
        ) from error
