"""StreamsGroupHeartbeat: a member of a streams group joins, lives, reports or leaves (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

from penstock.clients.protocol.streams_messages import STREAMS_GROUP_HEARTBEAT

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode
from ..modern_group import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from ..streams_group import StreamsGroup, StreamsMember
from ..task_assignor import Task

_OFFSET_INTERVAL_MS = 60_000  # group.streams.task.offset.interval.ms
_ACCEPTABLE_RECOVERY_LAG = 10_000  # group.streams.acceptable.recovery.lag
#: Fields that every response has.
_NOTHING: Response = {"status": [], "acceptable_recovery_lag_legacy": 0}


def answer(call: Call) -> Response:
    """Return the member's epoch, and its tasks if they have changed."""
    body = call.body
    try:
        call.check(Operation.READ, Resource.GROUP, body.group_id)
        _check(body)
        if body.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            call.cluster.groups.streams(body.group_id).leave_streams(body)
            return {**_NOTHING, "member_id": body.member_id, "member_epoch": body.member_epoch}
        group = call.cluster.groups.streams_of(body.group_id, joins=body.member_epoch == JOIN_EPOCH)
        heard = group.heartbeat(body, call.client_id, call.connection.peer)
        hosts = _hosts(call, group, heard.member) if heard.tells_hosts else None
        group.create_missing_topics()
    except ApiError as error:
        return {**_NOTHING, "error_code": error.code, "error_message": error.message}
    member = heard.member
    return {
        **_NOTHING,
        "member_id": member.id,
        "member_epoch": member.epoch,
        "heartbeat_interval_ms": group.setting("heartbeat.interval.ms"),
        "acceptable_recovery_lag": _ACCEPTABLE_RECOVERY_LAG,
        "task_offset_interval_ms": _OFFSET_INTERVAL_MS,
        "status": [{"status_code": status, "status_detail": detail} for status, detail in heard.statuses],
        "active_tasks": by_subtopology(member.assigned.active) if heard.is_new else None,
        "standby_tasks": by_subtopology(member.assigned.standby) if heard.is_new else None,
        "warmup_tasks": [] if heard.is_new else None,
        "endpoint_information_epoch": heard.endpoint_epoch,
        "partitions_by_user_endpoint": hosts,
    }


def _check(body: SimpleNamespace) -> None:
    """Raise ApiError for an inconsistent request."""
    epoch, joins = body.member_epoch, body.member_epoch == JOIN_EPOCH
    _refuse(not body.member_id.strip(), "MemberId can't be empty.")
    _refuse(not body.group_id.strip(), "GroupId can't be empty.")
    _refuse(body.instance_id is not None and not body.instance_id.strip(), "InstanceId can't be empty.")
    _refuse(body.rack_id is not None and not body.rack_id.strip(), "RackId can't be empty.")
    if joins:
        _refuse(body.rebalance_timeout_ms == -1, "RebalanceTimeoutMs must be provided in first request.")
        _refuse(body.active_tasks != [], "ActiveTasks must be empty when (re-)joining.")
        _refuse(body.standby_tasks != [], "StandbyTasks must be empty when (re-)joining.")
        _refuse(body.warmup_tasks != [], "WarmupTasks must be empty when (re-)joining.")
        _refuse(body.topology is None, "Topology must be non-null when (re-)joining.")
        _check_topology(body.topology)
    elif epoch == LEAVE_STATIC_EPOCH:
        _refuse(body.instance_id is None, "InstanceId can't be null.")
    else:
        _refuse(epoch < LEAVE_STATIC_EPOCH, f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    given = [tasks is not None for tasks in (body.active_tasks, body.standby_tasks, body.warmup_tasks)]
    _refuse(any(given) and not all(given), "If one task-type is non-null, all must be non-null.")
    _refuse(not joins and body.topology is not None, "Topology can only be provided when (re-)joining.")


def _check_topology(topology: SimpleNamespace) -> None:
    for subtopology in topology.subtopologies:
        _refuse(subtopology.source_topic_regex, "Regular expressions for source topics are not supported yet.")
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                raise ApiError(
                    ErrorCode.STREAMS_INVALID_TOPOLOGY,
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}.",
                )


def _refuse(wrong: object, said: str) -> None:
    if wrong:
        raise ApiError(ErrorCode.INVALID_REQUEST, said)


def by_subtopology(tasks: Iterable[Task]) -> list[Response]:
    """Return tasks in the form of a message."""
    found: dict[str, list[int]] = {}
    for task in sorted(tasks):
        found.setdefault(task.subtopology, []).append(task.partition)
    return [{"subtopology_id": id_, "partitions": numbers} for id_, numbers in found.items()]


def _hosts(call: Call, group: StreamsGroup, member: StreamsMember) -> list[Response]:
    """Return the partitions of each member with an endpoint, this member last."""
    members = [*(other for other in group.members.values() if other is not member), member]
    return [
        {
            "user_endpoint": {"host": one.user_endpoint[0], "port": one.user_endpoint[1]},
            "active_partitions": _partitions(call, group, one.assigned.active),
            "standby_partitions": _partitions(call, group, one.assigned.standby),
        }
        for one in members
        if one.user_endpoint is not None
    ]


def _partitions(call: Call, group: StreamsGroup, tasks: Iterable[Task]) -> list[Response]:
    assert group.topology is not None
    topics = call.cluster.topics
    return [
        {"topic": name, "partitions": [number for number in one["partitions"] if number < len(topics[name].partitions)]}
        for one in by_subtopology(tasks)
        for found in group.topology.subtopologies
        if found.id == one["subtopology_id"]
        for name in found.read_topics
        if name in topics
    ]


SERVED = Served(STREAMS_GROUP_HEARTBEAT, answer, 0)
