"""A stateless sub-topology processes and writes in one place, directly from Arrow's columns. Without Spark."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock import BrokerUnavailableError, Serdes, StreamPartitioner, StreamsBuilder, StreamsConfig, StreamsError
from penstock.pipeline.tasks import kafka_sink
from penstock.pipeline.tasks.kafka_sink import Sinks, write_to_kafka
from penstock.pipeline.tasks.python_worker import worker_function
from penstock.pipeline.tasks.record_batches import by_partition, messages, sent_batch
from penstock.pipeline.tasks.spark_task import TaskPlan
from penstock.pipeline.tasks.task_processor import run_stateless, run_stateless_to_kafka
from penstock.testing import EmbeddedKafka
from penstock.topology.records import SentRecord
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from penstock.workers.thread.garbage_collection import COLLECTION_THRESHOLDS
from tests.read_to_end import read_to_end

STRINGS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"out": 8}) as running:
        yield running
    kafka_sink.idle.take("")  # closes those of the test


def config_of(kafka: EmbeddedKafka) -> StreamsConfig:
    return StreamsConfig({"application.id": "app", "bootstrap.servers": kafka.bootstrap_servers})


def written(kafka: EmbeddedKafka) -> list[Any]:
    """Return partition, key, value, timestamp and headers of all records, in the order of values and partitions."""
    found = read_to_end(kafka.bootstrap_servers, "out")
    fields = [(m.partition(), m.key(), m.value(), m.timestamp()[1], m.headers()) for m in found]
    return sorted(fields, key=lambda record: (record[2], record[0]))


def plan() -> TaskPlan:
    """Upper-case values, sent to partition 7 if the key is a k; a value that is no text fails."""
    builder = StreamsBuilder()
    shouted = builder.stream("in", **STRINGS).map_values(lambda value: value.upper(), name="shout")
    shouted.to("out", partitioner=lambda topic, key, value, count: 7 if key == "k" else None, **STRINGS)
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "broker:9092"})
    (built,) = builder.build().internal_builder.build_subtopologies(config, frozenset())
    return TaskPlan(built, config, {"out": 8})


def test_records_go_from_their_operators_to_kafka(kafka: EmbeddedKafka) -> None:
    values = [b"a", b"b", b"c"]
    given = [SentRecord("in", b"k" if n else None, value, n, [("h", None)], n % 2) for n, value in enumerate(values)]
    assert list(run_stateless_to_kafka(plan(), Sinks(config_of(kafka)))([sent_batch(given)])) == []
    first, *others = written(kafka)
    assert first[1:] == (None, b"A", 0, [("h", None)])
    assert others == [(7, b"k", b"B", 1, [("h", None)]), (7, b"k", b"C", 2, [("h", None)])]


class NoHeaders(KafkaClientSupplier):
    """A supplier of the user's."""

    def get_producer(self, client_id: str, transactional_id: str | None = None) -> Any:
        made: Any = super().get_producer(client_id, transactional_id)
        produce = made.produce
        made.produce = lambda *record: produce(*record[:5])
        return made


def test_the_clients_of_the_users_supplier_write(kafka: EmbeddedKafka) -> None:
    config = config_of(kafka).with_overrides({"default.client.supplier": NoHeaders})
    list(write_to_kafka(Sinks(config))([sent_batch([SentRecord("out", b"k", b"a", 5, [("h", b"1")], 3)])]))
    assert written(kafka) == [(3, b"k", b"a", 5, None)]


class ByHeader(StreamPartitioner[Any, str]):
    """The partitions that a header names."""

    def partitions(self, topic: str, key: Any, value: str, headers: Any, partition_count: int) -> set[int]:
        assert (topic, partition_count) == ("out", 8)
        return {int(number) for number in dict(headers)["to"].split(b",") if number}


def test_a_partitioner_multicasts_and_drops(kafka: EmbeddedKafka) -> None:
    builder = StreamsBuilder()
    builder.stream("in", **STRINGS).to("out", partitioner=ByHeader(), **STRINGS)
    config = config_of(kafka)
    (built,) = builder.build().internal_builder.build_subtopologies(config, frozenset())
    given = [
        SentRecord("in", b"k", value, 5, [("to", to)], 0) for value, to in ((b"a", b"3,6"), (b"b", b""), (b"c", b"1"))
    ]
    run = run_stateless_to_kafka(TaskPlan(built, config, {"out": 8}), Sinks(config))
    assert list(run([sent_batch(given)])) == []
    assert [(record[2], record[0]) for record in written(kafka)] == [(b"a", 3), (b"a", 6), (b"c", 1)]


@pytest.fixture
def ordinary_collections() -> Iterator[tuple[int, int, int]]:
    """Return unusual thresholds of the garbage collector; stream threads of other tests may leave others."""
    found, ordinary = gc.get_threshold(), (700, 10, 10)
    gc.set_threshold(*ordinary)
    yield ordinary
    gc.set_threshold(*found)


def test_garbage_collection_is_rare_meanwhile_and_restored_afterwards(
    kafka: EmbeddedKafka, ordinary_collections: tuple[int, int, int]
) -> None:

    def given() -> Iterator[Any]:
        assert gc.get_threshold() == COLLECTION_THRESHOLDS
        yield sent_batch([SentRecord("in", b"k", None, 5, None, 0)])

    with pytest.raises(StreamsError):
        list(worker_function(run_stateless_to_kafka(plan(), Sinks(config_of(kafka))))(given()))
    assert gc.get_threshold() == ordinary_collections


def test_records_for_foreach_batch_are_yielded() -> None:
    (batch,) = run_stateless(plan())([sent_batch([SentRecord("in", b"k", b"a", 5, None, 0)])])
    assert batch.to_pylist() == [
        {"topic": "out", "partition": 7, "offset": -1, "timestamp": 5, "key": b"k", "value": b"A", "headers": None}
    ]


def test_the_exception_names_operator_topic_partition_and_offset(kafka: EmbeddedKafka) -> None:
    bad = sent_batch([SentRecord("in", b"k", None, 5, None, 3)])
    with pytest.raises(StreamsError, match=r"processor=shout, topic=in, partition=3, offset=-1.*AttributeError"):
        list(run_stateless_to_kafka(plan(), Sinks(config_of(kafka)))([bad]))


def test_a_refused_record_fails_the_micro_batch_and_the_records_behind_it_are_not_written(kafka: EmbeddedKafka) -> None:
    sinks = Sinks(config_of(kafka))
    sink = sinks.of_tasks()
    for value in (b"1", b"huge" * 500_000, b"2"):
        sink.send("out", b"k", value, None, None)
    with pytest.raises(StreamsError, match="could not be written to Kafka, the first to out: MESSAGE_TOO_LARGE"):
        sinks.finish(sink)
    again = sinks.of_tasks()
    assert again is not sink
    again.close()


def test_a_topic_that_does_not_exist_fails_the_micro_batch(kafka: EmbeddedKafka) -> None:
    config = config_of(kafka).with_overrides({"producer.topic.metadata.propagation.max.ms": 1})
    sinks = Sinks(config)
    sink = sinks.of_tasks()
    sink.send("mi/ssing", b"k", b"v", None, None)
    with pytest.raises(StreamsError, match=r"the first to mi/ssing: INVALID_TOPIC") as raised:
        sinks.finish(sink)
    assert not isinstance(raised.value, BrokerUnavailableError)


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
