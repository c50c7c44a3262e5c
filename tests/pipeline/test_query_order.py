"""The order in which a bounded run processes sub-topologies, and when one round is not enough. Without Spark."""

from __future__ import annotations

from typing import Any

from penstock import Serdes, StreamsBuilder, StreamsConfig
from penstock.pipeline.queries.streaming_queries import processing_order

STRINGS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


def order_of(builder: StreamsBuilder) -> tuple[list[int], bool]:
    config = StreamsConfig({"application.id": "a"})
    order, circular = processing_order(builder.build().internal_builder.build_subtopologies(config, frozenset()))
    return [each.subtopology for each in order], circular


def test_writers_of_a_topic_come_before_its_readers() -> None:
    builder = StreamsBuilder()
    counted = builder.stream("in", **STRINGS).group_by(lambda key, value: value, **STRINGS).count(store="c")
    counted.to_stream().repartition().to("out")
    assert order_of(builder) == ([0, 1, 2], False)


def test_a_foreign_key_join_of_two_tables_is_a_cycle() -> None:
    builder = StreamsBuilder()
    left, right = (builder.table(name, store=name, **STRINGS) for name in ("left", "right"))
    left.join(right, lambda one, other: one + other, foreign_key=lambda value: value).to_stream().to("out")
    order, circular = order_of(builder)
    assert sorted(order) == [0, 1]
    assert circular


def test_a_foreign_key_self_join_writes_to_its_own_subtopology() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", store="in", **STRINGS)
    table.join(table, lambda one, other: one + other, foreign_key=lambda value: value).to_stream().to("out")
    assert order_of(builder) == ([0], True)
