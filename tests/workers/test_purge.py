"""Consumed records of repartition topics are deleted: the requests, their failures, and the effect on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.clients.errors import ErrorCode, broker_error
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.records import TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import ThreadSpec
from penstock.workers.tasks.record_purge import RecordPurge
from tests.direct_kafka import DirectKafka
from tests.futures import done, failed
from tests.manual_clock import ManualClock
from tests.waiting import PATIENCE_SECONDS
from tests.workers.counting import IN, OUT, counts, feed
from tests.workers.test_stream_thread_broker import Runner
from tests.workers.thread_stage import Application

P0, P1 = TopicPartition("app-r-repartition", 0), TopicPartition("app-r-repartition", 1)
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


class Admin:
    """Takes requests to delete; answer: the response to each."""

    def __init__(self) -> None:
        self.asked: list[dict[TopicPartition, int]] = []
        self.answer: Callable[[], Future[Any]] = lambda: done(None)

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, Future[Any]]:
        self.asked.append(dict(before))
        return {partition: self.answer() for partition in before}

    def refuse(self, code: ErrorCode) -> None:
        self.answer = lambda: failed(broker_error(code))


@pytest.fixture
def orders() -> Admin:
    return Admin()


@pytest.fixture
def purge(orders: Admin) -> RecordPurge:
    return RecordPurge(orders, PrefixedLogger("penstock.test", ""))  # type: ignore[arg-type]


def test_only_new_offsets_are_requested(orders: Admin, purge: RecordPurge) -> None:
    assert purge({P0: 0, P1: 5})
    assert purge({P0: 0, P1: 5})
    assert purge({P0: 3, P1: 5})
    assert orders.asked == [{P1: 5}, {P0: 3}]


def test_a_partition_that_returns_is_requested_again(orders: Admin, purge: RecordPurge) -> None:
    for before in ({P0: 5}, {P0: 5}, {P1: 1}, {P0: 5}):
        purge(before)
    assert orders.asked == [{P0: 5}, {P1: 1}, {P0: 5}]


def test_a_request_without_a_response_delays_the_next_one(orders: Admin, purge: RecordPurge) -> None:
    pending: Future[Any] = Future()
    orders.answer = lambda: pending
    assert purge({P0: 5})
    assert not purge({P0: 9})
    pending.set_result(None)
    assert purge({P0: 9})
    assert orders.asked == [{P0: 5}, {P0: 9}]


def test_a_failed_deletion_is_logged_once_and_requested_again(
    orders: Admin, purge: RecordPurge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    orders.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    for _ in range(3):
        purge({P0: 5})
    assert orders.asked == [{P0: 5}] * 3
    (line,) = (record.getMessage() for record in caplog.records)
    assert "repartition topic app-r-repartition-0, before offset 5, could not be deleted" in line
    assert "the operation Delete on its repartition topics" in line
    orders.answer = lambda: done(None)
    for _ in range(3):
        purge({P0: 5})
    assert orders.asked == [{P0: 5}] * 4
    assert caplog.records[-1].getMessage() == "The consumed records of app-r-repartition-0 are deleted again"


def repartitioned(source: str, sink: str) -> Any:
    """Count by value."""
    builder = StreamsBuilder()
    counted = builder.stream(source, **TEXT).group_by(lambda key, value: value, **TEXT).count(store="counts")
    counted.to_stream().to(sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()


def test_a_broker_that_does_not_respond_blocks_nothing(
    cluster: DirectKafka, clock: ManualClock, application: Callable[..., Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    silent = "tests.workers.direct_io.DirectAdmin.delete_records"
    monkeypatch.setattr(silent, lambda self, before, timeout_ms: {partition: Future() for partition in before})
    thread = application(repartitioned(IN, OUT), repartition_purge_interval_ms=0).thread().until_running()
    for _ in range(3):
        feed(cluster, "ab")
        thread.step(5)
        clock.advance(30_001)
    thread.step(5).commit()
    assert counts(cluster) == {"value": 6}


@pytest.fixture
def runner(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> Iterator[tuple[Runner, str]]:
    """A stream thread that counts by value and purges often, and its input."""
    source = make_topic("in", partitions=2)
    config = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "state.dir": str(tmp_path),
        "commit.interval.ms": 100,
        "repartition.purge.interval.ms": 100,
        "penstock.worker.beat.interval.ms": 50,
    }
    spec = ThreadSpec(1, "test", str(uuid4()), 1, StreamsConfig(config))
    made = Runner(repartitioned(source, make_topic("out")), spec)
    yield made, source
    made.stop()


@pytest.mark.broker
def test_the_log_of_a_repartition_topic_starts_at_the_committed_offset(
    runner: tuple[Runner, str], bootstrap_servers: str, application_id: str, admin: AdminClient
) -> None:
    thread, source = runner
    topic = f"{application_id}-counts-repartition"
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for records in (50, 100):
        for number in range(50):
            producer.produce(source, f"v{number}".encode(), b"k", number % 2)
        assert producer.flush(PATIENCE_SECONDS) == 0
        thread.until(lambda records=records: thread.processed == 2 * records)  # type: ignore[misc]
        until_starts_at(admin, topic, records)


def until_starts_at(admin: AdminClient, topic: str, records: int) -> None:
    """Wait until this many records have been deleted, over both partitions."""
    partitions = [RdTopicPartition(topic, number) for number in range(2)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        earliest = admin.list_offsets({p: OffsetSpec.earliest() for p in partitions})  # type: ignore[no-untyped-call]
        starts = [future.result(PATIENCE_SECONDS).offset for future in earliest.values()]
        if sum(starts) == records:
            return
        assert time.monotonic() < deadline, starts
