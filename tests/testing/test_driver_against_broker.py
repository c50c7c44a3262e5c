"""TopologyTestDriver with several partitions has the results of an application on a broker, partition by partition.

The broker is the one in memory, whose answers test_broker_answers.py compares with a real one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from penstock import InvalidStateStoreError, JoinWindows, KafkaStreams, Serdes, StreamsBuilder, TimeWindows, Topology
from penstock.testing import EmbeddedKafka, TestRecord, TopologyTestDriver
from tests.examples import examples
from tests.waiting import PATIENCE_SECONDS, eventually

TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
COUNT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.int64()}
#: (key, value, timestamp in ms, partition); with a partition of None, the key's
Input = tuple[str, str, int, int | None]


def first_of(key: str, value: str) -> str:
    return value[0]


def both(left: str, right: str) -> str:
    return f"{left}+{right}"


def by_length(topic: str, key: str, value: object, count: int) -> int:
    return (len(key) + len(str(value))) % count


def counted_again() -> Topology:
    """A count of re-keyed records, and a sink with a partitioner."""
    builder = StreamsBuilder()
    stream = builder.stream("left", **TEXT)
    stream.group_by(first_of, **TEXT).count(store="counts").to_stream().to("out", **COUNT)
    stream.to("other", partitioner=by_length, **TEXT)
    return builder.build()


def windows_of_a_declared_number() -> Topology:
    builder = StreamsBuilder()
    moved = builder.stream("left", **TEXT).repartition(number_of_partitions=5, partitioner=by_length, **TEXT)
    windows = moved.group_by_key(**TEXT).windowed_by(TimeWindows(timedelta(seconds=20), grace=timedelta(days=1)))
    windows.count(store="counts").to_stream(lambda window, count: f"{window.key}@{window.start}").to("out", **COUNT)
    return builder.build()


def joined_streams() -> Topology:
    """Both streams are re-keyed; the second one has fewer partitions."""
    builder = StreamsBuilder()
    left = builder.stream("left", **TEXT).select_key(first_of)
    right = builder.stream("right", **TEXT).select_key(first_of)
    window = JoinWindows(timedelta(seconds=15), grace=timedelta(days=1))
    left.join(right, both, window, **TEXT, other_value_serde=Serdes.string()).to("out", **TEXT)
    return builder.build()


def table_joined_by_another_key() -> Topology:
    builder = StreamsBuilder()
    table = builder.table("right", store="rows", **TEXT)
    left = builder.stream("left", **TEXT).select_key(first_of)
    left.left_join(table, lambda value, row: f"{value}/{row}", **TEXT).to("out", **TEXT)
    return builder.build()


def foreign_keys() -> Topology:
    builder = StreamsBuilder()
    left, right = builder.table("left", store="left", **TEXT), builder.table("right", store="right", **TEXT)
    joined = left.join(right, both, foreign_key=lambda value: value[0], store="joined", **TEXT)
    joined.to_stream().to("out", **TEXT)
    return builder.build()


class Case(NamedTuple):
    """A topology, and its stores by their numbers of partitions.

    is_table: only the last row of each key is determined, as intermediate ones depend on the order of two topics.
    """

    topology: Callable[[], Topology]
    partitions: Mapping[str, int]
    stores: Mapping[str, int] = {}
    is_table: bool = False


CASES = {
    case.topology.__name__: case
    for case in (
        Case(counted_again, {"left": 3, "right": 1, "out": 2, "other": 4}, {"counts": 3}),
        Case(windows_of_a_declared_number, {"left": 2, "right": 1, "out": 3}),
        Case(joined_streams, {"left": 3, "right": 2, "out": 2}),
        Case(table_joined_by_another_key, {"left": 2, "right": 4, "out": 3}, {"rows": 4}),
        Case(foreign_keys, {"left": 3, "right": 2, "out": 2}, {"joined": 3}, is_table=True),
    )
}
#: By topic and partition: how often each (key, value) is there, or of a table the last value of each key.
Results = dict[tuple[str, int], Mapping[object, object]]


def inputs(seed: int, case: Case) -> dict[str, list[Input]]:
    """Return random records; the right ones are older, so tables are complete before the stream is read."""
    chance = random.Random(seed)
    made: dict[str, list[Input]] = {}
    for topic, start in (("right", 1_000), ("left", 100_000)):
        times = sorted(start + chance.randrange(60_000) for _ in range(60))
        anywhere = topic == "left" and not case.is_table
        made[topic] = [
            (
                chance.choice("abcdefgh"),
                chance.choice("abcdefgh") + str(number),
                time - (99_000 if case.topology is joined_streams and topic == "left" else 0),
                chance.randrange(case.partitions[topic]) if anywhere and chance.random() < 0.5 else None,
            )
            for number, time in enumerate(times)
        ]
    return made


def summary(records: Sequence[tuple[object, object]], is_table: bool) -> Mapping[object, object]:
    return dict(records) if is_table else Counter(records)


def topics(case: Case) -> list[str]:
    return [topic for topic in case.partitions if topic not in ("left", "right")]


def by_driver(case: Case, given: Mapping[str, list[Input]]) -> tuple[Results, Mapping[tuple[str, int], object]]:
    """Return the outputs, and the stores' rows."""
    topology = case.topology()
    read = {topic for topic in ("left", "right") if topic in str(topology.describe())}
    counts = {topic: count for topic, count in case.partitions.items() if topic in {*read, *topics(case)}}
    with TopologyTestDriver(topology, {"application.id": "same"}, partitions=counts) as driver:
        for topic in sorted(read, reverse=True):
            source = driver.create_input_topic(topic)
            source.pipe_record_list([TestRecord(k, v, ts, None, partition) for k, v, ts, partition in given[topic]])
        found: Results = {}
        for topic in topics(case):
            records = driver.create_output_topic(topic, Serdes.bytes(), Serdes.bytes()).read_records_to_list()
            for partition in range(case.partitions[topic]):
                here = [(record.key, record.value) for record in records if record.partition == partition]
                found[topic, partition] = summary(here, case.is_table)
        rows = {
            (store, partition): dict(driver.get_key_value_store(store, partition).all())
            for store, count in case.stores.items()
            for partition in range(count)
        }
    return found, rows


def by_broker(case: Case, given: Mapping[str, list[Input]], expected: Results, folder: Path) -> Results:
    """Return the outputs of an application, and compare its stores."""
    with EmbeddedKafka(topics=dict(case.partitions)) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"})
        for topic, records in given.items():
            for key, value, timestamp, partition in records:
                producer.produce(topic, value, key, -1 if partition is None else partition, timestamp=timestamp)
        assert producer.flush(PATIENCE_SECONDS) == 0
        config = {
            "application.id": "same",
            "bootstrap.servers": kafka.bootstrap_servers,
            "state.dir": str(folder),
            "statestore.cache.max.bytes": 0,
            "max.task.idle.ms": 1_000,
            "num.stream.threads": 2,
            "commit.interval.ms": 100,
        }

        def found() -> Results:
            return {
                (topic, partition): summary(
                    [(record.key, record.value) for record in kafka.records(topic, partition)], case.is_table
                )
                for topic in topics(case)
                for partition in range(case.partitions[topic])
            }

        with KafkaStreams(case.topology(), config) as application:
            application.start()
            eventually(lambda: sizes(found()) == sizes(expected), lambda: (sizes(found()), sizes(expected)))
            _, rows = by_driver(case, given)
            for store, count in case.stores.items():
                for partition in range(count):
                    read = stored(application, store, partition)
                    assert read == rows[store, partition], (store, partition)
        return found()


def stored(application: KafkaStreams, store: str, partition: int) -> object:
    """Return the rows of a store's partition, once its task does not move."""
    found: list[object] = []

    def is_read() -> bool:
        with suppress(InvalidStateStoreError):
            found.append(dict(application.store(store, partition=partition).all()))
        return bool(found)

    eventually(is_read, f"{store} can be read")
    return found[0]


def sizes(results: Results) -> list[object]:
    """Return the numbers of records by topic; a table is complete once it is equal."""
    numbers = Counter[str]()
    for (topic, _), found in results.items():
        numbers[topic] += found.total() if isinstance(found, Counter) else 0
    return [numbers, *(found for found in results.values() if not isinstance(found, Counter))]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(examples(8)))
def test_the_driver_has_the_results_of_a_broker(name: str, seed: int, tmp_path: Path) -> None:
    case = CASES[name]
    given = inputs(seed, case)
    expected, _ = by_driver(case, given)
    assert sum(map(len, expected.values())) > 4, "there is something to compare"
    assert by_broker(case, given, expected, tmp_path) == expected
