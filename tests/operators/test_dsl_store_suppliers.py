"""Operators over stores that DslStoreSuppliers choose (KIP-591, KIP-954): built-in ones, and users' own."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    DslKeyValueParams,
    DslSessionParams,
    DslStoreSuppliers,
    DslWindowParams,
    EmitStrategy,
    InMemoryDslStoreSuppliers,
    IsolationLevel,
    JoinWindows,
    Materialized,
    RocksDBDslStoreSuppliers,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StateStoreTypeError,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    TopologyError,
)
from penstock.testing import TopologyTestDriver
from penstock.topology.context.store_interfaces import StoreBackend
from tests.examples import one_of
from tests.own_stores import OwnRows, OwnSessions, OwnSuppliers, OwnWindows

TEXT = Serdes.string()
MINUTE = 60_000
Records = list[tuple[str, str, str | None, int]]


def builder_of(declare: Callable[[Any, Any], Any]) -> StreamsBuilder:
    """Return a topology that reads the topics left and right and writes what declare(left, right) returns to out."""
    builder = StreamsBuilder()
    left, right = (builder.stream(topic, key_serde=TEXT, value_serde=TEXT) for topic in ("left", "right"))
    found = declare(left, right)
    found.to("out", key_serde=TEXT, value_serde=TEXT)
    return builder


def grouped(stream: Any) -> Any:
    return stream.group_by_key(key_serde=TEXT, value_serde=TEXT)


def as_text(table: Any) -> Any:
    return table.to_stream(lambda key, value: str(key)).map_values(str)


def joined(text: Any, other: Any) -> str:
    return f"{text}+{other}"


def tables(left: Any, right: Any) -> tuple[Any, Any]:
    return left.to_table(key_serde=TEXT, value_serde=TEXT), right.to_table(key_serde=TEXT, value_serde=TEXT)


def _aggregate(windowed: Any) -> Any:
    text = {"key_serde": TEXT, "value_serde": TEXT}
    return as_text(windowed.aggregate(str, lambda key, value, total: f"{total}{value}"[-30:], **text))


def _sessions(stream: Any) -> Any:
    windowed = grouped(stream).windowed_by(SessionWindows.of_inactivity_gap_and_grace(20_000, MINUTE))
    return as_text(
        windowed.aggregate(
            str,
            lambda key, value, total: f"{total}{value}"[-30:],
            lambda key, one, two: one + two,
            key_serde=TEXT,
            value_serde=TEXT,
        )
    )


ON_CLOSE = EmitStrategy.ON_WINDOW_CLOSE
TOPOLOGIES: Mapping[str, Callable[[Any, Any], Any]] = {
    "count": lambda left, right: as_text(grouped(left).count()),
    "reduce": lambda left, right: as_text(grouped(left).reduce(max)),
    "aggregate": lambda left, right: _aggregate(grouped(left)),
    "cogroup": lambda left, right: as_text(
        grouped(left)
        .cogroup(lambda key, value, total: total + value[-1])
        .cogroup(grouped(right), lambda key, value, total: value)
        .aggregate(str, key_serde=TEXT, value_serde=TEXT)
    ),
    "table": lambda left, right: as_text(tables(left, right)[0].map_values(str.upper, store="upper")),
    "grouped table": lambda left, right: as_text(
        tables(left, right)[0].group_by(lambda key, value: (value[:1], value), key_serde=TEXT, value_serde=TEXT).count()
    ),
    "table-table join": lambda left, right: as_text(tables(left, right)[0].outer_join(tables(left, right)[1], joined)),
    "foreign-key join": lambda left, right: as_text(
        tables(left, right)[0].left_join(tables(left, right)[1], joined, foreign_key=lambda value: f"key-{value[-1]}")
    ),
    "stream-table join": lambda left, right: left.left_join(tables(left, right)[1], joined),
    "windows": lambda left, right: _aggregate(grouped(left).windowed_by(TimeWindows.of_size_and_grace(MINUTE, MINUTE))),
    "hopping windows": lambda left, right: as_text(
        grouped(left).windowed_by(TimeWindows.of_size_and_grace(MINUTE, MINUTE).advance_by(MINUTE // 3)).count()
    ),
    "sliding windows": lambda left, right: as_text(
        grouped(left).windowed_by(SlidingWindows.of_time_difference_and_grace(MINUTE // 2, MINUTE)).reduce(max)
    ),
    "windows on close": lambda left, right: as_text(
        grouped(left).windowed_by(TimeWindows.of_size_and_grace(MINUTE, 0)).emit_strategy(ON_CLOSE).count()
    ),
    "sessions": lambda left, right: _sessions(left),
    "stream join": lambda left, right: left.join(
        right, joined, JoinWindows.of_time_difference_and_grace(MINUTE // 2, MINUTE), **STREAM_JOIN
    ),
    "outer stream join": lambda left, right: left.outer_join(
        right, joined, JoinWindows.of_time_difference_and_grace(MINUTE // 2, MINUTE), **STREAM_JOIN
    ),
}
STREAM_JOIN: dict[str, Any] = {"key_serde": TEXT, "value_serde": TEXT, "other_value_serde": TEXT}


def records(seed: int) -> Records:
    """Return random records of both topics, some of them late, some without a value."""
    chance, now = random.Random(seed), 0
    found: Records = []
    for number in range(250):
        now += chance.choice((0, 100, 3_000, 15_000, 90_000 if number % 40 == 0 else 0))
        timestamp = max(now - chance.choice((0, 0, 0, 20_000, 100_000, 500_000)), 0)
        value = None if chance.random() < 0.1 else f"v{chance.randrange(8)}"
        found.append((chance.choice(("left", "right")), f"key-{chance.randrange(5)}", value, timestamp))
    return found


def outcome(name: str, given: Records, config: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return what the topology writes, to changelogs, too."""
    builder = builder_of(TOPOLOGIES[name])
    with TopologyTestDriver(builder.build(), dict(config)) as driver:
        inputs = {topic: driver.create_input_topic(topic, TEXT, TEXT) for topic in ("left", "right")}
        for topic, key, value, timestamp in given:
            if value is not None or "table" in name or "foreign" in name:
                inputs[topic].pipe_input(key, value, timestamp)
        topics = sorted(driver.produced_topic_names())
        return {topic: read(driver, topic) for topic in topics}


def read(driver: Any, topic: str) -> list[Any]:
    raw = Serdes.bytes()
    return list(driver.create_output_topic(topic, raw, raw).read_records_to_list())


CACHES = pytest.mark.parametrize("cache_bytes", [0, 1_000_000])


@CACHES
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_own_stores_give_the_results_of_those_in_memory(name: str, cache_bytes: int) -> None:
    given = records(7)
    config: dict[str, Any] = {"statestore.cache.max.bytes": cache_bytes, "dsl.store.suppliers.class": "in_memory"}
    expected = outcome(name, given, config)
    before = OwnRows.puts + OwnWindows.puts + OwnSessions.puts
    assert outcome(name, given, {**config, "dsl.store.suppliers.class": OwnSuppliers}) == expected
    assert OwnRows.puts + OwnWindows.puts + OwnSessions.puts > before
    assert sum(map(len, expected.values())) > 80  # something was written


@CACHES
@pytest.mark.parametrize("kind", [RocksDBDslStoreSuppliers, InMemoryDslStoreSuppliers])
@pytest.mark.parametrize("store_format", ["DEFAULT", "HEADERS"])
@pytest.mark.parametrize("name", one_of(3, TOPOLOGIES))
def test_suppliers_that_choose_the_built_in_stores_change_nothing(
    name: str, kind: type[DslStoreSuppliers], store_format: str, cache_bytes: int
) -> None:
    class Derived(kind):  # type: ignore[valid-type,misc]
        """Overrides nothing."""

    given = records(8)
    config = {"statestore.cache.max.bytes": cache_bytes, "dsl.store.format": store_format}
    word = "rocksDB" if kind is RocksDBDslStoreSuppliers else "in_memory"
    expected = outcome(name, given, {**config, "dsl.store.suppliers.class": word})
    assert outcome(name, given, {**config, "dsl.store.suppliers.class": kind}) == expected
    assert outcome(name, given, {**config, "dsl.store.suppliers.class": Derived}) == expected


class Noting(InMemoryDslStoreSuppliers):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.application_id = ""

    def configure(self, config: Mapping[str, Any]) -> None:
        self.application_id = config.get("application.id", "")

    def key_value_store(self, params: DslKeyValueParams) -> Any:
        self.asked.append(params)
        return super().key_value_store(params)

    def window_store(self, params: DslWindowParams) -> Any:
        self.asked.append(params)
        return super().window_store(params)

    def session_store(self, params: DslSessionParams) -> Any:
        self.asked.append(params)
        return super().session_store(params)


def asked(declare: Callable[[Any, Any], Any], **config: Any) -> list[Any]:
    suppliers = Noting()
    given = {"application.id": "app", "dsl.store.suppliers.class": suppliers}
    with TopologyTestDriver(
        builder_of(declare).build(), {**given, **{k.replace("_", "."): v for k, v in config.items()}}
    ):
        assert suppliers.application_id == "app"
        return list(dict.fromkeys(suppliers.asked))


UPDATE = EmitStrategy.ON_WINDOW_UPDATE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("count", [DslKeyValueParams("KSTREAM-AGGREGATE-STATE-STORE-0000000002", True)]),
        (
            "windows",
            [
                DslWindowParams(
                    "KSTREAM-AGGREGATE-STATE-STORE-0000000002", 2 * MINUTE, MINUTE, False, UPDATE, False, True
                )
            ],
        ),
        (
            "sliding windows",
            [
                DslWindowParams(
                    "KSTREAM-REDUCE-STATE-STORE-0000000002", 2 * MINUTE, MINUTE // 2, False, UPDATE, True, True
                )
            ],
        ),
        (
            "windows on close",
            [DslWindowParams("KSTREAM-AGGREGATE-STATE-STORE-0000000002", MINUTE, MINUTE, False, ON_CLOSE, False, True)],
        ),
        ("sessions", [DslSessionParams("KSTREAM-AGGREGATE-STATE-STORE-0000000002", 80_000, UPDATE)]),
        (
            "outer stream join",
            [
                DslWindowParams("KSTREAM-OUTERTHIS-0000000004-store", 2 * MINUTE, MINUTE, True, UPDATE, False, False),
                DslWindowParams("KSTREAM-OUTEROTHER-0000000005-store", 2 * MINUTE, MINUTE, True, UPDATE, False, False),
                DslKeyValueParams("KSTREAM-OUTERSHARED-0000000004-store", False),
            ],
        ),
    ],
)
def test_suppliers_get_what_an_operator_needs(name: str, expected: list[Any]) -> None:
    assert sorted(map(repr, asked(TOPOLOGIES[name]))) == sorted(map(repr, expected))


@pytest.mark.parametrize("wrap", [dict, StreamsConfig])
def test_a_file_of_settings_names_the_class(wrap: Callable[[Any], Mapping[str, Any]]) -> None:
    config = wrap({"application.id": "app", "dsl.store.suppliers.class": "tests.own_stores:OwnSuppliers"})
    with TopologyTestDriver(counting(Materialized("counts")).build(), config) as driver:
        store: Any = driver.get_state_store("counts")
        assert store.builder.backend is StoreBackend.CUSTOM


def test_a_class_of_another_kind_is_an_error() -> None:
    with pytest.raises((TopologyError, TypeError), match="DslStoreSuppliers"):
        TopologyTestDriver(counting(Materialized("counts")).build(), {"dsl.store.suppliers.class": OwnRows}).close()


def test_suppliers_learn_of_the_format_with_headers() -> None:
    (found,) = asked(TOPOLOGIES["count"], dsl_store_format="HEADERS")
    assert found.headers


def counting(store: Materialized) -> StreamsBuilder:
    return builder_of(lambda left, right: as_text(grouped(left).count(store=store)))


def joining(windows: JoinWindows, options: Mapping[str, Any]) -> StreamsBuilder:
    return builder_of(lambda left, right: left.join(right, joined, windows, **STREAM_JOIN, **options))


def test_a_materialized_has_its_own_suppliers() -> None:
    """They take precedence over those of the configuration, in each way to give them."""
    ways = [
        Materialized("counts", store_type=OwnSuppliers),
        Materialized("counts").with_store_type(OwnSuppliers()),
        Materialized(Stores.custom_store_builder("counts", OwnRows)),
        Materialized.as_(Stores.custom_store_builder("counts", OwnRows)),
    ]
    for way in ways:
        builder = counting(way)
        with TopologyTestDriver(builder.build(), {"dsl.store.suppliers.class": Noting}) as driver:
            driver.create_input_topic("left", TEXT, TEXT).pipe_value_list(["a", "b"])
            driver.create_input_topic("left", TEXT, TEXT).pipe_input("k", "a")
            store: Any = driver.get_state_store("counts")
            assert store.get("k").value == 1
            assert [key for key, _ in store.all()] == ["k"]
            assert store.builder.backend.value == "custom"
    assert Materialized.as_(InMemoryDslStoreSuppliers).store_type == Materialized(store_type="in_memory").store_type


def test_a_stream_join_has_its_own_suppliers() -> None:
    windows = JoinWindows.of_time_difference_with_no_grace(timedelta(seconds=10))
    stores = {
        "this_store": Stores.custom_store_builder("mine", lambda name: OwnWindows(name, 20_000, True)),
        "other_store": Stores.custom_store_builder("yours", lambda name: OwnWindows(name, 20_000, True)),
    }
    choices: list[dict[str, Any]] = [stores, {"store": Materialized("j", store_type=OwnSuppliers)}]
    for options in choices:
        before = OwnWindows.puts
        builder = joining(windows, options)
        with TopologyTestDriver(builder.build()) as driver:
            driver.create_input_topic("left", TEXT, TEXT).pipe_input("k", "a", 1)
            driver.create_input_topic("left", TEXT, TEXT).pipe_input("k", "b", 1)
            driver.create_input_topic("right", TEXT, TEXT).pipe_input("k", "c", 2)
            assert driver.create_output_topic("out", TEXT, TEXT).read_values_to_list() == ["a+c", "b+c"]
        assert OwnWindows.puts == before + 3


class Wrong(InMemoryDslStoreSuppliers):
    """Returns one store, whatever the operator needs."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def key_value_store(self, params: DslKeyValueParams) -> Any:
        return self.store

    def window_store(self, params: DslWindowParams) -> Any:
        return self.store


NAME = "KSTREAM-AGGREGATE-STATE-STORE-0000000002"


@pytest.mark.parametrize(
    ("name", "store", "message"),
    [
        ("count", None, "a supplier that Stores creates"),
        ("count", Stores.in_memory_key_value_store("other"), f'The store "{NAME}" must have this name'),
        ("count", Stores.in_memory_window_store(NAME, 1, 1), "needs a key-value store"),
        ("count", Stores.in_memory_key_value_store(NAME, ttl=1), "has no ttl"),
        ("windows", Stores.in_memory_window_store(NAME, 1, 1, True), "with retain_duplicates=False"),
        (
            "count",
            Stores.key_value_store_builder(Stores.in_memory_key_value_store(NAME)),
            "is for processors; operators need a supplier",
        ),
    ],
)
def test_a_store_that_does_not_fit_is_an_error_at_the_start(name: str, store: Any, message: str) -> None:
    with pytest.raises((TopologyError, TypeError), match=message):
        TopologyTestDriver(builder_of(TOPOLOGIES[name]).build(), {"dsl.store.suppliers.class": Wrong(store)}).close()


def test_an_own_store_has_no_ttl() -> None:
    store = Materialized(Stores.custom_store_builder("a", OwnRows), ttl=10)
    with pytest.raises(TopologyError, match="has no ttl"):
        builder_of(lambda left, right: as_text(grouped(left).count(store=store)))


def test_an_own_store_cannot_be_read_as_committed() -> None:
    """The user's class has only the current rows, not those as of the last commit."""
    with TopologyTestDriver(
        counting(Materialized("counts")).build(), {"dsl.store.suppliers.class": OwnSuppliers}
    ) as driver:
        store: Any = driver.get_state_store("counts")
        with pytest.raises(StateStoreTypeError, match="counts is kept in your own store"):
            store.read_only(IsolationLevel.READ_COMMITTED)
