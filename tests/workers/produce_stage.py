"""Brokers as a KafkaProducer sees them: played by a test, or with a log, as real ones take batches."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record.default_records import DefaultRecordBatch
from memory_kafka import ManualClock
from played_brokers import PlayedBrokers

from penstock.clients.cluster.brokers import Leader
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.protocol.produce_messages import API_VERSION
from penstock.clients.served_clock import STEP_MS
from penstock.clients.writing.kafka_producer import KafkaProducer
from penstock.clients.writing.produce_settings import ProduceSettings
from penstock.topology.records import TopicPartition

OUT_0, OUT_1 = TopicPartition("out", 0), TopicPartition("out", 1)
#: Of a ProduceStage unless told.
LINGER_MS = 10
LOG = PrefixedLogger("penstock.test", "")


@dataclass(frozen=True)
class Sent:
    """A batch as it came. keys: of its records, by which tests know them."""

    producer_id: int
    epoch: int
    sequence: int
    keys: tuple[bytes, ...]
    in_transaction: bool = False


class Request:
    """A request that was received. batches: by partition."""

    def __init__(self, data: bytes) -> None:
        self.version = int.from_bytes(data[2:4], "big")
        self.fields = ProduceRequest.decode(data, version=self.version, header=True)
        self.correlation_id: int = self.fields.header.correlation_id
        self.batches = {
            TopicPartition(topic.name, partition.index): _sent(partition.records)
            for topic in self.fields.topic_data
            for partition in topic.partition_data
        }


def _sent(data: bytes) -> Sent:
    batch = DefaultRecordBatch(bytes(data))
    assert batch.validate_crc()
    keys = tuple(record.key for record in batch)
    return Sent(batch.producer_id, batch.producer_epoch, batch.base_sequence, keys, batch.is_transactional)


@dataclass(frozen=True)
class Said:
    """What a broker says of a partition. of_records: (index, message) of those that are to blame."""

    error: int = 0
    message: str | None = None
    of_records: Sequence[tuple[int, str]] = ()


def encoded_answer(correlation_id: int, said: Mapping[TopicPartition, Said], throttle_ms: int = 0) -> bytes:
    """Return an answer's bytes, as kafka-python encodes them."""
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


class WrittenBrokers(PlayedBrokers):
    """Brokers that are given batches."""

    def request(self, node: int = 1) -> Request:
        """Return the request that a broker has received."""
        return Request(self.received(node))

    def reply(self, request: Request, error: int = 0, node: int = 1, **more: Any) -> None:
        """Say the same of each partition of a request."""
        self.answer_with(request, dict.fromkeys(request.batches, Said(error, **more)), node)

    def answer_with(self, request: Request, said: Mapping[TopicPartition, Said], node: int = 1, **more: int) -> None:
        """Answer a request."""
        self.say(encoded_answer(request.correlation_id, said, **more), node)


@dataclass
class PartitionLog:
    """A partition as its leader has it (Kafka: UnifiedLog, ProducerStateManager). keys: what is written."""

    keys: list[bytes] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    last: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # (first, last sequence) of five batches
    unsaid: set[Sent] = field(default_factory=set)  # batches that are written although nobody may have heard of it

    def append(self, sent: Sent) -> int:
        """Write a batch, unless it is there already or has no place here; return the error's code."""
        epoch = self.epochs.get(sent.producer_id, -1)
        known = self.last.get(sent.producer_id, [])
        if sent.epoch < epoch:
            return int(KafkaError.INVALID_PRODUCER_EPOCH)
        if sent.epoch > epoch:
            known = []
            if sent.sequence != 0 and epoch >= 0:
                return int(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        end = sent.sequence + len(sent.keys) - 1
        if (sent.sequence, end) in known:
            return int(KafkaError.DUPLICATE_SEQUENCE_NUMBER)
        if known and sent.sequence != known[-1][1] + 1:
            return int(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        self.epochs[sent.producer_id] = sent.epoch
        self.last[sent.producer_id] = [*known, (sent.sequence, end)][-5:]
        self.keys += sent.keys
        return 0


class ProduceStage:
    """A KafkaProducer, the brokers it writes to, and its clock."""

    def __init__(self, leaders: Mapping[TopicPartition, Leader], **settings: Any) -> None:
        self.clock = ManualClock()
        self.brokers = self.new_brokers(leaders)
        self.settings = ProduceSettings(**{"linger_ms": LINGER_MS, "compression_type": "lz4", **settings})
        self.producer = self.new_producer()

    def new_brokers(self, leaders: Mapping[TopicPartition, Leader]) -> WrittenBrokers:
        """Return the brokers that are played."""
        return WrittenBrokers(leaders)

    def new_producer(self) -> KafkaProducer:
        """Return a producer for these brokers."""
        return KafkaProducer(None, self.brokers, self.settings, self.clock, LOG, seed=0)

    def send(self, *keys: bytes, to: TopicPartition = OUT_0) -> None:
        """Produce records with these keys; the topic becomes known with the first."""
        for key in keys:
            self.producer.produce(to.topic, b"value", key, to.partition, None, None, 5)

    def run(self, ms: int = 0) -> None:
        """Let time pass, and have the producer do what it can: a connection takes it some steps."""
        for step in (*[STEP_MS] * (ms // STEP_MS), ms % STEP_MS, 0, 0, 0):
            self.clock.advance(step)
            self.producer.poll()

    def lost(self) -> list[tuple[int, str, int, bytes | None]]:
        """Return (code, topic, partition, key) of the records that were given up since the last call."""
        return [(e.code(), r.topic(), r.partition(), r.key()) for e, r in self.producer.take_lost()]

    def close(self) -> None:
        self.producer._sender.close()


def sent(stage: ProduceStage, *keys: bytes, to: TopicPartition = OUT_0) -> Request:
    """Send records as one batch and return the request."""
    stage.send(*keys, to=to)
    stage.run()
    stage.run(LINGER_MS)
    return stage.brokers.request()


def two_partitions() -> Iterator[ProduceStage]:
    """A stage for a fixture: two partitions that broker 1 leads."""
    made = ProduceStage({OUT_0: Leader(1, 5), OUT_1: Leader(1, 6)})
    yield made
    made.close()
