"""DeleteGroups: deletes groups without members, with their offsets."""

from __future__ import annotations

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode

DELETE_GROUPS = SchemaApi(
    "DeleteGroups", 42, 0, 2, 2,
    """
groups_names: [string]
""",
    """
throttle_time_ms: int32
results: []
  group_id: string
  error_code: int16
""",
)  # fmt: skip


def answer(call: Call) -> Response:
    """Delete each group, if that is allowed."""
    return {"results": [{"group_id": one, "error_code": _deleted(call, one)} for one in call.body.groups_names]}


def _deleted(call: Call, group_id: str) -> ErrorCode:
    try:
        call.check(Operation.DELETE, Resource.GROUP, group_id)
        call.cluster.groups.delete(group_id)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


SERVED = Served(DELETE_GROUPS, answer, 0)
