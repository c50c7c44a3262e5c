"""What a Fetcher asks of brokers and makes of their answers; the brokers are the tests themselves (fetch_stage)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from penstock import kernel
from penstock.clients.clock import SystemClock
from penstock.clients.cluster.brokers import Leader, Leaders
from penstock.clients.errors import ErrorCode, UnreachableError
from penstock.clients.reading.fetch_settings import FetchSettings
from penstock.clients.reading.fetcher import Fetcher
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition
from tests.record_bytes import Given, GivenAnswer, GivenBatch, control_batch, encoded_log
from tests.workers.fetch_stage import IN_0, IN_1, LOG, FetchedBrokers, FetchStage, log_of, shown, two_partitions

pytestmark = pytest.mark.skipif(kernel.record_batches is None, reason="the compiled kernel is not built here")

EOF = None


@pytest.fixture
def stage() -> Iterator[FetchStage]:
    """Two partitions that broker 1 leads."""
    yield from two_partitions()


def assigned(stage: FetchStage, offsets: dict[TopicPartition, int]) -> Any:
    """Assign partitions and return the first request for them."""
    stage.fetcher.assign(offsets)
    stage.run()
    return stage.brokers.request()


def test_records_come_in_order_with_the_end_behind_them(stage: FetchStage) -> None:
    request = assigned(stage, {IN_0: 4})
    assert (request.offsets, request.fields.max_wait_ms) == ({IN_0: 4}, 100)
    assert (request.asked[IN_0].current_leader_epoch, request.asked[IN_0].last_fetched_epoch) == (5, -1)
    assert stage.fetch() == ({}, [])
    assert stage.fetcher.high_watermark(IN_0) is None
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=7, records=log_of(4, 3, epoch=4)))
    assert stage.fetch(2) == ({IN_0: [4, 5]}, [])
    assert stage.fetcher.high_watermark(IN_0) == 7
    request = stage.brokers.request()  # while the rest is there
    assert (request.offsets, request.asked[IN_0].last_fetched_epoch) == ({IN_0: 7}, 4)
    assert stage.fetch(2) == ({IN_0: [6]}, [("in", 0, 7, EOF)])
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=7))
    assert stage.run() == ({}, [])  # the end was told
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=8, records=log_of(1, 7)))
    assert stage.fetch() == ({IN_0: [7]}, [("in", 0, 8, EOF)])


def test_an_empty_partition_is_at_its_end(stage: FetchStage) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=0))
    assert stage.fetch() == ({}, [("in", 0, 0, EOF)])


def test_what_is_asked_is_what_the_settings_say() -> None:
    settings: dict[str, Any] = {"min_bytes": 7, "max_bytes": 8, "max_partition_bytes": 9, "rack": "r1"}
    stage = FetchStage({IN_0: Leader(1, 5)}, read_committed=True, client_id="me", **settings)
    fields = assigned(stage, {IN_0: 1 << 40}).fields
    stage.fetcher.close()
    assert (fields.min_bytes, fields.max_bytes, fields.isolation_level, fields.rack_id) == (7, 8, 1, "r1")
    assert (fields.replica_id, fields.session_id, fields.session_epoch, fields.header.client_id) == (-1, 0, 0, "me")
    assert [(p.partition_max_bytes, p.fetch_offset) for p in fields.topics[0].partitions] == [(9, 1 << 40)]


def test_partitions_take_turns_and_stay_in_order(stage: FetchStage) -> None:
    request = assigned(stage, {IN_0: 0, IN_1: 0})
    stage.brokers.reply(
        request,
        GivenAnswer(0, high_watermark=9, records=log_of(5)),
        GivenAnswer(1, high_watermark=9, records=log_of(2)),
    )
    assert stage.fetch(3) == ({IN_0: [0, 1, 2]}, [])
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=9, records=log_of(2, 5)))
    assert stage.fetch(3) == ({IN_1: [0, 1], IN_0: [3]}, [])
    assert stage.fetch(2) == ({IN_0: [4, 5]}, [])
    assert stage.fetch(2) == ({IN_0: [6]}, [])


def test_a_partition_with_two_answers_is_not_asked_for_and_others_then_wait_for_a_short_time() -> None:
    stage = FetchStage({IN_0: Leader(1, 5), IN_1: Leader(1, 6)}, read_committed=False, max_partition_bytes=100)
    request = assigned(stage, {IN_0: 0, IN_1: 0})
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=9, records=log_of(3)))
    stage.fetch(1)
    request = stage.brokers.request()
    assert (request.offsets, request.fields.max_wait_ms) == ({IN_1: 0, IN_0: 3}, 100)
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=9, records=log_of(3, 3)))
    stage.fetch(1)
    request = stage.brokers.request()
    assert (request.offsets, request.fields.max_wait_ms) == ({IN_1: 0}, 10)
    stage.brokers.reply(request, GivenAnswer(1, high_watermark=0))
    assert stage.fetch(1) == ({IN_0: [2]}, [])
    request = stage.brokers.request()
    assert (set(request.offsets), request.fields.max_wait_ms) == ({IN_0, IN_1}, 100)
    stage.fetcher.close()


def test_while_something_else_is_waited_for_records_come_into_the_buffer() -> None:
    brokers = FetchedBrokers({IN_0: Leader(1, 5)})
    fetcher = Fetcher(brokers, FetchSettings(max_wait_ms=100), SystemClock(), LOG)
    fetcher.assign({IN_0: 0})
    done: Future[None] = Future()

    def answer() -> None:
        for number in range(5):  # small ones, of which there may be more than two
            request = brokers.request()
            assert request.offsets == {IN_0: number}
            brokers.reply(request, GivenAnswer(0, high_watermark=9, records=log_of(1, number)))
        brokers.request()
        done.set_result(None)

    fetcher.fetch(1, 0.05)
    broker = threading.Thread(target=answer)
    broker.start()
    fetcher.read_ahead(done)
    broker.join()
    assert done.done()
    records, _ = fetcher.fetch(10, 0)
    assert [message.offset() for message in records[IN_0]] == [0, 1, 2, 3, 4]
    fetcher.read_ahead(done)  # returns at once
    fetcher.close()


def test_an_answer_to_what_is_not_assigned_any_more_is_dropped(stage: FetchStage) -> None:
    request = assigned(stage, {IN_0: 0, IN_1: 0})
    stage.fetcher.unassign([IN_0, IN_1])
    stage.fetcher.assign({IN_0: 20})
    stage.brokers.reply(
        request, GivenAnswer(0, high_watermark=9, records=log_of(3)), GivenAnswer(1, high_watermark=9, error=1)
    )
    assert stage.run() == ({}, [])
    request = stage.brokers.request()
    assert request.offsets == {IN_0: 20}
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=22, records=log_of(2, 20)))
    stage.fetch(1)
    stage.fetcher.unassign([IN_0])
    assert stage.run() == ({}, [])


def test_a_paused_partition_keeps_what_was_fetched(stage: FetchStage) -> None:
    request = assigned(stage, {IN_0: 0, IN_1: 0})
    stage.brokers.reply(
        request,
        GivenAnswer(0, high_watermark=9, records=log_of(4)),
        GivenAnswer(1, high_watermark=2, records=log_of(2)),
    )
    assert stage.fetch(1) == ({IN_0: [0]}, [])
    request = stage.brokers.request()
    stage.fetcher.pause([IN_0])
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=9, records=log_of(3, 4)))
    assert stage.run() == ({IN_1: [0, 1]}, [("in", 1, 2, EOF)])
    assert stage.brokers.request().offsets == {IN_1: 2}
    stage.fetcher.resume([IN_0])
    assert stage.fetch(3) == ({IN_0: [1, 2, 3]}, [])
    assert stage.fetch() == ({IN_0: [4, 5, 6]}, [])


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_partition_is_followed_to_its_new_leader(stage: FetchStage, error: int, is_told: bool) -> None:
    request = assigned(stage, {IN_0: 3})
    stage.brokers.answer = Leaders({IN_0: Leader(2, 7)})
    stage.brokers.reply(request, GivenAnswer(0, error=error, leader=(2, 7) if is_told else None))
    assert stage.run() == ({}, [])
    assert len(stage.brokers.asked) == 1
    stage.run(100)
    request = stage.brokers.request(2)
    assert (request.offsets, request.asked[IN_0].current_leader_epoch) == ({IN_0: 3}, 7)
    assert len(stage.brokers.asked) == 2


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.OFFSET_NOT_AVAILABLE])
def test_some_errors_are_tried_again_where_they_came_from(stage: FetchStage, error: int) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 3}), GivenAnswer(0, error=error))
    assert stage.run(99) == ({}, [])
    assert not stage.brokers.has_request()
    stage.run(100)
    assert stage.brokers.request().offsets == {IN_0: 3}
    assert len(stage.brokers.asked) == 1


def test_an_error_of_the_whole_answer_is_tried_again(stage: FetchStage) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 3}), error=ErrorCode.UNKNOWN_SERVER_ERROR)
    stage.run()
    stage.run(100)
    assert stage.brokers.request().offsets == {IN_0: 3}


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (
            {"error": ErrorCode.OFFSET_OUT_OF_RANGE},
            ErrorCode.OFFSET_OUT_OF_RANGE,
            "offset 3 does not exist on broker 1",
        ),
        (
            {"diverging": (4, 2)},
            ErrorCode.OFFSET_OUT_OF_RANGE,
            "the log was truncated to 2 after records up to 3 had been",
        ),
        ({"error": ErrorCode.TOPIC_AUTHORIZATION_FAILED}, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ""),
        ({"records": b"no batch"}, ErrorCode.CORRUPT_MESSAGE, "the 8 bytes at offset 3 are not a record batch"),
    ],
)
def test_what_cannot_be_read_is_told_once_and_not_asked_for_until_it_is_assigned_anew(
    stage: FetchStage, answer: dict[str, Any], code: int, text: str
) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 3}), GivenAnswer(0, high_watermark=9, **answer))
    _, events = stage.fetcher.fetch(10, 0)
    assert [shown(event) for event in events] == [("in", 0, 3, code)]
    assert text in str(events[0].error)
    assert stage.run(1_000) == ({}, [])
    assert not stage.brokers.has_request()
    stage.fetcher.unassign([IN_0])
    stage.fetcher.assign({IN_0: 5})
    stage.run()
    assert stage.brokers.request().offsets == {IN_0: 5}


def test_what_was_fetched_before_an_offset_that_is_not_there_is_read_first(stage: FetchStage) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=9, records=log_of(4)))
    assert stage.fetch(1) == ({IN_0: [0]}, [])
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, error=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert stage.fetch(2) == ({IN_0: [1, 2]}, [])
    assert stage.fetch() == ({IN_0: [3]}, [("in", 0, 4, ErrorCode.OFFSET_OUT_OF_RANGE)])


def test_a_broken_batch_is_told_behind_the_records_before_it(stage: FetchStage) -> None:
    log = bytearray(log_of(2) + log_of(2, 2))
    log[-1] ^= 255
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=9, records=bytes(log)))
    assert stage.fetch() == ({IN_0: [0, 1]}, [])
    assert stage.fetch() == ({}, [("in", 0, -1, ErrorCode.CORRUPT_MESSAGE)])


def test_a_quota_is_kept(stage: FetchStage) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=0), throttle_ms=250)
    stage.run(249)
    assert not stage.brokers.has_request()
    stage.run(250)
    assert stage.brokers.request().offsets == {IN_0: 0}


def test_a_lost_connection_is_told_once_and_made_again(stage: FetchStage) -> None:
    assigned(stage, {IN_0: 2})
    stage.brokers.ends[1].sendall(b"\0\0\0\x20half of")
    assert stage.run() == ({}, [])
    stage.brokers.ends[1].close()
    stage.brokers.refused[1] = UnreachableError("nobody there")
    lost = (None, None, -1, UnreachableError)
    assert stage.run() == ({}, [lost])
    assert stage.run(100) == ({}, [lost])  # another reason
    assert stage.run(100) == ({}, [])
    assert stage.brokers.opened == [1, 1, 1]
    del stage.brokers.refused[1]
    stage.run(100)
    request = stage.brokers.request()
    assert request.offsets == {IN_0: 2}
    assert len(stage.brokers.asked) > 1  # its partitions may be led by others now
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=3, records=log_of(1, 2)))
    assert stage.fetch() == ({IN_0: [2]}, [("in", 0, 3, EOF)])


def test_a_connection_that_ends_while_nothing_is_asked_is_made_again_when_something_is(stage: FetchStage) -> None:
    request = assigned(stage, {IN_0: 2})
    stage.fetcher.pause([IN_0])
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=2))
    assert stage.run() == ({}, [])
    stage.brokers.ends[1].close()
    assert stage.run() == ({}, [])
    assert stage.brokers.opened == [1]
    started, timeout = time.monotonic(), threading.Timer(0.3, stage.clock.advance, (1_000,))
    timeout.start()
    cpu = time.thread_time()
    stage.fetcher.fetch(10, 1)  # it does not turn in circles while it waits
    assert time.monotonic() - started >= 0.3
    assert time.thread_time() - cpu < 0.15
    timeout.join()
    stage.fetcher.resume([IN_0])
    assert stage.run() == ({}, [("in", 0, 2, EOF)])
    assert stage.brokers.request().offsets == {IN_0: 2}


def test_an_answer_to_no_question_ends_a_connection(stage: FetchStage) -> None:
    request = assigned(stage, {IN_0: 2})
    stage.fetcher.pause([IN_0])
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=9))
    stage.run()
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=9, records=log_of(1, 2)))
    assert stage.run() == ({}, [(None, None, -1, UnreachableError)])


@pytest.mark.parametrize("what", ["no answer", "another correlation id", "an empty frame", "no frame", "nonsense"])
def test_a_connection_whose_answers_make_no_sense_is_given_up(stage: FetchStage, what: str) -> None:
    request = assigned(stage, {IN_0: 2})
    if what == "another correlation id":
        request.correlation_id += 1
        stage.brokers.reply(request, GivenAnswer(0, high_watermark=3, records=log_of(1, 2)))
    elif what != "no answer":
        frames = {"an empty frame": b"\0\0\0\0", "no frame": b"\xff\xff\xff\xff", "nonsense": b"\0\0\0\x08nonsense"}
        stage.brokers.ends[1].sendall(frames[what])
    late = stage.settings.request_timeout_ms + stage.settings.max_wait_ms if what == "no answer" else 0
    assert stage.run(late) == ({}, [(None, None, -1, UnreachableError)])
    stage.run(100)
    assert stage.brokers.request().offsets == {IN_0: 2}


def test_an_answer_may_come_in_pieces(stage: FetchStage) -> None:
    request = assigned(stage, {IN_0: 0})
    end = stage.brokers.ends[1]
    whole, theirs = b"", type("Pieces", (), {"sendall": lambda self, data: pieces.append(data)})()
    pieces: list[bytes] = []
    stage.brokers.ends[1] = theirs
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=3, records=log_of(3)))
    stage.brokers.ends[1] = end
    (whole,) = pieces
    for byte in whole[:-1]:
        end.sendall(bytes([byte]))
        assert stage.fetch() == ({}, [])
    end.sendall(whole[-1:])
    assert stage.fetch() == ({IN_0: [0, 1, 2]}, [("in", 0, 3, EOF)])


def test_a_nearer_replica_is_read_until_it_cannot_be(stage: FetchStage) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 3}), GivenAnswer(0, high_watermark=9, preferred_replica=2))
    assert stage.run() == ({}, [])
    request = stage.brokers.request(2)
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=9, records=log_of(2, 3)), node=2)
    assert stage.fetch() == ({IN_0: [3, 4]}, [])
    stage.brokers.reply(stage.brokers.request(2), GivenAnswer(0, error=ErrorCode.OFFSET_OUT_OF_RANGE), node=2)
    assert stage.run() == ({}, [])  # it may be behind
    stage.run(100)
    assert stage.brokers.request(1).offsets == {IN_0: 5}


def test_a_nearer_replica_that_is_gone_is_left(stage: FetchStage) -> None:
    stage.brokers.refused[2] = UnreachableError("nobody there")
    stage.brokers.reply(assigned(stage, {IN_0: 3}), GivenAnswer(0, high_watermark=9, preferred_replica=2))
    assert stage.run() == ({}, [(None, None, -1, UnreachableError)])
    stage.run(10)
    assert stage.brokers.request(1).offsets == {IN_0: 3}


def test_a_topic_that_does_not_exist_is_an_error_after_a_while(stage: FetchStage) -> None:
    stage.brokers.answer = Leaders({IN_1: Leader(1, 0)}, {"none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    stage.fetcher.assign({TopicPartition("none", 0): 0, IN_0: 0, IN_1: 0})
    for _ in range(299):
        assert stage.run(100) == ({}, [])
    found = [stage.run(100) for _ in range(5)]
    told = [event for _, events in found for event in events]
    assert told == [
        ("none", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("in", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),  # the topic is there, but not this partition of it
    ]


def test_a_topic_that_may_not_be_read_is_an_error_at_once(stage: FetchStage) -> None:
    stage.brokers.answer = Leaders({}, {"in": ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    stage.fetcher.assign({IN_0: 0})
    assert stage.run() == ({}, [("in", 0, 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)])


def test_a_partition_without_a_leader_is_asked_for_again(stage: FetchStage) -> None:
    stage.brokers.answer = Leaders({IN_0: Leader(-1, 4)})
    stage.fetcher.assign({IN_0: 0})
    assert stage.run() == ({}, [])
    stage.brokers.answer = UnreachableError("nobody there")
    assert stage.run(100) == ({}, [(None, None, -1, UnreachableError)])
    assert stage.run(100) == ({}, [])
    stage.brokers.answer = Leaders({IN_0: Leader(1, 5)})
    stage.run(100)
    assert stage.brokers.request().offsets == {IN_0: 0}


def test_a_topic_that_is_assigned_later_is_asked_for_at_once(stage: FetchStage) -> None:
    assigned(stage, {IN_0: 0})
    other = TopicPartition("other", 0)
    stage.brokers.answer = Leaders({IN_0: Leader(1, 5), other: Leader(2, 0)})
    stage.fetcher.assign({other: 0})
    stage.run()
    assert stage.brokers.request(2).offsets == {other: 0}
    assert stage.brokers.asked == [{"in"}, {"in", "other"}]


def test_leaders_are_asked_for_again_when_they_are_old() -> None:
    stage = FetchStage({IN_0: Leader(1, 5)}, metadata_max_age_ms=1_000)
    assigned(stage, {IN_0: 0})
    stage.run(stage.settings.metadata_max_age_ms - 1)
    assert len(stage.brokers.asked) == 1
    stage.run(1)
    assert len(stage.brokers.asked) == 2
    stage.fetcher.close()


def test_only_committed_records_up_to_the_last_stable_offset_are_read() -> None:
    stage = FetchStage({IN_0: Leader(1, 5)}, read_committed=True)
    log = encoded_log(
        [GivenBatch([Given()] * 2, producer_id=1, is_transactional=True), control_batch(1, 0), GivenBatch([Given()])]
    )
    answer = GivenAnswer(0, high_watermark=9, last_stable_offset=4, aborted=[(1, 0)], records=log)
    stage.brokers.reply(assigned(stage, {IN_0: 0}), answer)
    assert stage.fetch() == ({IN_0: [3]}, [("in", 0, 4, EOF)])
    stage.fetcher.close()


def test_an_end_behind_markers_only_is_told(stage: FetchStage) -> None:
    log = encoded_log([control_batch(1, 1)])
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=1, records=log))
    assert stage.fetch() == ({}, [("in", 0, 1, EOF)])


def test_fetch_waits_for_the_first_answer_only() -> None:
    brokers = FetchedBrokers({IN_0: Leader(1, 5)})
    fetcher = Fetcher(brokers, FetchSettings(max_wait_ms=100), SystemClock(), LOG)
    fetcher.assign({IN_0: 0})
    fetcher.fetch(10, 0.05)
    request = brokers.request()
    started = time.monotonic()
    assert fetcher.fetch(10, 0.05) == ({}, [])
    assert time.monotonic() - started >= 0.05
    answer = threading.Timer(0.1, brokers.reply, (request, GivenAnswer(0, high_watermark=9, records=log_of(3))))
    answer.start()
    records, _ = fetcher.fetch(10, 60)
    assert [message.offset() for message in records[IN_0]] == [0, 1, 2]
    assert time.monotonic() - started < 30
    answer.join()
    fetcher.close()
    assert brokers.closed


def test_an_io_thread_that_has_died_ends_it_all(stage: FetchStage) -> None:
    assigned(stage, {IN_0: 0})
    stage.brokers.failure = RuntimeError("no more memory")
    with pytest.raises(StreamsError, match="no more memory"):
        stage.fetch()


def test_a_fetcher_says_why_it_cannot_go_on(stage: FetchStage) -> None:
    stage.brokers.versions = {1: (4, 11)}
    stage.fetcher.assign({IN_0: 1})
    with pytest.raises(StreamsError, match="Broker 1 is older than Kafka"):
        stage.run()
