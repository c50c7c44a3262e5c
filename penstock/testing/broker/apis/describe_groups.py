"""DescribeGroups: state and members of groups of the classic protocol."""

from __future__ import annotations

from penstock.clients.protocol.messages import DESCRIBE_GROUPS

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..classic_group import ClassicGroup, GroupState
from ..errors import ErrorCode
from .metadata import NOT_ASKED


def answer(call: Call) -> Response:
    """Describe each group; one that does not exist is DEAD, from version 6 on an error."""
    return {"groups": [_described(call, group_id) for group_id in call.body.groups]}


def _described(call: Call, group_id: str) -> Response:
    if not call.may(Operation.DESCRIBE, Resource.GROUP, group_id):
        refused = {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "authorized_operations": NOT_ASKED}
        return {"group_id": group_id, **refused}
    found = call.cluster.groups.groups.get(group_id)
    group = found.members if found else None
    if not isinstance(group, ClassicGroup):
        dead = {"group_id": group_id, "group_state": "Dead", "authorized_operations": NOT_ASKED}
        if call.version < 6:
            return dead
        said = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
        return {**dead, "error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": said}
    return {
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol or "" if group.state is GroupState.STABLE else "",
        "members": _members(group),
        "authorized_operations": NOT_ASKED,
    }


def _members(group: ClassicGroup) -> list[Response]:
    stable = group.state is GroupState.STABLE
    return [
        {
            "member_id": one.id,
            "group_instance_id": one.instance_id,
            "client_id": one.client_id,
            "client_host": one.client_host,
            "member_metadata": one.protocols.get(group.protocol or "", b"") if stable else b"",
            "member_assignment": one.assignment,
        }
        for one in group.members.values()
    ]


SERVED = Served(DESCRIBE_GROUPS, answer, 0)
