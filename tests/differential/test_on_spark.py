"""A handful of cases on a real Spark and a real broker; ``python -m tests.differential`` runs them all."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from penstock import KStream, Processor, ProcessorContext, Punctuation, Record, Serdes, StreamsBuilder, StreamsError
from penstock.pipeline import SparkStreams
from penstock.pipeline.checkpoint.checkpoint import CheckpointError
from penstock.pipeline.handover.spark_side import blobs
from penstock.pipeline.queries import streaming_queries
from tests.differential.engines import SparkEngine, compare, depends_on_buckets
from tests.goldens.case import read
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
CASES = Path(__file__).resolve().parents[1] / "goldens" / "cases"
END_SECONDS = 60
DEADLINE_SECONDS = 180.0
STRINGS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


# Counted with a cache; a table that re-groups; an outer join with a late side; a buffer that two micro-batches share.
@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("count_cache_10485760", 1),
        ("ktable_group_by_changing_key", 1),
        ("stream_stream_left", 2),
        ("suppress_time_limit", 2),
    ],
)
def test_a_case_has_the_same_results_on_both_engines(
    spark: Any, bootstrap_servers: str, tmp_path: Path, name: str, batches: int
) -> None:
    engine = SparkEngine(spark, bootstrap_servers, str(tmp_path))
    assert compare(read(CASES / f"{name}.json"), engine, batches) is None


def test_keys_in_buckets_have_the_same_results_as_the_local_engine_s(
    spark: Any, bootstrap_servers: str, tmp_path: Path
) -> None:
    case = read(CASES / "count_cache_10485760.json")
    keys = [b64encode(b"key-%d" % (number * number % 17)).decode() for number in range(60)]
    template = case["inputs"][0]
    case["inputs"] = [{**template, "key": {"b64": key}, "timestamp": at} for at, key in enumerate(keys, 1)]
    assert not depends_on_buckets(case, 3)
    assert compare(case, SparkEngine(spark, bootstrap_servers, str(tmp_path)), batches=2, buckets=3) is None
    (query,) = tmp_path.glob("*/subtopology-0")
    tasks = {row.task for row in blobs(spark, str(query)).collect()}
    assert tasks == {0, 1, 2}, "the keys of the one partition were shared out"


def test_an_exception_arrives_with_operator_topic_partition_and_offset(
    spark: Any, bootstrap_servers: str, tmp_path: Path, application_id: str, make_topic: Callable[..., str]
) -> None:
    topic, out = make_topic("in"), make_topic("out")
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for value in ("1", "0"):
        producer.produce(topic, value, "k")
    producer.flush()
    builder = StreamsBuilder()
    builder.stream(topic, **STRINGS).map_values(lambda value: str(1 / int(value)), name="invert").to(out)
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    checkpoint = str(tmp_path / "checkpoint")
    where = r"processor=invert, topic=\S+, partition=0, offset=1.*ZeroDivisionError"
    with (
        SparkStreams(builder, config, spark, checkpoint=checkpoint) as streams,
        pytest.raises(StreamsError, match=where),
    ):
        streams.process_available()
    other = StreamsBuilder()
    other.stream(topic, **STRINGS).to(out)
    streams = SparkStreams(other, config, spark, checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match=r"belongs to another topology: .*invert"):
        streams.process_available()


def test_partitions_that_are_added_while_it_runs_are_read_with_a_warning(
    spark: Any,
    bootstrap_servers: str,
    tmp_path: Path,
    application_id: str,
    make_topic: Callable[..., str],
    admin: AdminClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(streaming_queries, "ADMIT_SECONDS", 0.1)
    source, sink = make_topic("in"), make_topic("out")
    builder = StreamsBuilder()
    builder.stream(source, **STRINGS).group_by_key().count(store="counts").to_stream().to(sink)
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    with (
        SparkStreams(builder, config, spark, checkpoint=str(tmp_path / "checkpoint")) as streams,
        ThreadPoolExecutor(1) as waiting,
    ):
        producer.produce(source, "1", "k")
        producer.flush()
        streams.start()
        ended = waiting.submit(streams.await_termination)
        eventually(lambda: records(bootstrap_servers, sink, 1) == 1 or ended.done(), streams.status, DEADLINE_SECONDS)
        for topic in (sink, source):
            admin.create_partitions([NewPartitions(topic, 2)])[topic].result(DEADLINE_SECONDS)
        warned = "Partitions were added"
        eventually(lambda: warned in caplog.text or ended.done(), lambda: caplog.text, DEADLINE_SECONDS)
        producer = Producer(
            {"bootstrap.servers": bootstrap_servers}
        )  # the first one does not know the new partition yet
        producer.produce(source, "1", "k", partition=1)
        producer.flush()
        eventually(lambda: records(bootstrap_servers, sink, 2) == 2 or ended.done(), streams.status, DEADLINE_SECONDS)
        streams.request_stop()
        ended.result(DEADLINE_SECONDS)
    (warning,) = [line for line in caplog.messages if line.startswith("Partitions were added")]
    assert f"added: {source} had 1, and has 2. Spark reads them" in warning  # and no word of the sink
    with (
        SparkStreams(builder, config, spark, checkpoint=str(tmp_path / "checkpoint")) as streams,
        pytest.raises(CheckpointError, match=f"Partitions were added: {source} had 1, and has 2"),
    ):
        streams.start()


def records(bootstrap_servers: str, topic: str, partitions: int) -> int:
    """Return how many records a topic of so many partitions has."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "none"})  # one that knows new partitions
    try:
        numbers = range(partitions)
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, each), DEADLINE_SECONDS)[1] for each in numbers)
    finally:
        consumer.close()


def test_what_cannot_be_pickled_is_refused_with_what_to_do(
    spark: Any, tmp_path: Path, bootstrap_servers: str, application_id: str, make_topic: Callable[..., str]
) -> None:
    lock = threading.Lock()
    builder = StreamsBuilder()
    builder.stream(make_topic("in"), **STRINGS).filter(lambda key, value: lock.locked()).to(make_topic("out"))
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    with (
        SparkStreams(builder, config, spark, checkpoint=str(tmp_path / "checkpoint")) as streams,
        pytest.raises(StreamsError, match=r"Sub-topology 0 cannot be sent .*cannot pickle '_thread.lock' object"),
    ):
        streams.process_available()


def test_punctuations_by_the_wall_clock_fire_though_no_record_comes(
    spark: Any, bootstrap_servers: str, tmp_path: Path, application_id: str, make_topic: Callable[..., str]
) -> None:
    class Ticking(Processor[str, str, str, str]):
        def init(self, context: ProcessorContext) -> None:
            super().init(context)
            context.schedule(timedelta(milliseconds=100), Punctuation.WALL_CLOCK_TIME, self.tick)

        def process(self, record: Record[str, str]) -> None:
            pass

        def tick(self, now_ms: int) -> None:
            self.context.forward(Record("tick", str(now_ms), now_ms))

    source, sink = make_topic("in"), make_topic("out")
    builder = StreamsBuilder()
    builder.stream(source, **STRINGS).process(Ticking).to(sink, **STRINGS)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(source, "1", "k")  # from here on there is a task
    producer.flush()
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "none"})
    ticks = 0
    with SparkStreams(builder, config, spark, checkpoint=str(tmp_path / "checkpoint")) as streams:
        streams.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while ticks < 3 and time.monotonic() < deadline:  # the record's own micro-batch can fire one at most
            _, ticks = consumer.get_watermark_offsets(TopicPartition(sink, 0), DEADLINE_SECONDS)
            time.sleep(0.1)
    consumer.close()
    assert ticks >= 3


def test_functions_that_wait_or_take_batches_give_what_plain_ones_do(
    spark: Any, bootstrap_servers: str, tmp_path: Path, application_id: str, make_topic: Callable[..., str]
) -> None:
    async def asked(value: str) -> str:
        await asyncio.sleep(0.02 * (int(value) % 3))  # later records are answered earlier
        return f"{value}!"

    def scored(values: list[str]) -> list[str]:
        return [f"{value}{len(values) > 1}" for value in values]

    source, sink, counted = make_topic("in"), make_topic("out"), make_topic("counts")
    builder = StreamsBuilder()
    asked_for = builder.stream(source, **STRINGS).map_values_async(asked, max_in_flight=8)
    stream: KStream[str, str] = asked_for.map_batches(scored)
    stream.to(sink, **STRINGS)
    stream.group_by_key(**STRINGS).count(store="counts").to_stream().to(counted, value_serde=Serdes.int64())
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(30):
        producer.produce(source, str(number), f"k{number % 4}")
    producer.flush()
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    kept: dict[str, list[tuple[bytes, bytes]]] = {sink: [], counted: []}

    def keep(frame: Any, batch_id: int, subtopology: int) -> None:
        for row in frame.collect():
            kept[row.topic].append((row.key, row.value))

    with SparkStreams(builder, config, spark, checkpoint=str(tmp_path / "checkpoint"), foreach_batch=keep) as streams:
        streams.process_available()
    assert kept[sink] == [(b"k%d" % (number % 4), b"%d!True" % number) for number in range(30)]
    counts = {key: struct.unpack(">q", value)[0] for key, value in kept[counted]}
    assert counts == {b"k0": 8, b"k1": 8, b"k2": 7, b"k3": 7}


def test_foreach_batch_gets_what_is_for_the_users_topics_and_kafka_the_rest(
    spark: Any,
    bootstrap_servers: str,
    tmp_path: Path,
    application_id: str,
    make_topic: Callable[..., str],
    admin: AdminClient,
) -> None:
    source, sink = make_topic("in"), f"{application_id}-out"  # its name begins as those of internal topics
    admin.create_topics([NewTopic(sink, 1, 1)])[sink].result(DEADLINE_SECONDS)
    builder = StreamsBuilder()
    words = builder.stream(source, **STRINGS)
    words.group_by(lambda key, value: value, **STRINGS).count(store="counts").to_stream().to(sink)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for value in ("a", "b", "a"):
        producer.produce(source, value, "k", timestamp=5)
    producer.flush()
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    kept: list[Any] = []

    def keep(frame: Any, batch_id: int, subtopology: int) -> None:
        kept.extend((subtopology, batch_id, row) for row in frame.collect())

    checkpoint = str(tmp_path / "checkpoint")
    with SparkStreams(builder, config, spark, checkpoint=checkpoint, foreach_batch=keep) as streams:
        streams.process_available()
    rows = {row.key: (row.topic, row.timestamp, struct.unpack(">q", row.value)[0]) for _, _, row in kept}
    assert rows == {b"a": (sink, 5, 2), b"b": (sink, 5, 1)}
    assert {(number, batch_id) for number, batch_id, _ in kept} == {(1, 0)}  # the counting one's first micro-batch
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "none"})
    assert consumer.get_watermark_offsets(TopicPartition(sink, 0), DEADLINE_SECONDS) == (0, 0)
    consumer.close()
