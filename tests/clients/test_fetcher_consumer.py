"""A PartitionConsumer behaves the same over a Fetcher and over librdkafka, and reports what
only librdkafka can read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.clients.cluster.brokers import Leaders
from penstock.clients.errors import ErrorCode
from penstock.topology.errors import MissingSourceTopicError, StreamsError
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.partition_consumer import InvalidOffsetError, PartitionConsumer
from tests.clients.fetch_stage import IN_0, IN_1, LOG, FetchStage, log_of, two_partitions
from tests.record_bytes import Given, GivenAnswer, GivenBatch, encoded_log

UNKNOWN_CODEC = 5


@pytest.fixture
def stage() -> Iterator[FetchStage]:
    """Two partitions that broker 1 leads."""
    yield from two_partitions()


@pytest.fixture
def consumer(stage: FetchStage) -> PartitionConsumer:
    """A consumer over the stage's fetcher."""
    return PartitionConsumer(stage.fetcher, LOG)


def polled(consumer: PartitionConsumer) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {}
    for _ in range(3):
        for partition, run in consumer.poll(100, 0).items():
            found.setdefault(partition, []).extend(message.offset() for message in run)
    return found


def test_a_consumer_over_a_fetcher_knows_its_position(stage: FetchStage, consumer: PartitionConsumer) -> None:
    consumer.assign({IN_0: 0})
    assert (consumer.position(IN_0), consumer.lag(IN_0), consumer.end(IN_0)) == (0, None, None)
    assert polled(consumer) == {}
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=9, records=log_of(3)))
    assert polled(consumer) == {IN_0: [0, 1, 2]}
    assert (consumer.position(IN_0), consumer.lag(IN_0), consumer.end(IN_0)) == (3, 6, 9)
    consumer.seek({IN_0: 8})
    polled(consumer)
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=9))
    polled(consumer)
    log = encoded_log([GivenBatch([Given()])], 8)
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=9, records=log))
    assert polled(consumer) == {IN_0: [8]}
    assert (consumer.position(IN_0), consumer.lag(IN_0)) == (9, 0)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, InvalidOffsetError),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, StreamsError),
    ],
)
def test_a_consumer_over_a_fetcher_raises_the_same_errors_as_over_librdkafka(
    stage: FetchStage, consumer: PartitionConsumer, code: int, error: type[Exception]
) -> None:
    consumer.assign({IN_0: 3})
    polled(consumer)
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, error=code))
    with pytest.raises(error, match="in-0"):
        polled(consumer)


def test_a_consumer_over_a_fetcher_names_a_missing_topic(stage: FetchStage, consumer: PartitionConsumer) -> None:
    stage.brokers.answer = Leaders({}, {"in": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    consumer.assign({IN_0: 3})
    for _ in range(stage.settings.unknown_topic_ms // 100):
        assert polled(consumer) == {}
        stage.clock.advance(100)
    with pytest.raises(MissingSourceTopicError, match="The topic in does not exist"):
        polled(consumer)


@pytest.mark.parametrize("reason", ["an old format", "an unknown codec"])
def test_a_format_that_only_librdkafka_reads_is_reported_after_the_batches_before_it(
    stage: FetchStage, consumer: PartitionConsumer, reason: str
) -> None:
    consumer.assign({IN_0: 1, IN_1: 0})
    polled(consumer)
    last = bytearray(encoded_log([GivenBatch([Given()], more_attributes=UNKNOWN_CODEC)], 2))
    if reason == "an old format":
        last[16] = 1
    answer = GivenAnswer(0, high_watermark=9, records=log_of(1, 1) + bytes(last))
    stage.brokers.reply(stage.brokers.request(), answer)
    refused = pytest.raises(StreamsError, match=r"in-0 has .* can read them: set penstock\.fetcher=librdkafka")
    if reason == "an old format":  # it reads no further than the batches before
        assert polled(consumer)[IN_0] == [1]
        stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=9, records=bytes(last)))
        with refused:
            polled(consumer)
    else:
        assert consumer.poll(1, 0)[IN_0][0].offset() == 1
        with refused:
            polled(consumer)


def test_the_error_for_an_old_broker_says_which_client_can_read_from_it(
    stage: FetchStage, consumer: PartitionConsumer
) -> None:
    stage.brokers.versions = {1: (4, 11)}
    consumer.assign({IN_0: 1})
    with pytest.raises(StreamsError, match=r"Broker 1 is older than Kafka 2\.7.*set penstock\.fetcher=librdkafka"):
        polled(consumer)
