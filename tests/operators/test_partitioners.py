"""Partitioners that multicast, drop, and see headers (KIP-837, KIP-1321)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Serde, Serdes, StreamPartitioner, StreamsBuilder, StreamsConfig, StreamsError
from penstock.testing import TopologyTestDriver
from penstock.topology.graph.topology import Topology

Options = dict[str, Any]
INPUTS = {"none": None, "one": b"1", "two": b"0,2", "twice": b"1,1", "drop": b""}
CHOSEN = [(b"none", None), (b"one", 1), (b"two", 0), (b"two", 2), (b"twice", 1)]


class ByHeader(StreamPartitioner[str, str]):
    """Chooses the partitions that a header names; keeps its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def partitions(self, topic: str, key: str, value: str, headers: Any, partition_count: int) -> list[int] | None:
        self.calls.append((topic, key, value, headers, partition_count))
        to = dict(headers or ()).get("to")
        return None if to is None else [int(number) for number in to.split(b",") if number]


class Digits(Serde[str]):
    """Writes only numbers."""

    def serialize(self, topic: str, data: str | None) -> bytes | None:
        return None if data is None else b"%d" % int(data)

    def deserialize(self, topic: str, data: bytes | None) -> str | None:
        return None if data is None else data.decode()


def driver_of(declare: Callable[[StreamsBuilder], Any]) -> TopologyTestDriver:
    builder = StreamsBuilder()
    declare(builder)
    return TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": 0})


def pipe_all(driver: TopologyTestDriver) -> None:
    for value, to in INPUTS.items():
        driver.create_input_topic("in").pipe_input("k", value, 5, headers=None if to is None else [("to", to)])


def sent(driver: TopologyTestDriver, topic: str) -> list[tuple[bytes | None, int | None]]:
    return [(record.value, record.partition) for record in driver._outputs[topic]]


@pytest.mark.parametrize("topic", ["out", lambda key, value, metadata: "out"])
def test_a_sink_writes_to_all_chosen_partitions(text: Options, topic: Any) -> None:
    partitioner = ByHeader()
    with driver_of(lambda builder: builder.stream("in", **text).to(topic, partitioner=partitioner, **text)) as driver:
        pipe_all(driver)
        assert sent(driver, "out") == CHOSEN
        assert driver.dropped_records() == {("KSTREAM-SINK-0000000001", "partitioner returned no partition"): 1}
    assert partitioner.calls[:2] == [("out", "k", "none", None, 1), ("out", "k", "one", [("to", b"1")], 1)]


def test_a_repartition_topic_gets_a_record_in_each_partition(text: Options) -> None:
    def declare(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", **text).repartition(name="again", partitioner=ByHeader(), **text)
        stream.map_values(str.upper).to("out", **text)

    with driver_of(declare) as driver:
        pipe_all(driver)
        assert sent(driver, "topology-test-driver-again-repartition") == CHOSEN
        assert [value for value, _ in sent(driver, "out")] == [b"NONE", b"ONE", b"TWO", b"TWO", b"TWICE"]


def test_a_sink_of_the_processor_api_has_the_same_partitioners(text: Options) -> None:
    topology = Topology().add_source("source", "in", **text)
    topology.add_sink("headers", "out", "source", partitioner=ByHeader(), **text)
    topology.add_sink("function", "other", "source", partitioner=lambda topic, key, value, count: {0, len(key)}, **text)
    with TopologyTestDriver(topology) as driver:
        pipe_all(driver)
        assert sent(driver, "out") == CHOSEN
        assert sent(driver, "other") == [(name.encode(), partition) for name in INPUTS for partition in (0, 1)]


class Index:
    """An integer of another type, as NumPy has them."""

    def __index__(self) -> int:
        return 2


def test_integers_of_other_types_are_partitions(text: Options) -> None:
    chosen: list[Any] = [True, Index(), (Index(), 1)]
    with driver_of(
        lambda builder: builder.stream("in", **text).to(
            "out", partitioner=lambda topic, key, value, count: chosen[int(value)], **text
        )
    ) as driver:
        for number in range(3):
            driver.create_input_topic("in").pipe_input("k", str(number))
        assert [partition for _, partition in sent(driver, "out")] == [1, 2, 2, 1]


@pytest.mark.parametrize("chosen", [-1, [0, -1], "1", "", b"1", 1.0, ["0"], [None], iter([1])])
def test_what_is_no_partition_is_refused(text: Options, chosen: Any) -> None:
    def declare(builder: StreamsBuilder) -> None:
        builder.stream("in", **text).to("out", partitioner=lambda *_: chosen, name="sink", **text)

    with driver_of(declare) as driver:
        with pytest.raises(
            StreamsError, match=r"processor=sink, topic=in.*partitioner of topic out must return a part"
        ):
            driver.create_input_topic("in").pipe_input("k", "v")
        assert driver.produced_topic_names() == set()


def by_foreign_key(text: Options, **partitioners: Any) -> Callable[[StreamsBuilder], None]:
    def declare(builder: StreamsBuilder) -> None:
        left, right = builder.table("left", **text), builder.table("right", **text)
        joined = left.join(right, "{}{}".format, foreign_key=lambda value: value, **partitioners)
        joined.to_stream().to("out", **text)

    return declare


def test_a_foreign_key_join_shows_keys_and_headers_to_partitioners(text: Options) -> None:
    calls: list[Any] = []

    class Keys(StreamPartitioner[str, None]):
        def partitions(self, topic: str, key: str, value: None, headers: Any, partition_count: int) -> set[int]:
            calls.append((topic.rpartition("-")[0][-12:], key, value, headers, partition_count))
            return {0}

    def function(topic: str, key: str, value: None, count: int) -> int:
        calls.append((topic.rpartition("-")[0][-12:], key, value, count))
        return 0

    with driver_of(by_foreign_key(text, partitioner=Keys(), other_partitioner=function)) as driver:
        driver.create_input_topic("right").pipe_input("r", "R")
        driver.create_input_topic("left").pipe_input("l", "r", headers=[("h", b"1")])
        assert driver.create_output_topic("out").read_value() == "rR"
    assert [call[1:3] for call in calls] == [("r", None), ("l", None)]
    assert calls[1][3:] == ([("h", b"1")], 1)


@pytest.mark.parametrize("chosen", [[0, 1], []])
@pytest.mark.parametrize("which", ["partitioner", "other_partitioner"])
def test_a_foreign_key_join_has_one_place_for_a_record(text: Options, chosen: list[int], which: str) -> None:
    with driver_of(by_foreign_key(text, **{which: lambda *_: chosen})) as driver:
        driver.create_input_topic("right").pipe_input("r", "R")
        with pytest.raises(StreamsError, match=r"must return one partition of .*-topic for the key '[rl]', not \["):
            driver.create_input_topic("left").pipe_input("l", "r")


def test_the_processing_handler_decides_about_a_partitioner_that_fails(text: Options) -> None:
    """As in Kafka Streams, that of the operator before the sink."""
    builder = StreamsBuilder()
    stream = builder.stream("in", **text).map_values(str.strip)
    stream.to("out", partitioner=lambda topic, key, value, count: int(value), **text)
    config = StreamsConfig(
        {"application.id": "app", "bootstrap.servers": "x:1", "processing.exception.handler": "continue"}
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        for value in ("0", "zero", "-1", "1"):
            driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("k", value)
        assert sent(driver, "out") == [(b"0", 0), (b"1", 1)]
        assert sum(driver.dropped_records().values()) == 2


@pytest.mark.parametrize("failing", ["partitioner", "topic", "serde"])
@pytest.mark.parametrize("before", ["nothing", "a merge"])
def test_the_processing_handler_decides_about_a_sink_behind_a_source(
    text: Options, failing: str, before: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No operator before it has a guard; the other child of the source still gets the record."""
    builder = StreamsBuilder()
    stream = builder.stream(["in", "also"], **text)
    if before == "a merge":
        stream = stream.merge(builder.stream("more", **text))
    if failing == "partitioner":
        stream.to("out", partitioner=lambda topic, key, value, count: int(value), **text)
    elif failing == "topic":
        stream.to(lambda key, value, context: "out" if int(value) >= 0 else "none", **text)
    else:
        stream.to("out", key_serde=Serdes.string(), value_serde=Digits())
    stream.to("all", **text)
    config = StreamsConfig(
        {
            "application.id": "app",
            "bootstrap.servers": "x:1",
            "processing.exception.handler": "log_and_continue",
            "errors.dead.letter.queue.topic.name": "dead",
        }
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        for value in ("0", "zero", "1"):
            driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("k", value)
        assert [value for value, _ in sent(driver, "out")] == [b"0", b"1"]
        assert [value for value, _ in sent(driver, "all")] == [b"0", b"zero", b"1"]
        assert [value for value, _ in sent(driver, "dead")] == [b"zero"]
        assert sum(driver.dropped_records().values()) == 1
    assert caplog.text.count("the record is dropped") == 1
