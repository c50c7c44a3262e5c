"""A micro-batch is written once, even if Spark repeats it. Without Spark: the sink runs as in an executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import StreamsConfig, StreamsError
from penstock.pipeline.tasks.transactional_sink import (
    BatchMark,
    TransactionalSink,
    TransactionalSinks,
    transaction_config,
)
from penstock.testing import EmbeddedKafka
from penstock.topology.records import TopicPartition
from tests.read_to_end import read_to_end

QUERY = "c0ffee"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"in": 2, "out": 1}) as running:
        yield running


def seen(kafka: EmbeddedKafka) -> list[bytes]:
    """Return the values visible with read_committed."""
    return [message.value() or b"" for message in read_to_end(kafka.bootstrap_servers, "out")]


def opened(kafka: EmbeddedKafka, batch_id: int, query_id: str = QUERY, settings: Any = None) -> TransactionalSink:
    given = {"application.id": "app", "bootstrap.servers": kafka.bootstrap_servers, **(settings or {})}
    config = StreamsConfig({**given, "processing.guarantee": "exactly_once_v2"})
    sinks = TransactionalSinks(transaction_config(config), "app-spark-0", "in", 2)
    return sinks.opened(BatchMark("app-spark-0-1", "app-spark-0-0", TopicPartition("in", 1), query_id, batch_id))


def write(sink: TransactionalSink, *values: bytes) -> None:
    for value in values:
        sink.send("out", b"k", value, 1, None)


def test_a_repeated_micro_batch_is_written_once(kafka: EmbeddedKafka) -> None:
    for batch_id in (0, 0, 1, 1, 0):
        sink = opened(kafka, batch_id)
        write(sink, b"a%d" % batch_id, b"b%d" % batch_id)
        sink.finish()
    assert seen(kafka) == [b"a0", b"b0", b"a1", b"b1"]


def test_the_same_number_in_another_query_is_unrelated(kafka: EmbeddedKafka) -> None:
    for query_id in (QUERY, "decaf", "decaf"):
        sink = opened(kafka, 7, query_id)
        write(sink, query_id.encode())
        sink.finish()
    assert seen(kafka) == [QUERY.encode(), b"decaf"]


def test_a_dead_attempt_is_invisible_and_the_next_one_writes(kafka: EmbeddedKafka) -> None:
    died = opened(kafka, 0)
    write(died, b"died")
    died._writer.flush()
    died.close()  # as the end of its process does
    sink = opened(kafka, 0)
    write(sink, b"lives")
    sink.finish()
    assert seen(kafka) == [b"lives"]


def test_an_earlier_attempt_that_still_runs_is_fenced(kafka: EmbeddedKafka) -> None:
    """Spark no longer waits for it, e.g. because its executor did not respond."""
    earlier = opened(kafka, 0)
    write(earlier, b"earlier")
    later = opened(kafka, 0)
    write(later, b"later")
    later.finish()
    write(earlier, b"earlier again")
    with pytest.raises(StreamsError):
        earlier.finish()
    assert seen(kafka) == [b"later"]


def test_a_refused_record_aborts_its_micro_batch(kafka: EmbeddedKafka) -> None:
    sink = opened(kafka, 0)
    write(sink, b"fine", b"x" * 2_000_000)
    with pytest.raises(StreamsError, match="could not be written to Kafka, the first to out: MESSAGE_TOO_LARGE"):
        sink.finish()
    again = opened(kafka, 0)
    write(again, b"fine")
    again.finish()
    assert seen(kafka) == [b"fine"]


def test_the_error_names_brokers_that_refuse_the_transaction(kafka: EmbeddedKafka) -> None:
    with pytest.raises(StreamsError, match=r"Micro-batch 3 could not begin its transaction for in-1 \(transactional"):
        opened(kafka, 3, settings={"transaction.timeout.ms": 2_000_000})
