"""OffsetCommit: a group's positions."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.clients.protocol.messages import OFFSET_COMMIT

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode
from ..group_coordinator import METADATA_MAX_BYTES, CommittedOffset
from ..group_members import Claim

#: From this version on, a missing group has its own error; before, the generation is reported as wrong.
_NO_GROUP_VERSION = 9


def answer(call: Call) -> Response:
    """Store the offsets of a member, or of a consumer without a group protocol."""
    body = call.body
    generation = body.generation_id_or_member_epoch
    try:
        call.check(Operation.READ, Resource.GROUP, body.group_id)
        group = call.cluster.groups.group(body.group_id, create=generation < 0)
        call.cluster.groups.check_commit(group, claim(call), partitions(call))
    except ApiError as error:
        no_group = error.code is ErrorCode.GROUP_ID_NOT_FOUND and call.version < _NO_GROUP_VERSION
        return committed(call, ErrorCode.ILLEGAL_GENERATION if no_group else error.code, None)
    return committed(call, None, group.offsets)


def claim(call: Call, transactional: bool = False) -> Claim:
    """Return the identity of the committing client."""
    body = call.body
    epoch = body.generation_id_or_member_epoch
    return Claim(body.member_id, body.group_instance_id, epoch, call.version, transactional)


def partitions(call: Call) -> list[tuple[str, int]]:
    """Return the partitions of a request."""
    return [(topic.name, part.partition_index) for topic in call.body.topics for part in topic.partitions]


def committed(call: Call, refused: ErrorCode | None, into: dict[tuple[str, int], CommittedOffset] | None) -> Response:
    """Store a request's offsets in a table, unless all are refused, and return the response."""

    def kept(topic: str, part: SimpleNamespace) -> ErrorCode:
        if refused is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return refused
        if not call.may(Operation.READ, Resource.TOPIC, topic):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if refused is not None or into is None:
            return refused or ErrorCode.UNKNOWN_SERVER_ERROR
        known = call.cluster.topics.get(topic)
        if known is None or not 0 <= part.partition_index < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        metadata = part.committed_metadata or ""
        if len(metadata) > METADATA_MAX_BYTES:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        into[topic, part.partition_index] = CommittedOffset(
            part.committed_offset, part.committed_leader_epoch, metadata
        )
        return ErrorCode.NONE

    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": part.partition_index, "error_code": kept(topic.name, part)}
                    for part in topic.partitions
                ],
            }
            for topic in call.body.topics
        ]
    }


SERVED = Served(OFFSET_COMMIT, answer, 2)
