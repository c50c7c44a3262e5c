"""A stateless sub-topology processes and writes in one place, directly from Arrow's columns. Without Spark."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock import Serdes, StreamPartitioner, StreamsBuilder, StreamsConfig, StreamsError
from penstock.pipeline.tasks.kafka_sink import KafkaSink, Sinks
from penstock.pipeline.tasks.python_worker import worker_function
from penstock.pipeline.tasks.record_batches import by_partition, messages, sent_batch
from penstock.pipeline.tasks.spark_task import TaskPlan
from penstock.pipeline.tasks.task_processor import run_stateless, run_stateless_to_kafka
from penstock.topology.records import SentRecord
from penstock.workers.thread.garbage_collection import COLLECTION_THRESHOLDS

STRINGS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


class Producer:
    """A producer whose queue holds two records until it is polled."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.queued: list[Any] = []
        self.written: list[Any] = []

    def produce(self, *record: Any) -> None:
        if record[1] == b"huge":
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        if len(self.queued) == 2:
            raise BufferError
        self.queued.append(record)

    def poll(self, timeout: float) -> None:
        assert timeout > 0
        self.flush()

    def flush(self) -> None:
        self.written += self.queued
        self.queued.clear()


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    """The producer that the sink creates."""
    made = Producer({})

    def make(settings: dict[str, Any]) -> Producer:
        made.settings = settings
        return made

    monkeypatch.setattr(Sinks, "of_tasks", lambda self: KafkaSink(self.settings, make))
    return made


def plan() -> TaskPlan:
    """Upper-case values, sent to partition 7 if the key is a k; a value that is no text fails."""
    builder = StreamsBuilder()
    shouted = builder.stream("in", **STRINGS).map_values(lambda value: value.upper(), name="shout")
    shouted.to("out", partitioner=lambda topic, key, value, count: 7 if key == "k" else None, **STRINGS)
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "broker:9092"})
    (built,) = builder.build().internal_builder.build_subtopologies(config, frozenset())
    return TaskPlan(built, config, {"out": 8})


def test_records_go_from_their_operators_to_the_producer(producer: Producer) -> None:
    values = [b"a", b"b", b"c"]
    given = [SentRecord("in", b"k" if n else None, value, n, [("h", None)], n % 2) for n, value in enumerate(values)]
    assert list(run_stateless_to_kafka(plan(), Sinks({"acks": "all"}))([sent_batch(given)])) == []
    by_value = sorted(producer.written, key=lambda record: record[1])
    assert by_value == [  # for the first one, the timestamp 0 would mean "now"
        ("out", b"A", None, -1, None, None, 1, [("h", None)]),
        ("out", b"B", b"k", 7, None, None, 1, [("h", None)]),
        ("out", b"C", b"k", 7, None, None, 2, [("h", None)]),
    ]
    assert (producer.settings["acks"], producer.settings["delivery.report.only.error"]) == ("all", True)
    assert producer.queued == []


class ByHeader(StreamPartitioner[Any, str]):
    """The partitions that a header names."""

    def partitions(self, topic: str, key: Any, value: str, headers: Any, partition_count: int) -> set[int]:
        assert (topic, partition_count) == ("out", 8)
        return {int(number) for number in dict(headers)["to"].split(b",") if number}


def test_a_partitioner_multicasts_and_drops(producer: Producer) -> None:
    builder = StreamsBuilder()
    builder.stream("in", **STRINGS).to("out", partitioner=ByHeader(), **STRINGS)
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "broker:9092"})
    (built,) = builder.build().internal_builder.build_subtopologies(config, frozenset())
    given = [
        SentRecord("in", b"k", value, 5, [("to", to)], 0) for value, to in ((b"a", b"3,6"), (b"b", b""), (b"c", b"1"))
    ]
    assert list(run_stateless_to_kafka(TaskPlan(built, config, {"out": 8}), Sinks({}))([sent_batch(given)])) == []
    assert [(record[1], record[3]) for record in producer.written] == [(b"a", 3), (b"a", 6), (b"c", 1)]


@pytest.fixture
def ordinary_collections() -> Iterator[tuple[int, int, int]]:
    """Return unusual thresholds of the garbage collector; stream threads of other tests may leave others."""
    found, ordinary = gc.get_threshold(), (700, 10, 10)
    gc.set_threshold(*ordinary)
    yield ordinary
    gc.set_threshold(*found)


def test_garbage_collection_is_rare_meanwhile_and_restored_afterwards(
    producer: Producer, ordinary_collections: tuple[int, int, int]
) -> None:

    def given() -> Iterator[Any]:
        assert gc.get_threshold() == COLLECTION_THRESHOLDS
        yield sent_batch([SentRecord("in", b"k", None, 5, None, 0)])

    with pytest.raises(StreamsError):
        list(worker_function(run_stateless_to_kafka(plan(), Sinks({})))(given()))
    assert gc.get_threshold() == ordinary_collections


def test_records_for_foreach_batch_are_yielded() -> None:
    (batch,) = run_stateless(plan())([sent_batch([SentRecord("in", b"k", b"a", 5, None, 0)])])
    assert batch.to_pylist() == [
        {"topic": "out", "partition": 7, "offset": -1, "timestamp": 5, "key": b"k", "value": b"A", "headers": None}
    ]


def test_the_exception_names_operator_topic_partition_and_offset(producer: Producer) -> None:
    bad = sent_batch([SentRecord("in", b"k", None, 5, None, 3)])
    with pytest.raises(StreamsError, match=r"processor=shout, topic=in, partition=3, offset=-1.*AttributeError"):
        list(run_stateless_to_kafka(plan(), Sinks({}))([bad]))


def test_a_record_that_the_producer_refuses_at_once_fails_the_micro_batch(producer: Producer) -> None:
    sink = KafkaSink({}, lambda settings: producer)
    for value in (b"huge", b"1", b"huge", b"2", b"3"):
        sink.send("out", None, value, None, None)
    with pytest.raises(StreamsError, match="2 records could not be written to Kafka, the first to out: "):
        sink.finish()
    assert [record[1] for record in producer.written] == [b"1", b"2", b"3"]


def batches() -> Iterator[Any]:
    """Batches, and slices of them, of every kind."""
    plain = [SentRecord("t", b"k%d" % n, b"v" * n, n - 5, None, 3) for n in range(6)]
    mixed = [SentRecord(f"t{n % 2}", b"k", b"", 1, None, n % 3) for n in range(6)]
    missing = [*plain, SentRecord("t", None, None, None, None, None), *plain]
    for sent in (plain, mixed, missing, plain[:1], []):
        batch = sent_batch(sent)
        yield from (batch, batch.slice(1, 3), batch.slice(4), batch.slice(5, 0))


def test_text_headers_are_read() -> None:
    texts = [None, "[]", '[{"key":"h","value":"AP8="},{"key":"h"},{"key":"é","value":""}]']
    plain = sent_batch([SentRecord("t", b"k", b"v", 1, None, 0)] * len(texts))
    batch = plain.set_column(6, "headers", pa.array(texts, pa.string()))
    found = [record.headers() for record in messages(batch)]
    assert found == [
        None,
        None,
        [("h", b"\x00\xff"), ("h", None), ("é", b"")],
    ]


def test_a_batch_is_split_by_topic_and_partition() -> None:
    for batch in batches():
        parts = list(by_partition(batch))
        assert len({(topic, partition) for topic, partition, _ in parts}) == len(parts)
        rows = [(topic, partition, row) for topic, partition, part in parts for row in part.to_pylist()]
        assert all((row["topic"], row["partition"]) == (topic, partition) for topic, partition, row in rows)
        assert sorted(map(str, (row for *_, row in rows))) == sorted(map(str, batch.to_pylist()))
