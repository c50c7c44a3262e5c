"""OffsetFetch: the positions that groups have committed."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.clients.protocol.messages import OFFSET_FETCH

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode
from ..group_coordinator import NO_OFFSET, Group

#: From this version on, a response has its own error code; before, each of its partitions has one.
_GROUP_ERROR_VERSION = 2


def answer(call: Call) -> Response:
    """Return the offsets of each group; before version 8 there is only one."""
    body = call.body
    if call.version >= 8:
        return {"groups": [_group(call, asked) for asked in body.groups]}
    if not call.may(Operation.DESCRIBE, Resource.GROUP, body.group_id):
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        topics = [] if call.version >= _GROUP_ERROR_VERSION else _refused(body.topics, refused)
        return {"error_code": refused, "topics": topics}
    return {"topics": _topics(call, body.group_id, body.topics)}


def _refused(asked: list[SimpleNamespace], error: ErrorCode) -> list[Response]:
    nothing = {"error_code": error, "committed_offset": NO_OFFSET, "metadata": ""}
    return [
        {"name": topic.name, "partitions": [{"partition_index": one, **nothing} for one in topic.partition_indexes]}
        for topic in asked
    ]


def _group(call: Call, asked: SimpleNamespace) -> Response:
    group = call.cluster.groups.groups.get(asked.group_id)
    try:
        call.check(Operation.DESCRIBE, Resource.GROUP, asked.group_id)
        if group is not None:
            group.members.check_fetch(asked.member_id, asked.member_epoch)
    except ApiError as error:
        return {"group_id": asked.group_id, "error_code": error.code}
    return {"group_id": asked.group_id, "topics": _topics(call, asked.group_id, asked.topics)}


def _topics(call: Call, group_id: str, asked: list[SimpleNamespace] | None) -> list[Response]:
    group = call.cluster.groups.groups.get(group_id)
    if asked is not None:
        wanted = {topic.name: topic.partition_indexes for topic in asked}
    else:
        wanted = {}
        for topic, number in group.offsets if group else ():
            if call.may(Operation.DESCRIBE, Resource.TOPIC, topic):
                wanted.setdefault(topic, []).append(number)
    return [
        {"name": topic, "partitions": [_partition(call, group, topic, number) for number in numbers]}
        for topic, numbers in wanted.items()
    ]


def _partition(call: Call, group: Group | None, topic: str, number: int) -> Response:
    empty = {"partition_index": number, "committed_offset": NO_OFFSET, "metadata": ""}
    if not call.may(Operation.DESCRIBE, Resource.TOPIC, topic):
        return {**empty, "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    if group is None:
        return empty
    if call.body.require_stable and group.is_unstable((topic, number)):
        return {**empty, "error_code": ErrorCode.UNSTABLE_OFFSET_COMMIT}
    found = group.offsets.get((topic, number))
    if found is None:
        return empty
    return {
        "partition_index": number,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
    }


SERVED = Served(OFFSET_FETCH, answer, 1)
