"""SyncGroup: the leader sends the assignment, and each member receives its part."""

from __future__ import annotations

from penstock.clients.protocol.messages import SYNC_GROUP

from ..access_control import Operation, Resource
from ..call import Call, Response, Served, Waiting
from ..errors import ApiError


def answer(call: Call) -> Response | Waiting:
    """Return a member's part once the leader has sent the assignment."""
    try:
        call.check(Operation.READ, Resource.GROUP, call.body.group_id)
        member = call.cluster.groups.classic(call.body.group_id).sync(call.body)
    except ApiError as error:
        return {"error_code": error.code}
    return Waiting(lambda: member.synced)


SERVED = Served(SYNC_GROUP, answer, 3)
