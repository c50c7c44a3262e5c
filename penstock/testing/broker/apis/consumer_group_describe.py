"""ConsumerGroupDescribe: state, epochs and members of consumer groups (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.clients.protocol.messages import CONSUMER_GROUP_DESCRIBE

from ..access_control import Operation, Resource
from ..assignors import TopicPartition
from ..call import Call, Response, Served
from ..consumer_group import ConsumerGroup, ConsumerMember
from ..errors import ApiError
from .consumer_group_heartbeat import by_topic
from .metadata import NOT_ASKED

#: A member with the consumer protocol; 0 would be a classic member in such a group.
_CONSUMER = 1


def answer(call: Call) -> Response:
    """Describe each group."""
    return {"groups": [_described(call, group_id) for group_id in call.body.group_ids]}


def _described(call: Call, group_id: str) -> Response:
    try:
        call.check(Operation.DESCRIBE, Resource.GROUP, group_id)
        group = call.cluster.groups.consumers(group_id)
    except ApiError as error:
        return {"group_id": group_id, "error_code": error.code, "error_message": error.message}
    return {
        "group_id": group_id,
        "group_state": group.state_name,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": group.assignor,
        "members": [_member(call, group, member) for member in group.members.values()],
        "authorized_operations": NOT_ASKED,
    }


def _member(call: Call, group: ConsumerGroup, member: ConsumerMember) -> Response:
    return {
        "member_id": member.id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "subscribed_topic_regex": member.regex,
        "assignment": _named(call, [*member.assigned, *member.revoking]),
        "target_assignment": _named(call, group.target.get(member.id, ())),
        "member_type": _CONSUMER,
    }


def _named(call: Call, partitions: Iterable[TopicPartition]) -> Response:
    names = {topic.id: topic.name for topic in call.cluster.topics.values()}
    return {
        "topic_partitions": [
            {**one, "topic_name": names[one["topic_id"]]} for one in by_topic(partitions) if one["topic_id"] in names
        ]
    }


SERVED = Served(CONSUMER_GROUP_DESCRIBE, answer, 0)
