"""DescribeAcls: the access control lists that match a filter."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import CLUSTER_NAME, Acl, Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode

DESCRIBE_ACLS = SchemaApi(
    "DescribeAcls", 29, 1, 3, 2,
    """
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
error_code: int16
error_message: string?
resources: []
  resource_type: int8
  resource_name: string
  pattern_type: int8 = 3
  acls: []
    principal: string
    host: string
    operation: int8
    permission_type: int8
""",
)  # fmt: skip


#: DescribeAcls has its own message for this error.
_NO_AUTHORIZER = "No Authorizer is configured on the broker"


def answer(call: Call) -> Response:
    """Return them by resource."""
    try:
        check(call, Operation.DESCRIBE)
    except ApiError as error:
        off = error.code is ErrorCode.SECURITY_DISABLED
        return {"error_code": error.code, "error_message": _NO_AUTHORIZER if off else error.message}
    found: dict[tuple[int, str | None, int], list[Response]] = {}
    for acl in call.cluster.access.matching(filter_of(call.body)):
        entry = {"principal": acl.principal, "host": acl.host, "operation": acl.operation}
        found.setdefault(acl[:3], []).append({**entry, "permission_type": acl.permission})
    return {
        "error_message": "",
        "resources": [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
            for (kind, name, pattern), acls in found.items()
        ],
    }


def check(call: Call, operation: Operation) -> None:
    """Raise ApiError unless there is an authorizer, and the client may do this to its lists."""
    if not call.cluster.access.is_on:
        raise ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    call.check(operation, Resource.CLUSTER, CLUSTER_NAME)


def filter_of(body: SimpleNamespace) -> Acl:
    """Return the filter of a message."""
    who = body.principal_filter, body.host_filter
    what = body.resource_type_filter, body.resource_name_filter, body.pattern_type_filter
    return Acl(*what, *who, body.operation, body.permission_type)


SERVED = Served(DESCRIBE_ACLS, answer, 1)
