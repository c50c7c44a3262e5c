"""JoinGroup: a member joins, and waits for the next generation."""

from __future__ import annotations

from penstock.clients.protocol.messages import JOIN_GROUP

from ..access_control import Operation, Resource
from ..call import Call, Response, Served, Waiting
from ..classic_group import MemberIdRequiredError
from ..errors import ApiError

#: Before this version, the protocol of a group without one is an empty name.
_NULL_NAME_VERSION = 7


def answer(call: Call) -> Response | Waiting:
    """Return the generation once all members have joined it."""
    body = call.body
    try:
        call.check(Operation.READ, Resource.GROUP, body.group_id)
        group = call.cluster.groups.classic_to_join(body.group_id, body.protocol_type)
        member = group.join(body, call.version, call.client_id, call.connection.peer)
    except MemberIdRequiredError as error:
        name = None if call.version >= _NULL_NAME_VERSION else ""
        return {"error_code": error.code, "member_id": error.member_id, "protocol_name": name}
    except ApiError as error:
        name = None if call.version >= _NULL_NAME_VERSION else ""
        return {"error_code": error.code, "member_id": body.member_id, "protocol_name": name}
    return Waiting(lambda: member.joined and {"member_id": body.member_id, **member.joined})


SERVED = Served(JOIN_GROUP, answer, 5)
