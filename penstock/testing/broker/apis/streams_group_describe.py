"""StreamsGroupDescribe: state, epochs, topology and members of streams groups (KIP-1071)."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.clients.protocol.streams_messages import STREAMS_GROUP_DESCRIBE

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError
from ..streams_group import StreamsGroup, StreamsMember
from ..streams_topology import InternalTopicFields, Topology
from ..task_assignor import Tasks
from .metadata import NOT_ASKED
from .streams_group_heartbeat import by_subtopology


def answer(call: Call) -> Response:
    """Describe each group."""
    return {"groups": [_described(call, group_id) for group_id in call.body.group_ids]}


def _described(call: Call, group_id: str) -> Response:
    try:
        call.check(Operation.DESCRIBE, Resource.GROUP, group_id)
        group = call.cluster.groups.streams(group_id)
    except ApiError as error:
        return {"group_id": group_id, "error_code": error.code, "error_message": error.message}
    counts = group.configured.partitions if group.configured else {}
    return {
        "group_id": group_id,
        "group_state": group.state_name,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "topology": None if group.topology is None else _topology(group.topology, counts),
        "members": [_member(group, member) for member in group.members.values()],
        "authorized_operations": NOT_ASKED,
        "topology_description": None,
        "assignor_name": "sticky",
    }


def _topology(topology: Topology, counts: Mapping[str, int]) -> Response:
    return {
        "epoch": topology.epoch,
        "subtopologies": [
            {
                "subtopology_id": found.id,
                "source_topics": found.source_topics,
                "repartition_sink_topics": found.sink_topics,
                "state_changelog_topics": _topics(found.changelog_topics, counts),
                "repartition_source_topics": _topics(found.repartition_topics, counts),
            }
            for found in topology.subtopologies
        ],
    }


def _topics(topics: Mapping[str, InternalTopicFields], counts: Mapping[str, int]) -> list[Response]:
    return [{**topic, "partitions": counts.get(name, topic["partitions"])} for name, topic in topics.items()]


def _member(group: StreamsGroup, member: StreamsMember) -> Response:
    target, endpoint = group.target.get(member.id, Tasks()), member.user_endpoint
    return {
        "member_id": member.id,
        "member_epoch": member.epoch,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "topology_epoch": member.topology_epoch,
        "process_id": member.process_id,
        "user_endpoint": None if endpoint is None else {"host": endpoint[0], "port": endpoint[1]},
        "client_tags": [{"key": key, "value": value} for key, value in member.client_tags.items()],
        "task_offsets": [vars(one) for one in member.task_offsets],
        "task_end_offsets": [vars(one) for one in member.task_end_offsets],
        "assignment": {
            "active_tasks": by_subtopology(member.assigned.active),
            "standby_tasks": by_subtopology(member.assigned.standby),
        },
        "target_assignment": {
            "active_tasks": by_subtopology(target.active),
            "standby_tasks": by_subtopology(target.standby),
        },
    }


SERVED = Served(STREAMS_GROUP_DESCRIBE, answer, 0)
