"""A few cases on a real Spark and a real broker; ``python -m tests.differential`` runs them all."""

from __future__ import annotations

import asyncio
import struct
import threading
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock import (
    CalendarWindows,
    CountWindows,
    KStream,
    Materialized,
    Processor,
    ProcessorContext,
    Punctuation,
    Record,
    Serdes,
    Stores,
    StreamPartitioner,
    StreamsBuilder,
    StreamsError,
    Suppressed,
    TimeWindows,
    ValueTransformerWithKey,
    agg,
)
from penstock.pipeline import SparkStreams
from penstock.pipeline.checkpoint.checkpoint import CheckpointError
from penstock.pipeline.handover.spark_side import blobs
from penstock.pipeline.queries import streaming_queries
from penstock.pipeline.queries.capabilities import OPERATORS, Capability
from penstock.topology.config.config_keys import EXACTLY_ONCE_V2
from tests.differential.engines import SparkEngine, compare, depends_on_buckets
from tests.goldens import interpreter
from tests.goldens.case import read
from tests.java import headers_program
from tests.read_to_end import ends_of, read_to_end
from tests.topics import add_partitions, create_topics
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
CASES = Path(__file__).resolve().parents[1] / "goldens" / "cases"
STRINGS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


#: Recorded cases that together have each operator of the report, and their micro-batches. First: counted with a cache;
#: a table that re-groups; an outer join with a late side; a buffer that two micro-batches share.
RECORDED = {
    "count_cache_10485760": 1,
    "ktable_group_by_changing_key": 1,
    "stream_stream_left": 2,
    "suppress_time_limit": 2,
    "fuzz_1055": 1,
    "windowed_table_downstream": 1,
    "fuzz_1001": 2,
    "fuzz_1044": 1,
    "cogroup_windowed_session": 2,
    "peek_keeps_headers": 1,
    "flat_maps": 1,
    "self_join_all": 2,
    "fuzz_1033": 1,
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_case_has_the_same_results_on_both_engines(
    spark: Any, bootstrap_servers: str, tmp_path: Path, name: str
) -> None:
    engine = SparkEngine(spark, bootstrap_servers, str(tmp_path))
    assert compare(read(CASES / f"{name}.json"), engine, RECORDED[name]) is None


@pytest.mark.parametrize("name", ["fuzz_1055", "cogroup_windowed_session"])
def test_a_case_has_the_same_results_with_exactly_once(
    spark: Any, bootstrap_servers: str, tmp_path: Path, name: str
) -> None:
    """A foreign-key join, whose queries read each other's committed records; and one query with two micro-batches."""
    case = read(CASES / f"{name}.json")
    case["config"]["processing.guarantee"] = EXACTLY_ONCE_V2
    assert compare(case, SparkEngine(spark, bootstrap_servers, str(tmp_path)), RECORDED[name]) is None


def test_each_operator_of_the_report_is_covered(tmp_path: Path) -> None:
    """All that the report does not refuse: see the recorded cases above, and not_recorded below."""
    declared = [interpreter.build(read(CASES / f"{name}.json")) for name in RECORDED]
    declared.append(not_recorded("in", "out", "counts", tmp_path / "seen").build())
    run = {
        type(node.operator).__name__
        for topology in declared
        for node in topology.internal_builder.nodes.values()
        if hasattr(node, "operator")
    }
    assert run == {name for name, (capability, _) in OPERATORS.items() if capability is not Capability.REFUSED}


def test_keys_in_buckets_have_the_same_results_as_in_the_local_engine(
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


def test_the_exception_has_operator_topic_partition_and_offset(
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


def test_partitions_added_while_it_runs_are_read_with_a_warning(
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
        eventually(lambda: records(bootstrap_servers, sink) == 1 or ended.done(), streams.status)
        for topic in (sink, source):
            add_partitions(admin, topic, 2)
        warned = "Partitions were added"
        eventually(lambda: warned in caplog.text or ended.done(), lambda: caplog.text)
        producer = Producer(
            {"bootstrap.servers": bootstrap_servers}
        )  # the first one does not know the new partition yet
        producer.produce(source, "1", "k", partition=1)
        producer.flush()
        eventually(lambda: records(bootstrap_servers, sink) == 2 or ended.done(), streams.status)
        streams.request_stop()
        ended.result(PATIENCE_SECONDS)
    (warning,) = [line for line in caplog.messages if line.startswith("Partitions were added")]
    assert f"added: {source} had 1, and has 2. Spark reads them" in warning  # and no warning about the sink
    with (
        SparkStreams(builder, config, spark, checkpoint=str(tmp_path / "checkpoint")) as streams,
        pytest.raises(CheckpointError, match=f"Partitions were added: {source} had 1, and has 2"),
    ):
        streams.start()


def records(bootstrap_servers: str, topic: str) -> int:
    """Return the number of records in a topic."""
    return sum(ends_of(bootstrap_servers, [topic]).values())


def test_the_error_for_an_object_that_cannot_be_pickled_says_what_to_do(
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


def test_aggregates_continue_from_the_states_of_the_micro_batch_before(
    spark: Any, bootstrap_servers: str, tmp_path: Path, application_id: str, make_topic: Callable[..., str]
) -> None:
    pytest.importorskip("datasketches")
    source, others, sink = make_topic("in"), make_topic("visits"), make_topic("out")
    builder = StreamsBuilder()
    grouped: Any = builder.stream(source, **STRINGS).map_values(int).group_by_key()
    aggregates = {"n": agg.count(), "mean": agg.mean(), "ids": agg.distinct(), "last": agg.last()}
    for number, kept in enumerate((grouped, grouped.windowed_by(CalendarWindows("day", tz="Europe/Paris")))):
        rows = kept.aggregate(aggregates, store=f"rows-{number}").to_stream(lambda key, row, number=number: number)
        rows.to(sink, key_serde=Serdes.json(), value_serde=Serdes.json())
    visits: Any = builder.stream(others, **STRINGS).group_by_key()
    together = grouped.cogroup(aggregates).cogroup(visits, {"visits": agg.count()}).aggregate(store="together")
    together.to_stream(lambda key, row: 3).to(sink, key_serde=Serdes.json(), value_serde=Serdes.json())
    full = grouped.windowed_by(CountWindows(3)).aggregate(aggregates).select_key(lambda window, row: 2)
    full.to(sink, key_serde=Serdes.json(), value_serde=Serdes.json())
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    with SparkStreams(builder, config, spark, checkpoint=str(tmp_path / "checkpoint")) as streams:
        for values in ("12", "6"):
            for value in values:
                producer.produce(source, value, "k", timestamp=1_790_000_000_000)
            producer.produce(others, "", "k", timestamp=1_790_000_000_000)
            producer.flush()
            streams.process_available()
    found = {message.key(): orjson.loads(message.value() or b"") for message in read_to_end(bootstrap_servers, sink)}
    row = {"n": 3, "mean": 3.0, "ids": 3, "last": 6}
    assert found == {b"0": row, b"1": row, b"2": row, b"3": {**row, "visits": 2}}


def test_timers_and_rows_with_a_ttl_end_in_a_later_micro_batch(
    spark: Any, bootstrap_servers: str, tmp_path: Path, application_id: str, make_topic: Callable[..., str]
) -> None:
    class Later(Processor[str, str, str, str]):
        """Sends each key on five seconds after its record."""

        stores = (Stores.timer_store_builder(Stores.persistent_key_value_store("timers"), Serdes.string()),)

        def process(self, record: Record[str, str]) -> None:
            self.context.timer(record.key, record.timestamp + 5_000, Punctuation.STREAM_TIME)

        def on_timer(self, key: str, at: int) -> None:
            self.context.forward(Record(key, f"at {at}", at))

    source, sink = make_topic("in"), make_topic("out")
    builder = StreamsBuilder()
    stream = builder.stream(source, **STRINGS)
    stream.process(Later).to(sink, **STRINGS)
    counts = stream.group_by_key().count(store=Materialized("counts", ttl=timedelta(seconds=3)))
    counts.to_stream().map_values(str).to(sink, **STRINGS)
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    with SparkStreams(builder, config, spark, checkpoint=str(tmp_path / "checkpoint")) as streams:
        for records in ([("a", 1_000), ("b", 2_000)], [("a", 3_900), ("b", 7_000)]):
            for key, timestamp in records:
                producer.produce(source, "", key, timestamp=timestamp)
            producer.flush()
            streams.process_available()
    found = [(message.key(), message.value()) for message in read_to_end(bootstrap_servers, sink)]
    expected: list[tuple[str, str]] = [("a", "1"), ("b", "1"), ("a", "2")]
    # The record of 7 seconds: a's second row and b's first one have ended, b's timer fires, a's has been moved.
    expected += [("b", "None"), ("a", "None"), ("b", "at 7000"), ("b", "1")]
    assert sorted(found) == sorted((key.encode(), value.encode()) for key, value in expected)


def test_duplicates_of_earlier_micro_batches_are_dropped_and_the_others_multicast(
    spark: Any, bootstrap_servers: str, tmp_path: Path, application_id: str, make_topic: Callable[..., str]
) -> None:
    class ByHeader(StreamPartitioner[str, str]):
        """The partitions that a header names; none drops the record."""

        def partitions(self, topic: str, key: str, value: str, headers: Any, partition_count: int) -> set[int]:
            assert partition_count == 3
            return {int(number) for number in dict(headers)["to"].split(b",") if number}

    source, sink = make_topic("in"), make_topic("out", 3)
    builder = StreamsBuilder()
    stream = builder.stream(source, **STRINGS)
    stream.deduplicate_by_key(1_000, name="once").to(sink, partitioner=ByHeader(), **STRINGS)
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    first = [("a", 1_000, b"0,2"), ("a", 1_500, b"1"), ("b", 1_600, b""), (None, 1_700, b"1")]
    second = [("a", 2_000, b"1"), ("b", 2_000, b"1"), ("a", 2_001, b"1"), ("c", 900, b"0"), ("c", 900, b"0")]
    with SparkStreams(builder, config, spark, checkpoint=str(tmp_path / "checkpoint")) as streams:
        for records in (first, second):
            for key, timestamp, to in records:
                producer.produce(source, str(timestamp), key, timestamp=timestamp, headers=[("to", to)])
            producer.flush()
            streams.process_available()
    found = [(message.key(), message.value(), message.partition()) for message in read_to_end(bootstrap_servers, sink)]
    assert sorted(found, key=str) == sorted(
        [
            (b"a", b"1000", 0),
            (b"a", b"1000", 2),
            (None, b"1700", 1),
            (b"a", b"2001", 1),
            (b"c", b"900", 0),  # it is late
            (b"c", b"900", 0),
        ],
        key=str,
    )


def test_wall_clock_punctuations_fire_without_records(
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
    producer.produce(source, "1", "k")  # from now on there is a task
    producer.flush()
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    with SparkStreams(builder, config, spark, checkpoint=str(tmp_path / "checkpoint")) as streams:
        streams.start()
        # The record's own micro-batch can fire at most one.
        eventually(lambda: records(bootstrap_servers, sink) >= 3, "three punctuations have fired")


def test_windows_close_without_records(
    spark: Any, bootstrap_servers: str, tmp_path: Path, application_id: str, make_topic: Callable[..., str]
) -> None:
    source, sink = make_topic("in"), make_topic("out")
    builder = StreamsBuilder()
    counts = builder.stream(source, **STRINGS).group_by_key().windowed_by(TimeWindows(1_000)).count()
    final = counts.suppress(Suppressed.until_window_closes(wall_clock=timedelta(seconds=1))).to_stream()
    final.map(lambda window, count: (window.key, f"{window.start} {count}")).to(sink, **STRINGS)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for _ in range(2):
        producer.produce(source, "", "k", timestamp=1_790_000_000_000)
    producer.flush()
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    with SparkStreams(builder, config, spark, checkpoint=str(tmp_path / "checkpoint")) as streams:
        streams.start()
        eventually(lambda: bool(list(read_to_end(bootstrap_servers, sink))), "the window closes")
    assert [message.value() for message in read_to_end(bootstrap_servers, sink)] == [b"1790000000000 2"]


def test_stores_with_headers_keep_them_between_micro_batches(
    spark: Any, bootstrap_servers: str, tmp_path: Path, application_id: str, make_topic: Callable[..., str]
) -> None:
    config = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "headers.input": make_topic("commands"),
        "headers.output": make_topic("results"),
        "headers.caching": "true",
    }
    batches = [["a value 1001 h=31 n", "b other 1002"], ["a read 1003", "b delete 1004"], ["b read 1005"]]
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    settings = headers_program.without_ours(config)
    checkpoint = str(tmp_path / "checkpoint")
    with SparkStreams(headers_program.topology(config), settings, spark, checkpoint=checkpoint) as streams:
        for batch in batches:
            for command in batch:
                key, value, timestamp, headers = headers_program.parsed(command)
                producer.produce(config["headers.input"], value, key, timestamp=timestamp, headers=[*headers])
            assert producer.flush(PATIENCE_SECONDS) == 0
            streams.process_available()
    expected = headers_program.record(config, [command for batch in batches for command in batch])
    found = [(m.value() or b"").hex() for m in read_to_end(bootstrap_servers, config["headers.output"])]
    assert found == [line.split(" ")[2] for line in expected if line.startswith(f"{config['headers.output']} ")]


def not_recorded(source: str, sink: str, counted: str, seen: Path) -> StreamsBuilder:
    """Declare the operators that Kafka Streams lacks, and those with an effect outside of Kafka.

    seen: a file to which the last function writes a line for each record.
    """

    async def asked(value: str) -> str:
        await asyncio.sleep(0.02 * (int(value) % 3))  # later records get earlier responses
        return f"{value}!"

    async def twice(value: str) -> list[str]:
        return [value, f"{value}?"]

    async def is_no_question(key: str, value: str) -> bool:
        return not value.endswith("?")

    async def note(key: str, value: str) -> None:
        with seen.open("a") as file:
            file.write(f"{value}\n")

    def scored(values: list[str]) -> list[str]:
        return [f"{value}{len(values) > 1}" for value in values]

    class Kept(ValueTransformerWithKey[str, int, int]):
        def transform(self, key: str, value: int | None) -> Any:
            return value

    builder = StreamsBuilder()
    asked_for = builder.stream(source, **STRINGS).map_values_async(asked, max_in_flight=8)
    asked_for = asked_for.flat_map_values_async(twice).filter_async(is_no_question)
    stream: KStream[str, str] = asked_for.map_batches(scored)
    stream.to(sink, **STRINGS)
    stream.print(file=str(seen.with_suffix(".printed")))
    stream.foreach_async(note)
    stream.group_by_key(**STRINGS).windowed_by(CountWindows(9)).count()  # see the test of aggregates for its results
    stream.deduplicate_by_key(timedelta(days=1), **STRINGS).foreach_async(note)  # see its own test for its results
    table = stream.group_by_key(**STRINGS).count(store="counts").transform_values(Kept)
    table.to_stream().to(counted, value_serde=Serdes.int64())
    return builder


def test_async_and_batch_functions_give_the_results_of_plain_ones(
    spark: Any, bootstrap_servers: str, tmp_path: Path, application_id: str, make_topic: Callable[..., str]
) -> None:
    source, sink, counted = make_topic("in"), make_topic("out"), make_topic("counts")
    seen = tmp_path / "seen"
    builder = not_recorded(source, sink, counted, seen)
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
    assert set(seen.read_text().splitlines()) == {f"{number}!True" for number in range(30)}
    assert len(seen.with_suffix(".printed").read_text().splitlines()) == 30


def test_foreach_batch_gets_records_for_the_users_topics_and_kafka_the_others(
    spark: Any,
    bootstrap_servers: str,
    tmp_path: Path,
    application_id: str,
    make_topic: Callable[..., str],
    admin: AdminClient,
) -> None:
    source, sink = make_topic("in"), f"{application_id}-out"  # its name begins like that of an internal topic
    create_topics(admin, NewTopic(sink, 1, 1))
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
    assert records(bootstrap_servers, sink) == 0
