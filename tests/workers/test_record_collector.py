"""Writing of a task, through a real librdkafka producer and librdkafka's own mock broker."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.clients.cluster.topics import ClusterDescription
from penstock.clients.errors import BrokerError, ClientError, DeliveryTimeoutError, ErrorCode, Kind, broker_error
from penstock.clients.librdkafka import LibrdkafkaWriter
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.writing.writer import Lost
from penstock.topology import records
from penstock.topology.context.exception_handlers import ProducerRecord, Response
from penstock.topology.errors import StreamsError, TaskMigratedError
from penstock.workers.tasks.record_collector import production_error_handler
from penstock.workers.tasks.record_sends import task_output
from penstock.workers.tasks.sink_topics import METADATA_MS, PARTITION_COUNT_MS, SinkTopics
from penstock.workers.tasks.streams_producer import StreamsProducer
from penstock.workers.thread.thread_status import dead_letters
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.waiting import PATIENCE_SECONDS
from tests.workers.direct_io import DirectAdmin

TOPIC = "topic"
TASK = records.TaskId(0, 1)
#: Records fail after this many ms, to keep the tests below fast.
DELIVERY_TIMEOUT_MS = 200
LOG = PrefixedLogger("penstock.test", "")


class Asked(DirectAdmin):
    """Knows one topic, with as many partitions as librdkafka's mock; records the topics it was asked for."""

    def __init__(self) -> None:
        super().__init__(DirectKafka(ManualClock()))
        self.kafka.create_topic(TOPIC, 4)
        self.topics: list[str] = []

    def describe(self, topics: Collection[str] | None, timeout_ms: int) -> ClusterDescription:
        self.topics += topics or ()
        return super().describe(topics, timeout_ms)


class Mock:
    """A producer whose mock broker the test can read."""

    def __init__(self, handler: Any = None, **settings: Any) -> None:
        self.settings = {"test.mock.num.brokers": 1, "bootstrap.servers": "", "linger.ms": 0, **settings}
        self.clients: list[Producer] = []
        options: Mapping[str, Any] = {"handler": handler} if handler else {}
        topics = SinkTopics(Asked(), ManualClock())
        self.producer = StreamsProducer(self._make, LOG, topics=topics, **options)
        self.collector = self.producer.collector

    def _make(self) -> LibrdkafkaWriter:
        self.clients.append(Producer(self.settings, logger=LOG.logger))
        return LibrdkafkaWriter(self.clients[-1])

    def read(self, partition: int, count: int) -> list[Any]:
        """Return the first records of a partition."""
        broker = next(iter(self.clients[0].list_topics(timeout=PATIENCE_SECONDS).brokers.values()))
        settings = {"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "reader"}
        consumer = Consumer(settings, logger=LOG.logger)
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        try:
            return consumer.consume(count, PATIENCE_SECONDS)
        finally:
            consumer.close()


@pytest.fixture
def mock() -> Iterator[Mock]:
    made = Mock()
    yield made
    made.producer.close()


def test_all_fields_of_a_record_arrive(mock: Mock) -> None:
    send = task_output(mock.producer, {}).send
    send(TOPIC, b"key", b"value", 1234, (("name", b"1"), ("none", None)), 2)
    send(TOPIC, None, None, 5678, None, 2)
    mock.producer.flush()
    first, second = mock.read(2, 2)
    assert (first.key(), first.value(), first.timestamp()) == (b"key", b"value", (1, 1234))
    assert first.headers() == [("name", b"1"), ("none", None)]
    assert (second.key(), second.value(), second.timestamp(), second.headers()) == (None, None, (1, 5678), None)


def test_timestamp_zero_is_not_replaced_by_the_current_time(mock: Mock) -> None:
    send = task_output(mock.producer, {}).send
    send(TOPIC, b"k", b"v", 0, None, 0)
    send(TOPIC, b"k", b"v", None, None, 0)
    mock.producer.flush()
    zero, none = mock.read(0, 2)
    assert zero.timestamp() == (1, 1)
    assert none.timestamp()[1] > 1_600_000_000_000


def test_a_change_is_written_to_the_tasks_own_partition(mock: Mock) -> None:
    log_change = task_output(mock.producer, {"store": records.TopicPartition(TOPIC, 1)}).log_change
    log_change("store", b"k", b"v", 7)
    log_change("store", b"k", None, 8, [("h", b"x")])
    mock.producer.flush()
    put, deleted = mock.read(1, 2)
    assert (put.value(), put.timestamp()) == (b"v", (1, 7))
    assert (deleted.value(), deleted.headers()) == (None, [("h", b"x")])


def unreachable(handler: Any = None) -> Mock:
    """A producer whose broker does not exist."""
    settings = {"test.mock.num.brokers": 0, "bootstrap.servers": "127.0.0.1:1"}
    return Mock(handler, **settings, **{"message.timeout.ms": DELIVERY_TIMEOUT_MS})


def test_all_later_calls_raise_the_error_of_a_lost_record() -> None:
    mock = unreachable()
    send = task_output(mock.producer, {}).send
    send(TOPIC, b"k", b"v", 1, None, 0)
    with pytest.raises(StreamsError, match=r"Error encountered sending record to topic topic partition 0 due to"):
        mock.producer.flush()
    with pytest.raises(StreamsError, match="topic partition 0"):
        send(TOPIC, b"k", b"v", 1, None, 0)
    with pytest.raises(StreamsError, match="topic partition 0"):
        mock.producer.poll()
    mock.collector.forget_errors()
    mock.producer.poll()


def test_a_handler_can_continue_without_a_record() -> None:
    seen = []

    def handler(context: Any, record: Any, exception: Exception) -> str:
        seen.append((record.topic, record.key, record.partition))
        return "continue"

    mock = unreachable(production_error_handler({"production.exception.handler": handler}))
    task_output(mock.producer, {}).send(TOPIC, b"k", b"v", 1, None, 0)
    mock.producer.flush()
    assert seen == [(TOPIC, b"k", 0)]
    assert mock.collector.dropped == 1


def too_large(handler: Any, **config: Any) -> Mock:
    """A producer that refuses records of more than 1,000 bytes immediately."""
    settings = {"production.exception.handler": handler, **config}
    return Mock(production_error_handler(settings), **{"message.max.bytes": 1_000})


def test_a_handlers_dead_letter_is_written() -> None:
    asked = []

    def handler(context: Any, record: Any, exception: Exception) -> Response:
        asked.append((record.topic, record.key, context.task_id))
        assert isinstance(exception, BrokerError)
        assert (exception.code, exception.kind) == (ErrorCode.MESSAGE_TOO_LARGE, Kind.FATAL)
        return Response.resume([ProducerRecord(TOPIC, record.key, str(exception).encode(), 99, [("h", b"1")], 1)])

    mock = too_large(handler)
    task_output(mock.producer, {}, TASK).send(TOPIC, b"k", b"v" * 2_000, 1, None, 0)
    mock.producer.flush()
    (letter,) = mock.read(1, 1)
    assert (letter.key(), letter.timestamp()[1], letter.headers()) == (b"k", 99, [("h", b"1")])
    assert b"Message size too large" in letter.value()
    assert asked == [(TOPIC, b"k", TASK)]
    (counted,) = dead_letters({"thread-id": "t"}, mock.producer)
    assert counted.values == {"dead-letters-total": 1.0}
    tags = ("processor-node-id", "topic", "exception")
    assert [counted.tags[name] for name in tags] == ["producer", TOPIC, "BrokerError"]
    mock.producer.close()


def test_dead_letters_of_windowed_words_hold_the_record_that_was_not_written() -> None:
    decide = production_error_handler(
        {"production.exception.handler": "continue", "errors.dead.letter.queue.topic.name": "dead"}
    )
    message = records.RawRecord(TOPIC, 0, -1, 7, b"k", b"v")
    goes_on, (letter,) = decide(Lost(broker_error(ErrorCode.MESSAGE_TOO_LARGE), message), TASK)
    assert goes_on
    assert (letter.topic, letter.key, letter.value, letter.timestamp) == ("dead", b"k", b"v", 7)
    assert dict(letter.headers or ())["__streams.errors.exception"] == b"penstock.clients.errors.BrokerError"


def test_a_dead_letter_holds_the_input_record_of_the_lost_one() -> None:
    decide = production_error_handler(
        {"production.exception.handler": "continue", "errors.dead.letter.queue.topic.name": "dead"}
    )
    source = TASK, records.RawRecord("in", 3, 17, 5, b"source key", b"source value", [("own", b"1")])
    message = records.RawRecord(TOPIC, 0, -1, 7, b"k", b"v")
    goes_on, (letter,) = decide(Lost(broker_error(ErrorCode.INVALID_RECORD), message, source), None)
    assert goes_on
    assert (letter.key, letter.value, letter.timestamp) == (b"source key", b"source value", 5)
    headers = dict(letter.headers or ())
    names = ("own", *(f"__streams.errors.{name}" for name in ("topic", "partition", "offset")))
    assert [headers[name] for name in names] == [b"1", b"in", b"3", b"17"]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_dead_letter_for_a_record_lost_in_flight_is_written(goes_on: bool) -> None:
    asked = []

    def handler(context: Any, record: Any, exception: Exception) -> Response:
        asked.append(record.key)
        letters = [ProducerRecord(TOPIC, b"letter", b"about it", 7, None, 1)]
        return Response.resume(letters) if goes_on else Response.fail(letters)

    mock = Mock(production_error_handler({"production.exception.handler": handler}))
    mock.collector.note([Lost(broker_error(ErrorCode.INVALID_RECORD), records.RawRecord("out", 0, -1, 7, b"k", b"v"))])
    if goes_on:
        mock.producer.flush()
    else:
        with pytest.raises(StreamsError, match="INVALID_RECORD"):
            mock.producer.flush()
    assert (asked, mock.collector.dropped) == ([b"k"], goes_on)
    assert [letter.key() for letter in mock.read(1, 1)] == [b"letter"]
    mock.producer.close()


def test_a_flush_ends_when_its_dead_letters_are_acknowledged_too() -> None:
    """Otherwise the offset behind a record could be committed before its dead letter is acknowledged."""

    def handler(context: Any, record: Any, exception: Exception) -> Response:
        return Response.resume([ProducerRecord(TOPIC, b"letter", b"about it", 7, None, 1)])

    mock = Mock(production_error_handler({"production.exception.handler": handler}), **{"linger.ms": 60_000})
    mock.collector.note([Lost(broker_error(ErrorCode.INVALID_RECORD), records.RawRecord("out", 0, -1, 7, b"k", b"v"))])
    mock.producer.flush()
    assert len(mock.clients[0]) == 0, "nothing waits"
    mock.producer.close()


def that_asks(asked: Asked, clock: ManualClock, **options: Any) -> StreamsProducer:
    client = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": ""}, logger=LOG.logger)
    topics = SinkTopics(asked, clock)
    return StreamsProducer(lambda: LibrdkafkaWriter(client), LOG, topics=topics, clock=clock, **options)


def test_the_topic_of_records_that_are_lost_together_is_requested_once() -> None:
    asked = Asked()
    clock = ManualClock()
    handler = production_error_handler({"production.exception.handler": "continue"})
    producer = that_asks(asked, clock, handler=handler)
    lost = Lost(DeliveryTimeoutError("late"), records.RawRecord(TOPIC, 0, -1, 7, b"k", b"v"))
    try:
        producer.collector.note([lost] * 100)
        producer.collector.check()
        assert (producer.collector.dropped, asked.topics) == (100, [TOPIC])
        clock.advance(METADATA_MS)
        producer.collector.note([lost] * 2)
        producer.collector.check()
        assert asked.topics == [TOPIC, TOPIC]
    finally:
        producer.close()


def test_a_dead_letter_that_cannot_be_written_causes_no_other(caplog: pytest.LogCaptureFixture) -> None:
    mock = too_large("continue", **{"errors.dead.letter.queue.topic.name": "dead"})
    # Its dead letter is too large as well.
    task_output(mock.producer, {}, TASK).send(TOPIC, b"k", b"v" * 2_000, 1, None, 0)
    mock.producer.flush()
    assert mock.collector.dropped == 1
    assert "The dead letter could not be sent to topic dead" in caplog.text
    assert not list(dead_letters({}, mock.producer))
    mock.producer.close()


@pytest.mark.parametrize(
    ("error", "warned"), [(broker_error(ErrorCode.MESSAGE_TOO_LARGE), True), (DeliveryTimeoutError("late"), False)]
)
def test_retry_never_continues(error: ClientError, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    decide = production_error_handler({"production.exception.handler": lambda *_: "retry"})
    assert not decide(Lost(error, records.RawRecord(TOPIC, 0, -1, 7, b"k", b"v")), TASK).goes_on
    assert ("returned RETRY for an error that is not transient" in caplog.text) == warned


def test_a_fenced_producer_means_that_its_tasks_have_moved(mock: Mock) -> None:
    fenced = broker_error(ErrorCode.INVALID_PRODUCER_EPOCH)
    mock.collector.note([Lost(fenced, records.RawRecord(TOPIC, 0, -1, 1, b"k", b"v"))])
    with pytest.raises(TaskMigratedError, match="fenced"):
        mock.collector.check()


def test_a_failure_that_each_send_raises_has_one_traceback(mock: Mock) -> None:
    fenced = broker_error(ErrorCode.INVALID_PRODUCER_EPOCH)
    mock.collector.note([Lost(fenced, records.RawRecord(TOPIC, 0, -1, 1, b"k", b"v"))])
    depths = set()
    for _ in range(3):
        with pytest.raises(TaskMigratedError) as caught:
            mock.collector.check()
        depths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(depths) == 1


def test_tasks_do_not_restart_without_their_changelog(mock: Mock) -> None:
    """A restart would recreate the changelog, empty."""
    mock.collector.register_writer(TASK, ["app-store-changelog"])
    mock.producer.partition_count(TOPIC)
    mock.collector.note([Lost(DeliveryTimeoutError("late"), records.RawRecord(TOPIC, 0, -1, 1, b"k", b"v"))])
    with pytest.raises(StreamsError, match=r"no topic app-store-changelog partition 1 any more.*was deleted") as raised:
        mock.collector.check()
    assert not isinstance(raised.value, TaskMigratedError)


def test_the_partition_count_of_a_topic_is_cached_for_minutes() -> None:
    """A partitioner needs it for each record; windowed results caused one request to the broker each."""
    asked = Asked()
    clock = ManualClock()
    producer = that_asks(asked, clock)
    try:
        for _ in range(3):
            producer.poll()
            assert producer.partition_count(TOPIC) == 4
        assert asked.topics == [TOPIC]
        clock.advance(PARTITION_COUNT_MS)
        producer.poll()
        producer.partition_count(TOPIC)
        assert asked.topics == [TOPIC, TOPIC]
    finally:
        producer.close()
