"""A KafkaProducer's requests to brokers and its handling of responses; the tests play the brokers."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from penstock.clients.cluster.brokers import Leader, Leaders
from penstock.clients.errors import (
    BrokerError,
    ClientError,
    DeliveryTimeoutError,
    ErrorCode,
    MissingPartitionError,
    UnreachableError,
)
from penstock.clients.writing.produce_settings import produce_settings
from penstock.clients.writing.sender import REQUESTS_IN_FLIGHT
from penstock.topology.errors import StreamsError
from penstock.topology.records import RawRecord, TaskId, TopicPartition
from tests.clients.produce_stage import LINGER_MS, OUT_0, OUT_1, ProduceStage, Request, Sent, sent, two_partitions
from tests.produce_bytes import Said

stage = pytest.fixture(two_partitions)


def test_records_are_batched_until_linger_ms(stage: ProduceStage) -> None:
    stage.send(b"a", b"b")
    stage.send(b"c", to=OUT_1)
    stage.run(LINGER_MS - 1)
    assert 1 not in stage.brokers.ends
    assert stage.producer.wait_ms() == LINGER_MS
    stage.run(LINGER_MS)
    request = stage.brokers.request()
    assert request.batches == {OUT_0: Sent(7, 0, 0, (b"a", b"b")), OUT_1: Sent(7, 0, 0, (b"c",))}
    fields = request.fields
    assert (fields.transactional_id, fields.acks, fields.timeout_ms) == (None, -1, stage.settings.request_timeout_ms)
    stage.brokers.reply(request)
    stage.run(LINGER_MS)
    assert not stage.brokers.has_request()
    assert stage.lost() == []
    assert stage.producer.wait_ms() == float("inf")


def test_one_batch_per_partition_is_in_flight(stage: ProduceStage) -> None:
    stage.send(b"a")
    stage.run()
    stage.run(LINGER_MS)
    first = stage.brokers.request()
    stage.send(b"b", b"c")
    stage.send(b"x", to=OUT_1)
    stage.run()
    stage.run(LINGER_MS)
    other = stage.brokers.request()  # another partition need not wait
    assert other.batches == {OUT_1: Sent(7, 0, 0, (b"x",))}
    assert not stage.brokers.has_request()
    assert stage.producer.wait_ms() == 1
    stage.brokers.reply(first)
    stage.run()
    second = stage.brokers.request()
    assert second.batches == {OUT_0: Sent(7, 0, 1, (b"b", b"c"))}
    stage.brokers.reply(other)
    stage.brokers.reply(second)
    stage.send(b"d")
    stage.run()
    stage.run(LINGER_MS)
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 3, (b"d",))}


def test_records_that_arrive_while_a_batch_is_in_flight_form_one_batch(stage: ProduceStage) -> None:
    """Otherwise batches would queue up if brokers take longer than linger.ms, and each would wait for its response."""
    first = sent(stage, b"a")
    for key in (b"b", b"c", b"d"):
        stage.send(key)
        stage.run()
        stage.run(LINGER_MS)
        assert stage.producer.wait_ms() == 1, "it looks for the answer"
    assert not stage.brokers.has_request()
    stage.brokers.reply(first)
    stage.run()
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 1, (b"b", b"c", b"d"))}


def test_records_behind_a_batch_are_sent_as_soon_as_it_is_acknowledged(stage: ProduceStage) -> None:
    first = sent(stage, b"a")
    stage.send(b"b")
    stage.run()
    stage.run(LINGER_MS)
    stage.brokers.reply(first)
    stage.producer.poll()
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 1, (b"b",))}


def test_a_batch_that_is_not_due_does_not_shorten_the_wait(stage: ProduceStage) -> None:
    sent(stage, b"a")
    stage.send(b"b")
    assert stage.producer.wait_ms() == LINGER_MS
    stage.send(b"x", to=OUT_1)
    stage.run()
    stage.run(LINGER_MS - 1)
    assert stage.producer.wait_ms() == 1
    stage.run(1)
    assert stage.brokers.request().batches == {OUT_1: Sent(7, 0, 0, (b"x",))}, "though another one was due before"


def test_after_a_lost_connection_the_same_batch_is_sent_again(stage: ProduceStage) -> None:
    first = sent(stage, b"a", b"b")
    stage.send(b"c")
    stage.brokers.ends[1].close()
    stage.run()
    assert stage.brokers.opened == [1]
    stage.run(stage.settings.retry_backoff_ms)
    assert stage.brokers.opened == [1, 1]
    again = stage.brokers.request()
    assert again.batches == first.batches
    stage.brokers.reply(again, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)  # the first attempt was written
    stage.run()
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 2, (b"c",))}
    assert stage.lost() == []


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
)
def test_a_batch_is_sent_to_its_partitions_new_leader(stage: ProduceStage, error: int) -> None:
    request = sent(stage, b"a")
    stage.brokers.answer = Leaders({OUT_0: Leader(2, 6), OUT_1: Leader(1, 6)})
    stage.brokers.reply(request, error)
    stage.run()
    assert not stage.brokers.has_request()
    stage.run(stage.settings.retry_backoff_ms)
    assert stage.brokers.request(2).batches == request.batches
    assert stage.lost() == []


@pytest.mark.parametrize(
    "error", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CORRUPT_MESSAGE]
)
def test_retriable_errors_are_retried(stage: ProduceStage, error: int) -> None:
    request = sent(stage, b"a")
    asked = len(stage.brokers.asked)
    stage.brokers.reply(request, error)
    stage.run()
    assert not stage.brokers.has_request()
    stage.run(stage.settings.retry_backoff_ms)
    assert stage.brokers.request().batches == request.batches
    assert len(stage.brokers.asked) == asked, "the leader is not in doubt"


def test_a_records_own_message_is_used_if_the_batch_has_none(stage: ProduceStage) -> None:
    request = sent(stage, b"a")
    stage.brokers.answer_with(request, {OUT_0: Said(ErrorCode.INVALID_RECORD, None, [(0, "a key is needed")])})
    stage.run()
    (lost,) = stage.producer.take_lost()
    assert isinstance(lost.error, BrokerError)
    assert lost.error.message == "a key is needed"
    assert lost.is_refused


@pytest.mark.parametrize("code", [ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP])
def test_only_the_records_that_the_broker_names_are_dropped(stage: ProduceStage, code: ErrorCode) -> None:
    """The other records of the batch are sent again, in order and before later ones, with the same sequence number."""
    request = sent(stage, b"a", b"b", b"c", b"d")
    stage.send(b"later")
    stage.brokers.answer_with(request, {OUT_0: Said(code, "some are wrong", [(3, "d is wrong"), (1, "b is wrong")])})
    stage.run()
    lost = stage.producer.take_lost()
    assert [(one.record.key(), str(one.error)) for one in lost] == [
        (b"b", f"{code.name}: b is wrong"),
        (b"d", f"{code.name}: d is wrong"),
    ]
    assert all(one.is_refused for one in lost)
    request = stage.brokers.request()
    assert request.batches == {OUT_0: Sent(7, 0, 0, (b"a", b"c"))}
    stage.brokers.reply(request)
    stage.run()
    stage.run(LINGER_MS)
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 2, (b"later",))}


def test_a_batch_without_remaining_records_leaves_its_queue(stage: ProduceStage) -> None:
    request = sent(stage, b"a", b"b")
    stage.brokers.answer_with(request, {OUT_0: Said(ErrorCode.INVALID_RECORD, None, [(0, "x"), (1, "y")])})
    stage.run()
    assert [one.record.key() for one in stage.producer.take_lost()] == [b"a", b"b"]
    assert stage.sender.is_idle
    assert stage.sender.buffered_bytes == 0


def test_an_index_outside_of_the_batch_means_all_its_records(stage: ProduceStage) -> None:
    request = sent(stage, b"a", b"b")
    stage.brokers.answer_with(request, {OUT_0: Said(ErrorCode.INVALID_RECORD, "all of it", [(2, "what?")])})
    stage.run()
    assert [(one.record.key(), one.is_refused) for one in stage.producer.take_lost()] == [(b"a", False), (b"b", False)]


def test_a_lost_record_of_a_split_batch_has_its_source(stage: ProduceStage) -> None:
    sources = [(TaskId(0, 0), RawRecord("in", 0, number, 5, b"", b"")) for number in range(3)]
    for source in (sources[0], None, sources[1], sources[2]):
        stage.producer.produce("out", b"k", b"value", 0, 5, None, source)
    stage.run()
    stage.run(LINGER_MS)
    stage.brokers.reply(stage.brokers.request(), ErrorCode.MESSAGE_TOO_LARGE)
    stage.run()
    stage.brokers.answer_with(stage.brokers.request(), {OUT_0: Said(ErrorCode.INVALID_RECORD, None, [(1, "y")])})
    stage.run()
    stage.brokers.reply(stage.brokers.request())
    stage.run()
    stage.brokers.answer_with(stage.brokers.request(), {OUT_0: Said(ErrorCode.INVALID_RECORD, None, [(1, "y")])})
    stage.run()
    assert [one.source for one in stage.producer.take_lost()] == [None, sources[2]]


def test_a_missing_response_ends_the_connection(stage: ProduceStage) -> None:
    request = sent(stage, b"a")
    stage.run(stage.settings.request_timeout_ms - 1)
    assert stage.brokers.opened == [1]
    stage.run(1)
    stage.run(stage.settings.retry_backoff_ms)
    assert stage.brokers.opened == [1, 1]
    assert stage.brokers.request().batches == request.batches


def test_a_partition_missing_from_a_response_is_sent_again(stage: ProduceStage) -> None:
    request = sent(stage, b"a")
    stage.brokers.answer_with(request, {OUT_1: Said()})
    stage.run()
    assert stage.brokers.request().batches == request.batches


def test_a_throttle_time_is_respected(stage: ProduceStage) -> None:
    stage.brokers.answer_with(sent(stage, b"a"), {OUT_0: Said()}, throttle_ms=500)
    stage.send(b"b")
    stage.run()
    stage.run(400)
    assert not stage.brokers.has_request()
    stage.run(100)
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 1, (b"b",))}


def test_a_throttle_is_counted_and_logged(stage: ProduceStage) -> None:
    stage.brokers.answer_with(sent(stage, b"a"), {OUT_0: Said()}, throttle_ms=6_000)
    stage.run()
    (told,), times, *_ = stage.producer.health()
    assert told.startswith("Produce by broker 1 is throttled: a quota of client.id=penstock or its user is exceeded")
    assert "producer_byte_rate" in told
    assert times == (1, 6_000, 6_000)


def test_a_response_without_a_throttle_does_not_end_that_of_another(stage: ProduceStage) -> None:
    first, second = sent(stage, b"a"), sent(stage, b"x", to=OUT_1)
    stage.brokers.answer_with(first, {OUT_0: Said()}, throttle_ms=500)
    stage.brokers.answer_with(second, {OUT_1: Said()})
    stage.send(b"b")
    stage.run()
    stage.run(400)
    assert not stage.brokers.has_request()
    stage.run(100)
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 1, (b"b",))}


@pytest.mark.parametrize("error", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_batch_that_is_sent_again_for_long_is_logged(stage: ProduceStage, error: ErrorCode) -> None:
    request = sent(stage, b"a")
    for _ in range(60):
        assert stage.producer.health().waits == ()
        stage.brokers.reply(request, error)
        stage.run()
        stage.run(stage.settings.retry_backoff_ms)
        request = stage.brokers.request()
        if waits := stage.producer.health().waits:
            break
    assert waits == (f"Produce to out-0 is retried: {error.name} from broker 1",)
    stage.brokers.reply(request)
    stage.run()
    assert stage.producer.health().waits == ()


def test_a_full_batch_does_not_wait() -> None:
    stage = ProduceStage({OUT_0: Leader(1, 5)}, batch_bytes=200, compression_type="none")
    for number in range(20):
        stage.send(b"%d" % number)
    stage.run()
    request = stage.brokers.request()
    assert len(request.batches[OUT_0].keys) > 5
    stage.close()


def test_a_request_has_no_more_than_max_request_size() -> None:
    stage = ProduceStage({OUT_0: Leader(1, 5), OUT_1: Leader(1, 5)}, max_request_bytes=150, compression_type="none")
    for partition in (OUT_0, OUT_1):
        stage.send(b"k" * 50, to=partition)
    stage.run()
    stage.run(LINGER_MS)
    assert [set(stage.brokers.request().batches) for _ in range(2)] == [{OUT_0}, {OUT_1}]
    with pytest.raises(ClientError, match="MESSAGE_TOO_LARGE"):
        stage.send(b"k" * 200)
    stage.close()


def test_a_missing_topic_is_an_error_after_a_while(stage: ProduceStage) -> None:
    stage.brokers.answer = Leaders({}, {"gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    started = stage.clock.now_ms
    stage.sender.wait = lambda now, until: stage.clock.advance(100)  # type: ignore[method-assign,assignment]
    with pytest.raises(ClientError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        stage.send(b"a", to=TopicPartition("gone", 0))
    assert stage.clock.now_ms - started >= stage.settings.unknown_topic_ms
    with pytest.raises(ClientError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        stage.send(b"a", to=TopicPartition("gone", 0))  # at once
    assert stage.clock.now_ms - started < 2 * stage.settings.unknown_topic_ms


def test_a_missing_topic_is_requested_again_for_a_new_record(stage: ProduceStage) -> None:
    late = TopicPartition("late", 0)
    stage.brokers.answer = Leaders({}, {"late": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    stage.sender.wait = lambda now, until: stage.clock.advance(100)  # type: ignore[method-assign,assignment]
    with pytest.raises(ClientError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        stage.send(b"a", to=late)
    stage.brokers.answer = Leaders({late: Leader(1, 5)})
    stage.clock.advance(stage.settings.retry_backoff_ms)
    with pytest.raises(ClientError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        stage.send(b"b", to=late)  # and the leaders are requested
    stage.send(b"c", to=late)
    stage.run()
    stage.run(LINGER_MS)
    assert stage.brokers.request().batches[late].keys == (b"c",)


def test_a_topic_waits_for_unreachable_brokers(stage: ProduceStage) -> None:
    stage.brokers.answer = UnreachableError("nobody there")
    stage.sender.wait = lambda now, until: stage.clock.advance(1_000)  # type: ignore[method-assign,assignment]
    stage.send(b"a")
    assert stage.lost() == [(DeliveryTimeoutError, "out", 0, b"a")]


def test_a_deleted_topic_is_an_error_for_buffered_records(stage: ProduceStage) -> None:
    request = sent(stage, b"a")
    stage.send(b"b")
    stage.brokers.answer = Leaders({}, {"out": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    stage.brokers.reply(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    for _ in range(100):
        stage.run(stage.settings.unknown_topic_ms // 50)
    assert stage.lost() == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "out", 0, key) for key in (b"a", b"b")]


def test_added_partitions_are_known_once_the_leaders_are(stage: ProduceStage) -> None:
    stage.send(b"a")
    stage.brokers.answer = Leaders({TopicPartition("out", number): Leader(1, 5) for number in range(3)})
    stage.sender.wait = lambda now, until: stage.clock.advance(100)  # type: ignore[method-assign,assignment]
    assert sent(stage, b"b", to=TopicPartition("out", 2)).batches[TopicPartition("out", 2)].keys == (b"b",)


def test_the_error_for_an_old_broker_says_which_client_can_write_to_it(stage: ProduceStage) -> None:
    stage.brokers.versions = {0: (0, 8)}
    stage.send(b"a")
    stage.run()
    with pytest.raises(StreamsError, match=r"Broker 1 is older than Kafka 2\.4.*penstock\.sender=librdkafka"):
        stage.run(LINGER_MS)
    stage.send(b"b")  # it is not sent: nothing will be committed
    with pytest.raises(StreamsError):
        stage.producer.flush()


def test_unreachable_brokers_become_an_error(stage: ProduceStage) -> None:
    stage.send(b"a")
    stage.brokers.failure = RuntimeError("the IO thread has ended")
    with pytest.raises(StreamsError, match="the IO thread has ended"):
        stage.producer.flush()


def test_a_flush_ends_at_its_timeout(stage: ProduceStage) -> None:
    stage.send(b"a")
    stage.sender.wait = lambda now, until: stage.clock.advance(100)  # type: ignore[method-assign,assignment]
    started = stage.clock.now_ms
    stage.producer.flush(1.0)
    assert 1_000 <= stage.clock.now_ms - started <= 1_100
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 0, (b"a",))}


def test_a_full_buffer_blocks() -> None:
    stage = ProduceStage({OUT_0: Leader(1, 5)}, batch_bytes=200, buffer_bytes=500, compression_type="none")
    brokers, answered = stage.brokers, 0

    def wait(now: int, until: float) -> None:
        nonlocal answered
        if 1 in brokers.ends and brokers.has_request():
            brokers.reply(brokers.request())
            answered += 1

    stage.sender.wait = wait  # type: ignore[method-assign,assignment]
    for number in range(200):
        stage.send(b"%d" % number)
        assert stage.sender.buffered_bytes <= 700
    assert answered > 5
    stage.producer.flush()
    assert stage.lost() == []
    stage.close()


def test_failures_are_reported_once(stage: ProduceStage, caplog: pytest.LogCaptureFixture) -> None:
    stage.brokers.refused[1] = UnreachableError("nobody there")
    stage.send(b"a")
    for _ in range(10):
        stage.run(stage.settings.retry_backoff_ms)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "Broker 1 cannot be written to: nobody there; trying again"
    ]


def test_an_idle_connection_closed_by_the_broker_is_no_failure(
    stage: ProduceStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.brokers.reply(sent(stage, b"a"))
    stage.run()
    stage.brokers.ends[1].close()
    stage.send(b"b")
    stage.run()
    stage.run(LINGER_MS)
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 1, (b"b",))}
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_connection_idle_for_long_is_reopened(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"))
    stage.run(stage.settings.max_idle_ms - LINGER_MS - 1)
    stage.brokers.reply(sent(stage, b"b"))
    stage.run()
    assert stage.brokers.opened == [1]
    stage.run(stage.settings.max_idle_ms)
    assert sent(stage, b"c").batches == {OUT_0: Sent(7, 0, 2, (b"c",))}
    assert stage.brokers.opened == [1, 1]


def test_a_header_without_a_name_is_refused_and_buffers_nothing(stage: ProduceStage) -> None:
    stage.send(b"a")
    headers: Any = [(None, b"x")]
    with pytest.raises(TypeError, match="name of a header is None"):
        stage.producer.produce("out", b"b", b"value", 0, 5, headers)
    stage.producer.produce("out", b"c", b"value", 0, 5, [("x", None)])
    stage.run()
    stage.run(LINGER_MS)
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 0, (b"a", b"c"))}


def test_a_timeout_of_zero_means_no_limit() -> None:
    settings = produce_settings({"message.timeout.ms": 0})
    assert settings.delivery_timeout_ms > 365 * 24 * 3_600_000
    assert produce_settings({"connections.max.idle.ms": 0}).max_idle_ms > 365 * 24 * 3_600_000


def test_a_record_without_a_key_that_finds_a_full_batch_goes_to_the_next_partition() -> None:
    stage = ProduceStage({OUT_0: Leader(1, 5), OUT_1: Leader(1, 5)}, batch_bytes=200, compression_type="none")
    while not stage.sender.buffered_bytes:  # with full batches
        stage.producer.produce("out", None, b"value", -1, 5)
    stage.run()
    stage.run(LINGER_MS)
    assert stage.brokers.request().batches.keys() | stage.brokers.request().batches.keys() == {OUT_0, OUT_1}
    stage.close()


def test_a_broker_has_a_limited_number_of_requests_in_flight() -> None:
    partitions = [TopicPartition("out", index) for index in range(REQUESTS_IN_FLIGHT + 2)]
    stage = ProduceStage(dict.fromkeys(partitions, Leader(1, 5)), linger_ms=0)
    stage.send(b"a", to=partitions[0])
    stage.run()
    requests = [stage.brokers.request()]
    for partition in partitions[1:]:
        stage.send(b"a", to=partition)
        stage.run()
    while stage.brokers.has_request():
        requests.append(stage.brokers.request())
    assert len(requests) == REQUESTS_IN_FLIGHT
    stage.brokers.reply(requests[0])
    stage.run()
    assert set(stage.brokers.request().batches) == set(partitions[REQUESTS_IN_FLIGHT:]), "what is left goes together"
    stage.close()


@pytest.mark.timeout(30)
def test_a_request_larger_than_the_socket_buffer_is_sent_in_parts() -> None:
    stage = ProduceStage({OUT_0: Leader(1, 5)}, linger_ms=0, compression_type="none", max_request_bytes=5_000_000)
    stage.send(b"before")
    stage.run()
    stage.brokers.reply(stage.brokers.request())
    value = random.Random(5).randbytes(4_000_000)
    stage.producer.produce("out", b"large", value, 0, 5)
    stage.run()
    received: list[bytes] = []

    def serve() -> None:
        received.append(stage.brokers.received())
        stage.brokers.reply(Request(received[0]))

    broker = threading.Thread(target=serve)
    broker.start()
    stage.producer.flush()
    broker.join()
    assert value in received[0]
    assert stage.lost() == []
    stage.close()


def test_a_connection_lost_during_a_send(stage: ProduceStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.brokers.reply(sent(stage, b"a"))
    stage.run()

    def fail(request: bytes) -> None:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(stage.sender._network.link(1)._socket, "send", fail)
    stage.send(b"b")
    stage.run()
    stage.run(LINGER_MS)
    asked = len(stage.brokers.asked)
    stage.run(stage.settings.retry_backoff_ms)
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 1, (b"b",))}
    assert len(stage.brokers.asked) == asked + 1, "it may have given up what it led"


def two_by_two() -> Iterator[ProduceStage]:
    made = ProduceStage({OUT_0: Leader(1, 5), OUT_1: Leader(2, 6)})
    yield made
    made.close()


apart = pytest.fixture(two_by_two)


def test_batches_that_are_not_in_flight_can_be_dropped(stage: ProduceStage) -> None:
    sent(stage, b"a")
    stage.send(b"b")
    stage.run()
    stage.run(LINGER_MS)  # b waits behind a
    stage.send(b"c")
    stage.send(b"x", to=OUT_1)
    stage.producer.drop()
    assert stage.brokers.ends[1].recv(1) == b""
    stage.run(10 * stage.settings.reconnect_backoff_max_ms)
    assert (stage.producer.wait_ms(), stage.sender.buffered_bytes) == (float("inf"), 0)
    assert sent(stage, b"d").batches == {OUT_0: Sent(7, 1, 0, (b"d",))}
    assert stage.lost() == []


@pytest.mark.parametrize("answer", [None, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT])
def test_a_dropped_batch_in_flight_is_not_sent_again(stage: ProduceStage, answer: ErrorCode | None) -> None:
    """Found by chaos tests: sent again on a new connection, it arrived behind the records of the next owner."""
    request = sent(stage, b"a")
    stage.sender.drop()
    if answer is None:
        stage.brokers.ends[1].close()
    else:
        stage.brokers.reply(request, answer)
    stage.run(10 * stage.settings.reconnect_backoff_max_ms)
    assert (stage.producer.wait_ms(), stage.sender.buffered_bytes) == (float("inf"), 0)
    assert sent(stage, b"b").batches == {OUT_0: Sent(7, 1, 0, (b"b",))}, "not taken for the one before"
    assert stage.lost() == []


def test_dropping_a_batch_in_flight_closes_its_connection(stage: ProduceStage) -> None:
    """Found by chaos tests: otherwise the kernel delivers it after the network recovers, behind the next owner's
    records.
    """
    sent(stage, b"a")
    stage.producer.drop()
    assert stage.brokers.ends[1].recv(1) == b""
    stage.run(10 * stage.settings.reconnect_backoff_max_ms)
    assert sent(stage, b"b").batches == {OUT_0: Sent(7, 1, 0, (b"b",))}, "not taken for the one before"
    assert stage.lost() == []


def test_unsent_bytes_in_the_kernel_are_dropped_if_the_process_is_killed(stage: ProduceStage) -> None:
    """tests/clients/test_opening.py has the effect of this."""
    sent(stage, b"a")
    dropped, _ = struct.unpack("ii", stage.brokers.lent[1].getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))
    assert dropped


def test_a_connection_without_dropped_batches_in_flight_stays(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"))
    stage.run()
    stage.send(b"b")
    stage.producer.drop()
    assert sent(stage, b"c").batches == {OUT_0: Sent(7, 0, 1, (b"c",))}


def test_each_broker_gets_the_partitions_that_it_leads(apart: ProduceStage) -> None:
    apart.send(b"a")
    apart.send(b"b", to=OUT_1)
    apart.run()
    apart.run(LINGER_MS)
    requests = {node: apart.brokers.request(node) for node in (1, 2)}
    assert {node: set(request.batches) for node, request in requests.items()} == {1: {OUT_0}, 2: {OUT_1}}
    apart.brokers.reply(requests[2], node=2)
    apart.run()
    apart.send(b"c", to=OUT_1)
    apart.run()
    apart.run(LINGER_MS)
    assert apart.brokers.request(2).batches == {OUT_1: Sent(7, 0, 1, (b"c",))}, "one broker does not wait for another"


def test_deadlines_exclude_time_in_which_the_producer_is_not_polled(stage: ProduceStage) -> None:
    """Processing a record may take minutes; records written before it must not expire without an attempt."""
    stage.send(b"a")
    for _ in range(20):  # connecting takes some polls
        stage.clock.advance(stage.settings.delivery_timeout_ms)
        stage.producer.poll()
    request = stage.brokers.request()
    stage.clock.advance(10 * stage.settings.request_timeout_ms)
    stage.brokers.reply(request)
    stage.run()
    assert stage.brokers.opened == [1]
    assert (stage.lost(), stage.producer.wait_ms()) == ([], float("inf"))


def test_time_between_polls_does_not_make_a_topic_unknown(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    stage.brokers.answer = Leaders({}, {"out": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    stage.run(stage.settings.retry_backoff_ms)
    stage.clock.advance(2 * stage.settings.unknown_topic_ms)
    stage.run()
    stage.brokers.answer = Leaders({OUT_0: Leader(1, 5), OUT_1: Leader(1, 6)})
    stage.run(2 * stage.settings.retry_backoff_ms)
    stage.brokers.reply(stage.brokers.request())
    stage.run()
    assert stage.lost() == []


def suspended(stage: ProduceStage, *then: Callable[[], object]) -> None:
    """Suspend the process for a minute in the middle of each wait, and call these functions in turn meanwhile."""
    happening = iter(then)

    def wait(now: int, until: float) -> None:
        next(happening)()
        stage.clock.advance(60_000)

    stage.sender.wait = wait  # type: ignore[method-assign,assignment]


def test_a_wait_with_a_suspended_process_takes_at_most_a_second_of_a_deadline() -> None:
    stage = ProduceStage({OUT_0: Leader(1, 5)}, delivery_timeout_ms=5_000)
    request = sent(stage, b"a")
    replied = partial(stage.brokers.reply, request, ErrorCode.NOT_ENOUGH_REPLICAS)
    suspended(stage, replied, *[lambda: None] * 3, lambda: stage.brokers.reply(stage.brokers.request()))
    stage.producer.flush()
    assert stage.lost() == []
    stage.close()


def test_a_topic_that_becomes_known_at_its_deadline_is_known() -> None:
    stage = ProduceStage({}, delivery_timeout_ms=500)
    answer: Future[Leaders] = Future()
    stage.brokers.leaders = lambda topics, on_done: answer  # type: ignore[method-assign]
    suspended(stage, lambda: answer.set_result(Leaders({OUT_0: Leader(1, 5)})))
    stage.send(b"a")
    stage.run()
    stage.run(LINGER_MS)
    assert stage.brokers.request().batches[OUT_0].keys == (b"a",)
    stage.close()


def test_a_connection_not_polled_for_long_is_reopened(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"))
    stage.run()
    stage.clock.advance(stage.settings.max_idle_ms)
    assert sent(stage, b"b").batches == {OUT_0: Sent(7, 0, 1, (b"b",))}
    assert stage.brokers.opened == [1, 1]


def test_a_topic_recreated_with_fewer_partitions() -> None:
    partitions = [TopicPartition("out", number) for number in range(4)]
    stage = ProduceStage(dict.fromkeys(partitions, Leader(1, 5)))
    request = sent(stage, b"gone", to=partitions[3])
    stage.brokers.answer = Leaders(dict.fromkeys(partitions[:2], Leader(1, 0)))
    stage.brokers.reply(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    stage.run(2 * stage.settings.retry_backoff_ms)
    for number in range(20):
        stage.producer.produce("out", b"%d" % number, b"value", -1, 5)
    stage.run()
    stage.run(LINGER_MS)
    request = stage.brokers.request()
    assert set(request.batches) == set(partitions[:2])
    stage.brokers.reply(request)
    stage.run(stage.settings.unknown_topic_ms)
    ((error, record, _source, _is_refused),) = stage.producer.take_lost()
    assert (type(error), record.key()) == (MissingPartitionError, b"gone")
    assert isinstance(error, MissingPartitionError)
    assert error.message == "topic out now has 2 partition(s), and no partition 3"
    with pytest.raises(ClientError, match="has 2 partition"):
        stage.send(b"b", to=partitions[3])
    stage.brokers.answer = Leaders(dict.fromkeys(partitions, Leader(1, 1)))
    stage.clock.advance(stage.settings.retry_backoff_ms)
    with pytest.raises(ClientError, match="has 2 partition"):
        stage.send(b"b", to=partitions[3])  # and the leaders are requested
    assert set(sent(stage, b"c", to=partitions[3]).batches) == {partitions[3]}
    stage.close()


def test_leaders_are_looked_up_again_after_a_pause_of_the_caller(stage: ProduceStage) -> None:
    """Partitions may have been added while it was busy, or idle as a sink of Spark between micro-batches."""
    stage.brokers.reply(sent(stage, b"a"))
    stage.run()
    stage.brokers.asked.clear()
    stage.clock.advance(stage.settings.metadata_max_age_ms)
    stage.brokers.reply(sent(stage, b"b"))
    stage.run()
    assert stage.brokers.asked == [{"out"}]
