"""CreateAcls: adds access control lists."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import CLUSTER_NAME, Acl, Operation, Pattern, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode
from .describe_acls import check

CREATE_ACLS = SchemaApi(
    "CreateAcls", 30, 1, 3, 2,
    """
creations: []
  resource_type: int8
  resource_name: string
  resource_pattern_type: int8 = 3
  principal: string
  host: string
  operation: int8
  permission_type: int8
""",
    """
throttle_time_ms: int32
results: []
  error_code: int16
  error_message: string?
""",
)  # fmt: skip


def answer(call: Call) -> Response:
    """Add each entry."""
    return {"results": [_created(call, creation) for creation in call.body.creations]}


def _created(call: Call, asked: SimpleNamespace) -> Response:
    what = asked.resource_type, asked.resource_name, asked.resource_pattern_type
    acl = Acl(*what, asked.principal, asked.host, asked.operation, asked.permission_type)
    try:
        check(call, Operation.ALTER)
        if acl.resource == Resource.CLUSTER and acl.name != CLUSTER_NAME:
            said = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
            raise ApiError(ErrorCode.INVALID_REQUEST, said)
        if not acl.name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid empty resource name")
        if ":" not in asked.principal:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if acl.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
    except ApiError as error:
        return {"error_code": error.code, "error_message": error.message}
    call.cluster.access.entries[acl] = None
    return {"error_message": ""}


SERVED = Served(CREATE_ACLS, answer, 1)
