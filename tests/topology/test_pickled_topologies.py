"""A declared topology can be sent to another process, with each operator and each serde.

KafkaStreams(topology) does so. Serdes have functions, partly of the kernel, which cannot be pickled: a serde is
recreated from its arguments instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from inspect import isabstract
from typing import Any

import msgspec
import pytest

from penstock import (
    CalendarWindows,
    CountWindows,
    EmitStrategy,
    FixedKeyProcessor,
    JoinWindows,
    Processor,
    Record,
    Serde,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    ValueTransformerWithKey,
    agg,
)
from penstock.kernel.aggregates import Aggregation, Count, Field
from penstock.sinks import SqliteSink
from penstock.supervisor.source import pickling
from penstock.testing import TopologyTestDriver
from penstock.topology.operators.deduplicate import TimestampAndOffsetSerde
from penstock.topology.operators.foreign_key_serdes import SubscriptionResponseWrapperSerde, SubscriptionWrapperSerde
from penstock.topology.operators.operator import Operator
from penstock.topology.operators.stream_join import KStreamKStreamJoin
from penstock.topology.operators.stream_join_serdes import LeftOrRightValueSerde, TimestampedKeyAndJoinSideSerde
from penstock.topology.operators.table_join import KTableKTableAbstractJoin
from penstock.topology.serdes.aggregates_serde import AggregatesSerde
from penstock.topology.serdes.count_windows_serde import CountWindowsSerde
from penstock.topology.serdes.windowed_serdes import ChangedSerde, WindowedSerde

# Deprecations of the extra's own dependencies cannot be fixed here.
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecat.*"), pytest.mark.medium]

MINUTE = timedelta(minutes=1)
AVRO = json.dumps({"type": "record", "name": "Row", "fields": [{"name": "n", "type": "int"}]})
JSON_SCHEMA = json.dumps({"title": "Row", "type": "object"})


class Row(msgspec.Struct, frozen=True):
    n: int
    price: Decimal = Decimal(0)


class OwnSerde:
    def serialize(self, topic: str, value: Any) -> bytes | None:
        return None if value is None else str(value).encode()

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        return None if data is None else data.decode()


class Swapped(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)


class SwappedValue(FixedKeyProcessor[Any, Any, Any]):
    def process(self, record: Any) -> None:
        self.context.forward(record)


class Kept(ValueTransformerWithKey[Any, Any, Any]):
    def transform(self, key: Any, value: Any) -> Any:
        return value


SERDES: dict[str, Callable[[], Any]] = {
    **{str(serde): lambda serde=serde: serde for serde in Serdes._BY_NAME.values()},  # type: ignore[misc]
    "list": lambda: Serdes.list(Serdes.int64()),
    "json of a type": lambda: Serdes.json(Row),
    "json with NaN": lambda: Serdes.json(allow_nan=True),
    "time windowed": lambda: Serdes.time_windowed(Serdes.string(), MINUTE),
    "session windowed": lambda: Serdes.session_windowed(Serdes.string()),
    "avro": lambda: Serdes.avro(AVRO, "mock://"),
    "json schema": lambda: Serdes.json_schema(JSON_SCHEMA, "mock://"),
    "debezium": Serdes.debezium,
    "debezium in avro": lambda: Serdes.debezium(Row, "mock://"),
    "own": OwnSerde,
}


def stateless(builder: StreamsBuilder, serdes: Any) -> None:
    found = builder.stream("in", **serdes).filter(lambda k, v: True).filter_not(lambda k, v: False)
    found = found.map(lambda k, v: (k, v)).map_values(lambda v: v).select_key(lambda k, v: k)
    found = found.flat_map(lambda k, v: [(k, v)]).flat_map_values(lambda v: [v]).peek(lambda k, v: None)
    found = found.repartition(**serdes).merge(builder.stream("other", **serdes))
    found.print()
    found.foreach(lambda k, v: None)
    found.to_sink(SqliteSink(":memory:", "rows", columns={"v": dict}))
    branches = found.split(name="split-").branch(lambda k, v: True).default_branch()
    for branch in branches.values():
        branch.to("out", **serdes)


async def waits(value: Any) -> Any:
    return value


async def waits_with_key(key: Any, value: Any) -> Any:
    return value


def waiting(builder: StreamsBuilder, serdes: Any) -> None:
    found = builder.stream("in", **serdes).map_values_async(waits).flat_map_values_async(waits)
    found = found.filter_async(waits_with_key)
    found.foreach_async(waits_with_key)
    found.map_batches(lambda values: values).to("out", **serdes)
    schema = pytest.importorskip("pyarrow").schema([])
    found.map_batches(lambda batch: batch, as_="arrow", schema=schema, on_error="split").to("out", **serdes)


def processors(builder: StreamsBuilder, serdes: Any) -> None:
    for make in (Stores.key_value_store_builder, Stores.timestamped_key_value_store_builder):
        store = make(Stores.persistent_key_value_store(make.__name__), serdes["key_serde"], serdes["value_serde"])
        builder.add_state_store(store)
    kept = make.__name__
    builder.stream("in", **serdes).process(Swapped, kept).process_values(SwappedValue, kept).to("out", **serdes)


def deduplicated(builder: StreamsBuilder, serdes: Any) -> None:
    stream = builder.stream("in", **serdes).deduplicate_by_key(MINUTE)
    ids = {"id_serde": serdes["value_serde"], "name": "ids", **serdes}
    stream.select_key(lambda k, v: k).deduplicate_by_key_value(lambda k, v: v, MINUTE, **ids).to("out", **serdes)


def tables(builder: StreamsBuilder, serdes: Any) -> None:
    table = builder.table("in", **serdes, store="rows").filter(lambda k, v: True, store="kept", **serdes)
    table = table.map_values(lambda v: v, store="mapped", **serdes).transform_values(Kept)
    builder.stream("in-again", **serdes).to_table(store="made").to_stream(lambda k, v: k).to("out", **serdes)
    table.suppress(Suppressed.until_time_limit(MINUTE)).to_stream().to("out", **serdes)


def table_joins(builder: StreamsBuilder, serdes: Any) -> None:
    left, right = (builder.table(topic, **serdes) for topic in ("left", "right"))
    for join in (left.join, left.left_join, left.outer_join):
        join(right, lambda a, b: a, store=join.__name__, **serdes).to_stream().to("out", **serdes)


def foreign_key_joins(builder: StreamsBuilder, serdes: Any) -> None:
    left, right = (builder.table(topic, **serdes) for topic in ("left", "right"))
    for join in (left.join, left.left_join):
        joined = join(right, lambda a, b: a, foreign_key=lambda v: v, store=join.__name__, **serdes)
        joined.to_stream().to("out", **serdes)


def stream_joins(builder: StreamsBuilder, serdes: Any) -> None:
    left, right = (builder.stream(topic, **serdes) for topic in ("left", "right"))
    windows = JoinWindows.of_time_difference_with_no_grace(MINUTE)
    given = {**serdes, "other_value_serde": serdes["value_serde"]}
    for join in (left.join, left.left_join, left.outer_join):
        join(right, lambda a, b: a, windows, **given).to("out", **serdes)
    left.join(left, lambda a, b: a, windows, **given).to("out", **serdes)


def stream_table_joins(builder: StreamsBuilder, serdes: Any) -> None:
    stream, table = builder.stream("in", **serdes), builder.table("table", **serdes)
    everywhere = builder.global_table("global", **serdes)
    versioned = builder.table("versioned", **serdes, store=Stores.persistent_versioned_key_value_store("old", MINUTE))
    for join in (stream.join, stream.left_join):
        join(table, lambda a, b: a, **serdes).to("out", **serdes)
        join(everywhere, lambda a, b: a, key_selector=lambda k, v: k).to("out", **serdes)
        join(versioned, lambda a, b: a, grace=timedelta(seconds=1), **serdes).to("out", **serdes)


def aggregates(builder: StreamsBuilder, serdes: Any) -> None:
    grouped: Any = builder.stream("in", **serdes).group_by(lambda k, v: k, **serdes)
    tables = [
        grouped.count(),
        grouped.reduce(lambda a, b: a, store="reduced", **serdes),
        grouped.aggregate(lambda: None, lambda k, v, a: a, store="sums", **serdes),
        grouped.cogroup(lambda k, v, a: a).aggregate(lambda: None, store="together", **serdes),
        grouped.cogroup({"n": agg.count()}).aggregate(store="aggregates-together", **serdes),
        grouped.aggregate({"n": agg.count(), "size": agg.mean(lambda v: v[0])}, store="aggregates", **serdes),
    ]
    by_row = builder.table("rows", **serdes).group_by(lambda k, v: (k, v), **serdes)
    tables += [
        by_row.count(),
        by_row.reduce(lambda a, b: a, lambda a, b: a, store="table-reduced", **serdes),
        by_row.aggregate(lambda: None, lambda k, v, a: a, lambda k, v, a: a, store="table-sums", **serdes),
        by_row.aggregate(agg.max(), store="table-aggregates", **serdes),
    ]
    for table in tables:
        table.to_stream().foreach(lambda k, v: None)


def windowed(builder: StreamsBuilder, serdes: Any) -> None:
    grouped: Any = builder.stream("in", **serdes).group_by_key(**serdes)
    windows: list[Any] = [
        TimeWindows.of_size_with_no_grace(MINUTE),
        SlidingWindows.of_time_difference_with_no_grace(MINUTE),
        SessionWindows.of_inactivity_gap_with_no_grace(MINUTE),
    ]
    days = grouped.windowed_by(CalendarWindows("day", tz="Europe/Paris"))
    days.aggregate(agg.collect(3), store="days", **serdes)
    batches = grouped.windowed_by(CountWindows(3))
    batches.aggregate(agg.collect(3), store="batches", **serdes).foreach(lambda k, v: None)
    batches.reduce(lambda a, b: a, store="batch-reduced", **serdes)
    for number, window in enumerate(windows):
        merger = {"session_merger": lambda k, a, b: a} if number == 2 else {}
        for emit in EmitStrategy:
            wall_clock = MINUTE if emit is EmitStrategy.ON_WINDOW_CLOSE else None
            made = grouped.windowed_by(window).emit_strategy(emit, wall_clock=wall_clock)
            made.count(name=f"count-{number}-{emit.name}").to_stream().foreach(lambda k, v: None)
        made = grouped.windowed_by(window)
        made.reduce(lambda a, b: a, store=f"reduced-{number}", **serdes)
        made.aggregate(lambda: None, lambda k, v, a: a, store=f"sums-{number}", **serdes, **merger)
        together = grouped.cogroup(lambda k, v, a: a).windowed_by(window)
        together.aggregate(lambda: None, store=f"together-{number}", **serdes, **merger)


TOPOLOGIES = [
    stateless,
    waiting,
    processors,
    deduplicated,
    tables,
    table_joins,
    foreign_key_joins,
    stream_joins,
    stream_table_joins,
    aggregates,
    windowed,
]


def declared(declare: Callable[[StreamsBuilder, Any], None], make_serde: Callable[[], Any]) -> Topology:
    builder = StreamsBuilder()
    declare(builder, {"key_serde": make_serde(), "value_serde": make_serde()})
    return builder.build({"topology.optimization": "all"})


#: With these, all operators are tried before each change; test_each_kind_of_serde_can_be_sent has the others.
FEW = (str(Serdes.string()), "json of a type", "avro")


@pytest.mark.parametrize(
    ("declare", "name"),
    [
        pytest.param(
            declare,
            name,
            id=f"{declare.__name__}-{name}",
            marks=[] if name in FEW else pytest.mark.slow,
        )
        for declare in TOPOLOGIES
        for name in SERDES
    ],
)
def test_each_operator_can_be_sent_with_each_serde(declare: Callable[[StreamsBuilder, Any], None], name: str) -> None:
    topology = declared(declare, SERDES[name])
    sent = pickling.loads(pickling.dumps(topology))
    assert str(sent.describe()) == str(topology.describe())
    if SERDES[name]() is Serdes.string():
        TopologyTestDriver(sent).close()  # its operators can be compiled


def kinds(base: Any) -> Iterator[type]:
    """Yield Penstock's concrete subclasses."""
    kind: Any
    for kind in base.__subclasses__():
        if kind.__module__.startswith("penstock.") and not isabstract(kind):
            yield kind
        yield from kinds(kind)


#: Bases of operators that are abstract, although Python does not know it.
BASES = {KTableKTableAbstractJoin, KStreamKStreamJoin}


def test_no_operator_is_left_out() -> None:
    nodes = [
        node for declare in TOPOLOGIES for node in declared(declare, Serdes.string).internal_builder.nodes.values()
    ]
    used = {type(node.operator) for node in nodes if hasattr(node, "operator")}
    assert set(kinds(Operator)) - used == BASES


#: One of each kind that declarations contain.
INNER: list[Serde[Any]] = [
    AggregatesSerde(Aggregation(None, (Count("count()", Field(()), True),)), "count()"),
    TimestampedKeyAndJoinSideSerde(Serdes.string()),
    LeftOrRightValueSerde(Serdes.string(), Serdes.int64()),
    SubscriptionWrapperSerde("topic", Serdes.string()),
    SubscriptionResponseWrapperSerde(Serdes.string()),
    ChangedSerde(Serdes.string()),
    CountWindowsSerde(Serdes.string()),
    TimestampAndOffsetSerde(),
]


def test_each_kind_of_serde_can_be_sent() -> None:
    serdes = [*INNER, *(Serdes.of(make()) for make in SERDES.values())]
    for serde in serdes:
        assert type(pickling.loads(pickling.dumps(serde))) is type(serde)
    assert set(kinds(Serde)) - {type(serde) for serde in serdes} == {WindowedSerde}
