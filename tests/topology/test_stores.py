"""Suppliers, builders and Materialized: their stores in a built topology."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    EmitStrategy,
    JoinWindows,
    KTable,
    Materialized,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
)
from penstock.topology.context.store_interfaces import StoreBackend, StoreKind
from penstock.topology.stores.materialized import setting


def stores_of(builder: StreamsBuilder, config: dict[str, Any] | None = None) -> dict[str, StoreBuilder]:
    topologies = builder.build(config).internal_builder.build_subtopologies(config)
    return {name: store for topology in topologies for name, store in topology.stores.items()}


def only_store(build: Callable[[StreamsBuilder], Any], config: dict[str, Any] | None = None) -> StoreBuilder:
    builder = StreamsBuilder()
    build(builder)
    (store,) = stores_of(builder, config).values()
    return store


def test_a_count_has_a_cached_rocksdb_store_with_timestamps() -> None:
    store = only_store(lambda builder: builder.stream("in", key_serde=Serdes.string()).group_by_key().count(store="c"))
    assert (store.name, store.kind, store.backend) == ("c", StoreKind.TIMESTAMPED_KEY_VALUE, StoreBackend.ROCKSDB)
    assert store.caching
    assert store.logging
    assert store.key_serde is Serdes.string()
    assert store.value_serde is Serdes.int64()


def test_materialized_has_all_options() -> None:
    kept = Materialized(
        "c", key_serde=Serdes.int32(), caching=False, logging={"retention.ms": "5"}, store_type="in_memory"
    )
    store = only_store(lambda builder: builder.stream("in").group_by_key().count(store=kept))
    assert (store.backend, store.caching, store.log_config) == (StoreBackend.IN_MEMORY, False, {"retention.ms": "5"})
    assert store.key_serde is Serdes.int32()


def test_copies_of_materialized_do_not_change_the_original() -> None:
    plain = Materialized.as_("c")
    changed = plain.with_caching_disabled().with_logging_disabled().with_retention(5).with_store_type("rocksDB")
    assert (plain.caching, plain.logging, plain.retention_ms, plain.store_type) == (True, True, None, None)
    assert (changed.caching, changed.logging, changed.retention_ms) == (False, False, 5)
    assert changed.with_caching_enabled().with_logging_enabled({"a": "b"}).log_config == {"a": "b"}
    assert Materialized.with_(Serdes.string(), None).key_serde is Serdes.string()


def test_serde_options_take_precedence_over_those_of_materialized() -> None:
    kept = Materialized("c", value_serde=Serdes.string())
    table: KTable[Any, Any] = StreamsBuilder().stream("in").to_table(store=kept, value_serde=Serdes.int64())
    assert table.value_serde is Serdes.int64()


def test_default_serdes_replace_missing_ones_of_a_store() -> None:
    config = {"default.key.serde": "string", "default.value.serde": Serdes.json()}

    def build(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().windowed_by(TimeWindows(10)).aggregate(dict, lambda k, v, a: a, store="w")

    store = only_store(build, config)
    assert (store.key_serde, store.value_serde) == (Serdes.string(), Serdes.json())
    assert only_store(build).key_serde is None


@pytest.mark.parametrize("key", ["default.dsl.store", "dsl.store.suppliers.class"])
def test_the_configuration_chooses_the_kind_of_store(key: str) -> None:
    config = {key: "in_memory"}
    assert only_store(lambda builder: builder.table("in", store="t"), config).backend is StoreBackend.IN_MEMORY
    declared = Materialized("t", store_type="rocksDB")
    assert only_store(lambda builder: builder.table("in", store=declared), config).backend is StoreBackend.ROCKSDB
    supplied = Stores.persistent_key_value_store("t")
    assert only_store(lambda builder: builder.table("in", store=supplied), config).backend is StoreBackend.ROCKSDB


def test_the_configuration_chooses_the_format() -> None:
    config = {"dsl.store.format": "HEADERS"}
    assert only_store(lambda builder: builder.table("in", store="t"), config).headers_format
    supplied = Stores.persistent_timestamped_key_value_store("t")
    assert not only_store(lambda builder: builder.table("in", store=supplied), config).headers_format


def test_any_mapping_is_accepted_as_configuration() -> None:
    assert setting({"unknown.key": 1, "default.dsl.store": "in_memory"}, "dsl.store.suppliers.class") == "in_memory"
    assert setting(None, "dsl.store.suppliers.class") == "rocksDB"


def test_a_table_in_a_plain_store_loses_timestamps() -> None:
    store = only_store(lambda builder: builder.table("in", store=Stores.persistent_key_value_store("t")))
    assert (store.kind, store.plain_values) == (StoreKind.TIMESTAMPED_KEY_VALUE, True)
    in_memory = only_store(lambda builder: builder.table("in", store=Stores.in_memory_key_value_store("t")))
    assert not in_memory.plain_values


def test_a_versioned_table_is_never_cached() -> None:
    supplier = Stores.persistent_versioned_key_value_store("t", 100, 7)
    store = only_store(lambda builder: builder.table("in", store=supplier))
    assert (store.kind, store.caching) == (StoreKind.VERSIONED_KEY_VALUE, False)
    assert (store.history_retention_ms, store.segment_interval_ms) == (100, 7)


@pytest.mark.parametrize(
    ("windows", "kind", "retention_ms", "size_ms"),
    [
        (TimeWindows(100, 10), StoreKind.TIMESTAMPED_WINDOW, 110, 100),
        (TimeWindows(100, 10, 50), StoreKind.TIMESTAMPED_WINDOW, 110, 100),
        (SlidingWindows(100, 10), StoreKind.TIMESTAMPED_WINDOW, 210, 100),
        (SessionWindows(100, 10), StoreKind.SESSION, 110, None),
    ],
)
def test_a_window_store_is_retained_while_windows_are_open(
    windows: Any, kind: StoreKind, retention_ms: int, size_ms: int | None
) -> None:
    store = only_store(lambda builder: builder.stream("in").group_by_key().windowed_by(windows).count())
    assert (store.kind, store.retention_ms, store.window_size_ms) == (kind, retention_ms, size_ms)
    too_short = Materialized(retention=retention_ms - 1)
    with pytest.raises(TopologyError, match=f"retention .* {retention_ms} ms"):
        StreamsBuilder().stream("in").group_by_key().windowed_by(windows).count(store=too_short)


@pytest.mark.parametrize(
    ("windows", "cached"), [(TimeWindows(10), True), (SlidingWindows(10), False), (SessionWindows(10), False)]
)
def test_windows_that_emit_on_close_have_a_time_ordered_store(windows: Any, cached: bool) -> None:
    def build(builder: StreamsBuilder) -> None:
        windowed = builder.stream("in").group_by_key().windowed_by(windows)
        windowed.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count()

    store = only_store(build)
    assert store.time_ordered
    assert store.caching == cached


def test_join_stores_keep_duplicates_and_are_not_compacted() -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("a"), builder.stream("b")
    left.left_join(right, lambda one, other: one, JoinWindows(10, grace=5), store="j", key_serde=Serdes.string())
    stores = stores_of(builder)
    assert set(stores) == {"j-this-join-store", "j-outer-other-join-store", "j-left-shared-join-store"}
    this = stores["j-this-join-store"]
    assert (this.kind, this.retain_duplicates, this.retention_ms) == (StoreKind.WINDOW, True, 25)
    assert this.log_config == {"cleanup.policy": "delete"}
    assert stores["j-left-shared-join-store"].kind is StoreKind.LIST_VALUE


def test_a_join_accepts_suppliers_that_fit() -> None:
    def join(**options: Any) -> None:
        builder = StreamsBuilder()
        builder.stream("a").join(builder.stream("b"), lambda one, other: one, JoinWindows(10, grace=5), **options)

    fitting = Stores.in_memory_window_store("w", 25, 20, retain_duplicates=True)
    join(this_store=fitting)
    with pytest.raises(TopologyError, match="both stores are called w"):
        join(this_store=fitting, other_store=fitting)
    with pytest.raises(TopologyError, match="retain_duplicates"):
        join(this_store=Stores.in_memory_window_store("w", 25, 20))
    with pytest.raises(TopologyError, match="window size of the join"):
        join(this_store=Stores.in_memory_window_store("w", 30, 20, retain_duplicates=True))
    with pytest.raises(TopologyError, match="needs a window store"):
        join(this_store=Stores.in_memory_key_value_store("w"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stores.lru_map("x", -1),
        lambda: Stores.persistent_versioned_key_value_store("x", -1),
        lambda: Stores.persistent_versioned_key_value_store("x", 1, 0),
        lambda: Stores.persistent_window_store("x", 5, 6),
        lambda: Stores.in_memory_session_store("x", -1),
        lambda: Stores.persistent_key_value_store("not legal"),
        lambda: Stores.window_store_builder(Stores.persistent_key_value_store("x")),
        lambda: Stores.key_value_store_builder(Stores.persistent_session_store("x", 1)),
        lambda: Materialized("x", store_type="redis"),
        lambda: Materialized("x", retention=-1),
        lambda: Materialized(Stores.lru_map("x", 1), store_type="in_memory"),
        lambda: Materialized(Stores.lru_map("x", 1)).with_store_type("in_memory"),
    ],
)
def test_impossible_stores_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(TopologyError):
        make()


def test_a_table_refuses_a_window_store() -> None:
    supplier = Stores.persistent_window_store("w", 5, 5)
    with pytest.raises(
        TopologyError, match='A table needs a key-value or versioned key-value store, but "w" is a window'
    ):
        StreamsBuilder().table("in", store=supplier)


def test_builders_have_the_suppliers_settings() -> None:
    builder = Stores.window_store_builder(Stores.persistent_window_store("w", 9, 5), Serdes.string(), Serdes.int64())
    assert (builder.kind, builder.retention_ms, builder.window_size_ms) == (StoreKind.WINDOW, 9, 5)
    assert builder.key_serde is Serdes.string()
    session = Stores.session_store_builder(Stores.in_memory_session_store("s", 9))
    assert (session.kind, session.backend, session.retention_ms) == (StoreKind.SESSION, StoreBackend.IN_MEMORY, 9)
    lru = Stores.key_value_store_builder(Stores.lru_map("l", 3))
    assert (lru.backend, lru.max_entries) == (StoreBackend.LRU, 3)
