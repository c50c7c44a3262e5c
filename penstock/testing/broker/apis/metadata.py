"""Metadata: nodes, topics, and the leaders of their partitions."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.clients.protocol.messages import METADATA

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode
from ..topics import Partition, Topic, check_name

#: The value for requests that did not ask for authorized operations.
NOT_ASKED = -(1 << 31)
_NO_ID = bytes(16)


def answer(call: Call) -> Response:
    """Return all nodes that are up, and the requested topics: None means all, in version 0 an empty list."""
    cluster, asked = call.cluster, call.body.topics
    if asked is None or (call.version == 0 and not asked):
        topics = [
            _topic(call, topic)
            for topic in sorted(cluster.topics.values(), key=lambda one: one.name)
            if call.may(Operation.DESCRIBE, Resource.TOPIC, topic.name)
        ]
    else:
        # Topics that the client may not describe come last.
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topics = sorted((_asked(call, one) for one in asked), key=lambda one: one.get("error_code") is refused)
    return {
        "brokers": [
            {"node_id": node.id, "host": node.host, "port": node.port} for node in cluster.nodes.values() if node.up
        ],
        "cluster_id": cluster.id,
        "controller_id": next((node.id for node in cluster.nodes.values() if node.up), -1),
        "topics": topics,
        "cluster_authorized_operations": NOT_ASKED,
    }


def _asked(call: Call, asked: SimpleNamespace) -> Response:
    try:
        if asked.name is None:
            return _topic(call, call.topic_by_id(asked.topic_id, Operation.DESCRIBE))
        call.check(Operation.DESCRIBE, Resource.TOPIC, asked.name)
        if asked.name not in call.cluster.topics:
            check_name(asked.name)
            creates = call.cluster.config["auto.create.topics.enable"] == "true"
            if creates and call.body.allow_auto_topic_creation:
                call.cluster.create_topic(asked.name, -1)
        return _topic(call, call.cluster.topic(asked.name))
    except ApiError as error:
        return {
            "error_code": error.code,
            "name": asked.name,
            "topic_id": asked.topic_id if asked.name is None else _NO_ID,
            "topic_authorized_operations": NOT_ASKED,
            "partitions": [],
        }


def _topic(call: Call, topic: Topic) -> Response:
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": [_partition(call, number, one) for number, one in enumerate(topic.partitions)],
        "topic_authorized_operations": NOT_ASKED,
    }


def _partition(call: Call, number: int, partition: Partition) -> Response:
    up = [node for node in partition.replicas if call.cluster.nodes[node].up]
    return {
        "error_code": ErrorCode.LEADER_NOT_AVAILABLE if partition.leader == -1 else ErrorCode.NONE,
        "partition_index": number,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": up,
        "offline_replicas": [node for node in partition.replicas if node not in up],
    }


SERVED = Served(METADATA, answer, 5)
