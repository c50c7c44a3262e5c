"""CreateTopics."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from penstock.clients.protocol.admin_messages import CREATE_TOPICS

from ..access_control import CLUSTER_NAME, Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode
from ..topics import TOPIC_DEFAULTS

_DEFAULT_SOURCE, _TOPIC_SOURCE = 5, 1


def answer(call: Call) -> Response:
    """Create each topic; one that is named twice is refused."""
    counts = Counter(topic.name for topic in call.body.topics)
    by_name = {topic.name: topic for topic in call.body.topics}
    return {"topics": [_created(call, topic, counts[name]) for name, topic in by_name.items()]}


def _created(call: Call, asked: SimpleNamespace, times: int) -> Response:
    try:
        if times > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        if not call.may(Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME):
            call.check(Operation.CREATE, Resource.TOPIC, asked.name)
        if asked.assignments and (asked.num_partitions != -1 or asked.replication_factor != -1):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "A manual partition assignment was specified, but numPartitions was not set to -1.",
            )
        topic = call.cluster.create_topic(
            asked.name,
            asked.num_partitions,
            asked.replication_factor,
            {config.name: config.value for config in asked.configs},
            {one.partition_index: one.broker_ids for one in asked.assignments},
            call.body.validate_only,
        )
    except ApiError as error:
        return {"name": asked.name, "error_code": error.code, "error_message": error.message, "configs": []}
    return {
        "name": asked.name,
        "topic_id": topic.id,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": [
            {
                "name": key,
                "value": topic.setting(key),
                "config_source": _TOPIC_SOURCE if key in topic.config else _DEFAULT_SOURCE,
            }
            for key in sorted(TOPIC_DEFAULTS)
        ],
    }


SERVED = Served(CREATE_TOPICS, answer, 2)
