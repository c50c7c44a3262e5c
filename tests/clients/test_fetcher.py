"""A Fetcher's requests to brokers and its handling of responses; the tests play the brokers (fetch_stage)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.brokers import Leader, Leaders
from penstock.clients.errors import ErrorCode, UnreachableError
from penstock.clients.reading.fetch_settings import FetchSettings
from penstock.clients.reading.fetcher import Fetcher
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.partition_consumer import PartitionConsumer
from tests.clients.fetch_stage import IN_0, IN_1, LOG, FetchedBrokers, FetchStage, log_of, shown, two_partitions
from tests.record_bytes import (
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    Given,
    GivenAnswer,
    GivenBatch,
    control_batch,
    encoded,
    encoded_log,
    many,
    with_checksum,
    with_records,
)

EOF = None


@pytest.fixture
def stage() -> Iterator[FetchStage]:
    """Two partitions that broker 1 leads."""
    yield from two_partitions()


@pytest.fixture
def strict() -> Iterator[FetchStage]:
    """One partition, with a reader that decompresses only small records."""
    made = FetchStage({IN_0: Leader(1, 5)}, max_record_bytes=1 << 20)
    yield made
    made.fetcher.close()


def assigned(stage: FetchStage, offsets: dict[TopicPartition, int]) -> Any:
    """Assign partitions and return the first request for them."""
    stage.fetcher.assign(offsets)
    stage.run()
    return stage.brokers.request()


def test_records_arrive_in_order_followed_by_the_end(stage: FetchStage) -> None:
    request = assigned(stage, {IN_0: 4})
    assert (request.offsets, request.fields.max_wait_ms) == ({IN_0: 4}, 100)
    assert (request.asked[IN_0].current_leader_epoch, request.asked[IN_0].last_fetched_epoch) == (5, -1)
    assert stage.fetch() == ({}, [])
    assert stage.fetcher.high_watermark(IN_0) is None
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=7, records=log_of(4, 3, epoch=4)))
    assert stage.fetch(2) == ({IN_0: [4, 5]}, [])
    assert stage.fetcher.high_watermark(IN_0) == 7
    request = stage.brokers.request()  # while the rest is available
    assert (request.offsets, request.asked[IN_0].last_fetched_epoch) == ({IN_0: 7}, 4)
    assert stage.fetch(2) == ({IN_0: [6]}, [("in", 0, 7, EOF)])
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=7))
    assert stage.run() == ({}, [])  # the end was reported
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=8, records=log_of(1, 7)))
    assert stage.fetch() == ({IN_0: [7]}, [("in", 0, 8, EOF)])


def test_an_empty_partition_is_at_its_end(stage: FetchStage) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=0))
    assert stage.fetch() == ({}, [("in", 0, 0, EOF)])


def test_requests_follow_the_settings() -> None:
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


def test_a_partition_with_two_buffered_responses_is_not_fetched_and_others_wait_only_briefly() -> None:
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


def test_records_are_buffered_while_the_caller_waits_for_something_else() -> None:
    brokers = FetchedBrokers({IN_0: Leader(1, 5)})
    fetcher = Fetcher(brokers, FetchSettings(max_wait_ms=100), SystemClock(), LOG)
    fetcher.assign({IN_0: 0})
    done: Future[None] = Future()

    def answer() -> None:
        for number in range(5):  # small ones, so there may be more than two
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


def test_a_response_for_an_unassigned_partition_is_dropped(stage: FetchStage) -> None:
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


def test_a_paused_partition_keeps_its_fetched_records(stage: FetchStage) -> None:
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
def test_the_fetcher_follows_a_partition_to_its_new_leader(stage: FetchStage, error: int, is_told: bool) -> None:
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
def test_some_errors_are_retried_on_the_same_broker(stage: FetchStage, error: int) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 3}), GivenAnswer(0, error=error))
    assert stage.run(99) == ({}, [])
    assert not stage.brokers.has_request()
    stage.run(100)
    assert stage.brokers.request().offsets == {IN_0: 3}
    assert len(stage.brokers.asked) == 1


def test_an_error_of_the_whole_response_is_retried(stage: FetchStage) -> None:
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
def test_an_unreadable_partition_is_reported_once_and_not_fetched_until_it_is_assigned_again(
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


def test_records_fetched_before_an_offset_out_of_range_are_read_first(stage: FetchStage) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=9, records=log_of(4)))
    assert stage.fetch(1) == ({IN_0: [0]}, [])
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, error=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert stage.fetch(2) == ({IN_0: [1, 2]}, [])
    assert stage.fetch() == ({IN_0: [3]}, [("in", 0, 4, ErrorCode.OFFSET_OUT_OF_RANGE)])


def test_a_corrupt_batch_is_reported_after_the_records_before_it(stage: FetchStage) -> None:
    log = bytearray(log_of(2) + log_of(2, 2))
    log[-1] ^= 255
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=9, records=bytes(log)))
    assert stage.fetch() == ({IN_0: [0, 1]}, [])
    assert stage.fetch() == ({}, [("in", 0, -1, ErrorCode.CORRUPT_MESSAGE)])


def test_a_batch_that_expands_is_returned_in_runs_of_a_few_megabytes(stage: FetchStage) -> None:
    log = many(Given(value=bytes(1_000_000)), 40, ZSTD)
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=40, records=log))
    runs = [len(stage.fetcher.fetch(5_000, 0)[0].get(IN_0, ())) for _ in range(4)]
    assert runs == [17, 17, 6, 0]


def test_the_error_for_a_too_large_record_names_its_batch_and_the_setting(strict: FetchStage) -> None:
    reader = PartitionConsumer(strict.fetcher, strict.fetcher._log)
    reader.assign({IN_0: 3})
    strict.run()
    log = encoded(GivenBatch([Given(value=bytes(2_500_000))], ZSTD), 3)
    strict.brokers.reply(strict.brokers.request(), GivenAnswer(0, high_watermark=9, records=log))
    says = (
        r"in-0 cannot be read: MESSAGE_TOO_LARGE: the record batch at offset 3 decompresses to a record of "
        r"2,500,0\d\d bytes; the limit is 1,048,576 bytes \(penstock\.record\.max\.bytes\)"
    )
    with pytest.raises(StreamsError, match=says):
        reader.poll(10, 0)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_the_error_for_a_batch_that_cannot_be_decompressed_has_its_offset(stage: FetchStage, codec: int) -> None:
    reader = PartitionConsumer(stage.fetcher, stage.fetcher._log)
    reader.assign({IN_0: 3})
    stage.run()
    log = with_checksum(with_records(encoded(GivenBatch([Given()]), 3), codec, b"not compressed"))
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=9, records=log))
    says = r"in-0 cannot be read: CORRUPT_MESSAGE: the record batch at offset 3 cannot be decompressed: "
    with pytest.raises(StreamsError, match=says):
        reader.poll(10, 0)


def test_a_throttle_time_is_respected(stage: FetchStage) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=0), throttle_ms=250)
    stage.run(249)
    assert not stage.brokers.has_request()
    stage.run(250)
    assert stage.brokers.request().offsets == {IN_0: 0}


def test_a_throttle_is_counted_logged_and_ends(stage: FetchStage) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=0), throttle_ms=6_000)
    stage.run()
    (told,) = stage.fetcher.health().waits
    assert told.startswith("Fetch by broker 1 is throttled: a quota of client.id=penstock or its user is exceeded")
    assert stage.fetcher.throttled_ago_ms(IN_0) == -6_000
    stage.run(6_000)
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=0))
    stage.run()
    assert stage.fetcher.health()[:2] == ((), (1, 0, 0))
    assert stage.fetcher.throttled_ago_ms(IN_0) == 0


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ({"error": ErrorCode.UNKNOWN_SERVER_ERROR}, {}),
        ({"error": ErrorCode.KAFKA_STORAGE_ERROR}, {}),
        ({"error": ErrorCode.OFFSET_NOT_AVAILABLE}, {}),
        ({}, {"error": ErrorCode.INVALID_REQUEST}),
        ({}, {"error": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}),
    ],
    ids=str,
)
def test_a_fetch_that_is_retried_for_long_is_logged(
    stage: FetchStage, answer: dict[str, Any], response: dict[str, Any]
) -> None:
    request = assigned(stage, {IN_0: 0})
    for _ in range(60):
        assert stage.fetcher.health().waits == ()
        stage.brokers.reply(request, GivenAnswer(0, high_watermark=5, **answer), **response)
        stage.run()
        stage.run(stage.settings.retry_backoff_ms)
        request = stage.brokers.request()
        if waits := stage.fetcher.health().waits:
            break
    code = ErrorCode({**answer, **response}["error"]).name
    assert waits == (f"Fetch of in-0 is retried: {code} from broker 1",)
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=5))
    stage.run()
    assert stage.fetcher.health().waits == ()


def test_a_partition_without_a_leader_is_logged(stage: FetchStage) -> None:
    stage.brokers.answer = Leaders({IN_0: Leader(-1, 5)})
    stage.fetcher.assign({IN_0: 0})
    stage.run(6_000)
    assert stage.fetcher.health().waits == ("Fetch of in-0 is retried: it has no leader",)
    stage.fetcher.unassign([IN_0])
    assert stage.fetcher.health().waits == ()


def test_a_lost_connection_is_reported_once_and_reopened(stage: FetchStage) -> None:
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
    assert len(stage.brokers.asked) > 1  # its partitions may have other leaders now
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=3, records=log_of(1, 2)))
    assert stage.fetch() == ({IN_0: [2]}, [("in", 0, 3, EOF)])


def test_a_connection_closed_while_idle_is_reopened_for_the_next_request(stage: FetchStage) -> None:
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
    stage.fetcher.fetch(10, 1)  # no busy loop while it waits
    assert time.monotonic() - started >= 0.3
    assert time.thread_time() - cpu < 0.15
    timeout.join()
    stage.fetcher.resume([IN_0])
    assert stage.run() == ({}, [("in", 0, 2, EOF)])
    assert stage.brokers.request().offsets == {IN_0: 2}


def test_an_unsolicited_response_ends_the_connection(stage: FetchStage) -> None:
    request = assigned(stage, {IN_0: 2})
    stage.fetcher.pause([IN_0])
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=9))
    stage.run()
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=9, records=log_of(1, 2)))
    assert stage.run() == ({}, [(None, None, -1, UnreachableError)])


@pytest.mark.parametrize("what", ["no answer", "another correlation id", "an empty frame", "no frame", "nonsense"])
def test_a_connection_with_invalid_responses_is_closed(stage: FetchStage, what: str) -> None:
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


def test_a_response_may_arrive_in_pieces(stage: FetchStage) -> None:
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


def test_a_follower_is_read_until_it_fails(stage: FetchStage) -> None:
    stage.brokers.reply(assigned(stage, {IN_0: 3}), GivenAnswer(0, high_watermark=9, preferred_replica=2))
    assert stage.run() == ({}, [])
    request = stage.brokers.request(2)
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=9, records=log_of(2, 3)), node=2)
    assert stage.fetch() == ({IN_0: [3, 4]}, [])
    stage.brokers.reply(stage.brokers.request(2), GivenAnswer(0, error=ErrorCode.OFFSET_OUT_OF_RANGE), node=2)
    assert stage.run() == ({}, [])  # the follower may be behind
    stage.run(100)
    assert stage.brokers.request(1).offsets == {IN_0: 5}


def test_an_unreachable_follower_is_replaced_by_the_leader(stage: FetchStage) -> None:
    stage.brokers.refused[2] = UnreachableError("nobody there")
    stage.brokers.reply(assigned(stage, {IN_0: 3}), GivenAnswer(0, high_watermark=9, preferred_replica=2))
    assert stage.run() == ({}, [(None, None, -1, UnreachableError)])
    stage.run(10)
    assert stage.brokers.request(1).offsets == {IN_0: 3}


def test_a_missing_topic_is_an_error_after_a_while(stage: FetchStage) -> None:
    stage.brokers.answer = Leaders({IN_1: Leader(1, 0)}, {"none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    stage.fetcher.assign({TopicPartition("none", 0): 0, IN_0: 0, IN_1: 0})
    for _ in range(299):
        assert stage.run(100) == ({}, [])
    found = [stage.run(100) for _ in range(5)]
    told = [event for _, events in found for event in events]
    assert told == [
        ("none", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("in", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),  # the topic exists, but not this partition
    ]


def test_a_topic_without_read_permission_is_an_error_at_once(stage: FetchStage) -> None:
    stage.brokers.answer = Leaders({}, {"in": ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    stage.fetcher.assign({IN_0: 0})
    assert stage.run() == ({}, [("in", 0, 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)])


def test_the_leader_of_a_leaderless_partition_is_requested_again(stage: FetchStage) -> None:
    stage.brokers.answer = Leaders({IN_0: Leader(-1, 4)})
    stage.fetcher.assign({IN_0: 0})
    assert stage.run() == ({}, [])
    stage.brokers.answer = UnreachableError("nobody there")
    assert stage.run(100) == ({}, [(None, None, -1, UnreachableError)])
    assert stage.run(100) == ({}, [])
    stage.brokers.answer = Leaders({IN_0: Leader(1, 5)})
    stage.run(100)
    assert stage.brokers.request().offsets == {IN_0: 0}


def test_the_leaders_of_a_newly_assigned_topic_are_requested_at_once(stage: FetchStage) -> None:
    assigned(stage, {IN_0: 0})
    other = TopicPartition("other", 0)
    stage.brokers.answer = Leaders({IN_0: Leader(1, 5), other: Leader(2, 0)})
    stage.fetcher.assign({other: 0})
    stage.run()
    assert stage.brokers.request(2).offsets == {other: 0}
    assert stage.brokers.asked == [{"in"}, {"in", "other"}]


def test_old_leader_metadata_is_refreshed() -> None:
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


def test_an_end_behind_markers_only_is_reported(stage: FetchStage) -> None:
    log = encoded_log([control_batch(1, 1)])
    stage.brokers.reply(assigned(stage, {IN_0: 0}), GivenAnswer(0, high_watermark=1, records=log))
    assert stage.fetch() == ({}, [("in", 0, 1, EOF)])


def test_fetch_waits_only_for_the_first_response() -> None:
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


def test_a_dead_io_thread_ends_all_calls(stage: FetchStage) -> None:
    assigned(stage, {IN_0: 0})
    stage.brokers.failure = RuntimeError("no more memory")
    with pytest.raises(StreamsError, match="no more memory"):
        stage.fetch()


def test_a_fetcher_gives_the_reason_why_it_cannot_continue(stage: FetchStage) -> None:
    stage.brokers.versions = {1: (4, 11)}
    stage.fetcher.assign({IN_0: 1})
    with pytest.raises(StreamsError, match="Broker 1 is older than Kafka"):
        stage.run()
