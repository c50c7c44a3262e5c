"""By what brokers know a batch when it comes again: numbers, epochs, producer ids (KIP-98, KIP-360); played brokers."""

from __future__ import annotations

import pytest

from penstock import kernel
from penstock.clients.cluster.brokers import Leader, ProducerId
from penstock.clients.errors import DeliveryTimeoutError, ErrorCode, UnreachableError, broker_error
from tests.produce_bytes import Said
from tests.workers.produce_stage import LINGER_MS, OUT_0, OUT_1, ProduceStage, Sent, sent, told, two_partitions

pytestmark = pytest.mark.skipif(kernel.record_accumulator is None, reason="the compiled kernel is not built here")
stage = pytest.fixture(two_partitions)


def test_a_refused_batch_is_lost_and_the_next_takes_its_numbers(stage: ProduceStage) -> None:
    request = sent(stage, b"a", b"b")
    stage.send(b"c")
    stage.brokers.answer_with(
        request, {OUT_0: Said(ErrorCode.INVALID_RECORD, "one or more", [(1, "a key is needed"), (0, "x")])}
    )
    stage.run()
    lost = stage.producer.take_lost()
    assert [(told(e), r.partition(), r.key(), r.value(), r.timestamp()[1]) for e, r in lost] == [
        (ErrorCode.INVALID_RECORD, 0, b"a", b"value", 5),
        (ErrorCode.INVALID_RECORD, 0, b"b", b"value", 5),
    ]
    assert str(lost[0][0]).endswith("one or more")
    stage.run(LINGER_MS)
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 0, 0, (b"c",))}


def test_a_batch_that_a_topic_is_too_small_for_is_split(stage: ProduceStage) -> None:
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
    stage.brokers.reply(request, ErrorCode.MESSAGE_TOO_LARGE)  # one record cannot be split
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


def test_a_log_that_has_lost_what_was_acknowledged_is_an_error(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"))
    stage.brokers.reply(sent(stage, b"b"), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.run()
    assert stage.lost() == [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "out", 0, b"b")]
    assert sent(stage, b"c").batches == {OUT_0: Sent(7, 1, 0, (b"c",))}


def give_up(stage: ProduceStage) -> None:
    """Let broker 1 be away until the record a is given up, and then come back."""
    for _ in range(101):
        stage.run(stage.settings.delivery_timeout_ms // 100)
    assert stage.lost() == [(DeliveryTimeoutError, "out", 0, b"a")]
    del stage.brokers.refused[1]
    stage.run(stage.settings.retry_backoff_ms)


def test_what_is_too_late_is_given_up_and_what_follows_is_not_taken_for_it(stage: ProduceStage) -> None:
    sent(stage, b"a")
    stage.brokers.refused[1] = UnreachableError("nobody there")
    stage.brokers.ends[1].close()
    give_up(stage)
    assert sent(stage, b"b").batches == {OUT_0: Sent(7, 1, 0, (b"b",))}


def test_what_waits_behind_a_batch_that_is_too_late_is_not_taken_for_it() -> None:
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


def test_what_is_refused_after_it_may_have_been_written_begins_a_new_epoch(stage: ProduceStage) -> None:
    request = sent(stage, b"a")
    stage.send(b"b")
    stage.brokers.reply(request, ErrorCode.REQUEST_TIMED_OUT)
    stage.run()
    stage.run(stage.settings.retry_backoff_ms)
    stage.brokers.reply(stage.brokers.request(), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    stage.run()
    assert stage.lost() == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "out", 0, b"a")]
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 1, 0, (b"b",))}


def test_a_refusal_that_says_nothing_begins_a_new_epoch(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"), ErrorCode.UNKNOWN_SERVER_ERROR)
    stage.run()
    assert stage.lost() == [(ErrorCode.UNKNOWN_SERVER_ERROR, "out", 0, b"a")]
    assert sent(stage, b"b").batches == {OUT_0: Sent(7, 1, 0, (b"b",))}


def test_what_is_split_after_it_may_have_been_written_begins_a_new_epoch(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a", b"b"), ErrorCode.REQUEST_TIMED_OUT)
    stage.run()
    stage.run(stage.settings.retry_backoff_ms)
    stage.brokers.reply(stage.brokers.request(), ErrorCode.MESSAGE_TOO_LARGE)
    stage.run()
    assert stage.brokers.request().batches == {OUT_0: Sent(7, 1, 0, (b"a",))}


def test_what_is_dropped_after_it_may_have_been_written_begins_a_new_epoch(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"), ErrorCode.REQUEST_TIMED_OUT)
    stage.run()
    stage.producer.drop()
    stage.run(stage.settings.retry_backoff_ms)
    assert sent(stage, b"b").batches == {OUT_0: Sent(7, 1, 0, (b"b",))}


def test_what_was_never_sent_is_given_up_without_a_new_epoch(stage: ProduceStage) -> None:
    stage.brokers.refused[1] = UnreachableError("nobody there")
    stage.send(b"a")
    give_up(stage)
    assert sent(stage, b"b").batches == {OUT_0: Sent(7, 0, 0, (b"b",))}


def test_a_producer_id_that_is_not_there_yet_is_asked_for_again() -> None:
    stage = ProduceStage({OUT_0: Leader(1, 5)})
    stage.brokers.ids = [broker_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ProducerId(9, 3)]
    stage.send(b"a")
    stage.run()
    stage.run(LINGER_MS)
    assert 1 not in stage.brokers.ends
    stage.run(stage.settings.retry_backoff_ms)
    assert stage.brokers.request().batches == {OUT_0: Sent(9, 3, 0, (b"a",))}
    stage.close()


def test_a_producer_id_that_is_refused_is_an_error_of_all_records(stage: ProduceStage) -> None:
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


def test_the_numbers_of_records_begin_again_after_the_last(stage: ProduceStage) -> None:
    request = sent(stage, b"a")
    queue = stage.sender._queues[OUT_0]
    queue.batches[0].stamp = queue.batches[0].stamp._replace(sequence=(1 << 31) - 2)
    stage.brokers.reply(request)
    request = sent(stage, b"b", b"c")
    assert request.batches == {OUT_0: Sent(7, 0, (1 << 31) - 1, (b"b", b"c"))}
    stage.brokers.reply(request)
    assert sent(stage, b"d").batches == {OUT_0: Sent(7, 0, 1, (b"d",))}
