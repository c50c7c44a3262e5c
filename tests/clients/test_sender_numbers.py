"""How brokers identify a batch that is sent again: sequence numbers, epochs, producer ids (KIP-98, KIP-360); played
brokers.
"""

from __future__ import annotations

import pytest

from penstock.clients.cluster.brokers import Leader, ProducerId
from penstock.clients.errors import DeliveryTimeoutError, ErrorCode, UnreachableError, broker_error
from tests.clients.produce_stage import LINGER_MS, OUT_0, OUT_1, ProduceStage, Sent, sent, told, two_partitions
from tests.produce_bytes import Said

stage = pytest.fixture(two_partitions)


def test_a_refused_batch_is_lost_and_the_next_takes_its_sequence_numbers(stage: ProduceStage) -> None:
    request = sent(stage, b"a", b"b")
    stage.send(b"c")
    stage.brokers.answer_with(
        request, {OUT_0: Said(ErrorCode.INVALID_RECORD, "one or more", [(1, "a key is needed"), (0, "x")])}
    )
    stage.run()
    lost = stage.producer.take_lost()
    assert [(told(e), r.partition(), r.key(), r.value(), r.timestamp()[1]) for e, r, *_ in lost] == [
        (ErrorCode.INVALID_RECORD, 0, b"a", b"value", 5),
        (ErrorCode.INVALID_RECORD, 0, b"b", b"value", 5),
    ]
    assert [str(one.error).split(": ")[-1] for one in lost] == ["x", "a key is needed"]
    stage.run(LINGER_MS)
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 0, (b"c",))}


def test_a_batch_too_large_for_its_topic_is_split(stage: ProduceStage) -> None:
    request = sent(stage, b"a", b"b", b"c")
    stage.send(b"d")
    stage.brokers.reply(request, ErrorCode.MESSAGE_TOO_LARGE)
    for expected in (Sent(7, 0, 0, (b"a",)), Sent(7, 0, 1, (b"b", b"c"))):
        stage.run()
        request = stage.brokers.request()
        assert request.batches == {OUT_0: expected}
        if len(expected.keys) == 1:
            stage.brokers.reply(request)
    stage.brokers.reply(request, ErrorCode.MESSAGE_TOO_LARGE)
    stage.run()
    request = stage.brokers.request()
    assert request.batches == {OUT_0: Sent(7, 0, 1, (b"b",))}
    stage.brokers.reply(request, ErrorCode.MESSAGE_TOO_LARGE)  # a single record cannot be split
    stage.run()
    assert stage.lost() == [(ErrorCode.MESSAGE_TOO_LARGE, "out", 0, b"b")]
    request = stage.brokers.request()
    assert request.batches == {OUT_0: Sent(7, 0, 1, (b"c",))}
    stage.brokers.reply(request)
    stage.run(LINGER_MS)
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 2, (b"d",))}


def test_a_broker_that_forgot_the_producer_gets_a_new_epoch(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"))
    stage.brokers.reply(sent(stage, b"x", to=OUT_1))
    stage.brokers.reply(sent(stage, b"b"), ErrorCode.UNKNOWN_PRODUCER_ID)
    stage.run()
    request = stage.brokers.request()
    assert request.batches == {OUT_0: Sent(7, 1, 0, (b"b",))}
    stage.brokers.reply(request)
    assert sent(stage, b"y", to=OUT_1).batches == {OUT_1: Sent(7, 1, 0, (b"y",))}
    assert stage.lost() == []


def test_a_log_that_lost_acknowledged_records_is_an_error(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"))
    stage.brokers.reply(sent(stage, b"b"), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.run()
    assert stage.lost() == [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "out", 0, b"b")]
    assert sent(stage, b"c").batches == {OUT_0: Sent(7, 1, 0, (b"c",))}


def give_up(stage: ProduceStage) -> None:
    """Keep broker 1 unreachable until record a has expired, then let it return."""
    for _ in range(101):
        stage.run(stage.settings.delivery_timeout_ms // 100)
    assert stage.lost() == [(DeliveryTimeoutError, "out", 0, b"a")]
    del stage.brokers.refused[1]
    stage.run(stage.settings.retry_backoff_ms)


def test_after_an_expired_batch_the_next_one_has_a_new_epoch(stage: ProduceStage) -> None:
    sent(stage, b"a")
    stage.brokers.refused[1] = UnreachableError("nobody there")
    stage.brokers.ends[1].close()
    give_up(stage)
    assert sent(stage, b"b").batches == {OUT_0: Sent(7, 1, 0, (b"b",))}


def test_a_batch_waiting_behind_an_expired_one_has_a_new_epoch() -> None:
    stage = ProduceStage({OUT_0: Leader(1, 5)}, delivery_timeout_ms=1_000)
    request = sent(stage, b"a")
    for attempt in range(20):
        if attempt == 5:
            stage.send(b"b")
        stage.brokers.reply(request, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)  # it is in the leader's log
        stage.run()
        stage.run(stage.settings.retry_backoff_ms)
        request = stage.brokers.request()
        if request.batches[OUT_0].keys == (b"b",):
            break
    assert request.batches == {OUT_0: Sent(7, 1, 0, (b"b",))}
    assert stage.lost() == [(DeliveryTimeoutError, "out", 0, b"a")]
    stage.close()


def test_a_batch_refused_after_a_possible_write_starts_a_new_epoch(stage: ProduceStage) -> None:
    request = sent(stage, b"a")
    stage.send(b"b")
    stage.brokers.reply(request, ErrorCode.REQUEST_TIMED_OUT)
    stage.run()
    stage.run(stage.settings.retry_backoff_ms)
    stage.brokers.reply(stage.brokers.request(), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    stage.run()
    assert stage.lost() == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "out", 0, b"a")]
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 1, 0, (b"b",))}


def test_an_unknown_server_error_starts_a_new_epoch(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"), ErrorCode.UNKNOWN_SERVER_ERROR)
    stage.run()
    assert stage.lost() == [(ErrorCode.UNKNOWN_SERVER_ERROR, "out", 0, b"a")]
    assert sent(stage, b"b").batches == {OUT_0: Sent(7, 1, 0, (b"b",))}


def test_a_batch_split_after_a_possible_write_starts_a_new_epoch(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a", b"b"), ErrorCode.REQUEST_TIMED_OUT)
    stage.run()
    stage.run(stage.settings.retry_backoff_ms)
    stage.brokers.reply(stage.brokers.request(), ErrorCode.MESSAGE_TOO_LARGE)
    stage.run()
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 1, 0, (b"a",))}


def test_a_batch_dropped_after_a_possible_write_starts_a_new_epoch(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"), ErrorCode.REQUEST_TIMED_OUT)
    stage.run()
    stage.producer.drop()
    stage.run(stage.settings.retry_backoff_ms)
    assert sent(stage, b"b").batches == {OUT_0: Sent(7, 1, 0, (b"b",))}


def test_an_expired_batch_that_was_never_sent_keeps_the_epoch(stage: ProduceStage) -> None:
    stage.brokers.refused[1] = UnreachableError("nobody there")
    stage.send(b"a")
    give_up(stage)
    assert sent(stage, b"b").batches == {OUT_0: Sent(7, 0, 0, (b"b",))}


def test_a_producer_id_that_is_not_available_yet_is_requested_again() -> None:
    stage = ProduceStage({OUT_0: Leader(1, 5)})
    stage.brokers.ids = [broker_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ProducerId(9, 3)]
    stage.send(b"a")
    stage.run()
    stage.run(LINGER_MS)
    assert 1 not in stage.brokers.ends
    stage.run(stage.settings.retry_backoff_ms)
    assert stage.brokers.request().batches == {OUT_0: Sent(9, 3, 0, (b"a",))}
    stage.close()


def test_a_refused_producer_id_is_an_error_for_all_records(stage: ProduceStage) -> None:
    stage.brokers.ids = [broker_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
    stage.send(b"a")
    stage.run()
    stage.run(LINGER_MS)
    stage.run(LINGER_MS)
    assert stage.lost() == [(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "out", 0, b"a")]


def test_the_last_epoch_is_followed_by_a_new_producer_id(stage: ProduceStage) -> None:
    stage.brokers.ids = [ProducerId(7, 32_767), ProducerId(8, 0)]
    stage.brokers.reply(sent(stage, b"a"), ErrorCode.UNKNOWN_PRODUCER_ID)
    stage.run()
    stage.run(stage.settings.retry_backoff_ms)
    assert stage.brokers.request().batches == {OUT_0: Sent(8, 0, 0, (b"a",))}


def test_sequence_numbers_wrap_around(stage: ProduceStage) -> None:
    request = sent(stage, b"a")
    queue = stage.sender._queues[OUT_0]
    queue.batches[0].stamp = queue.batches[0].stamp._replace(sequence=(1 << 31) - 2)
    stage.brokers.reply(request)
    request = sent(stage, b"b", b"c")
    assert request.batches == {OUT_0: Sent(7, 0, (1 << 31) - 1, (b"b", b"c"))}
    stage.brokers.reply(request)
    assert sent(stage, b"d").batches == {OUT_0: Sent(7, 0, 1, (b"d",))}
