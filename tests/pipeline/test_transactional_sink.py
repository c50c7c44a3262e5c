"""A micro-batch is written once, even if Spark repeats it. Without Spark: the sink runs as in an executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import StreamsConfig, StreamsError
from penstock.pipeline.tasks import transactional_sink
from penstock.pipeline.tasks.kafka_sink import IdleSinks, idle
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
        idle.take("")  # closes those of the test


def seen(kafka: EmbeddedKafka) -> list[bytes]:
    """Return the values visible with read_committed."""
    return [message.value() or b"" for message in read_to_end(kafka.bootstrap_servers, "out")]


def sinks(kafka: EmbeddedKafka, settings: Any = None) -> TransactionalSinks:
    given = {"application.id": "app", "bootstrap.servers": kafka.bootstrap_servers, **(settings or {})}
    config = StreamsConfig({**given, "processing.guarantee": "exactly_once_v2"})
    return TransactionalSinks(transaction_config(config), "app-spark-0", "in", 2)


def opened(kafka: EmbeddedKafka, batch_id: int, query_id: str = QUERY, settings: Any = None) -> TransactionalSink:
    mark = BatchMark("app-spark-0-1", "app-spark-0-0", TopicPartition("in", 1), query_id, batch_id)
    return sinks(kafka, settings).opened(mark)


def write(sink: TransactionalSink, *values: bytes) -> None:
    for value in values:
        sink.send("out", b"k", value, 1, None)


def test_a_repeated_micro_batch_is_written_once(kafka: EmbeddedKafka) -> None:
    for batch_id in (0, 0, 1, 1, 0):
        sink = opened(kafka, batch_id)
        write(sink, b"a%d" % batch_id, b"b%d" % batch_id)
        sinks(kafka).finish(sink)
    assert seen(kafka) == [b"a0", b"b0", b"a1", b"b1"]


def test_the_same_number_in_another_query_is_unrelated(kafka: EmbeddedKafka) -> None:
    for query_id in (QUERY, "decaf", "decaf"):
        sink = opened(kafka, 7, query_id)
        write(sink, query_id.encode())
        sinks(kafka).finish(sink)
    assert seen(kafka) == [QUERY.encode(), b"decaf"]


def test_a_dead_attempt_is_invisible_and_the_next_one_writes(kafka: EmbeddedKafka) -> None:
    died = opened(kafka, 0)
    write(died, b"died")
    died._writer.flush()
    died.close()  # as the end of its process does
    sink = opened(kafka, 0)
    write(sink, b"lives")
    sinks(kafka).finish(sink)
    assert seen(kafka) == [b"lives"]


def test_an_earlier_attempt_that_still_runs_is_fenced(kafka: EmbeddedKafka) -> None:
    """Spark no longer waits for it, e.g. because its executor did not respond."""
    earlier = opened(kafka, 0)
    write(earlier, b"earlier")
    later = opened(kafka, 0)
    write(later, b"later")
    sinks(kafka).finish(later)
    write(earlier, b"earlier again")
    with pytest.raises(StreamsError):
        sinks(kafka).finish(earlier)
    assert seen(kafka) == [b"later"]


def test_a_refused_record_aborts_its_micro_batch(kafka: EmbeddedKafka) -> None:
    sink = opened(kafka, 0)
    write(sink, b"fine", b"x" * 2_000_000)
    with pytest.raises(StreamsError, match="could not be written to Kafka, the first to out: MESSAGE_TOO_LARGE"):
        sinks(kafka).finish(sink)
    again = opened(kafka, 0)
    write(again, b"fine")
    sinks(kafka).finish(again)
    assert seen(kafka) == [b"fine"]


def test_a_kept_sink_fences_another_process_that_was_faster(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs a task on another executor, which is lost, and then here again."""
    kept = opened(kafka, 0)
    write(kept, b"first")
    sinks(kafka).finish(kept)
    monkeypatch.setattr(transactional_sink, "idle", IdleSinks())  # of another process
    elsewhere = opened(kafka, 1)
    assert elsewhere is not kept
    write(elsewhere, b"lost")
    elsewhere._writer.flush()
    monkeypatch.undo()
    assert opened(kafka, 1) is kept
    write(kept, b"second")
    sinks(kafka).finish(kept)
    with pytest.raises(StreamsError):
        sinks(kafka).finish(elsewhere)
    assert seen(kafka) == [b"first", b"second"]


def test_a_kept_sink_does_not_write_what_another_process_has_written(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = opened(kafka, 0)
    sinks(kafka).finish(kept)
    monkeypatch.setattr(transactional_sink, "idle", IdleSinks())  # of another process
    elsewhere = opened(kafka, 1)
    write(elsewhere, b"once")
    elsewhere.finish()
    elsewhere.close()
    monkeypatch.undo()
    assert opened(kafka, 1) is kept
    write(kept, b"twice")
    sinks(kafka).finish(kept)
    assert seen(kafka) == [b"once"]


def test_a_sink_of_librdkafka_is_not_used_again(kafka: EmbeddedKafka) -> None:
    settings, used = {"penstock.sender": "librdkafka"}, []
    for batch_id in range(2):
        used.append(opened(kafka, batch_id, settings=settings))
        write(used[-1], b"%d" % batch_id)
        sinks(kafka, settings).finish(used[-1])
    assert used[0] is not used[1]
    assert seen(kafka) == [b"0", b"1"]


def test_the_error_names_brokers_that_refuse_the_transaction(kafka: EmbeddedKafka) -> None:
    with pytest.raises(StreamsError, match=r"Micro-batch 3 could not begin its transaction for in-1 \(transactional"):
        opened(kafka, 3, settings={"transaction.timeout.ms": 2_000_000})
