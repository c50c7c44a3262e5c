"""ListOffsets: the offset of a timestamp, of the beginning, of the end."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.clients.protocol.messages import LIST_OFFSETS

from ..access_control import Operation
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode
from ..partition_log import PartitionLog

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
_READ_COMMITTED = 1


def answer(call: Call) -> Response:
    """Return an offset for each partition."""
    return {
        "topics": [
            {"name": topic.name, "partitions": [_offset(call, topic.name, part) for part in topic.partitions]}
            for topic in call.body.topics
        ]
    }


def _offset(call: Call, name: str, asked: SimpleNamespace) -> Response:
    try:
        topic = call.topic(name, Operation.DESCRIBE)
        partition = call.cluster.led_here(
            call.connection.node, topic, asked.partition_index, asked.current_leader_epoch
        )
        timestamp, offset = _found(call, partition.log, asked.timestamp)
    except ApiError as error:
        return {"partition_index": asked.partition_index, "error_code": error.code}
    epoch = partition.leader_epoch if asked.timestamp == LATEST else partition.log.epoch_at(offset)
    if offset < 0:
        epoch = -1
    return {
        "partition_index": asked.partition_index,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": epoch,
    }


def _found(call: Call, log: PartitionLog, timestamp: int) -> tuple[int, int]:
    end = log.last_stable if call.body.isolation_level == _READ_COMMITTED else log.high_watermark
    if timestamp == LATEST:
        return -1, end
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.start
    if timestamp == MAX_TIMESTAMP:
        found = log.youngest(end)
    elif timestamp >= 0:
        found = log.first_since(timestamp, end)
    else:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    return (-1, -1) if found is None else (found.timestamp, found.offset)


SERVED = Served(LIST_OFFSETS, answer, 4)
