"""LeaveGroup: members leave by themselves, or an operator removes them (KIP-345)."""

from __future__ import annotations

from penstock.clients.protocol.messages import LEAVE_GROUP

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..classic_group import ClassicGroup
from ..errors import ApiError, ErrorCode


def answer(call: Call) -> Response:
    """Remove each of the named members."""
    body = call.body
    try:
        call.check(Operation.READ, Resource.GROUP, body.group_id)
        group = call.cluster.groups.classic(body.group_id)
    except ApiError as error:
        return {"error_code": error.code}
    if call.version < 3:
        return {"error_code": _left(group, body.member_id, None)}
    return {
        "members": [
            {
                "member_id": one.member_id,
                "group_instance_id": one.group_instance_id,
                "error_code": _left(group, one.member_id, one.group_instance_id),
            }
            for one in body.members
        ]
    }


def _left(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    try:
        group.leave(member_id, instance_id)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


SERVED = Served(LEAVE_GROUP, answer, 0)
