"""Processors that share a store by one StoreBuilder are in one sub-topology, as in Kafka Streams (KAFKA-20464).

Kafka Streams has done so since 4.2.2; before, the second use of a builder disconnected the first one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock import Processor, Record, Serdes, StoreBuilder, Stores, StreamsBuilder, Topology, TopologyError
from penstock.testing import TopologyTestDriver
from tests.java.conftest import driver_program
from tests.java.versions import is_since
from tests.waiting import PATIENCE_SECONDS


def shared() -> StoreBuilder[Any]:
    return Stores.key_value_store_builder(Stores.in_memory_key_value_store("shared"), Serdes.string(), Serdes.string())


class Nothing(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        """Drop it."""


def with_stores(*builders: StoreBuilder[Any]) -> type[Processor[str, str, str, str]]:
    class Supplied(Nothing):
        stores = builders

    return Supplied


def suppliers_of_the_dsl() -> Topology:
    supplied, builder = with_stores(shared()), StreamsBuilder()
    for topic in ("a", "b", "c"):
        builder.stream(topic).process(supplied).to(f"out-{topic}")
    return builder.build()


def sources() -> Topology:
    topology = Topology()
    return topology.add_source("s1", "a").add_source("s2", "b").add_source("s3", "c")


def suppliers() -> Topology:
    builder = shared()
    topology = sources().add_processor("p1", with_stores(builder), "s1")
    return topology.add_processor("p2", with_stores(builder), "s2").add_processor("p3", Nothing, "s3")


def with_processors() -> Topology:
    topology = sources()
    for number in (1, 2, 3):
        topology.add_processor(f"p{number}", Nothing, f"s{number}")
    return topology


def added_twice() -> Topology:
    builder = shared()
    return with_processors().add_state_store(builder, "p1", "p2").add_state_store(builder, "p3")


def supplied_and_added() -> Topology:
    builder = shared()
    topology = sources().add_processor("p1", with_stores(builder), "s1")
    topology.add_processor("p2", Nothing, "s2").add_processor("p3", Nothing, "s3")
    return topology.add_state_store(builder, "p3")


TOPOLOGIES: Mapping[str, Callable[[], Topology]] = {
    made.__name__: made for made in (suppliers_of_the_dsl, suppliers, added_twice, supplied_and_added)
}


@pytest.fixture(scope="module")
def by_java(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if not is_since((4, 2, 2)):
        pytest.skip("Kafka Streams before 4.2.2 disconnects the first processor")
    source = Path(__file__).with_name("SharedStoresProgram.java")
    command = driver_program(source, tmp_path_factory.mktemp("classes"))
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS).stdout
    parts = (part.partition("\n") for part in printed.split("\0"))
    return {name: text for name, _, text in parts}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_descriptions_are_those_of_java(by_java: dict[str, str], name: str) -> None:
    assert str(TOPOLOGIES[name]().describe()).rstrip() == by_java[name].rstrip()


@pytest.mark.slow
def test_two_builders_of_one_name_are_refused_as_in_java(by_java: dict[str, str]) -> None:
    topology = sources().add_processor("p1", with_stores(shared()), "s1")
    with pytest.raises(TopologyError) as raised:
        topology.add_processor("p2", with_stores(shared()), "s2")
    assert by_java["two_builders"].removeprefix("Invalid topology: ").rstrip(".") in str(raised.value)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_processors_are_in_one_sub_topology(name: str) -> None:
    grouped = [set(each.nodes) for each in TOPOLOGIES[name]().internal_builder.build_subtopologies()]
    users = [node for nodes in grouped for node in nodes if node in {"p1", "p2", "p3"} or "PROCESSOR" in node]
    together = {"suppliers": {"p1", "p2"}, "added_twice": {"p1", "p2", "p3"}, "supplied_and_added": {"p1", "p3"}}
    expected = together.get(name, set(users))
    assert [nodes & expected for nodes in grouped if nodes & expected] == [expected]


def test_what_one_processor_puts_the_other_gets() -> None:
    store = shared()

    class Put(Processor[str, str, str, str]):
        stores = (store,)

        def process(self, record: Record[str, str]) -> None:
            self.context.get_state_store("shared").put(record.key, record.value)

    class Get(Processor[str, str, str, str]):
        stores = (store,)

        def process(self, record: Record[str, str]) -> None:
            self.context.forward(record.with_value(self.context.get_state_store("shared").get(record.key)))

    builder = StreamsBuilder()
    builder.stream("a").process(Put)
    builder.stream("b").process(Get).to("out")
    with TopologyTestDriver(builder.build(), partitions=3) as driver:
        keys = [f"k{number}" for number in range(9)]
        driver.create_input_topic("a").pipe_key_value_list([(key, key * 2) for key in keys])
        driver.create_input_topic("b").pipe_key_value_list([(key, "") for key in keys])
        read = driver.create_output_topic("out").read_key_values_to_map()
        assert read == {key: key * 2 for key in keys}
