"""After a put, a store holds the value that its serde reads from the bytes of that moment, for any cache size.

Random topologies of all stateful operators, with functions that keep, change and reuse their arguments, that return
types which JSON does not read back, and that fail for a tenth of the records. Stores, the last values of changelogs and
the skipped records must be the same with a large, a small and no cache, and after a crash and a restore at any commit.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    BufferConfig,
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    Processor,
    Record,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    ValueAndTimestamp,
)
from penstock.topology.context.store_interfaces import StoreKind
from tests.examples import examples
from tests.goldens.crash import Committed, CrashingDriver, rows
from tests.operators.rude_functions import POISON, SHAPES, Functions, Number

pytestmark = pytest.mark.medium

CACHES = (10_485_760, 300, 0)
KEYS = "abc"
#: No record is late: a crash loses an operator's stream time, as in Kafka Streams.
GRACE_MS = 1_000
CONTINUE = {"processing.exception.handler": "log_and_continue"}


def total(_key: Any, value: Any, aggregate: Any) -> Any:
    aggregate["n"] += len(value)
    return aggregate if aggregate["n"] else None


def less(_key: Any, value: Any, aggregate: Any) -> Any:
    aggregate["n"] -= len(value)
    return aggregate if aggregate["n"] else None


class Chains:
    """One method for each kind of stateful operator, from a stream of [shape, number]."""

    def __init__(self, builder: StreamsBuilder, functions: Functions, store: str) -> None:
        self.builder = builder
        self.functions = functions
        self.store = store

    def fails(self, value: Any) -> bool:
        return bool(self.functions.poisons and value[0] < 0)

    def aggregate(self, stream: KStream[Any, Any]) -> Any:
        return stream.group_by_key().aggregate(dict, self.functions.aggregator(), store=self.store)

    def aggregate_in_memory(self, stream: KStream[Any, Any]) -> Any:
        kept = Materialized(self.store, store_type="in_memory")
        return stream.group_by_key().aggregate(list, self.functions.aggregator(), store=kept)

    def reduce(self, stream: KStream[Any, Any]) -> Any:
        return stream.group_by_key().reduce(self.functions.reduce, store=self.store)

    def texts(self, stream: KStream[Any, Any]) -> Any:
        """A serde of texts: anything else cannot be written, nor can half a surrogate pair."""
        return stream.group_by_key().aggregate(
            str,
            lambda k, v, a: self.functions.made(v) if self.functions.poisons else str(v),
            store=self.store,
            value_serde=Serdes.string(),
        )

    def numbers(self, stream: KStream[Any, Any]) -> Any:
        return stream.group_by_key().aggregate(
            int,
            lambda k, v, a: 2**70 if self.fails(v) else Number.FIVE if v[1] == 5 else a + v[1],
            store=self.store,
            value_serde=Serdes.int64(),
        )

    def tumbling(self, stream: KStream[Any, Any]) -> Any:
        grouped = stream.group_by_key().windowed_by(TimeWindows(10, GRACE_MS))
        return grouped.aggregate(dict, self.functions.aggregator(), store=self.store)

    def hopping(self, stream: KStream[Any, Any]) -> Any:
        grouped = stream.group_by_key().windowed_by(TimeWindows(10, GRACE_MS, 5))
        return grouped.aggregate(list, self.functions.aggregator(), store=self.store)

    def windowed_numbers(self, stream: KStream[Any, Any]) -> Any:
        grouped = stream.group_by_key().windowed_by(TimeWindows(10, GRACE_MS))
        return grouped.aggregate(
            int, lambda k, v, a: "x" if self.fails(v) else a + 1, store=self.store, value_serde=Serdes.int32()
        )

    def sliding(self, stream: KStream[Any, Any]) -> Any:
        grouped = stream.group_by_key().windowed_by(SlidingWindows(8, GRACE_MS))
        return grouped.aggregate(dict, self.functions.aggregator(), store=self.store)

    def sessions(self, stream: KStream[Any, Any]) -> Any:
        grouped = stream.group_by_key().windowed_by(SessionWindows(4, GRACE_MS))
        return grouped.aggregate(list, self.functions.aggregator(), self.functions.merge, store=self.store)

    def cogrouped(self, stream: KStream[Any, Any]) -> Any:
        one = stream.group_by_key()
        other = self.builder.stream("other").group_by_key()
        cogrouped = one.cogroup(self.functions.aggregator()).cogroup(other, self.functions.aggregator())
        return cogrouped.aggregate(dict, store=self.store)

    def to_table(self, stream: KStream[Any, Any]) -> Any:
        return stream.map_values(self.functions.made).to_table(store=self.store)

    def plain_table(self, stream: KStream[Any, Any]) -> Any:
        kept = Materialized(Stores.persistent_key_value_store(self.store))
        return stream.map_values(self.functions.made).to_table(store=kept)

    def versioned(self, stream: KStream[Any, Any]) -> Any:
        kept = Materialized(Stores.persistent_versioned_key_value_store(self.store, GRACE_MS))
        return stream.map_values(self.functions.made).to_table(store=kept)

    def joined_tables(self, stream: KStream[Any, Any]) -> Any:
        """Only their topics write the tables, so the last join does not depend on the order of flushes."""
        table = stream.map_values(self.functions.made).to_table(store=f"{self.store}-left")
        other = self.builder.table("other", store=f"{self.store}-right")
        return table.outer_join(other, lambda one, two: (str(one), two), store=self.store)

    def foreign_key_join(self, stream: KStream[Any, Any]) -> Any:
        table = stream.map_values(self.functions.made).to_table(store=f"{self.store}-left")
        other = self.builder.table("other", store=f"{self.store}-right")
        return table.left_join(
            other,
            lambda one, two: (str(one), two),
            foreign_key=lambda value: KEYS[len(str(value)) % len(KEYS)],
            store=f"{self.store}-joined",
        )

    def suppressed(self, stream: KStream[Any, Any]) -> Any:
        table = stream.map_values(self.functions.made).to_table(store=f"{self.store}-table")
        return table.suppress(Suppressed.until_time_limit(5, BufferConfig.max_records(2)))

    def stream_join(self, stream: KStream[Any, Any]) -> Any:
        """A windowed store of both sides; a counted result."""
        other = self.builder.stream("other")
        joined = stream.join(
            other, lambda a, b: [0, len(str(a)) + len(str(b))], JoinWindows.of_time_difference_and_grace(5, GRACE_MS)
        )
        return joined.group_by_key().aggregate(list, self.functions.aggregator(), store=self.store)

    def table_join(self, stream: KStream[Any, Any]) -> Any:
        table = self.builder.table("other", store=f"{self.store}-other")
        joined = stream.left_join(table, self.joined)
        return joined.group_by_key().aggregate(list, self.functions.aggregator(), store=self.store)

    def joined(self, value: Any, other: Any) -> Any:
        self.functions.check(other)
        found = [value[0], len(str(other))]
        self.functions.meddle(other)
        return found

    def processor(self, stream: KStream[Any, Any]) -> Any:
        """A processor that catches the exceptions of a put, and one that does not."""
        functions, name = self.functions, self.store
        catches = functions.random.random() < 0.5

        class Keeper(Processor[Any, Any, Any, Any]):
            def process(self, record: Record[Any, Any]) -> None:
                store = self.context.get_state_store(name)
                old = store.get(record.key)
                functions.check(old if old is None else old.value)
                functions.meddle(old and old.value, record.value)
                made = functions.made(record.value)
                try:
                    store.put(record.key, ValueAndTimestamp(made, record.timestamp))
                except Exception:
                    if not catches:
                        raise
                    store.put(record.key, ValueAndTimestamp("caught", record.timestamp))
                functions.meddle(made)

        supplier = Stores.persistent_timestamped_key_value_store(name)
        store = Stores.timestamped_key_value_store_builder(supplier, Serdes.string(), Serdes.json())
        self.builder.add_state_store(store.with_caching_enabled())
        stream.process(Keeper, stores=[name])
        return None

    def window_processor(self, stream: KStream[Any, Any]) -> Any:
        functions, name = self.functions, self.store

        class Keeper(Processor[Any, Any, Any, Any]):
            def process(self, record: Record[Any, Any]) -> None:
                store = self.context.get_state_store(name)
                start = record.timestamp // 10 * 10
                for _, old in store.fetch_range(record.key, 0, start):
                    functions.check(old)
                    functions.meddle(old)
                made = functions.made(record.value)
                store.put(record.key, made, start)
                functions.meddle(made)

        supplier = Stores.persistent_window_store(name, 1_000, 10)
        store = Stores.window_store_builder(supplier, Serdes.string(), Serdes.json()).with_caching_enabled()
        self.builder.add_state_store(store)
        stream.process(Keeper, stores=[name])
        return None


CHAINS = tuple(
    name for name, method in vars(Chains).items() if callable(method) and name not in ("__init__", "fails", "joined")
)


def behind_a_table(table: KTable[Any, Any], store: str) -> None:
    """Tables derived from a table: their final rows depend only on the final rows of the first one."""
    mapped = table.map_values(lambda value: {"of": str(value), "pair": (1, 2)}, store=f"{store}-mapped")
    table.filter(lambda key, value: len(str(value)) % 2 == 0, store=f"{store}-even")
    # Without a cache, the initializer's value is sent as the old value of a new key, as in Kafka Streams, where it
    # counts 0.
    texts: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
    grouped = table.group_by(lambda key, value: ("all", str(value) if value else ""), **texts)
    grouped.aggregate(lambda: {"n": 0}, total, less, store=f"{store}-total", value_serde=Serdes.json())
    # After the others, which get the same object of one update.
    mapped.to_stream().foreach(Functions(0, False).change)
    table.to_stream().foreach(Functions(0, False).change)


@dataclass(frozen=True)
class Case:
    """A topology and its input; poisons: a tenth of the records fail."""

    chain: str
    seed: int
    poisons: bool
    generates: bool
    behind: bool
    inputs: tuple[tuple[str, str, int, int, int], ...]  # topic, key, shape, number, timestamp
    commit_every: int

    def topology(self) -> Topology:
        builder, functions = StreamsBuilder(), Functions(self.seed, self.poisons)
        stream = builder.stream("in")
        if self.generates:
            stream = stream.flat_map_values(functions.same_thrice)
        table = getattr(Chains(builder, functions, "store"), self.chain)(stream)
        stream.foreach(functions.change)
        if isinstance(table, KTable):
            if self.behind and self.chain not in (
                "tumbling",
                "hopping",
                "sliding",
                "sessions",
                "foreign_key_join",
                "windowed_numbers",
                "suppressed",
            ):
                behind_a_table(table, "store")
            else:
                table.to_stream().foreach(Functions(0, False).change)
        return builder.build()

    def feed(self, driver: CrashingDriver, start: int, end: int) -> None:
        for topic, key, shape, number, timestamp in self.inputs[start:end]:
            if topic in driver._source_topics():
                driver.create_input_topic(topic).pipe_input(key, [shape, number], timestamp)


Outcome = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[Any, int]]


def outcome(driver: CrashingDriver, committed: Committed) -> Outcome:
    """Return the rows of all stores, the last values in each changelog, and the number of skipped records."""
    logs = {
        topic: {record.key: record.value for record in log}
        for topic, log in committed.produced.items()
        if topic.endswith("-changelog") and "SUPPRESS" not in topic
    }
    found = rows(driver)
    for name, store in driver.get_all_state_stores().items():
        if store.builder.plain_values or name.endswith(("-total", "-joined")):
            # The cache has timestamps that these rows lack, and they depend on the updates in between.
            found[name] = [(key, row.value) for key, row in found[name]]
        elif store.builder.kind is StoreKind.SUPPRESS_BUFFER:
            del found[name]  # it waits from the first update that reaches it
    return found, logs, driver.dropped_records()


def present(outcome_: Outcome) -> Outcome:
    """Return an outcome without tombstones: a cache writes none for keys created and deleted between two flushes."""
    stores, logs, dropped = outcome_
    left = {name: {key: value for key, value in log.items() if value is not None} for name, log in logs.items()}
    return stores, {name: log for name, log in left.items() if log}, dropped


def run(case: Case, cache_bytes: int, directory: Path | None = None, crash_at: int | None = None) -> Outcome:
    """Run a case; crash_at: the process dies after this many records, and a new one continues from the last commit."""
    config = (
        {**CONTINUE, "statestore.cache.max.bytes": cache_bytes}
        if case.poisons
        else {"statestore.cache.max.bytes": cache_bytes}
    )
    topology = case.topology()
    driver = CrashingDriver(topology, config, directory)
    dropped: Counter[Any] = Counter()
    committed, done = Committed(), 0
    try:
        while done < len(case.inputs):
            end = min(done + case.commit_every, len(case.inputs))
            case.feed(driver, done, end)
            if crash_at is not None and done <= crash_at < end:
                crash_at = None
                driver.crash()
                driver = CrashingDriver(case.topology(), config, directory, committed)
                continue
            committed, done = driver.commit(), end
            # With a cache, the foreign key's table is queried for fewer updates, so fewer responses are late.
            skipped = {
                key: count for key, count in driver.dropped_records().items() if "has changed since" not in key[1]
            }
            dropped.update(skipped)
            driver.task.dropped.clear()
        stores, logs, _ = outcome(driver, committed)
        return present((stores, logs, dropped))
    finally:
        driver.crash()


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(("in", "in", "in", "other")),
        st.sampled_from(KEYS),
        st.integers(-len(POISON), -1) | st.integers(0, 10 * len(SHAPES) - 1),
        st.integers(0, 12),
        st.integers(0, 60),
    ),
    min_size=1,
    max_size=30,
).map(tuple)


def cases(chain: str, poisons: bool) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        st.just(chain),
        st.integers(0, 1_000),
        st.just(poisons),
        st.booleans(),
        st.booleans(),
        RECORDS,
        st.integers(1, 12),
    )


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("poisons", [True, False], ids=["poison", "fused"])
@given(data=st.data())
@settings(deadline=None, max_examples=examples(15))
def test_the_cache_changes_only_the_number_of_updates(chain: str, poisons: bool, data: st.DataObject) -> None:
    case = data.draw(cases(chain, poisons))
    expected = run(case, 0)
    for cache_bytes in CACHES:
        assert run(case, cache_bytes) == expected, cache_bytes


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("cache_bytes", CACHES)
@given(data=st.data())
@settings(deadline=None, max_examples=examples(6))
def test_a_crash_at_any_commit_changes_nothing(chain: str, cache_bytes: int, data: st.DataObject) -> None:
    case = data.draw(cases(chain, True))
    crash_at = data.draw(st.integers(0, len(case.inputs) - 1))
    expected = run(case, cache_bytes)
    assert run(case, cache_bytes, crash_at=crash_at) == expected
    with tempfile.TemporaryDirectory() as directory:
        assert run(case, cache_bytes, Path(directory), crash_at) == expected
