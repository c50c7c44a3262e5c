"""ConsumerGroupHeartbeat: a member of a consumer group joins, lives, reports or leaves (KIP-848)."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from types import SimpleNamespace

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import Operation, Resource
from ..assignors import ASSIGNORS
from ..call import Call, Response, Served
from ..consumer_group import ConsumerGroup
from ..errors import ApiError, ErrorCode
from ..modern_group import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH

CONSUMER_GROUP_HEARTBEAT = SchemaApi(
    "ConsumerGroupHeartbeat", 68, 0, 1, 0,
    """
group_id: string
member_id: string
member_epoch: int32
instance_id: string?
rack_id: string?
rebalance_timeout_ms: int32 = -1
subscribed_topic_names: [string]?
subscribed_topic_regex: string? 1+
server_assignor: string?
topic_partitions: []?
  topic_id: uuid
  partitions: [int32]
""",
    """
throttle_time_ms: int32
error_code: int16
error_message: string?
member_id: string?
member_epoch: int32
heartbeat_interval_ms: int32
assignment: {}?
  topic_partitions: []
    topic_id: uuid
    partitions: [int32]
""",
)  # fmt: skip
#: From this version on members choose their ids (KIP-1082).
_OWN_ID_VERSION = 1


def answer(call: Call) -> Response:
    """Return the member's epoch, and its assignment if it has changed."""
    body = call.body
    try:
        call.check(Operation.READ, Resource.GROUP, body.group_id)
        for name in body.subscribed_topic_names or ():
            call.check(Operation.DESCRIBE, Resource.TOPIC, name)
        _check(body, call.version)
        if body.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            call.cluster.groups.consumers(body.group_id).leave(body)
            return {"member_id": body.member_id, "member_epoch": body.member_epoch}
        group = _group(call, body.group_id)
        member_id = body.member_id or base64.urlsafe_b64encode(call.cluster.new_id()).decode().rstrip("=")
        member, is_new = group.heartbeat(body, member_id, call.client_id, call.connection.peer)
    except ApiError as error:
        return {"error_code": error.code, "error_message": error.message}
    return {
        "member_id": member.id,
        "member_epoch": member.epoch,
        "heartbeat_interval_ms": group.setting("heartbeat.interval.ms"),
        "assignment": {"topic_partitions": by_topic(member.assigned)} if is_new else None,
    }


def _group(call: Call, group_id: str) -> ConsumerGroup:
    if call.body.member_epoch == JOIN_EPOCH:
        return call.cluster.groups.consumers_to_join(group_id)
    if group_id not in call.cluster.groups.groups:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
    return call.cluster.groups.consumers(group_id)


def _check(body: SimpleNamespace, version: int) -> None:
    """Raise ApiError for an inconsistent request."""
    epoch = body.member_epoch
    if version >= _OWN_ID_VERSION or epoch != JOIN_EPOCH:
        _refuse(not body.member_id.strip(), "MemberId can't be empty.")
    _refuse(not body.group_id.strip(), "GroupId can't be empty.")
    _refuse(body.instance_id is not None and not body.instance_id.strip(), "InstanceId can't be empty.")
    _refuse(body.rack_id is not None and not body.rack_id.strip(), "RackId can't be empty.")
    if epoch == JOIN_EPOCH:
        _refuse(body.rebalance_timeout_ms == -1, "RebalanceTimeoutMs must be provided in first request.")
        _refuse(
            body.topic_partitions is None or body.topic_partitions,
            "TopicPartitions must be empty when (re-)joining.",
        )
        _refuse(
            body.subscribed_topic_names is None and body.subscribed_topic_regex is None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )
    elif epoch == LEAVE_STATIC_EPOCH:
        _refuse(body.instance_id is None, "InstanceId can't be null.")
    else:
        _refuse(epoch < LEAVE_STATIC_EPOCH, "MemberEpoch is invalid.")
    if body.server_assignor is not None and body.server_assignor not in ASSIGNORS:
        said = f"ServerAssignor {body.server_assignor} is not supported. Supported assignors: {', '.join(ASSIGNORS)}."
        raise ApiError(ErrorCode.UNSUPPORTED_ASSIGNOR, said)


def _refuse(wrong: object, said: str) -> None:
    if wrong:
        raise ApiError(ErrorCode.INVALID_REQUEST, said)


def by_topic(partitions: Iterable[tuple[bytes, int]]) -> list[Response]:
    """Return partitions grouped by topic, as in messages."""
    found: dict[bytes, list[int]] = {}
    for one in sorted(partitions):
        found.setdefault(one[0], []).append(one[1])
    return [{"topic_id": topic, "partitions": numbers} for topic, numbers in found.items()]


SERVED = Served(CONSUMER_GROUP_HEARTBEAT, answer, 0)
