"""ListGroups: the groups that a node coordinates."""

from __future__ import annotations

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import CLUSTER_NAME, Operation, Resource
from ..call import Call, Response, Served

LIST_GROUPS = SchemaApi(
    "ListGroups", 16, 0, 5, 3,
    """
states_filter: [string] 4+
types_filter: [string] 5+
""",
    """
throttle_time_ms: int32 1+
error_code: int16
groups: []
  group_id: string
  protocol_type: string
  group_state: string 4+
  group_type: string 5+
""",
)  # fmt: skip


def answer(call: Call) -> Response:
    """Return those with the requested states and types; by default all."""
    states = {state.lower() for state in call.body.states_filter}
    types = {one.lower() for one in call.body.types_filter}
    sees_all = call.may(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
    groups = [
        {
            "group_id": group_id,
            "protocol_type": group.members.protocol_type,
            "group_state": group.members.state_name,
            "group_type": group.members.group_type,
        }
        for group_id, group in call.cluster.groups.groups.items()
        if call.cluster.coordinator(group_id) is call.connection.node
        and (sees_all or call.may(Operation.DESCRIBE, Resource.GROUP, group_id))
        and (not states or group.members.state_name.lower() in states)
        and (not types or group.members.group_type.lower() in types)
    ]
    return {"groups": groups}


SERVED = Served(LIST_GROUPS, answer, 0)
