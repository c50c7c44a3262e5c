"""Brokers for a KafkaProducer, played by a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.clients.cluster.brokers import Leader
from penstock.clients.errors import BrokerError, ClientError, ErrorCode, RetriableBrokerError
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.served_clock import STEP_MS
from penstock.clients.writing.kafka_producer import KafkaProducer
from penstock.clients.writing.produce_settings import ProduceSettings
from penstock.clients.writing.sender import Sender
from penstock.topology.records import TopicPartition
from tests.clients.played_brokers import PlayedBrokers
from tests.manual_clock import ManualClock
from tests.produce_bytes import ProduceBytes, Said, encoded_answer

OUT_0, OUT_1 = TopicPartition("out", 0), TopicPartition("out", 1)
#: The default linger.ms of a ProduceStage.
LINGER_MS = 10
LOG = PrefixedLogger("penstock.test", "")


@dataclass(frozen=True)
class Sent:
    """A received batch. keys: of its records, which identify them in tests."""

    producer_id: int
    epoch: int
    sequence: int
    keys: tuple[bytes, ...]
    in_transaction: bool = False


class Request(ProduceBytes):
    """A received request. batches, records: by partition."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.records: dict[TopicPartition, bytes] = {
            TopicPartition(topic.name, partition.index): bytes(partition.records)
            for topic in self.fields.topic_data
            for partition in topic.partition_data
        }
        self.batches = {partition: _sent(batch) for partition, batch in self.record_batches.items()}


def _sent(batch: Any) -> Sent:
    keys = tuple(record.key for record in batch)
    return Sent(batch.producer_id, batch.producer_epoch, batch.base_sequence, keys, batch.is_transactional)


class WrittenBrokers(PlayedBrokers):
    """Brokers that receive Produce requests."""

    def request(self, node: int = 1) -> Request:
        """Return the request that a broker has received."""
        return Request(self.received(node))

    def reply(self, request: Request, error: int = 0, node: int = 1, **more: Any) -> None:
        """Send the same response for each partition of a request."""
        self.answer_with(request, dict.fromkeys(request.batches, Said(error, **more)), node)

    def answer_with(self, request: Request, said: Mapping[TopicPartition, Said], node: int = 1, **more: int) -> None:
        """Respond to a request."""
        self.say(encoded_answer(request.correlation_id, said, **more), node)


#: Errors with a broker's code; their subclasses are the client's own errors.
TOLD_BY_CODE = (BrokerError, RetriableBrokerError)


def told(error: ClientError) -> ErrorCode | type[ClientError]:
    """Return the broker's code of an error, or the class of a client's error."""
    return error.code if isinstance(error, BrokerError) and type(error) in TOLD_BY_CODE else type(error)


class ProduceStage:
    """A KafkaProducer, the brokers it writes to, and its clock."""

    def __init__(self, leaders: Mapping[TopicPartition, Leader], **settings: Any) -> None:
        self.clock = ManualClock()
        self.brokers = self.new_brokers(leaders)
        self.settings = ProduceSettings(**{"linger_ms": LINGER_MS, "compression_type": "lz4", **settings})
        self.producer = self.new_producer()

    def new_brokers(self, leaders: Mapping[TopicPartition, Leader]) -> WrittenBrokers:
        """Return the played brokers."""
        return WrittenBrokers(leaders)

    def new_producer(self) -> KafkaProducer:
        """Return a producer for these brokers."""
        return KafkaProducer(self.brokers, self.settings, self.clock, LOG, seed=0)

    @property
    def sender(self) -> Sender:
        """The producer's Sender; tests replace its wait and inspect its buffer."""
        return self.producer._sender

    def send(self, *keys: bytes, to: TopicPartition = OUT_0) -> None:
        """Produce records with these keys; the topic becomes known with the first."""
        for key in keys:
            self.producer.produce(to.topic, key, b"value", to.partition, 5)

    def run(self, ms: int = 0) -> None:
        """Advance the clock, and run the producer until it is idle: opening a connection takes several steps."""
        for step in (*[STEP_MS] * (ms // STEP_MS), ms % STEP_MS, 0, 0, 0):
            self.clock.advance(step)
            self.producer.poll()

    def lost(self) -> list[tuple[Any, str, int, bytes | None]]:
        """Return (told(error), topic, partition, key) of the records that were dropped since the last call."""
        return [(told(e), r.topic(), r.partition(), r.key()) for e, r, *_ in self.producer.take_lost()]

    def close(self) -> None:
        self.producer.close()


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
