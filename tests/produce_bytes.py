"""Produce requests and responses as kafka-python encodes them, and a partition leader's producer state."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record.default_records import DefaultRecordBatch

from penstock.clients.errors import ErrorCode
from penstock.clients.protocol.produce_messages import API_VERSION
from penstock.topology.records import TopicPartition

#: Number of a producer's latest batches by which a leader detects duplicates.
BATCHES_KNOWN = 5


class ProduceBytes:
    """A received Produce request. record_batches: by partition."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.version = int.from_bytes(data[2:4], "big")
        self.fields = ProduceRequest.decode(data, version=self.version, header=True)
        self.correlation_id: int = self.fields.header.correlation_id
        self.transactional_id: str | None = self.fields.transactional_id
        self.record_batches = {
            TopicPartition(topic.name, partition.index): _batch(partition.records)
            for topic in self.fields.topic_data
            for partition in topic.partition_data
        }


def _batch(data: bytes) -> DefaultRecordBatch:
    batch = DefaultRecordBatch(bytes(data))
    assert batch.validate_crc()
    return batch


@dataclass(frozen=True)
class Said:
    """A broker's response for a partition. of_records: (index, message) of the rejected records."""

    error: int = 0
    message: str | None = None
    of_records: Sequence[tuple[int, str]] = ()


def encoded_answer(correlation_id: int, said: Mapping[TopicPartition, Said], throttle_ms: int = 0) -> bytes:
    """Return an encoded response."""
    by_topic: dict[str, list[Any]] = {}
    topic_response = ProduceResponse.TopicProduceResponse
    response = topic_response.PartitionProduceResponse
    for partition, what in said.items():
        errors = [
            response.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
            for index, text in what.of_records
        ]
        by_topic.setdefault(partition.topic, []).append(
            response(index=partition.partition, error_code=what.error, record_errors=errors, error_message=what.message)
        )
    responses = [topic_response(name=name, partition_responses=found) for name, found in by_topic.items()]
    made = ProduceResponse(responses=responses, throttle_time_ms=throttle_ms)
    header = struct.pack(">i", correlation_id) + b"\0"  # without tags
    return header + bytes(made.encode(version=API_VERSION))


@dataclass
class KnownProducers:
    """The producers of a partition, as its leader knows them (Kafka: ProducerStateManager).

    last: first and last sequence number of the latest batches, by producer id; the leader detects duplicates of these.
    """

    epochs: dict[int, int] = field(default_factory=dict)
    last: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def append(self, producer_id: int, epoch: int, sequence: int, count: int) -> int:
        """Append a batch unless it is a duplicate or out of sequence; return the error code."""
        latest = self.epochs.get(producer_id, -1)
        known = self.last.get(producer_id, [])
        if epoch < latest:
            return int(ErrorCode.INVALID_PRODUCER_EPOCH)
        if epoch > latest:
            known = []
            if sequence != 0 and latest >= 0:
                return int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        end = sequence + count - 1
        if (sequence, end) in known:
            return int(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        if known and sequence != known[-1][1] + 1:
            return int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        self.epochs[producer_id] = epoch
        self.last[producer_id] = [*known, (sequence, end)][-BATCHES_KNOWN:]
        return 0

    def forget(self) -> None:
        """Forget all producers, as a leader does after they have not written for long."""
        self.epochs.clear()
        self.last.clear()
