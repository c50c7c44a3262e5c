"""The Processor API on Topology, the declarations that it refuses, and the resulting sub-topologies."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]
import pytest

from penstock import (
    AutoOffsetReset,
    Processor,
    Record,
    Serdes,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    Windowed,
)
from penstock.topology.context.partitioners import WindowedStreamPartitioner, partition_for_key
from penstock.topology.graph.processor_topology import ProcessorNode, ProcessorTopology, SinkNode, SourceNode


class Forward(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)


STORE = Stores.key_value_store_builder(Stores.in_memory_key_value_store("s"))
GLOBAL = STORE.with_logging_disabled()


class WithStore(Forward):
    stores: ClassVar[list[StoreBuilder]] = [STORE]


def build(topology: Topology, **config: Any) -> list[ProcessorTopology]:
    return topology.internal_builder.build_subtopologies(config)


def chain() -> Topology:
    return Topology().add_source("src", "in").add_processor("p", Forward, "src").add_sink("snk", "out", "p")


def test_nodes_have_the_order_of_their_declaration_with_children() -> None:
    (built,) = build(chain())
    assert list(built.nodes) == ["src", "p", "snk"]
    source, processor, sink = built.nodes.values()
    assert isinstance(source, SourceNode)
    assert (source.topics, source.children) == (("in",), ("p",))
    assert isinstance(processor, ProcessorNode)
    assert processor.children == ("snk",)
    assert isinstance(sink, SinkNode)
    assert (built.source_topics, built.sinks) == (("in",), (sink,))


def test_unconnected_nodes_are_separate_subtopologies() -> None:
    topology = chain().add_source("src2", "in2").add_sink("snk2", "out2", "src2")
    assert [list(built.nodes) for built in build(topology)] == [["src", "p", "snk"], ["src2", "snk2"]]


def test_a_shared_store_makes_one_sub_topology() -> None:
    topology = chain().add_source("src2", "in2").add_processor("q", Forward, "src2").add_state_store(STORE, "p", "q")
    (built,) = build(topology)
    assert dict(built.stores) == {"s": STORE}
    assert built.changelog_topics == {"s": "s-changelog"}
    assert "Processor: q (stores: [s])" in str(topology.describe())


def test_a_processor_may_add_its_own_stores() -> None:
    topology = Topology().add_source("src", "in").add_processor("p", WithStore, "src")
    assert list(build(topology)[0].stores) == ["s"]


def test_the_same_builder_may_be_added_again() -> None:
    topology = chain().add_processor("q", Forward, "p").add_state_store(STORE, "p").add_state_store(STORE, "q")
    assert len(build(topology)[0].stores) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.add_source("src", "other"), "Processor src is already added"),
        (lambda t: t.add_processor("p", Forward, "src"), "Processor p is already added"),
        (lambda t: t.add_sink("snk", "out", "p"), "Processor snk is already added"),
        (lambda t: t.add_source("src2"), 'Source "src2" must have at least one topic'),
        (lambda t: t.add_source("src2", "in"), "Topic in has already been registered"),
        (lambda t: t.add_source("src2", re.compile("i.")), "Pattern i. will match topic in"),
        (lambda t: t.add_source("src2", re.compile("x.*")).add_source("src3", "xy"), "matches the pattern x"),
        (lambda t: t.add_source("src2", "a", re.compile("b")), "either topics or one pattern"),
        (lambda t: t.add_source("src2", "a", offset_reset="newest"), "no offset reset policy 'newest'"),
        (lambda t: t.add_processor("q", Forward), "Processor q must have at least one parent"),
        (lambda t: t.add_sink("snk2", "out"), "Sink snk2 must have at least one parent"),
        (lambda t: t.add_processor("q", Forward, "q"), "cannot be a predecessor of itself"),
        (lambda t: t.add_processor("q", Forward, "nobody"), "nobody is not added yet for q.*cycles are not allowed"),
        (lambda t: t.add_processor("q", Forward, "snk"), "Sink snk cannot be used as a parent"),
        (lambda t: t.connect_processor_and_state_stores("p", "s"), "StateStore s is not added yet"),
        (lambda t: t.connect_processor_and_state_stores("p"), "at least one store"),
        (lambda t: t.add_state_store(STORE, "nobody"), "Processor nobody is not added yet"),
        (lambda t: t.add_state_store(STORE, "src"), "it is a source or a sink"),
        (lambda t: t.add_state_store(STORE).add_state_store(STORE.with_caching_enabled()), "different StateStore"),
        (lambda t: t.add_global_store(STORE, "gs", "g", "gp", Forward), "must not have logging enabled"),
        (lambda t: t.add_global_store(GLOBAL, "gs", "g", "gs", Forward), "different names"),
        (lambda t: t.add_global_store(GLOBAL, "gs", "in", "gp", Forward), "Topic in has already been registered"),
        (
            lambda t: t.add_global_store(GLOBAL, "gs", "g", "gp", Forward).add_state_store(GLOBAL, "p"),
            "different GlobalStateStore",
        ),
        (
            lambda t: t.add_global_store(GLOBAL, "gs", "g", "gp", Forward).connect_processor_and_state_stores("p", "s"),
            "can be used by every processor",
        ),
    ],
)
def test_impossible_declarations_are_refused(change: Callable[[Topology], object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        change(chain())


def test_a_global_store_is_separate() -> None:
    topology = chain().add_global_store(GLOBAL, "gs", "g", "gp", Forward)
    (task,) = build(topology)
    assert task.source_topics == ("in",)
    assert task.global_stores == ("s",)
    built = topology.internal_builder.build_global_topology()
    assert built is not None
    assert (built.source_topics, list(built.stores)) == (("g",), ["s"])
    assert built.changelog_topics == {"s": "g"}
    assert built.reprocess_on_restore == {"s"}
    assert "Sub-topology: 1 for global store (will not generate tasks)" in str(topology.describe())


def test_without_global_stores_there_is_no_global_topology() -> None:
    assert chain().internal_builder.build_global_topology() is None


def test_a_read_only_store_has_its_topic_as_changelog() -> None:
    topology = Topology().add_read_only_state_store(STORE, "src", "rows", "update", Forward)
    (built,) = build(topology)
    assert built.changelog_topics == {"s": "rows"}
    assert not built.stores["s"].logging
    source = built.nodes["src"]
    assert isinstance(source, SourceNode)
    assert source.auto_offset_reset is AutoOffsetReset.EARLIEST


def test_a_pattern_reads_known_topics_that_match() -> None:
    topology = Topology().add_source("src", re.compile(r"in-\d")).add_sink("snk", "out", "src")
    (built,) = topology.internal_builder.build_subtopologies(None, ["in-2", "in-1", "in-10", "other"])
    assert built.source_topics == ("in-1", "in-2")
    assert topology.internal_builder.source_patterns() == (re.compile(r"in-\d"),)
    assert r"Source: src (topics: in-\d)" in str(topology.describe())


def test_reused_source_topics_are_changelogs() -> None:
    builder = StreamsBuilder()
    builder.table("in", store="t")
    config = {"topology.optimization": "reuse.ktable.source.topics"}
    (built,) = builder.build(config).internal_builder.build_subtopologies()
    assert built.changelog_topics == {"t": "in"}
    assert not built.stores["t"].logging


def test_repartition_topics_have_a_writer_and_a_reader() -> None:
    builder = StreamsBuilder()
    builder.stream("in").repartition(name="r", number_of_partitions=3).to("out")
    writer, reader = builder.build().internal_builder.build_subtopologies()
    assert writer.repartition_topics == reader.repartition_topics == {"r-repartition": 3}


def test_joined_topics_are_copartitioned() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("a").select_key(lambda key, value: value)
    joined = stream.join(builder.table("b"), lambda one, other: one)
    joined.join(builder.table("c"), lambda one, other: one).to("out")
    topologies = builder.build().internal_builder.build_subtopologies()
    assert topologies[0].copartition_groups == ()
    (group,) = topologies[1].copartition_groups
    assert group == {"KSTREAM-KEY-SELECT-0000000001-repartition", "b", "c"}


def test_merged_repartition_topics_stay_copartitioned() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("a").select_key(lambda key, value: value)
    stream.join(builder.table("b"), lambda one, other: one).to("out")
    stream.group_by_key().count(store="c")
    topology = builder.build({"topology.optimization": "all"})
    (group,) = topology.internal_builder.copartition_groups()
    assert group == {"KSTREAM-KEY-SELECT-0000000001-repartition", "b"}


def test_different_partition_counts_of_joined_topics_are_refused() -> None:
    builder = StreamsBuilder()
    left = builder.stream("a").repartition(name="l", number_of_partitions=2)
    right = builder.stream("b").repartition(name="r", number_of_partitions=3).to_table()
    left.join(right, lambda one, other: one)
    with pytest.raises(TopologyError, match=r"same number of partitions: {'l-repartition': 2, 'r-repartition': 3}"):
        builder.build()


def test_default_serdes_reach_sources_sinks_and_the_partitioner_of_windowed_keys() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().windowed_by(TimeWindows(10)).count().to_stream().to("out")
    (built,) = build(builder.build(), **{"default.key.serde": "string", "default.value.serde": "json"})
    source, sink = next(iter(built.nodes.values())), built.sinks[0]
    assert isinstance(source, SourceNode)
    assert (source.key_serde, source.value_serde) == (Serdes.string(), Serdes.json())
    assert sink.key_serde.serialize("out", Windowed("a", 1, 11)) == b"a" + (1).to_bytes(8, "big")
    assert isinstance(sink.partitioner, WindowedStreamPartitioner)
    assert sink.partitioner("out", Windowed("a", 1, 11), 5, 7) == partition_for_key(b"a", 7)


def test_a_topology_can_be_sent_to_another_process() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.json())
    grouped = stream.group_by(lambda key, value: value["a"])
    grouped.windowed_by(TimeWindows(10)).count(store="c").to_stream().to("out")
    grouped.count().group_by(lambda key, value: (value, key)).count(store="d")
    topology = builder.build()
    copy = cloudpickle.loads(cloudpickle.dumps(topology))
    assert str(copy.describe()) == str(topology.describe())
    assert len(copy.internal_builder.build_subtopologies()) == 4
