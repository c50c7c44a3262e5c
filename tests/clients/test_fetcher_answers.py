"""A Fetcher's handling of responses that are late, split, or from the wrong broker, and of replaced logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.clients.clock import SystemClock
from penstock.clients.cluster.brokers import Leader, Leaders
from penstock.clients.errors import ErrorCode
from penstock.clients.reading.fetch_settings import FetchSettings, fetch_settings
from penstock.clients.reading.fetcher import Fetcher
from penstock.topology.records import TopicPartition
from tests.clients.fetch_stage import IN_0, IN_1, LOG, FetchedBrokers, FetchStage, log_of, two_partitions
from tests.record_bytes import GivenAnswer, GivenResponse, encoded_response

MAX_AGE_MS = 1_000


@pytest.fixture
def stage() -> Iterator[FetchStage]:
    """Two partitions that broker 1 leads."""
    yield from two_partitions()


@pytest.fixture
def apart() -> Iterator[FetchStage]:
    """Broker 2 leads IN_0, broker 1 IN_1; the leaders are requested every second."""
    made = FetchStage({IN_0: Leader(2, 5), IN_1: Leader(1, 6)}, read_committed=False, metadata_max_age_ms=MAX_AGE_MS)
    yield made
    made.fetcher.close()


@pytest.mark.parametrize(
    "late",
    [
        {"high_watermark": 9, "records": log_of(2, 3)},
        {"error": ErrorCode.OFFSET_OUT_OF_RANGE},
        {"diverging": (4, 2)},
    ],
    ids=["records", "error", "diverging"],
)
def test_a_late_response_of_a_former_leader_is_dropped(apart: FetchStage, late: dict[str, object]) -> None:
    apart.fetcher.assign({IN_1: 0, IN_0: 3})
    apart.run()
    former, other = apart.brokers.request(2), apart.brokers.request(1)
    assert former.offsets == {IN_0: 3}
    apart.brokers.answer = Leaders({IN_0: Leader(1, 6), IN_1: Leader(1, 6)})
    apart.run(MAX_AGE_MS)
    apart.brokers.reply(other, GivenAnswer(1, high_watermark=0))
    apart.run()
    asked = apart.brokers.request(1)
    assert asked.offsets[IN_0] == 3, "the new leader, though the former one has not answered yet"
    apart.brokers.reply(asked, GivenAnswer(0, high_watermark=9, records=log_of(4, 3)))
    assert apart.fetch() == ({IN_0: [3, 4, 5, 6]}, [])
    apart.brokers.reply(former, GivenAnswer(0, **late), node=2)  # type: ignore[arg-type]
    assert apart.run() == ({}, [])
    for _ in range(2):
        asked = apart.brokers.request(1)
        assert asked.offsets[IN_0] == 7
        apart.brokers.reply(asked, GivenAnswer(0, high_watermark=9))
        assert apart.run() == ({}, [])


def read(stage: FetchStage, count: int, replica: int = -1) -> None:
    """Read this many records of IN_0 from its leader, which may name a follower to read from."""
    stage.fetcher.assign({IN_0: 0})
    stage.run()
    stage.brokers.reply(
        stage.brokers.request(),
        GivenAnswer(0, high_watermark=9, records=log_of(count, epoch=5), preferred_replica=replica),
    )
    stage.run()


def test_a_compacted_epoch_without_records_is_no_truncation(stage: FetchStage) -> None:
    read(stage, 3)
    request = stage.brokers.request()
    assert request.asked[IN_0].last_fetched_epoch == 5
    stage.brokers.reply(request, GivenAnswer(0, diverging=(4, 10)))
    assert stage.run() == ({}, [])
    request = stage.brokers.request()
    assert (request.offsets, request.asked[IN_0].last_fetched_epoch) == ({IN_0: 3}, -1)
    stage.brokers.reply(request, GivenAnswer(0, high_watermark=13, records=log_of(1, 10, epoch=6)))
    assert stage.fetch() == ({IN_0: [10]}, [])


def test_a_follower_that_is_behind_is_replaced_by_the_leader(stage: FetchStage) -> None:
    read(stage, 3, replica=2)
    stage.brokers.reply(stage.brokers.request(2), GivenAnswer(0, diverging=(4, 2)), node=2)
    assert stage.run() == ({}, [])
    stage.run(stage.settings.retry_backoff_ms)
    assert stage.brokers.request(1).offsets == {IN_0: 3}


def test_partitions_that_were_not_served_come_first_in_the_next_request(stage: FetchStage) -> None:
    other = TopicPartition("other", 0)
    leader = Leader(1, 5)
    stage.brokers.answer = Leaders({IN_0: leader, other: leader, IN_1: leader})
    stage.fetcher.assign({IN_0: 0, other: 0, IN_1: 0})
    stage.run()
    request = stage.brokers.request()
    assert list(request.asked) == [IN_0, other, IN_1]
    stage.brokers.reply(request, GivenAnswer(1, high_watermark=9, records=log_of(2)))
    stage.run()
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=9, records=log_of(2)))
    stage.run()
    assert list(stage.brokers.request().asked) == [other, IN_1, IN_0]


def test_a_response_that_arrives_in_pieces_is_waited_for(stage: FetchStage) -> None:
    stage.fetcher.assign({IN_0: 0})
    stage.run()
    request = stage.brokers.request()
    response = GivenResponse([GivenAnswer(0, high_watermark=3, records=log_of(3))])
    answer = encoded_response(response, request.correlation_id)
    data = len(answer).to_bytes(4, "big") + answer
    pause = stage.settings.request_timeout_ms - 100  # in total they take longer than the request timeout
    for begin in range(0, 60, 20):
        stage.brokers.ends[1].sendall(data[begin : begin + 20])
        assert stage.run(pause) == ({}, [])
    stage.brokers.ends[1].sendall(data[60:])
    assert stage.run(pause)[0] == {IN_0: [0, 1, 2]}
    assert stage.brokers.opened == [1]


def test_a_response_that_stops_half_way_closes_the_connection(stage: FetchStage) -> None:
    stage.fetcher.assign({IN_0: 0})
    stage.run()
    stage.brokers.request()
    stage.brokers.ends[1].sendall(b"\0\0\1\0abc")
    stage.run()
    stage.run(stage.settings.request_timeout_ms)
    stage.run(stage.settings.retry_backoff_ms)
    assert stage.brokers.opened == [1, 1]


def test_without_partitions_fetch_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    fetcher = Fetcher(FetchedBrokers({IN_0: Leader(1, 5)}), FetchSettings(metadata_max_age_ms=1), SystemClock(), LOG)
    selector = fetcher._network._selector
    woken = []

    def select(timeout: float) -> Any:
        woken.append(timeout)
        return wait(timeout)

    wait = selector.select
    monkeypatch.setattr(selector, "select", select)
    began_ms = SystemClock().monotonic_ms()  # by the fetcher's clock, in whole ms
    fetcher.fetch(1, 0.1)
    fetcher.assign({IN_0: 0})
    fetcher.fetch(1, 0)
    fetcher.unassign([IN_0])
    fetcher.fetch(1, 0.1)
    assert SystemClock().monotonic_ms() - began_ms >= 200
    assert len(woken) < 20
    fetcher.close()


@pytest.mark.parametrize(
    ("value", "checked"), [("true", True), ("t", True), ("1", True), (True, True), ("false", False)]
)
def test_check_crcs_is_interpreted_as_by_librdkafka(value: object, checked: bool) -> None:
    assert fetch_settings({"check.crcs": value}).check_crcs is checked


def test_a_truncation_after_the_commit_is_detected(stage: FetchStage) -> None:
    """The first request has the committed epoch; the leader knows where that epoch ends (KIP-320)."""
    stage.fetcher.assign({IN_0: 10})
    stage.fetcher.set_epochs({IN_0: 4})
    assert stage.fetcher.epoch_before(IN_0, 10) == 4
    stage.run()
    request = stage.brokers.request()
    assert (request.offsets, request.asked[IN_0].last_fetched_epoch) == ({IN_0: 10}, 4)
    stage.brokers.reply(request, GivenAnswer(0, diverging=(4, 2)))
    _, events = stage.fetcher.fetch(10, 0)
    assert "the log was truncated to 2 after records up to 10 had been read" in str(events[0].error)


def test_an_offset_is_committed_with_the_epoch_of_the_record_before_it(stage: FetchStage) -> None:
    stage.fetcher.assign({IN_0: 0})
    assert stage.fetcher.epoch_before(IN_0, 0) == -1
    stage.run()
    log = log_of(2, 0, epoch=5) + log_of(2, 2, epoch=5) + log_of(2, 4, epoch=7)
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=9, records=log))
    stage.fetch()
    stage.brokers.reply(stage.brokers.request(), GivenAnswer(0, high_watermark=9, records=log_of(1, 6, epoch=7)))
    stage.fetch()
    epochs = [stage.fetcher.epoch_before(IN_0, offset) for offset in range(8)]
    assert epochs == [-1, 5, 5, 5, 5, 7, 7, 7]
