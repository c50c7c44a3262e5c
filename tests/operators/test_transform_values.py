"""KTable.transform_values: Kafka Streams' KTable#transformValues."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    KTable,
    ProcessorContext,
    Punctuation,
    Record,
    Serdes,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    StreamsError,
    TopologyError,
    ValueTransformerWithKey,
)

Options = dict[str, Any]


class Numbered(ValueTransformerWithKey[str, str, str]):
    """Prefixes each value with the number of updates of its key; deletions count too, and delete."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_state_store("counts")

    def transform(self, key: str, value: str | None) -> str | None:
        count = (self.counts.get(key) or 0) + 1
        self.counts.put(key, count)
        return None if value is None else f"{count}:{value}"


class Shown(ValueTransformerWithKey[str, str, str]):
    """Outputs the transformer's arguments and its context's values."""

    def transform(self, key: str, value: str | None) -> str | None:
        return f"{key}={value} {self.context.record_metadata()}"


def counts_store() -> StoreBuilder:
    store = Stores.in_memory_key_value_store("counts")
    return Stores.key_value_store_builder(store, Serdes.string(), Serdes.int64())


def numbered(builder: StreamsBuilder, text: Options, **options: Any) -> KTable[str, str]:
    builder.add_state_store(counts_store())
    return builder.table("in", **text).transform_values(Numbered, "counts", **options)


def test_values_are_replaced_and_deletions_are_seen(start: Any, text: Options) -> None:
    flow = start(lambda builder: numbered(builder, text).to_stream().to("out", **text))
    flow.pipe("in", "a", "x", 1).pipe("in", "a", None, 2).pipe("in", "a", "y", 3).pipe("in", "b", "z", 4)
    assert flow.read() == [("a", "1:x", 1), ("a", None, 2), ("a", "3:y", 3), ("b", "1:z", 4)]


def test_the_result_is_stored_where_store_says(start: Any, text: Options) -> None:
    flow = start(lambda builder: numbered(builder, text, store="result", value_serde=Serdes.string()))
    flow.pipe("in", "a", "x").pipe("in", "a", "y").pipe("in", "b", "z").pipe("in", "b", None)
    assert dict(flow.driver.get_key_value_store("result").all()) == {"a": "2:y"}
    assert flow.driver.get_key_value_store("counts").get("b") == 2


def test_a_stored_result_has_old_values_without_transforming_again(start: Any, text: Options) -> None:
    def declare(builder: StreamsBuilder) -> None:
        table = numbered(builder, text, store="result", value_serde=Serdes.string())
        groups = table.group_by(lambda key, value: ("all", value), **text)
        joined = groups.reduce(lambda one, other: one + other, lambda one, other: one.replace(other, ""))
        joined.to_stream().to("out", **text)

    flow = start(declare)
    flow.pipe("in", "a", "x").pipe("in", "b", "y").pipe("in", "a", "z")
    assert [value for _, value, _ in flow.read()] == ["1:x", "1:x1:y", "1:y2:z"]


def test_without_a_store_rows_are_computed_when_read(start: Any, text: Options) -> None:
    def declare(builder: StreamsBuilder) -> None:
        shown = builder.table("in", **text).transform_values(Shown)
        builder.stream("reads", **text).join(shown, lambda read, row: row).to("out", **text)
        shown.to_stream().to("updates", **text)

    flow = start(declare).pipe("in", "a", "x", 5)
    assert flow.read("updates") == [("a", "a=x RecordMetadata(topic='in', partition=0, offset=0)", 5)]
    assert flow.read_after("reads", "a", "?", 7) == [("a", "a=x None", 7)]
    assert flow.read_after("reads", "b", "?", 8) == [("b", "b=None None", 8)]


def test_old_values_are_transformed_if_needed(start: Any, text: Options) -> None:
    seen: list[Any] = []

    class Seen(ValueTransformerWithKey[str, str, str]):
        def transform(self, key: str, value: str | None) -> str | None:
            seen.append(value)
            return value

    def declare(builder: StreamsBuilder) -> None:
        table = builder.table("in", **text).transform_values(Seen)
        table.group_by(lambda key, value: (key, value), **text).count()

    start(declare).pipe("in", "a", "x").pipe("in", "a", "y")
    assert seen == ["x", None, "y", "x"]


def test_a_transformer_may_add_its_own_stores(start: Any, text: Options) -> None:
    class Own(Numbered):
        stores = (counts_store(),)

    flow = start(lambda builder: builder.table("in", **text).transform_values(Own).to_stream().to("out", **text))
    assert flow.pipe("in", "a", "x").read_after("in", "a", "y") == [("a", "1:x", 0), ("a", "2:y", 0)]


def test_a_transformer_schedules_and_is_closed(start: Any, text: Options) -> None:
    seen: list[Any] = []

    class Timed(Shown):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(10, Punctuation.WALL_CLOCK_TIME, seen.append)

        def close(self) -> None:
            seen.append("closed")

    flow = start(lambda builder: builder.table("in", **text).transform_values(Timed).to_stream().to("out", **text))
    flow.driver.advance_wall_clock_time(10)
    flow.driver.close()
    assert seen == [10, "closed"]


def test_a_transformer_cannot_forward(start: Any, text: Options) -> None:
    class Forwarding(ValueTransformerWithKey[str, str, str]):
        context: ProcessorContext

        def transform(self, key: str, value: str | None) -> str | None:
            self.context.forward(Record(key, value, 0))
            return value

    flow = start(lambda builder: builder.table("in", **text).transform_values(Forwarding, name="mine"))
    with pytest.raises(StreamsError, match="mine: a transformer returns its result and cannot forward"):
        flow.pipe("in", "a", "x")


def test_an_instance_instead_of_a_supplier_is_refused(text: Options) -> None:
    with pytest.raises(TopologyError, match="give the class, not an instance"):
        StreamsBuilder().table("in", **text).transform_values(Shown())  # type: ignore[arg-type]


def test_the_topology_is_described_as_in_kafka_streams(text: Options) -> None:
    """Names and stores follow KTableImpl#doTransformValues: a store without its own name uses up no number."""
    builder = StreamsBuilder()
    builder.add_state_store(counts_store())
    table = builder.table("in", **text).transform_values(Numbered, "counts", value_serde=Serdes.string())
    table.transform_values(Shown, store="shown").to_stream().to("out")
    assert str(builder.build().describe()) == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: KSTREAM-SOURCE-0000000001 (topics: [in])\n"
        "      --> KTABLE-SOURCE-0000000002\n"
        "    Processor: KTABLE-SOURCE-0000000002 (stores: [])\n"
        "      --> KTABLE-TRANSFORMVALUES-0000000003\n"
        "      <-- KSTREAM-SOURCE-0000000001\n"
        "    Processor: KTABLE-TRANSFORMVALUES-0000000003 (stores: [counts])\n"
        "      --> KTABLE-TRANSFORMVALUES-0000000004\n"
        "      <-- KTABLE-SOURCE-0000000002\n"
        "    Processor: KTABLE-TRANSFORMVALUES-0000000004 (stores: [shown])\n"
        "      --> KTABLE-TOSTREAM-0000000005\n"
        "      <-- KTABLE-TRANSFORMVALUES-0000000003\n"
        "    Processor: KTABLE-TOSTREAM-0000000005 (stores: [])\n"
        "      --> KSTREAM-SINK-0000000006\n"
        "      <-- KTABLE-TRANSFORMVALUES-0000000004\n"
        "    Sink: KSTREAM-SINK-0000000006 (topic: out)\n"
        "      <-- KTABLE-TOSTREAM-0000000005\n\n"
    )
