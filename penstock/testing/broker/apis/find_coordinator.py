"""FindCoordinator: the node of a group or of a transactional id."""

from __future__ import annotations

from penstock.clients.protocol.messages import FIND_COORDINATOR

from ..access_control import REFUSALS, Operation, Resource
from ..call import Call, Response, Served
from ..errors import ErrorCode

GROUP, TRANSACTION = 0, 1
_FORBIDDEN = {
    Resource.GROUP: "Group authorization failed.",
    Resource.TRANSACTIONAL_ID: "Transactional Id authorization failed.",
}


def answer(call: Call) -> Response:
    """Return one node for each key; before version 4 there is only one key."""
    if call.version >= 4:
        return {"coordinators": [{"key": key, **_found(call, key)} for key in call.body.coordinator_keys]}
    return _found(call, call.body.key)


def _found(call: Call, key: str) -> dict[str, object]:
    if call.body.key_type not in (GROUP, TRANSACTION) or not key:
        return {"error_code": ErrorCode.INVALID_REQUEST, "node_id": -1, "host": "", "port": -1}
    resource = Resource.GROUP if call.body.key_type == GROUP else Resource.TRANSACTIONAL_ID
    if not call.may(Operation.DESCRIBE, resource, key):
        message = _FORBIDDEN[resource] if call.version < 4 else ""
        return {"error_code": REFUSALS[resource], "error_message": message, "node_id": -1, "host": "", "port": -1}
    node = call.cluster.coordinator(key)
    message = "NONE" if call.version < 4 else ""
    return {"node_id": node.id, "host": node.host, "port": node.port, "error_message": message}


SERVED = Served(FIND_COORDINATOR, answer, 1)
