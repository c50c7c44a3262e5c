"""DeleteAcls: deletes the access control lists that match filters."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import Operation
from ..call import Call, Response, Served
from ..errors import ApiError
from .describe_acls import check, filter_of

DELETE_ACLS = SchemaApi(
    "DeleteAcls", 31, 1, 3, 2,
    """
filters: []
  resource_type_filter: int8
  resource_name_filter: string?
  pattern_type_filter: int8 = 3
  principal_filter: string?
  host_filter: string?
  operation: int8
  permission_type: int8
""",
    """
throttle_time_ms: int32
filter_results: []
  error_code: int16
  error_message: string?
  matching_acls: []
    error_code: int16
    error_message: string?
    resource_type: int8
    resource_name: string
    pattern_type: int8 = 3
    principal: string
    host: string
    operation: int8
    permission_type: int8
""",
)  # fmt: skip


def answer(call: Call) -> Response:
    """Delete them, and return the matches of each filter."""
    return {"filter_results": [_deleted(call, one) for one in call.body.filters]}


def _deleted(call: Call, asked: SimpleNamespace) -> Response:
    access = call.cluster.access
    try:
        check(call, Operation.ALTER)
    except ApiError as error:
        return {"error_code": error.code, "error_message": error.message}
    found = access.matching(filter_of(asked))
    access.delete(found)
    return {
        "matching_acls": [
            {
                "resource_type": acl.resource,
                "resource_name": acl.name,
                "pattern_type": acl.pattern,
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission,
            }
            for acl in found
        ],
    }


SERVED = Served(DELETE_ACLS, answer, 1)
