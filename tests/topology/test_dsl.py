"""The DSL: options, refused declarations, and results that are not in the recorded cases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import (
    AutoOffsetReset,
    FixedKeyProcessor,
    GlobalKTable,
    JoinWindows,
    KStream,
    Materialized,
    Processor,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
)
from penstock.topology.declare.printed import print_action
from penstock.topology.graph.processor_topology import ProcessorNode, SourceNode
from penstock.topology.operators.operator import Operator
from penstock.topology.operators.stateless import KStreamFilter, PassThrough
from penstock.topology.serdes.windowed_serdes import TimeWindowedSerde


def one(left: Any, right: Any) -> Any:
    return left


def sources(builder: StreamsBuilder) -> dict[str, SourceNode]:
    topologies = builder.build().internal_builder.build_subtopologies()
    nodes = [node for topology in topologies for node in topology.nodes.values()]
    return {node.name: node for node in nodes if isinstance(node, SourceNode)}


def test_every_public_name_exists() -> None:
    missing = [name for name in penstock.__all__ if name != "KafkaStreams" and not hasattr(penstock, name)]
    assert not missing
    assert len(set(penstock.__all__)) == len(penstock.__all__)


def test_options_of_a_source_reach_the_topology() -> None:
    builder = StreamsBuilder()

    def extractor(message: Any, key: Any, value: Any, partition_time: int) -> int:
        return 5

    builder.stream("in", offset_reset="latest", timestamp_extractor=extractor, key_serde=Serdes.string(), name="src")
    node = sources(builder)["src"]
    assert node.auto_offset_reset is AutoOffsetReset.LATEST
    assert node.timestamp_extractor is extractor
    assert node.key_serde is Serdes.string()


def test_the_same_topics_are_read_once() -> None:
    builder = StreamsBuilder()
    builder.stream(["a", "b"]).to("x")
    builder.stream(["b", "a"]).to("y")
    (node,) = sources(builder).values()
    assert len(node.children) == 2


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda b: (b.stream(["a", "b"]), b.stream(["b", "c"])), "overlapping but not equal"),
        (lambda b: (b.stream("a"), b.stream("a", offset_reset="latest")), "different offset reset"),
        (lambda b: (b.stream("a"), b.global_table("a")), "already been registered"),
        (lambda b: (b.table("a"), b.table("a")), "already been registered"),
    ],
)
def test_topics_cannot_be_read_twice_with_different_options(
    declare: Callable[[StreamsBuilder], Any], message: str
) -> None:
    builder = StreamsBuilder()
    declare(builder)
    with pytest.raises(TopologyError, match=message):
        builder.build()


VERSIONED = Stores.persistent_versioned_key_value_store("v", 100)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b, s: b.stream([]), "at least one topic"),
        (lambda b, s: b.stream(""), "at least one topic"),
        (lambda b, s: b.stream("x", offset_reset="now"), "no offset reset policy"),
        (lambda b, s: b.global_table("g", store=VERSIONED), "cannot be versioned"),
        (lambda b, s: s.to(""), "needs the name of a topic"),
        (lambda b, s: s.merge(), "at least one other stream"),
        (lambda b, s: s.repartition(number_of_partitions=0), "positive number of partitions"),
        (lambda b, s: s.filter("x"), "predicate must be a function, got 'x'"),
        (lambda b, s: s.map_values(None), "mapper must be a function"),
        (lambda b, s: s.group_by_key().aggregate({}, one), "initializer must be a function"),
        (lambda b, s: s.process(Sleeper()), "give the class, not an instance"),
        (lambda b, s: s.join(b.stream("y"), one), "needs JoinWindows as its third argument"),
        (lambda b, s: s.join(b.stream("y"), "x", JoinWindows(5)), "joiner must be a function"),
        (lambda b, s: s.join(b.table("y"), one, JoinWindows(5)), "a join with a table has no windows"),
        (lambda b, s: s.join(b.global_table("y"), one), r"needs key_selector\(key, value\)"),
        (
            lambda b, s: s.join(b.global_table("y"), one, key_selector=one, with_key=True, with_mapped_key=True),
            r"joiner\(stream key, mapped key, left, right\); leave out with_key",
        ),
        (lambda b, s: s.join(s.group_by_key(), one), "a stream joins a KStream, KTable or GlobalKTable"),
        (lambda b, s: s.outer_join(b.table("y"), one, None), "use left_join"),
        (lambda b, s: b.table("y").outer_join(b.table("z"), one, foreign_key=str), "no outer join by foreign key"),
        (lambda b, s: b.table("y").join(s, one), "a KTable joins only KTables"),
        (lambda b, s: s.join(b.table("y", store="kept"), one, grace=5), "must be versioned"),
        (lambda b, s: s.join(b.table("y"), one, grace=-5), "grace period .* must not be negative"),
    ],
)
def test_impossible_declarations_are_refused_at_once(call: Callable[[StreamsBuilder, Any], Any], message: str) -> None:
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match=message):
        call(builder, builder.stream("in"))


def test_the_error_names_a_wrong_option_of_a_join() -> None:
    builder = StreamsBuilder()
    with pytest.raises(TypeError, match=r"wrong options of join\(\): .*'windos'"):
        builder.stream("a").join(builder.table("b"), one, windos=5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"wrong options of join\(\): .*'with_mapped_key'"):
        builder.stream("c").join(builder.table("d"), one, with_mapped_key=True)  # type: ignore[call-overload]


def test_grace_beyond_the_history_of_the_table_is_refused() -> None:
    builder = StreamsBuilder()
    builder.stream("a").join(builder.table("b", store=VERSIONED), one, grace=101)
    with pytest.raises(TopologyError, match=r"history retention of store v, 100 ms, .* 101 ms"):
        builder.build()


def test_versioned_tables_cannot_be_suppressed_even_indirectly() -> None:
    builder = StreamsBuilder()
    table = builder.table("b", store=VERSIONED).filter(lambda key, value: True)
    table.suppress(penstock.Suppressed.until_time_limit(5))
    with pytest.raises(TopologyError, match="non-versioned KTables"):
        builder.build()


def test_a_global_table_is_joined_with_functions_in_either_order() -> None:
    def describe(*functions: Any, **options: Any) -> str:
        builder = StreamsBuilder()
        table: GlobalKTable[Any, Any] = builder.global_table("g", store="g")
        builder.stream("in").join(table, *functions, **options).to("out")
        return str(builder.build().describe())

    def key_of(key: Any, value: Any) -> Any:
        return value

    assert describe(key_of, one) == describe(one, key_selector=key_of)


def test_branches_are_found_by_their_names() -> None:
    stream = StreamsBuilder().stream("in")
    branches = stream.split({"late": lambda key, value: value > 5}, default="rest", name="by-")
    assert list(branches) == ["late", "rest"]
    assert branches["late"].name == "by-late"
    assert branches["by-late"] is branches["late"]
    with pytest.raises(KeyError, match="there is no branch 'early'; there are"):
        branches["early"]


def test_unnamed_branches_are_numbered() -> None:
    split = StreamsBuilder().stream("in").split().branch(lambda key, value: True).default_branch()
    assert {name: stream.name for name, stream in split.items()} == {
        "1": "KSTREAM-BRANCH-00000000011",
        "0": "KSTREAM-BRANCH-00000000010",
    }


def test_a_branch_may_be_given_a_function_or_a_consumer() -> None:
    taken: list[KStream[Any, Any]] = []
    split = StreamsBuilder().stream("in").split(name="s-")
    split.branch(lambda key, value: True, "mapped", with_function=lambda branch: branch.map_values(str))
    split.branch(lambda key, value: True, "taken", with_consumer=taken.append)
    assert list(split) == ["mapped"]
    assert split["mapped"].name.startswith("KSTREAM-MAPVALUES-")
    assert taken[0].name == "s-taken"


def test_only_one_default_branch_is_allowed_and_it_is_last() -> None:
    split = StreamsBuilder().stream("in").split().default_branch()
    with pytest.raises(TopologyError, match="already a default branch"):
        split.default_branch()
    with pytest.raises(TopologyError, match="must be the last"):
        split.branch(lambda key, value: True)


def test_serdes_are_inherited_while_types_stay() -> None:
    stream = StreamsBuilder().stream("in", key_serde=Serdes.string(), value_serde=Serdes.int64())
    assert stream.filter(lambda key, value: True).value_serde is Serdes.int64()
    mapped = stream.map_values(str)
    assert (mapped.key_serde, mapped.value_serde) == (Serdes.string(), None)
    assert stream.select_key(lambda key, value: value).key_serde is None
    assert stream.group_by_key().count().value_serde is Serdes.int64()
    windowed = stream.group_by_key().windowed_by(TimeWindows(10)).count().key_serde
    assert isinstance(windowed, TimeWindowedSerde)
    assert (windowed.inner, windowed.window_size_ms) == (Serdes.string(), 10)


def test_a_table_is_stored_only_if_its_rows_are_read() -> None:
    builder = StreamsBuilder()
    builder.table("a").to_stream().to("x")
    builder.table("b", name="b").join(builder.table("c"), one)
    stores = [name for t in builder.build().internal_builder.build_subtopologies() for name in t.stores]
    assert sorted(stores) == ["b-STATE-STORE-0000000005", "c-STATE-STORE-0000000008"]


def test_building_twice_gives_the_same_topology() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.to("out")
    topology = builder.build()
    assert builder.build() is topology
    stream.to("more")
    with pytest.raises(TopologyError, match=r"KSTREAM-SINK-0000000002 was added after build\(\)"):
        builder.build()


def test_the_configuration_may_be_given_to_the_constructor() -> None:
    builder = StreamsBuilder({"ensure.explicit.internal.resource.naming": True})
    builder.stream("in").group_by(lambda key, value: value).count()
    with pytest.raises(TopologyError) as caught:
        builder.build()
    store = "KSTREAM-AGGREGATE-STATE-STORE-0000000002"
    assert f"changelog topic(s) has not been named: {store}-changelog" in str(caught.value)
    assert f"repartition topic(s) has not been named: {store}-repartition" in str(caught.value)


def repartition_filters(build: Callable[[StreamsBuilder], Any]) -> list[type[Operator]]:
    builder = StreamsBuilder()
    build(builder)
    topologies = builder.build().internal_builder.build_subtopologies()
    nodes = [node for topology in topologies for node in topology.nodes.values() if node.name.endswith("filter")]
    return [type(node.operator) for node in nodes if isinstance(node, ProcessorNode)]


def test_records_without_key_are_repartitioned_only_for_joins_that_keep_them() -> None:
    def join(kind: str) -> Callable[[StreamsBuilder], Any]:
        return lambda builder: getattr(
            builder.stream("a").select_key(lambda key, value: value).repartition(name="r"), kind
        )(builder.table("b"), one)

    assert repartition_filters(join("join")) == [KStreamFilter]
    assert repartition_filters(join("left_join")) == [PassThrough]


def test_repartition_topics_with_different_values_are_not_merged() -> None:
    def count_repartitions(change: Callable[[KStream[Any, Any]], KStream[Any, Any]]) -> int:
        builder = StreamsBuilder()
        stream = builder.stream("in").select_key(lambda key, value: value)
        stream.group_by_key().count(store="a")
        change(stream).group_by_key().count(store="b")
        return len(builder.build({"topology.optimization": "all"}).internal_builder.internal_topics)

    assert count_repartitions(lambda stream: stream.filter(lambda key, value: True)) == 1
    assert count_repartitions(lambda stream: stream.map_values(str)) == 2


def test_a_required_repartition_is_not_optimized_away() -> None:
    """Kafka Streams' optimizer moves the first of the merged streams, and leaves the other one unchanged."""

    def declare(*, repartitioned: bool) -> StreamsBuilder:
        builder = StreamsBuilder()
        first = builder.stream("a").select_key(lambda key, value: value)
        first.group_by_key().count()
        second = builder.stream("b").select_key(lambda key, value: value, name="again")
        first.merge(second.repartition() if repartitioned else second).group_by_key().count(store="both")
        return builder

    optimized = {"topology.optimization": "merge.repartition.topics"}
    with pytest.raises(TopologyError, match=r"remove .* both-repartition, .* in again .*repartition\(\) after again"):
        declare(repartitioned=False).build(optimized)
    assert len(declare(repartitioned=False).build().internal_builder.internal_topics) == 2
    assert len(declare(repartitioned=True).build(optimized).internal_builder.internal_topics) == 2


class Sleeper(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        """Do nothing."""


class Keeper(FixedKeyProcessor[Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        """Do nothing."""


def test_processors_are_connected_to_the_stores_they_name() -> None:
    builder = StreamsBuilder()
    for name in ("s", "t"):
        builder.add_state_store(Stores.key_value_store_builder(Stores.in_memory_key_value_store(name)))
    stream = builder.stream("in").process(Sleeper, "s", name="p").process_values(Keeper, stores=["s", "t"], name="q")
    description = str(builder.build().describe())
    assert stream.repartition_required
    assert "Processor: p (stores: [s])" in description
    assert "Processor: q (stores: [s, t])" in description


def test_a_global_store_of_the_dsl_has_its_processor() -> None:
    builder = StreamsBuilder()
    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("g"))
    builder.add_global_store(store, "rows", Sleeper, name="update")
    built = builder.build().internal_builder.build_global_topology()
    assert built is not None
    assert list(built.nodes) == ["update-source", "update"]
    assert not built.stores["g"].logging


def test_lines_are_printed_with_their_label(capsys: pytest.CaptureFixture[str]) -> None:
    action, close = print_action("here", None, None)
    action("k", 5)
    assert capsys.readouterr().out == "[here]: k, 5\n"
    assert close is None


def test_lines_are_printed_to_a_file_that_is_closed_with_the_task(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    action, close = print_action("here", str(path), lambda key, value: f"{key}={value}")
    assert not path.exists()
    for value in (1, 2):
        action("k", value)
        assert close is not None
        close()
    assert path.read_text() == "[here]: k=1\n[here]: k=2\n"


def test_materialized_aggregations_of_one_group_share_a_named_repartition_topic() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by(lambda key, value: value, name="g")
    grouped.count(store=Materialized("c"))
    grouped.reduce(one, store="r")
    assert len(sources(builder)) == 2
