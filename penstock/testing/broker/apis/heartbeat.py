"""Heartbeat: a member is alive."""

from __future__ import annotations

from penstock.clients.protocol.messages import HEARTBEAT

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError


def answer(call: Call) -> Response:
    """Return whether the member must rejoin."""
    try:
        call.check(Operation.READ, Resource.GROUP, call.body.group_id)
        call.cluster.groups.classic(call.body.group_id).heartbeat(call.body)
    except ApiError as error:
        return {"error_code": error.code}
    return {}


SERVED = Served(HEARTBEAT, answer, 3)
