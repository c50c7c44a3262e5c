"""OffsetForLeaderEpoch: where a leader epoch ended (KIP-320)."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import CLUSTER_NAME, Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError

OFFSET_FOR_LEADER_EPOCH = SchemaApi(
    "OffsetForLeaderEpoch", 23, 2, 4, 4,
    """
replica_id: int32 3+ = -2
topics: []
  topic: string
  partitions: []
    partition: int32
    current_leader_epoch: int32 = -1
    leader_epoch: int32
""",
    """
throttle_time_ms: int32
topics: []
  topic: string
  partitions: []
    error_code: int16
    partition: int32
    leader_epoch: int32 = -1
    end_offset: int64 = -1
""",
)  # fmt: skip


def answer(call: Call) -> Response:
    """Return the end of each requested epoch."""
    return {
        "topics": [
            {"topic": topic.topic, "partitions": [_end(call, topic.topic, part) for part in topic.partitions]}
            for topic in call.body.topics
        ]
    }


def _end(call: Call, name: str, asked: SimpleNamespace) -> Response:
    try:
        if not call.may(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
            call.check(Operation.DESCRIBE, Resource.TOPIC, name)
        topic = call.cluster.topic(name)
        partition = call.cluster.led_here(call.connection.node, topic, asked.partition, asked.current_leader_epoch)
    except ApiError as error:
        return {"partition": asked.partition, "error_code": error.code}
    epoch, end = partition.log.end_of_epoch(asked.leader_epoch, partition.leader_epoch)
    return {"partition": asked.partition, "leader_epoch": epoch, "end_offset": end}


SERVED = Served(OFFSET_FOR_LEADER_EPOCH, answer, 2)
