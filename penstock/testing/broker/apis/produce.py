"""Produce: append record batches to partitions."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode, producer_code
from ..partition_log import PartitionLog
from ..quotas import PRODUCER
from ..record_batches import NO_PRODUCER, Batch, one_batch
from ..topics import RecordsRefusedError, Topic

PRODUCE = SchemaApi(
    "Produce", 0, 3, 13, 9,
    """
transactional_id: string? 3+
acks: int16
timeout_ms: int32
topic_data: []
  name: string 0-12
  topic_id: uuid 13+
  partition_data: []
    index: int32
    records: bytes?
""",
    """
responses: []
  name: string 0-12
  topic_id: uuid 13+
  partition_responses: []
    index: int32
    error_code: int16
    base_offset: int64 = -1
    log_append_time_ms: int64 2+ = -1
    log_start_offset: int64 5+ = -1
    record_errors: [] 8+
      batch_index: int32
      batch_index_error_message: string?
    error_message: string? 8+
    current_leader: {} 10+ tag 0
      leader_id: int32 = -1
      leader_epoch: int32 = -1
throttle_time_ms: int32 1+
node_endpoints: [] 10+ tag 0
  node_id: int32
  host: string
  port: int32
  rack: string?
""",
)  # fmt: skip
#: From this version on, a write adds the partition to its producer's transaction (KIP-890).
NEW_TRANSACTIONS_VERSION = 12
_ACKS = (-1, 0, 1)
#: Errors with which a broker does not return the log start offset (Kafka: ReplicaManager.appendToLocalLog).
_BEFORE_THE_LOG = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE)


def answer(call: Call) -> Response | None:
    """Append each partition's batch; with acks=0 there is no response."""
    responses = [
        {
            "name": data.name,
            "topic_id": data.topic_id,
            "partition_responses": [_written(call, data, part) for part in data.partition_data],
        }
        for data in call.body.topic_data
    ]
    size = sum(len(part.records or b"") for data in call.body.topic_data for part in data.partition_data)
    wait_ms = call.throttle(PRODUCER, size)
    return None if call.body.acks == 0 else {"responses": responses, "throttle_time_ms": wait_ms}


def _written(call: Call, data: SimpleNamespace, part: SimpleNamespace) -> Response:
    log: PartitionLog | None = None
    try:
        if call.body.transactional_id is not None:
            call.check(Operation.WRITE, Resource.TRANSACTIONAL_ID, call.body.transactional_id)
        if call.body.acks not in _ACKS:
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
        cluster = call.cluster
        topic = _topic(call, data)
        partition = cluster.led_here(call.connection.node, topic, part.index)
        written = one_batch(part.records or b"")
        _check_transaction(call, topic, part.index, written)
        log, end = partition.log, partition.log.end
        batch = topic.accept(part.index, written, cluster.now_ms)
    except RecordsRefusedError as error:
        errors = [{"batch_index": at, "batch_index_error_message": text} for at, text in error.records.items()]
        start = call.cluster.partition(topic, part.index).log.start
        refused: Response = {"error_code": error.code, "error_message": error.message, "record_errors": errors}
        return {"index": part.index, "log_start_offset": start, **refused}
    except ApiError as error:
        start = -1 if log is None or error.code in _BEFORE_THE_LOG else log.start
        refused = {"error_code": error.code, "error_message": error.message, "log_start_offset": start}
        return {"index": part.index, **refused}
    # For a duplicate batch a broker returns its largest timestamp.
    is_told = batch.base < end or topic.setting("message.timestamp.type") == "LogAppendTime"
    return {
        "index": part.index,
        "base_offset": batch.base,
        "log_append_time_ms": batch.max_timestamp if is_told else -1,
        "log_start_offset": partition.log.start,
    }


def _topic(call: Call, data: SimpleNamespace) -> Topic:
    if call.version >= 13:
        return call.topic_by_id(data.topic_id, Operation.WRITE)
    return call.topic(data.name, Operation.WRITE)


def _check_transaction(call: Call, topic: Topic, number: int, batch: Batch) -> None:
    """Add the partition to the transaction, or raise ApiError if it should be part of one already and is not."""
    if not batch.transactional or batch.producer_id == NO_PRODUCER:
        return
    transactions = call.cluster.transactions
    id_ = call.body.transactional_id or ""
    if call.version >= NEW_TRANSACTIONS_VERSION:
        try:
            found = transactions.of(id_, batch.producer_id, batch.producer_epoch)
        except ApiError as error:
            raise ApiError(producer_code(error, knows_fenced=False), error.message) from error
        transactions.add(found, [(topic.name, number)])
    elif not topic.partitions[number].log.is_open(batch.producer_id):
        open_ = transactions.by_producer(batch.producer_id, batch.producer_epoch)
        if open_ is None or (topic.name, number) not in open_.partitions:
            latest = transactions.transactions.get(id_)
            fenced = latest is not None and latest.epoch > batch.producer_epoch
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH if fenced else ErrorCode.INVALID_TXN_STATE)


SERVED = Served(PRODUCE, answer, 3)
