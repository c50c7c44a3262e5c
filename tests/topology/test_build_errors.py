"""Topologies that Kafka Streams refuses at declaration are refused here too, with the operator's name and advice.

Each case names the class of Kafka Streams that throws. Cases of other files of this folder are not repeated:
test_windows.py (windows, suppress), test_stores.py (Stores, Materialized), test_naming.py (names),
test_processor_topology.py (InternalTopologyBuilder), test_dsl.py (operators). Java's NullPointerExceptions are here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BufferConfig,
    EmitStrategy,
    JoinWindows,
    Materialized,
    Processor,
    Record,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamPartitioner,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    Window,
    Windows,
)

Declare = Callable[[Any, Any], object]


def one(*arguments: Any) -> Any:
    return arguments[0]


async def later(*arguments: Any) -> Any:
    return arguments[0]


async def many(*arguments: Any) -> Any:
    yield arguments[0]


class Later:
    async def __call__(self, *arguments: Any) -> Any:
        return arguments[0]


class Forget(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        pass


class Everywhere(StreamPartitioner[Any, Any]):
    def partitions(self, topic: str, key: Any, value: Any, headers: Any, partition_count: int) -> range:
        return range(partition_count)


class Days(Windows):
    """A user's windows of a day each."""

    size_ms, grace_ms = 86_400_000, 0

    def windows_for(self, timestamp: int) -> dict[int, Window]:
        start = timestamp - timestamp % self.size_ms
        return {start: Window(start, start + self.size_ms)}


def grouped(stream: Any) -> Any:
    return stream.group_by_key()


def versioned(builder: Any, history: int = 100) -> Any:
    return builder.table("versions", store=Stores.persistent_versioned_key_value_store("v", history))


#: Wrong arguments on purpose.
ANY: Any = Stores
PLAIN = Stores.key_value_store_builder(Stores.in_memory_key_value_store("plain"))

#: (the declaration, with the builder and a stream; the error message)
REFUSED: list[tuple[Declare, str]] = [
    # StreamsBuilder
    (lambda b, s: b.stream(None), r"stream\(\) needs the name of at least one topic, got None"),
    (lambda b, s: b.stream(["a", None]), r"stream\(\) needs the name"),
    (lambda b, s: b.stream("x", timestamp_extractor=3), "timestamp_extractor must be a function, got 3"),
    (lambda b, s: b.table(None), "A table needs the name of a topic, got None"),
    (lambda b, s: b.table(""), "A table needs the name of a topic"),
    (lambda b, s: b.global_table(None), "A table needs the name of a topic"),
    (lambda b, s: b.global_table("g", store=Materialized(caching=False)), "Global table g: a Materialized must name"),
    (lambda b, s: b.add_state_store(None), r"add_state_store\(\) must be a StoreBuilder.*got None"),
    (lambda b, s: b.add_global_store(None, "g", Forget), r"add_global_store\(\) must be a StoreBuilder"),
    (lambda b, s: b.add_global_store(PLAIN, None, Forget), r"add_global_store\(\) needs the name of a topic"),
    (lambda b, s: b.add_global_store(PLAIN, "g", None), "state_update_supplier of KTABLE-SOURCE-.* must be a function"),
    # KStreamImpl
    (
        lambda b, s: s.group_by_key().windowed_by(Days()).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count(),
        "ON_WINDOW_CLOSE strategy is only supported for TimeWindows",
    ),
    (lambda b, s: s.map(later), "KSTREAM-MAP-.*: mapper must be a plain function, got the async .*later"),
    (lambda b, s: s.map_values(partial(later, 1)), "mapper must be a plain function, got the async"),
    (lambda b, s: s.foreach(Later()), "must be a plain function, got the async"),
    (lambda b, s: s.flat_map(many), "mapper must be a plain function, got the async"),
    (lambda b, s: s.group_by_key().aggregate(dict, aggregator=later), "must be a plain function, got the async"),
    (lambda b, s: s.to("out", partitioner=later), r"The partitioner of to\(\) must be a plain function"),
    (lambda b, s: s.filter_not(None), "KSTREAM-FILTER-.*: predicate must be a function, got None"),
    (lambda b, s: s.map("x"), "KSTREAM-MAP-.*: mapper must be a function, got 'x'"),
    (lambda b, s: s.flat_map(None, name="words"), "words: mapper must be a function"),
    (lambda b, s: s.flat_map_values(None), "KSTREAM-FLATMAPVALUES-.*: mapper must be a function"),
    (lambda b, s: s.select_key(None), "KSTREAM-KEY-SELECT-.*: mapper must be a function"),
    (lambda b, s: s.group_by(None), "KSTREAM-KEY-SELECT-.*: mapper must be a function"),
    (lambda b, s: s.peek(None), "KSTREAM-PEEK-.*: action must be a function"),
    (lambda b, s: s.foreach(None), "KSTREAM-FOREACH-.*: action must be a function"),
    (lambda b, s: s.merge(None), "KSTREAM-SOURCE-.*: the argument of merge.. must be a KStream, got None"),
    (lambda b, s: s.merge(b.table("t")), "the argument of merge.. must be a KStream"),
    (lambda b, s: s.split().branch(None), "KSTREAM-BRANCH-.*: the predicate of a branch must be a function"),
    (lambda b, s: s.split().branch(one, with_function=3), "KSTREAM-BRANCH-.*: with_function must be a function"),
    (lambda b, s: s.split().default_branch(with_consumer=3), "KSTREAM-BRANCH-.*: with_consumer must be a function"),
    (lambda b, s: s.to(None), r"to\(\) needs the name of a topic, got None"),
    (lambda b, s: s.to(5), r"to\(\) needs the name of a topic, got 5"),
    (lambda b, s: s.to("out", partitioner=3), r"partitioner of to\(\) must be a function"),
    (lambda b, s: s.repartition(partitioner=3), r"partitioner of repartition\(\) must be a function"),
    (lambda b, s: s.to("out", partitioner=Everywhere), r"partitioner of to\(\) must be an object, .*: Everywhere\(\)"),
    (lambda b, s: b.build().add_sink("k", "out", "s", partitioner=3), "partitioner of sink k must be a function"),
    (
        lambda b, s: b.table("y").join(b.table("z"), one, foreign_key=str, partitioner=3),
        "partitioner of a foreign-key join must be a function",
    ),
    (lambda b, s: s.process(None), "KSTREAM-PROCESSOR-.*: supplier must be a function"),
    (lambda b, s: s.process_values(Forget()), "KSTREAM-PROCESSVALUES-.*: supplier .* give the class"),
    (lambda b, s: s.process(Forget, "nowhere"), "StateStore nowhere is not added yet"),
    (lambda b, s: s.join(None, one), "a stream joins a KStream, KTable or GlobalKTable, got None"),
    (lambda b, s: s.join(b.stream("y"), None, JoinWindows(5)), "KSTREAM-MERGE-.*: joiner must be a function"),
    (lambda b, s: s.join(b.table("y"), None), "KSTREAM-JOIN-.*: joiner must be a function"),
    (lambda b, s: s.join(b.global_table("y"), one, key_selector=3), "KSTREAM-LEFTJOIN-.*: mapper must be a function"),
    (lambda b, s: s.left_join(versioned(b), one, grace=101), "history retention of store v, 100 ms"),
    # Printed
    (lambda b, s: s.print(file=""), r"print\(\) cannot write to ''"),
    (lambda b, s: s.print(file="no/such/folder/file"), "cannot write to 'no/such/folder/file'.*in an existing folder"),
    (lambda b, s: s.print(mapper=3), r"mapper of print\(\) must be a function"),
    # KGroupedStreamImpl, TimeWindowedKStreamImpl, SessionWindowedKStreamImpl
    (lambda b, s: grouped(s).reduce(None), "KSTREAM-REDUCE-.*: reducer must be a function"),
    (lambda b, s: grouped(s).aggregate(0, one), "KSTREAM-AGGREGATE-.*: initializer must be a function, got 0"),
    (lambda b, s: grouped(s).aggregate(int, None), "KSTREAM-AGGREGATE-.*: aggregator must be a function"),
    (lambda b, s: grouped(s).windowed_by(None), r"windowed_by\(\) needs TimeWindows"),
    (lambda b, s: grouped(s).windowed_by(TimeWindows(5)).aggregate(0, one), "initializer must be a function"),
    (lambda b, s: grouped(s).windowed_by(SlidingWindows(5)).aggregate(0, one), "initializer must be a function"),
    (lambda b, s: grouped(s).windowed_by(SessionWindows(5)).aggregate(int, one, None), "session_merger must be a fun"),
    (lambda b, s: grouped(s).windowed_by(TimeWindows(5)).emit_strategy(None), "must be an EmitStrategy, got None"),
    (lambda b, s: grouped(s).windowed_by(SessionWindows(5)).emit_strategy("x"), "must be an EmitStrategy"),
    (
        lambda b, s: grouped(s).windowed_by(UnlimitedWindows()).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE),
        "cannot be used with UnlimitedWindows",
    ),
    (lambda b, s: grouped(s).count(store=5), "store= must be a name, a Materialized or a supplier, got 5"),
    # CogroupedKStreamImpl
    (lambda b, s: grouped(s).cogroup(one).cogroup(None, one), "The argument of cogroup.. must be a KGroupedStream"),
    (
        lambda b, s: grouped(s).cogroup(one).cogroup(s, one),
        "The argument of cogroup.. must be a KGroupedStream.*group it first",
    ),
    (lambda b, s: grouped(s).cogroup(None).aggregate(int), "COGROUPKSTREAM-AGGREGATE-.*: aggregator must be a fun"),
    (lambda b, s: grouped(s).cogroup(one).aggregate(0), "COGROUPKSTREAM-AGGREGATE-.*: initializer must be a function"),
    # KTableImpl, KGroupedTableImpl
    (lambda b, s: b.table("t").filter(None), "KTABLE-FILTER-.*: predicate must be a function"),
    (lambda b, s: b.table("t").map_values(None), "KTABLE-MAPVALUES-.*: mapper must be a function"),
    (lambda b, s: b.table("t").transform_values(None), "KTABLE-TRANSFORMVALUES-.*: supplier must be a function"),
    (lambda b, s: b.table("t").to_stream(5), "KSTREAM-KEY-SELECT-.*: mapper must be a function"),
    (lambda b, s: b.table("t").suppress(None), r"argument of suppress\(\) must be a Suppressed, got None"),
    (lambda b, s: versioned(b).suppress(Suppressed.until_time_limit(5)), "only supported for non-versioned KTables"),
    (lambda b, s: b.table("t").group_by(None), "KTABLE-SELECT-.*: mapper must be a function"),
    (lambda b, s: b.table("t").group_by(one).reduce(None, one), "KTABLE-REDUCE-.*: add_reducer must be a function"),
    (lambda b, s: b.table("t").group_by(one).aggregate(int, one, None), "KTABLE-AGGREGATE-.*must be a function"),
    (lambda b, s: b.table("t").join(None, one), "a KTable joins only KTables, got None"),
    (lambda b, s: b.table("t").join(b.table("u"), None), "KTABLE-MERGE-.*: joiner must be a function"),
    (lambda b, s: b.table("t").join(b.table("u"), one, foreign_key=3), "foreign_key_extractor must be a function"),
    # Stores, InternalTopologyBuilder
    (
        lambda b, s: ANY.key_value_store_builder(None),
        r"supplier of key_value_store_builder\(\) must be one that Stores",
    ),
    (lambda b, s: ANY.session_store_builder("x"), r"supplier of session_store_builder\(\) must be one"),
    (lambda b, s: ANY.persistent_key_value_store(None), "name must not be empty"),
    (lambda b, s: (grouped(s).count(store="x"), grouped(s).reduce(one, store="x")), "StateStore .* name x"),
    (lambda b, s: (s.filter(one, name="x"), s.peek(one, name="x")), "Processor x is already added"),
    (lambda b, s: (b.stream("g"), b.global_table("g")), "Topic g has already been registered"),
    # Suppressed
    (lambda b, s: Suppressed.until_window_closes(BufferConfig.max_bytes(1)), "needs a buffer that does not emit early"),
]


@pytest.mark.parametrize(("declare", "message"), REFUSED, ids=range(len(REFUSED)))
def test_impossible_declarations_are_refused(
    declare: Declare, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    builder = StreamsBuilder()

    def declare_and_build() -> None:
        declare(builder, builder.stream("in"))
        builder.build()

    with pytest.raises(TopologyError, match=message):
        declare_and_build()


def test_optional_functions_may_be_omitted() -> None:
    builder = StreamsBuilder()
    stream: Any = builder.stream("in", timestamp_extractor=None)
    stream.split().branch(one, with_function=None).default_branch(with_consumer=None)
    stream.repartition(partitioner=None).to("out", partitioner=None)
    stream.print(mapper=None)
    assert "KSTREAM-PRINTER" in str(builder.build().describe())
