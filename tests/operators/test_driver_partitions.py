"""TopologyTestDriver with several partitions (KIP-1238)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    EmitStrategy,
    IdleTimeout,
    Processor,
    Punctuation,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
)
from penstock.testing import TestRecord, TopologyTestDriver
from penstock.topology.context.partitioners import partition_for_key
from penstock.topology.errors import StreamsError


def counts(**repartitioned: Any) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    if repartitioned:
        stream = stream.repartition(**repartitioned)
    stream.group_by_key().count(store="counts").to_stream().to("out", value_serde=Serdes.int64())
    return builder.build()


def words() -> Topology:
    builder = StreamsBuilder()
    by_word = builder.stream("lines").flat_map_values(str.split).group_by(lambda key, word: word)
    by_word.count(store="counts").to_stream().to("out", value_serde=Serdes.int64())
    return builder.build()


def of_key(key: str, count: int) -> int:
    return partition_for_key(key.encode(), count)


def test_a_record_goes_to_the_partition_of_its_key_and_output_says_which() -> None:
    with TopologyTestDriver(counts(), partitions=4) as driver:
        source = driver.create_input_topic("in")
        keys = [f"key {number}" for number in range(20)]
        source.pipe_key_value_list([(key, 1) for key in keys])
        read = driver.create_output_topic("out").read_records_to_list()
        assert [(record.key, record.partition) for record in read] == [(key, of_key(key, 4)) for key in keys]
        assert {record.partition for record in read} == {0, 1, 2, 3}
        changelog = driver.create_output_topic("topology-test-driver-counts-changelog").read_records_to_list()
        assert [(record.key.decode(), record.partition) for record in changelog] == [
            (record.key, record.partition) for record in read
        ]
        for partition in range(4):
            stored = driver.get_key_value_store("counts", partition).all()
            assert {key for key, _ in stored} == {key for key in keys if of_key(key, 4) == partition}


def test_a_key_in_the_wrong_partition_is_counted_there() -> None:
    """What the driver with one partition cannot show: a key that is not in the partition of its hash."""
    with TopologyTestDriver(counts(), partitions={"in": 2, "out": 1}) as driver:
        source, out = driver.create_input_topic("in"), driver.create_output_topic("out")
        for partition in (0, 1, 1):
            source.pipe_input("a", "x", partition=partition)
        source.pipe_input(TestRecord("a", "x", 7, {"h": b"1"}, partition=0))
        source.pipe_record_list([TestRecord("a", "x", 8, partition=1)])
        assert [(r.value, r.partition) for r in out.read_records_to_list()] == [(1, 0), (1, 0), (2, 0), (2, 0), (3, 0)]
        assert [driver.get_key_value_store("counts", partition).get("a") for partition in (0, 1)] == [2, 3]


def test_processing_a_changed_key_without_repartition_splits_its_state() -> None:
    """The example of KIP-1238: process() after select_key() makes no repartition topic."""

    class Count(Processor[str, str, str, int]):
        def process(self, record: Record[str, str]) -> None:
            store = self.context.get_state_store("seen")
            count = (store.get(record.key) or 0) + 1
            store.put(record.key, count)
            self.context.forward(record.with_value(count))

    def last(repartition: bool, **options: Any) -> Any:
        builder = StreamsBuilder()
        store = Stores.key_value_store_builder(
            Stores.in_memory_key_value_store("seen"), Serdes.string(), Serdes.int64()
        )
        builder.add_state_store(store)
        stream = builder.stream("in").select_key(lambda key, value: value)
        if repartition:
            stream = stream.repartition()
        stream.process(Count, "seen").to("out", value_serde=Serdes.int64())
        with TopologyTestDriver(builder.build(), **options) as driver:
            driver.create_input_topic("in").pipe_key_value_list([(f"k{number}", "same") for number in range(10)])
            return max(driver.create_output_topic("out").read_values_to_list())

    assert last(repartition=False) == 10, "one partition hides the fault"
    assert last(repartition=False, partitions=3) < 10
    assert last(repartition=True, partitions=3) == 10


def test_records_without_key_go_to_the_partitions_in_turn() -> None:
    with TopologyTestDriver(words(), partitions={"lines": 3}) as driver:
        driver.create_input_topic("lines").pipe_value_list(["to be", "or not", "to be"])
        read = driver.create_output_topic("out").read_records_to_list()
        assert {record.key: record.value for record in read} == {"to": 2, "be": 2, "or": 1, "not": 1}
        topic = "topology-test-driver-counts-repartition"
        moved = driver.create_output_topic(topic).read_records_to_list()
        assert {(record.key, record.partition) for record in moved} == {
            (word, of_key(word, 3)) for word in ("to", "be", "or", "not")
        }


@pytest.mark.parametrize("number", [1, 5])
def test_a_repartition_topic_has_the_declared_number(number: int) -> None:
    with TopologyTestDriver(counts(name="re", number_of_partitions=number), partitions={"in": 2}) as driver:
        driver.create_input_topic("in").pipe_key_value_list([(f"k{n}", "") for n in range(40)])
        moved = driver.create_output_topic("topology-test-driver-re-repartition").read_records_to_list()
        assert {record.partition for record in moved} == set(range(number))
        rows = [
            driver.get_key_value_store("counts", partition).approximate_num_entries() for partition in range(number)
        ]
        assert sum(rows) == 40
        assert min(rows) > 0


def test_a_partitioner_chooses_the_partition() -> None:
    builder = StreamsBuilder()

    def by_value(topic: str, key: str, value: str, count: int) -> int:
        assert (topic, count) in {("topology-test-driver-r-repartition", 3), ("out", 4)}
        return int(value) % count

    builder.stream("in").repartition(name="r", partitioner=by_value).to("out", partitioner=by_value)
    with TopologyTestDriver(builder.build(), partitions={"in": 3, "out": 4}) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("k", str(n)) for n in range(8)])
        read = {record.value: record.partition for record in driver.create_output_topic("out").read_records_to_list()}
        assert read == {str(n): n % 4 for n in range(8)}


def test_a_partitioner_that_chooses_a_partition_that_does_not_exist() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out", partitioner=lambda topic, key, value, count: count)
    with TopologyTestDriver(builder.build(), partitions=2) as driver:
        source = driver.create_input_topic("in")
        with pytest.raises(ValueError, match="Topic out has no partition 2: it has 2"):
            source.pipe_input("k", "v")


def test_joined_topics_need_the_same_number_of_partitions() -> None:
    builder = StreamsBuilder()
    builder.stream("orders").join(builder.table("people"), lambda order, person: f"{order} {person}").to("out")
    topology = builder.build()
    with pytest.raises(TopologyError, match=r"not co-partitioned: orders has 4, people has 2"):
        TopologyTestDriver(topology, partitions={"orders": 4, "people": 2})
    with TopologyTestDriver(topology, partitions=3) as driver:
        people, orders = driver.create_input_topic("people"), driver.create_input_topic("orders")
        people.pipe_key_value_list([(f"p{n}", f"name{n}") for n in range(9)])
        orders.pipe_key_value_list([(f"p{n}", f"order{n}") for n in range(9)])
        joined = driver.create_output_topic("out").read_key_values_to_map()
        assert joined == {f"p{n}": f"order{n} name{n}" for n in range(9)}
        people.pipe_input("p1", "moved", partition=(of_key("p1", 3) + 1) % 3)
        orders.pipe_input("p1", "late")
        assert driver.create_output_topic("out").read_value() == "late name1"


def test_a_join_repartitions_to_the_number_of_the_table() -> None:
    builder = StreamsBuilder()
    people = builder.table("people")
    by_person = builder.stream("orders").select_key(lambda key, person: person)
    by_person.join(people, lambda order, person: person, name="join").to("out")
    with TopologyTestDriver(builder.build(), partitions={"orders": 2, "people": 5}) as driver:
        driver.create_input_topic("people").pipe_key_value_list([(f"p{n}", f"name{n}") for n in range(9)])
        driver.create_input_topic("orders").pipe_key_value_list([(f"o{n}", f"p{n}") for n in range(9)])
        assert driver.create_output_topic("out").read_key_values_to_map() == {f"p{n}": f"name{n}" for n in range(9)}


def test_global_tables_are_the_same_for_all_tasks() -> None:
    builder = StreamsBuilder()
    people = builder.global_table("people", store="people")
    builder.stream("orders").join(people, lambda key, person: person, lambda order, person: person).to("out")
    with TopologyTestDriver(builder.build(), partitions={"orders": 3, "people": 2}) as driver:
        driver.create_input_topic("people").pipe_key_value_list([(f"p{n}", f"name{n}") for n in range(9)])
        driver.create_input_topic("orders").pipe_key_value_list([(f"o{n}", f"p{n}") for n in range(9)])
        assert sorted(driver.create_output_topic("out").read_values_to_list()) == [f"name{n}" for n in range(9)]
        assert driver.get_key_value_store("people").get("p3") == "name3"
        assert driver.get_all_state_stores(2).keys() == {"people"}


class Where(Processor[str, str, str | None, str]):
    """Forwards the task and the origin of each record, and its task when the wall clock moves."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule(timedelta(seconds=1), Punctuation.WALL_CLOCK_TIME, self.tick)

    def process(self, record: Record[str, str]) -> None:
        origin = self.context.record_metadata()
        assert origin is not None
        self.context.forward(record.with_value(f"{self.context.task_id} {origin.partition} {origin.offset}"))

    def tick(self, now_ms: int) -> None:
        self.context.forward(Record(None, f"tick of {self.context.task_id}", now_ms))


def test_tasks_are_those_of_an_application() -> None:
    builder = StreamsBuilder()
    builder.stream("other").to("elsewhere")
    builder.stream("in").process(Where).to("out")
    with TopologyTestDriver(builder.build(), partitions={"in": 2, "other": 3}) as driver:
        source, out = driver.create_input_topic("in"), driver.create_output_topic("out")
        for partition in (1, 0, 1):
            source.pipe_input("k", "v", partition=partition)
        assert out.read_values_to_list() == ["1_1 1 0", "1_0 0 0", "1_1 1 1"]
        driver.advance_wall_clock_time(1_000)
        assert out.read_values_to_list() == ["tick of 1_0", "tick of 1_1"]


def test_each_task_has_its_own_stream_time() -> None:
    builder = StreamsBuilder()
    hours = builder.stream("in").group_by_key().windowed_by(TimeWindows.of_size_and_grace(10, 0))
    hours.count().to_stream(lambda window, count: f"{window.key}@{window.start}").to("out")
    with TopologyTestDriver(builder.build(), partitions=2) as driver:
        source = driver.create_input_topic("in")
        source.pipe_input("a", "", 100, partition=0)
        source.pipe_input("b", "", 5, partition=1)
        source.pipe_input("b", "", 5, partition=0)
        assert driver.create_output_topic("out").read_key_values_to_list() == [("a@100", 1), ("b@0", 1)]
        assert sum(driver.dropped_records().values()) == 1, "too late in partition 0 only"


def test_an_idle_partition_follows_the_others() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", idle_timeout=IdleTimeout(1_000, "others"))
    windows = stream.group_by_key().windowed_by(TimeWindows.of_size_and_grace(10, 0))
    windows.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count().to_stream(lambda window, count: window.key).to("out")
    with TopologyTestDriver(builder.build(), partitions=2) as driver:
        source, out = driver.create_input_topic("in"), driver.create_output_topic("out")
        source.pipe_input("quiet", "", 5, partition=1)
        source.pipe_input("busy", "", 50, partition=0)
        assert out.is_empty()
        driver.advance_wall_clock_time(2_000)
        assert out.read_key_values_to_list() == [("quiet", 1)]


def test_a_foreign_key_join_crosses_partitions() -> None:
    builder = StreamsBuilder()
    orders, people = builder.table("orders", store="orders"), builder.table("people", store="people")
    joined = orders.join(people, lambda order, person: f"{order}={person}", foreign_key=lambda order: order)
    joined.to_stream().to("out")
    with TopologyTestDriver(builder.build(), partitions={"orders": 3, "people": 2}) as driver:
        driver.create_input_topic("orders").pipe_key_value_list([(f"o{n}", f"p{n % 4}") for n in range(12)])
        driver.create_input_topic("people").pipe_key_value_list([(f"p{n}", f"name{n}") for n in range(4)])
        found = driver.create_output_topic("out").read_key_values_to_map()
        assert found == {f"o{n}": f"p{n % 4}=name{n % 4}" for n in range(12)}


def test_topics_of_a_pattern_are_named() -> None:
    import re

    builder = StreamsBuilder()
    builder.stream(re.compile("orders-.*")).to("out")
    topology = builder.build()
    with pytest.raises(TopologyError, match="No topic matches the pattern of KSTREAM-SOURCE-0000000000"):
        TopologyTestDriver(topology, partitions=2)
    with TopologyTestDriver(topology, partitions={"orders-eu": 2, "orders-us": 3}) as driver:
        driver.create_input_topic("orders-us").pipe_input("k", "v", partition=2)
        driver.create_input_topic("orders-eu").pipe_input("k", "w", partition=1)
        assert driver.create_output_topic("out").read_values_to_list() == ["v", "w"]


@pytest.mark.parametrize("partitions", [0, -1, True, 1.5, {"in": 0}, {"in": "2"}])
def test_wrong_numbers(partitions: Any) -> None:
    with pytest.raises(ValueError, match=r"The number of partitions of .* must be 1 or more"):
        TopologyTestDriver(counts(), partitions=partitions)


@pytest.mark.parametrize("name", ["int", "topology-test-driver-counts-changelog", "topology-test-driver-r-repartition"])
def test_a_topic_that_the_topology_does_not_have(name: str) -> None:
    with pytest.raises(TopologyError, match=rf"names topic {name}, which .* its topics are in, out\."):
        TopologyTestDriver(counts(name="r"), partitions={name: 2})


def test_a_topic_that_a_function_chooses_can_be_named() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to(lambda key, value, metadata: f"out-{value}")
    with TopologyTestDriver(builder.build(), partitions={"in": 2, "out-a": 3}) as driver:
        driver.create_input_topic("in").pipe_key_value_list([(f"k{n}", "ab"[n % 2]) for n in range(30)])
        for topic, partitions in (("out-a", {0, 1, 2}), ("out-b", {0})):
            assert {
                record.partition for record in driver.create_output_topic(topic).read_records_to_list()
            } == partitions


def test_wrong_partitions_of_records_and_stores() -> None:
    with TopologyTestDriver(counts(), partitions=2) as driver:
        source = driver.create_input_topic("in")
        for partition in (2, -1):
            with pytest.raises(ValueError, match=f"Topic in has no partition {partition}: it has 2"):
                source.pipe_input("a", "x", partition=partition)
        for wrong in (None, 2, -1):
            with pytest.raises(ValueError, match=f"Store counts has the partitions 0 to 1, got partition={wrong}"):
                driver.get_key_value_store("counts", wrong)
        assert driver.get_key_value_store("unknown", 5) is None
        assert driver.get_state_store("unknown") is None
        assert driver.get_all_state_stores(1).keys() == {"counts"}
        with pytest.raises(ValueError, match="got partition=None"):
            driver.get_all_state_stores()


def test_without_partitions_there_is_one() -> None:
    with TopologyTestDriver(counts(name="r", number_of_partitions=4)) as driver:
        source = driver.create_input_topic("in")
        source.pipe_input("a", "x", partition=0)
        with pytest.raises(ValueError, match=r"Topic in has no partition 1: it has 1, see partitions="):
            source.pipe_input("a", "x", partition=1)
        (read,) = driver.create_output_topic("out").read_records_to_list()
        assert (read.partition, read) == (0, Record("a", 1, read.timestamp))
        assert repr(read) == f"TestRecord(key='a', value=1, timestamp={read.timestamp}, headers=None, partition=0)"
        assert driver.get_key_value_store("counts").get("a") == driver.get_key_value_store("counts", 0).get("a") == 1
        with pytest.raises(ValueError, match="Store counts has the partitions 0 to 0, got partition=1"):
            driver.get_key_value_store("counts", 1)


def test_a_failing_operator_is_named_and_the_rest_continues() -> None:
    builder = StreamsBuilder()
    builder.stream("in").map_values(int).to("out")
    with TopologyTestDriver(builder.build(), partitions=2) as driver:
        source = driver.create_input_topic("in", value_serde=Serdes.json())
        with pytest.raises(StreamsError, match=r"taskId=0_1, .* partition=1"):
            source.pipe_input("k", "no number", partition=1)
        source.pipe_input("k", "3", partition=0)
        source.pipe_input("k", "4", partition=1)
        assert driver.create_output_topic("out").read_values_to_list() == [3, 4]
