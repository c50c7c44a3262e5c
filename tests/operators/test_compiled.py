from __future__ import annotations

import re
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from penstock import Processor, Record, Serdes, StreamsBuilder, StreamsError
from penstock.kernel.codecs import hash128
from penstock.testing import TopologyTestDriver
from penstock.topology.records import RawRecord
from penstock.topology.serdes.serdes import PlainSerde

Options = dict[str, Any]


def record(value: bytes | None, timestamp: int, offset: int = 0) -> RawRecord:
    return RawRecord("in", 0, offset, timestamp, b"k", value)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_children_are_called_in_order(compiled: Any, text: Options, count: int) -> None:
    seen: list[tuple[int, Any]] = []

    def see(number: int, key: str, value: str) -> None:
        seen.append((number, value))

    def declare(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", **text)
        for number in range(count):
            stream.foreach(partial(see, number))
        stream.to("out", **text)

    task = compiled(declare)
    task.compiled.sources["in"].process_batch([record(b"a", 1), record(b"b", 2)])
    assert seen == [(number, value) for value in "ab" for number in range(count)]
    assert [r.value for r in task.take_produced()] == [b"a", b"b"]


def test_a_batch_runs_record_by_record_and_moves_stream_time(compiled: Any, text: Options) -> None:
    seen: list[Any] = []
    task: Any = None

    def see(key: str, value: str) -> None:
        seen.append((key, value, task.timestamp, task.stream_time_ms, task.message.offset(), task.headers))

    task = compiled(lambda builder: builder.stream("in", **text).foreach(see))
    source = task.compiled.sources["in"]
    source.process_batch([record(b"a", 5, 0), record(None, 3, 1), record(b"c", 9, 2)])
    assert seen == [("k", "a", 5, 5, 0, None), ("k", None, 3, 5, 1, None), ("k", "c", 9, 9, 2, None)]


def test_a_timestamp_of_0_is_valid(compiled: Any, text: Options) -> None:
    task = compiled(lambda builder: builder.stream("in", **text).to("out", **text))
    task.compiled.sources["in"].process_batch([record(b"a", 5), record(b"b", 0)])
    assert [r.timestamp for r in task.take_produced()] == [5, 0]


def test_a_batch_continues_after_a_skipped_record(compiled: Any, numbers: Options) -> None:
    seen: list[int] = []
    config = {"deserialization.exception.handler": "continue"}
    task = compiled(lambda builder: builder.stream("in", **numbers).foreach(lambda k, v: seen.append(v)), config)
    good = Serdes.int64().serialize("", 7)
    task.compiled.sources["in"].process_batch([record(good, 1), record(b"x", 2), record(b"y", 3), record(good, 4)])
    assert seen == [7, 7]
    assert task.stream_time_ms == 4
    assert sum(task.dropped.values()) == 2


def test_an_unreadable_record_does_not_change_stream_time(compiled: Any, numbers: Options) -> None:
    seen: list[Any] = []

    class See(Processor[Any, Any, Any, Any]):
        """Records values and stream times."""

        def process(self, record: Record[Any, Any]) -> None:
            seen.append((record.value, self.context.current_stream_time_ms()))

    config = {"deserialization.exception.handler": "continue"}
    task = compiled(lambda builder: builder.stream("in", **numbers).process(See), config)
    process, good = task.compiled.sources["in"].process_batch, Serdes.int64().serialize("", 7)
    process([record(b"x", 90), record(good, 5), record(b"y", 91), record(good, 3), record(good, 6), record(b"z", 92)])
    assert seen == [(7, 5), (7, 5), (7, 6)]
    assert task.stream_time_ms == 6
    process([record(b"x", 93)])
    assert task.stream_time_ms == 6
    process([record(good, 6), record(good, 8)])
    assert seen[3:] == [(7, 6), (7, 8)]


def test_a_negative_timestamp_in_a_batch_fails_and_is_named(compiled: Any, text: Options) -> None:
    task = compiled(lambda builder: builder.stream("in", **text).to("out", **text))
    with pytest.raises(StreamsError, match=r"offset=1.*negative.*-9"):
        task.compiled.sources["in"].process_batch([record(b"a", 4, 0), record(b"b", -9, 1), record(b"c", 5, 2)])
    assert [(r.value, r.timestamp) for r in task.take_produced()] == [(b"a", 4)]
    assert (task.stream_time_ms, task.timestamp) == (4, -9)


def test_a_batch_stops_at_a_record_that_fails(compiled: Any, text: Options) -> None:
    seen: list[str] = []

    def see(key: str, value: str) -> None:
        seen.append(value)
        if value == "b":
            raise ValueError(value)

    task = compiled(lambda builder: builder.stream("in", **text).foreach(see))
    with pytest.raises(StreamsError, match="offset=1"):
        task.compiled.sources["in"].process_batch([record(b"a", 1, 0), record(b"b", 1, 1), record(b"c", 1, 2)])
    assert seen == ["a", "b"]


@pytest.mark.parametrize("extractor", [None, "FailOnInvalidTimestamp"])
def test_a_negative_timestamp_is_an_error_by_default(compiled: Any, text: Options, extractor: str | None) -> None:
    config = {} if extractor is None else {"default.timestamp.extractor": extractor}
    task = compiled(lambda builder: builder.stream("in", **text).to("out", **text), config)
    source = task.compiled.sources["in"]
    for process in (source.process, source.stamp):
        with pytest.raises(StreamsError, match="negative"):
            process(record(b"v", -1))


def test_an_extractor_gets_key_value_and_partition_time(compiled: Any, text: Options) -> None:
    seen: list[Any] = []

    def extract(message: Any, key: str, value: str, partition_time: int) -> int:
        seen.append((message.offset(), key, value, partition_time))
        return int(value)

    task = compiled(lambda builder: builder.stream("in", timestamp_extractor=extract, **text).to("out", **text))
    source = task.compiled.sources["in"]
    assert source.extracts_timestamps
    source.process_batch([record(b"7", 0, 0), record(b"-1", 0, 1), record(b"5", 0, 2)])
    source.process(record(b"9", 0, 3))
    assert seen == [(0, "k", "7", -1), (1, "k", "-1", 7), (2, "k", "5", 7), (3, "k", "9", 7)]
    assert [r.timestamp for r in task.take_produced()] == [7, 5, 9]
    assert sum(task.dropped.values()) == 1, "a negative result drops the record"


@pytest.mark.parametrize("found", [(1, 5), None, "12", 12.0, True, datetime(2026, 1, 1), 2**63], ids=repr)
def test_the_error_names_an_extractor_that_returns_no_timestamp(found: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in", timestamp_extractor=lambda *_: found, name="S").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in")
        where = r"source S for the record of in-0 at offset 0: \w+"
        with pytest.raises(StreamsError, match=rf"{where}: .* since the epoch, not {re.escape(repr(found))}"):
            source.pipe_input("k", "v", 7)


def test_an_extractor_may_return_other_integer_types() -> None:
    class Whole:
        def __index__(self) -> int:
            return 5

    whole: Any = lambda *_: Whole()  # noqa: E731 - of another type than declared
    builder = StreamsBuilder()
    builder.stream("in", timestamp_extractor=whole).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", "v", 7)
        found = driver.create_output_topic("out").read_record().timestamp
        assert (type(found), found) == (int, 5)


def test_the_error_names_a_record_without_a_timestamp_and_earlier_ones_are_processed(
    compiled: Any, text: Options
) -> None:
    def extract(message: Any, key: str, value: str, partition_time: int) -> int:
        return {"a": 1, "b": 5, "c": 2}[value]

    task = compiled(lambda builder: builder.stream("in", timestamp_extractor=extract, **text).to("out", **text))
    process = task.compiled.sources["in"].process_batch
    with pytest.raises(StreamsError, match=r"^Fatal user code error in TimestampExtractor.*in-0 at offset 6"):
        process([record(value, 0, offset) for value, offset in ((b"b", 4), (b"c", 5), (b"x", 6), (b"a", 7))])
    assert [(r.value, r.timestamp) for r in task.take_produced()] == [(b"b", 5), (b"c", 2)]
    assert task.stream_time_ms == 5


def test_the_error_of_an_operator_behind_an_extractor_names_its_record(compiled: Any, text: Options) -> None:
    def extract(message: Any, key: str, value: str, partition_time: int) -> int:
        return int(value)

    def see(key: str, value: str) -> None:
        if value == "9":
            raise ValueError(value)

    task = compiled(lambda b: b.stream("in", timestamp_extractor=extract, **text).foreach(see, name="look"))
    with pytest.raises(StreamsError, match="processor=look, topic=in, partition=0, offset=1, key='k': ValueError: 9"):
        task.compiled.sources["in"].process_batch([record(b"7", 0, 0), record(b"9", 0, 1), record(b"8", 0, 2)])
    assert (task.timestamp, task.stream_time_ms) == (9, 9)


def test_extracting_a_timestamp_deserializes_once(compiled: Any, text: Options) -> None:
    task = compiled(lambda builder: builder.stream("in", **text).to("out", **text))
    source = task.compiled.sources["in"]
    stamped = source.stamp(record(b"v", 3))
    assert (stamped.timestamp, stamped.key, stamped.value) == (3, "k", "v")
    assert not source.extracts_timestamps
    source.process_stamped([stamped])
    assert [(r.topic, r.value) for r in task.take_produced()] == [("out", b"v")]


def test_a_topic_function_chooses_the_topic(compiled: Any, text: Options) -> None:
    seen: list[Any] = []

    def topic_of(key: str, value: str, metadata: Any) -> str:
        seen.append(metadata)
        return value

    task = compiled(lambda builder: builder.stream("in", **text).to(topic_of, **text))
    source = task.compiled.sources["in"]
    source.process_batch([record(b"one", 1, 5), record(b"two", 1, 6)])
    assert [r.topic for r in task.take_produced()] == ["one", "two"]
    assert seen == [("in", 0, 5), ("in", 0, 6)]
    with pytest.raises(StreamsError, match="must return a topic's name, not None"):
        source.process(record(None, 1))


def test_a_partitioner_chooses_partitions(compiled: Any, text: Options) -> None:
    chosen = {"none": None, "one": 1, "two": [0, 2], "drop": []}
    task = compiled(
        lambda builder: builder.stream("in", **text).to(
            "out", partitioner=lambda topic, key, value, count: chosen[value], **text
        )
    )
    task.compiled.sources["in"].process_batch([record(name.encode(), 1) for name in chosen])
    sent = [(record.value, record.partition) for record in task.take_produced()]
    assert sent == [(b"none", None), (b"one", 1), (b"two", 0), (b"two", 2)]
    assert sum(task.dropped.values()) == 1


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_a_row_is_serialized_once_for_store_changelog_and_sink(compiled: Any, cache_bytes: int) -> None:
    written = []

    def encode(value: str) -> bytes:
        written.append(value)
        return value.encode()

    counted: PlainSerde[str] = PlainSerde("counted", encode, bytes.decode)
    options: Options = {"key_serde": Serdes.string(), "value_serde": counted}

    def declare(builder: StreamsBuilder) -> None:
        table = builder.stream("in", **options).group_by_key().reduce(lambda old, new: f"{old}{new}", store="rows")
        table.to_stream().to("out", **options)

    task = compiled(declare, {"statestore.cache.max.bytes": cache_bytes})
    for value in (b"a", b"b"):
        task.compiled.source_of("in").process_batch((record(value, 0),))
        task.commit()
    assert written == ["a", "ab"]
    assert [sent.value for sent in task.take_produced() if sent.topic == "out"] == [b"a", b"ab"]


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_a_sink_sends_another_childs_value_of_the_record(compiled: Any, documents: Options, cache_bytes: int) -> None:
    def declare(builder: StreamsBuilder) -> None:
        changes = builder.stream("in", **documents).group_by_key().reduce(lambda _, new: new, store="rows").to_stream()
        changes.peek(lambda _, value: value.append(2))
        changes.to("out", **documents)

    task = compiled(declare, {"statestore.cache.max.bytes": cache_bytes})
    task.compiled.source_of("in").process_batch((record(b"[1]", 0),))
    task.commit()
    assert [sent.value for sent in task.take_produced() if sent.topic == "out"] == [b"[1,2]"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "9d2764a018e329428c3cf3b035938518"),
        (b"p", "2b4bac628cbf2a48a01360ec5bf45be9"),
        (b"0123456789abcdef", "1a6e941ec6a76967d7d82808f505d6b1"),
        (b"0123456789abcdefX", "c31e5ea436db745dd00872afcf95362c"),
        (bytes(number * 7 % 256 for number in range(40)), "7dd1d8cab45189807cf48fe149a8aa85"),
    ],
)
def test_the_hash_is_kafka_streams_murmur3(data: bytes, expected: str) -> None:
    assert hash128(data).hex() == expected
