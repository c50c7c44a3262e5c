"""AddPartitionsToTxn: partitions that a transaction will write to. Only brokers send version 4 and newer."""

from __future__ import annotations

from penstock.clients.protocol.messages import ADD_PARTITIONS_TO_TXN

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode, producer_code

_FENCED_VERSION = 2


def answer(call: Call) -> Response:
    """Add all of them or, if one does not exist, none."""
    body, cluster = call.body, call.cluster
    wanted = [(topic.name, number) for topic in body.topics for number in topic.partitions]
    unknown = {
        (name, number)
        for name, number in wanted
        if name not in cluster.topics or not 0 <= number < len(cluster.topics[name].partitions)
    }
    forbidden = {one for one in wanted if not call.may(Operation.WRITE, Resource.TOPIC, one[0])}
    refused: ErrorCode | None = None
    try:
        call.check(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)
        found = cluster.transactions.of(body.transactional_id, body.producer_id, body.producer_epoch)
        if not unknown and not forbidden:
            cluster.transactions.add(found, wanted)
    except ApiError as error:
        refused = producer_code(error, call.version >= _FENCED_VERSION)

    def code(partition: tuple[str, int]) -> ErrorCode:
        if refused is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return refused
        if partition in forbidden:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if forbidden and not unknown:
            return ErrorCode.OPERATION_NOT_ATTEMPTED
        if unknown:
            missing = partition in unknown
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if missing else ErrorCode.OPERATION_NOT_ATTEMPTED
        return refused or ErrorCode.NONE

    return {
        "results_by_topic": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": number, "partition_error_code": code((topic.name, number))}
                    for number in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


SERVED = Served(ADD_PARTITIONS_TO_TXN, answer, 0)
