"""DeleteRecords: deletes records before an offset (KIP-107)."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.clients.protocol.admin_messages import DELETE_RECORDS

from ..access_control import Operation
from ..call import Call, Response, Served
from ..errors import ApiError

HIGH_WATERMARK = -1


def answer(call: Call) -> Response:
    """Delete them in each partition; -1 is the high watermark."""
    return {
        "topics": [
            {"name": topic.name, "partitions": [_deleted(call, topic.name, part) for part in topic.partitions]}
            for topic in call.body.topics
        ]
    }


def _deleted(call: Call, name: str, asked: SimpleNamespace) -> Response:
    try:
        topic = call.topic(name, Operation.DELETE)
        log = call.cluster.led_here(call.connection.node, topic, asked.partition_index).log
        log.delete_before(log.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset)
    except ApiError as error:
        return {"partition_index": asked.partition_index, "low_watermark": -1, "error_code": error.code}
    return {"partition_index": asked.partition_index, "low_watermark": log.start}


SERVED = Served(DELETE_RECORDS, answer, 0)
