"""Asynchronous functions in stepped stream threads: what commits leave out, when reading stops, what is cancelled."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock import KStream, Processor, ProcessorContext, Punctuation, Record, Serdes, StreamsBuilder, StreamsError
from penstock.topology.context.async_calls import OrderedBy
from penstock.workers.tasks.topic_partition_metadata import TopicPartitionMetadata
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.waiting import PATIENCE_SECONDS
from tests.workers.counting import CHANGELOG, IN, OUT, committed, feed
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


class Service:
    """Answers a call when the test lets it. begun, cancelled: number of calls by key."""

    def __init__(self, *held: str) -> None:
        self._gates = {key: threading.Event() for key in held}
        self.begun: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.changed = threading.Condition()

    async def ask(self, key: str, value: str) -> str:
        self._count(self.begun, key)
        gate = self._gates.get(key)
        try:
            while gate is not None and not gate.is_set():
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self._count(self.cancelled, key)
            raise
        return key

    def _count(self, calls: Counter[str], key: str) -> None:
        with self.changed:
            calls[key] += 1
            self.changed.notify_all()

    def let(self, *keys: str) -> None:
        for key in keys:
            self._gates[key].set()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_SECONDS), (self.begun, self.cancelled)


@pytest.fixture(autouse=True)
def topics(cluster: DirectKafka) -> None:
    for topic in (IN, OUT, CHANGELOG):
        cluster.create_topic(topic, 1)


def asking(service: Service, ordered_by: OrderedBy = "partition", before: Any = None, **options: Any) -> Any:
    """in -> (before) -> the service -> out."""
    builder = StreamsBuilder()
    stream: KStream[str, str] = builder.stream(IN, **TEXT)
    if before is not None:
        stream = before(stream)
    stream.map_values_async(service.ask, with_key=True, ordered_by=ordered_by, timeout=None, **options).to(OUT, **TEXT)
    return builder.build()


def counted(stream: KStream[str, str]) -> KStream[str, Any]:
    return stream.group_by_key().count(store="counts").to_stream()


def came_out(cluster: DirectKafka) -> list[str]:
    return [(record.key() or b"").decode() for record in cluster.records(OUT)]


def until_out(thread: Thread, cluster: DirectKafka, keys: Sequence[str]) -> None:
    """Step until records with these keys were written; they wait for calls in flight."""
    deadline = threading.Event()
    timer = threading.Timer(PATIENCE_SECONDS, deadline.set)
    timer.start()
    while came_out(cluster) != list(keys) and not deadline.is_set():
        thread.step()
    timer.cancel()
    assert came_out(cluster) == list(keys)


def test_a_commit_leaves_out_pending_records_that_nothing_else_has_seen(
    application: MakeApplication, cluster: DirectKafka
) -> None:
    service = Service("b")
    thread = application(asking(service)).thread().until_running()
    feed(cluster, "abc")
    until_out(thread, cluster, "a")
    service.wait_for(lambda: service.begun["c"] == 1)
    thread.commit()
    at = committed(cluster)
    assert at is not None
    assert at.offset == 1, "b waits, so it is read again after a crash, and c behind it"
    assert TopicPartitionMetadata.decode(at.metadata).partition_time == 1001, "the time with b, not that of c"
    service.let("b")
    until_out(thread, cluster, "abc")
    thread.commit()
    at = committed(cluster)
    assert at is not None
    assert at.offset == 3


def test_after_a_crash_pending_records_are_processed_again(application: MakeApplication, cluster: DirectKafka) -> None:
    service = Service("b")
    app = application(asking(service))
    thread = app.thread().until_running()
    feed(cluster, "abc")
    until_out(thread, cluster, "a")
    thread.commit()
    thread.crash()
    cluster.evict()
    service.let("b")
    until_out(app.thread().until_running(), cluster, "abc")
    assert service.begun["a"] == 1
    assert service.begun["b"] == 2


@pytest.mark.parametrize(
    ("ordered_by", "before"),
    [("key", None), ("partition", counted), ("partition", lambda stream: stream.peek(print).merge(stream))],
    ids=["by key", "behind a store", "beside another way"],
)
def test_otherwise_a_commit_waits_for_calls_in_flight(
    application: MakeApplication, cluster: DirectKafka, ordered_by: OrderedBy, before: Any
) -> None:
    service = Service("b")
    config = {"statestore_cache_max_bytes": 0}
    thread = application(asking(service, ordered_by, before), **config).thread().until_running()
    feed(cluster, "ab")
    thread.step(2)
    service.wait_for(lambda: service.begun["b"] >= 1)
    opening = threading.Timer(0.2, service.let, ["b"])
    opening.start()
    thread.commit()
    opening.join()
    at = committed(cluster)
    assert at is not None
    assert at.offset == 2
    assert set(came_out(cluster)) == {"a", "b"}


def test_reading_stops_when_max_in_flight_calls_are_pending(application: MakeApplication, cluster: DirectKafka) -> None:
    service = Service(*"abcdef")
    thread = application(asking(service, max_in_flight=2)).thread().until_running()
    feed(cluster, "abcdef")
    thread.step(3)
    service.wait_for(lambda: service.begun.total() == 2)
    thread.step(3)
    assert dict(service.begun) == {"a": 1, "b": 1}
    (task,) = thread.task_manager.active.running.values()
    assert task.num_buffered() == 4
    service.let(*"abcdef")
    until_out(thread, cluster, "abcdef")


def test_tasks_share_the_limit_of_calls_in_flight(application: MakeApplication, cluster: DirectKafka) -> None:
    cluster.create_topic("shared", 2)
    service = Service(*"abcdvwxy")
    builder = StreamsBuilder()
    asked = builder.stream("shared", **TEXT).map_values_async(service.ask, with_key=True, max_in_flight=2, timeout=None)
    asked.to(OUT, **TEXT)
    thread = application(builder.build()).thread().until_running()
    for partition, keys in enumerate(("abcd", "vwxy")):
        for key in keys:
            cluster.append("shared", partition, key.encode(), b"1", 1000)
        thread.step(5)
        service.wait_for(lambda: service.begun.total() == 2)
    assert set(service.begun) == {"a", "b"}, "the first task has all places"
    service.let("a")
    until_out(thread, cluster, "a")
    thread.step(3)
    service.wait_for(lambda: service.begun.total() == 3)
    assert service.begun["v"] == 1, "the place that is free now belongs to the task without one"


def test_pending_calls_are_cancelled_when_the_thread_ends(application: MakeApplication, cluster: DirectKafka) -> None:
    service = Service("b")
    thread = application(asking(service)).thread().until_running()
    feed(cluster, "ab")
    until_out(thread, cluster, "a")
    service.wait_for(lambda: service.begun["b"] == 1)
    thread.close()
    service.wait_for(lambda: service.cancelled["b"] == 1)
    at = committed(cluster)
    assert at is not None
    assert at.offset == 1
    assert came_out(cluster) == ["a"]


def test_pending_calls_are_cancelled_when_their_task_is_suspended(
    application: MakeApplication, cluster: DirectKafka
) -> None:
    service = Service("a")
    thread = application(asking(service)).thread().until_running()
    feed(cluster, "a")
    thread.step(2)
    service.wait_for(lambda: service.begun["a"] == 1)
    (task,) = thread.task_manager.active.running.values()
    task.suspend()
    service.wait_for(lambda: service.cancelled["a"] == 1)


def test_a_call_that_ends_wakes_the_poll(application: MakeApplication, cluster: DirectKafka) -> None:
    service = Service("a")
    thread = application(asking(service)).thread().until_running()
    feed(cluster, "a")
    thread.step(2)
    service.wait_for(lambda: service.begun["a"] == 1)
    assert not thread.consumer.woken.is_set()
    assert thread.poll_time_ms() == thread.poll_ms, "nothing is looked for meanwhile"
    service.let("a")
    assert thread.consumer.woken.wait(PATIENCE_SECONDS)
    until_out(thread, cluster, "a")


def test_a_poll_ends_when_a_batch_is_due(
    application: MakeApplication, cluster: DirectKafka, clock: ManualClock
) -> None:
    builder = StreamsBuilder()
    mapped: Any = builder.stream(IN, **TEXT).map_batches(list, max_records=10, max_wait=60)
    mapped.to(OUT, **TEXT)
    thread = application(builder.build()).thread().until_running()
    feed(cluster, "a")
    thread.step()
    thread.thread.time.advance()
    assert 1 <= thread.poll_time_ms() <= 60 < thread.poll_ms
    before_ms = clock.wall_clock_ms()
    thread.step()
    assert clock.wall_clock_ms() - before_ms <= 60
    (task,) = thread.task_manager.active.running.values()
    assert task.records_waiting == 0


def test_calling_an_ended_loop_is_an_error(application: MakeApplication, cluster: DirectKafka) -> None:
    async def leaves(value: str) -> str:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.Event().wait()
        return value

    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).map_values_async(leaves).to(OUT, **TEXT)
    thread = application(builder.build()).thread().until_running()
    feed(cluster, "a")

    def go_on() -> None:
        thread.step(2)
        assert thread.consumer.woken.wait(PATIENCE_SECONDS)
        thread.step()

    with pytest.raises(StreamsError, match=r"event loop .* has ended"):
        go_on()


class Notes(Processor[str, str, str, str]):
    """Records when records arrive, and when stream time punctuates."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        context.schedule(10, Punctuation.STREAM_TIME, lambda timestamp: self.note(f"punctuated {timestamp}", timestamp))

    def note(self, text: str, timestamp: int) -> None:
        self.context.forward(Record(text, text, timestamp))

    def process(self, record: Record[str, str]) -> None:
        self.note(record.key, record.timestamp)


def test_a_stream_time_punctuation_follows_the_record_that_makes_it_due(
    application: MakeApplication, cluster: DirectKafka
) -> None:
    service = Service("b")
    builder = StreamsBuilder()
    stream = builder.stream(IN, **TEXT).map_values_async(service.ask, with_key=True)
    stream.process(Notes).to(OUT, **TEXT)
    thread = application(builder.build()).thread().until_running()
    feed(cluster, "a", timestamp=1000)
    until_out(thread, cluster, ["a", "punctuated 1000"])
    feed(cluster, "b", timestamp=1010)
    thread.step(3)
    assert came_out(cluster) == ["a", "punctuated 1000"]
    service.let("b")
    until_out(thread, cluster, ["a", "punctuated 1000", "b", "punctuated 1010"])
