"""Builds a streams group's requests, and parses the responses (KIP-1071). Does no I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

from penstock.topology.errors import StreamsError
from penstock.topology.records import TaskId, TopicPartition

from ..protocol.schema import Request
from ..protocol.streams_messages import (
    STREAMS_GROUP_DESCRIBE,
    STREAMS_GROUP_HEARTBEAT,
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
)
from .requests import GroupMemberConfig
from .streams_values import (
    LEAVE_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    DescribedNode,
    DescribedTopology,
    Heartbeat,
    HeartbeatResponse,
    HostPartitions,
    InternalTopic,
    Partitions,
    StreamsSubtopology,
    StreamsTopology,
    Tasks,
)

#: The first heartbeat version in which brokers accept an instance id and task offsets (Kafka 4.4).
STATIC_MEMBERS_VERSION = 1


# Heartbeats


def heartbeat(
    config: GroupMemberConfig,
    rack_id: str | None,
    topology: StreamsTopology,
    member_id: str,
    said: Heartbeat,
    version: int,
) -> Request:
    """Return the request of a heartbeat in a version that the broker supports."""
    optional: dict[str, object] = {}
    if said.joining is not None:
        optional |= {
            "rack_id": rack_id,
            "rebalance_timeout_ms": config.max_poll_interval_ms,
            "topology": _topology(topology),
            "process_id": str(said.joining.process_id),
            "user_endpoint": _endpoint(said.joining.user_endpoint),
            "client_tags": _pairs(said.joining.client_tags),
        }
    if version >= STATIC_MEMBERS_VERSION:
        optional |= {
            "instance_id": config.instance_id,
            "task_offsets": None if said.offsets is None else _task_offsets(said.offsets),
            "task_end_offsets": None if said.end_offsets is None else _task_offsets(said.end_offsets),
        }
    owned = said.owned
    request = STREAMS_GROUP_HEARTBEAT(
        group_id=config.group_id,
        member_id=member_id,
        member_epoch=said.epoch,
        endpoint_information_epoch=said.endpoint_epoch,
        active_tasks=None if owned is None else _task_ids(owned.active),
        standby_tasks=None if owned is None else _task_ids(owned.standby),
        warmup_tasks=None if owned is None else _task_ids(owned.warmup),
        shutdown_application=said.shutdown_application,
        **optional,
    )
    return replace(request, version_max=version)


def topology_description(
    group_id: str, member_id: str, topology: StreamsTopology, description: DescribedTopology
) -> Request:
    """Return the request that sends the description of the topology."""
    return STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE(
        group_id=group_id,
        member_id=member_id,
        topology_epoch=topology.epoch,
        topology_description={
            "subtopologies": [
                {"subtopology_id": number, "nodes": [_node(node) for node in nodes]}
                for number, nodes in description.subtopologies
            ],
            "global_stores": [
                {"source": _node(source), "processor": _node(processor)}
                for source, processor in description.global_stores
            ],
        },
    )


def _node(node: DescribedNode) -> dict[str, object]:
    return {
        "name": node.name,
        "node_type": int(node.type),
        "source_topics": node.source_topics,
        "sink_topic": node.sink_topic,
        "stores": node.stores,
        "successors": node.successors,
    }


def leave(group_id: str, member_id: str, instance_id: str | None, comes_back: bool, version: int) -> Request:
    """Return the heartbeat that leaves the group; comes_back: a static member, whose tasks wait for its successor."""
    request = STREAMS_GROUP_HEARTBEAT(
        group_id=group_id,
        member_id=member_id,
        member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH if comes_back else LEAVE_GROUP_MEMBER_EPOCH,
        endpoint_information_epoch=-1,
        instance_id=instance_id if version >= STATIC_MEMBERS_VERSION else None,
    )
    return replace(request, version_max=version)


def _endpoint(endpoint: str) -> object:
    if not endpoint:
        return None
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise StreamsError(f"application.server={endpoint!r} is not of the form host:port.")
    return {"host": host, "port": int(port)}


def _topology(topology: StreamsTopology) -> object:
    return {"epoch": topology.epoch, "subtopologies": [_subtopology(found) for found in topology.subtopologies]}


def _subtopology(subtopology: StreamsSubtopology) -> dict[str, object]:
    """Return a sub-topology; topic patterns are rejected earlier."""
    repartition = [topic.name for topic in subtopology.repartition_source_topics]
    return {
        "subtopology_id": str(subtopology.subtopology),
        "source_topics": subtopology.source_topics,
        "state_changelog_topics": [_internal_topic(topic) for topic in subtopology.changelog_topics],
        "repartition_sink_topics": subtopology.repartition_sink_topics,
        "repartition_source_topics": [_internal_topic(topic) for topic in subtopology.repartition_source_topics],
        "copartition_groups": [
            {
                "source_topics": _indexes(subtopology.source_topics, group),
                "repartition_source_topics": _indexes(repartition, group),
            }
            for group in subtopology.copartition_groups
        ],
    }


def _indexes(topics: Iterable[str], group: Iterable[str]) -> list[int]:
    """Return the indexes of the group's topics among these, in the order of the group."""
    index = {topic: number for number, topic in enumerate(topics)}
    return [index[topic] for topic in group if topic in index]


def _internal_topic(topic: InternalTopic) -> dict[str, object]:
    return {
        "name": topic.name,
        "partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "topic_configs": _pairs(topic.config),
    }


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in sorted(values.items())]


def _task_ids(tasks: Iterable[TaskId]) -> list[dict[str, object]]:
    by_subtopology: dict[int, list[int]] = defaultdict(list)
    for task in sorted(tasks):
        by_subtopology[task.subtopology].append(task.partition)
    return [{"subtopology_id": str(number), "partitions": partitions} for number, partitions in by_subtopology.items()]


def _task_offsets(offsets: Mapping[TaskId, int]) -> list[dict[str, object]]:
    return [
        {"subtopology_id": str(task.subtopology), "partition": task.partition, "offset": offset}
        for task, offset in sorted(offsets.items())
    ]


# Responses


def heartbeat_response(response: SimpleNamespace) -> HeartbeatResponse:
    """Return the values of a response without an error; raises StreamsError for invalid sub-topologies."""
    statuses = {status.status_code: status.status_detail for status in response.status or ()}
    return HeartbeatResponse(
        response.member_epoch,
        response.heartbeat_interval_ms,
        response.task_offset_interval_ms,
        max(response.acceptable_recovery_lag, response.acceptable_recovery_lag_legacy),  # of version 1 and of 0
        statuses,
        None if response.active_tasks is None else _tasks(response),
        response.endpoint_information_epoch,
        None if response.partitions_by_user_endpoint is None else _hosts(response.partitions_by_user_endpoint),
        response.topology_description_required,
    )


def _tasks(assignment: SimpleNamespace) -> Tasks:
    roles = (assignment.active_tasks, assignment.standby_tasks, assignment.warmup_tasks)
    return Tasks(*(frozenset(_read_tasks(role or ())) for role in roles))


def _read_tasks(task_ids: Iterable[SimpleNamespace]) -> Iterable[TaskId]:
    for found in task_ids:
        if not found.subtopology_id.isdecimal():
            raise StreamsError(
                f"The coordinator assigned tasks of sub-topology {found.subtopology_id!r}, which is not a number. Is a "
                "program other than Penstock a member of this group?"
            )
        for partition in found.partitions:
            yield TaskId(int(found.subtopology_id), partition)


def _hosts(entries: Iterable[SimpleNamespace]) -> HostPartitions:
    """Merge the entries of a host's threads, each of which is a member."""
    active: dict[str, Partitions] = defaultdict(frozenset)
    standby: dict[str, Partitions] = defaultdict(frozenset)
    for entry in entries:
        host = _host_and_port(entry.user_endpoint)
        active[host] |= _partitions(entry.active_partitions)
        standby[host] |= _partitions(entry.standby_partitions)
    return HostPartitions(dict(active), dict(standby))


def _host_and_port(endpoint: SimpleNamespace | None) -> str:
    return "" if endpoint is None else f"{endpoint.host}:{endpoint.port}"


def _partitions(topics: Iterable[SimpleNamespace]) -> Partitions:
    return frozenset(TopicPartition(topic.topic, partition) for topic in topics for partition in topic.partitions)


# What the coordinator knows


def describe(group_id: str) -> Request:
    """Return the request for a group's members and their tasks."""
    return STREAMS_GROUP_DESCRIBE(group_ids=[group_id])


class DescribedMember(NamedTuple):
    """A member as the coordinator sees it; instance_id: None if it is dynamic; endpoint: host:port, "" without one."""

    member_id: str
    instance_id: str | None
    process_id: str
    endpoint: str
    tasks: Tasks


def described_members(group: SimpleNamespace) -> list[DescribedMember]:
    """Return the members of a described group."""
    return [
        DescribedMember(
            member.member_id,
            member.instance_id,
            member.process_id,
            _host_and_port(member.user_endpoint),
            _tasks(member.assignment),
        )
        for member in group.members
    ]
