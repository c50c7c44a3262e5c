"""Rows of stores as Arrow batches equal the store's own reads, for all kinds of stores, serdes and bounds."""

from __future__ import annotations

import enum
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from google.protobuf import struct_pb2, type_pb2  # type: ignore[import-untyped]
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import Serdes, StateStoreTypeError, Ttl
from penstock.kernel.aggregates import Aggregation, Count, Field, Last
from penstock.statestore.stores.state_store import LONG_MAX, Bounds
from penstock.statestore.view.columns import SAMPLE_ROWS, StoreColumns, chosen_columns, table_schema
from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.errors import StreamsError
from penstock.topology.records import VersionedRecord, Windowed
from penstock.topology.serdes.aggregates_serde import AggregatesSerde
from tests.examples import examples
from tests.statestore.kinds import (
    RETENTION_MS,
    TIMES_MS,
    builder,
    put_plain,
    put_session,
    put_timestamped,
    put_timestamped_window,
    put_window,
)
from tests.statestore.support import OpenStore

KEYS = ("", "a", "a\0", "ab", "b")


def table_of(store: Any, bounds: Bounds | None = None, columns: tuple[str, ...] | None = None) -> pa.Table:
    """Return the rows of a store as a table."""
    read = StoreColumns(store)
    schema = table_schema([read.schema(store)], "store")
    schema = schema if columns is None else chosen_columns(schema, columns)
    batches = list(read.batches(store.stored_rows(bounds or Bounds()), schema))
    return pa.Table.from_batches(batches, schema)


def ms(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


def shown(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows in order, with times in ms."""
    rows = [tuple(ms(one) if isinstance(one, datetime) else one for one in row.values()) for row in table.to_pylist()]
    return sorted(rows, key=repr)


# -- kinds of stores, and what their rows should be: from the store's own reads

Put = Callable[[Any, str, int, int | None], None]
Rows = Callable[[Any], Iterator[tuple[Any, ...]]]


def plain_rows(store: Any) -> Iterator[tuple[Any, ...]]:
    yield from store.all()


def timestamped_rows(store: Any) -> Iterator[tuple[Any, ...]]:
    return ((key, value, timestamp) for key, (value, timestamp) in store.all())


def window_rows(store: Any) -> Iterator[tuple[Any, ...]]:
    return ((key, start, end, value) for (key, start, end), value in store.all())


def timestamped_window_rows(store: Any) -> Iterator[tuple[Any, ...]]:
    return ((key, start, end, value, at) for (key, start, end), (value, at) in store.all())


def version_rows(store: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the versions that get() finds: get_versions also shows some that ended before the history."""
    kept_from = store._observed_ms - RETENTION_MS
    for key in KEYS:
        for value, timestamp, valid_to in map(parts_of, store.get_versions(key, 0, LONG_MAX)):
            if valid_to is None or valid_to > kept_from:
                yield key, value, timestamp, valid_to


def parts_of(version: VersionedRecord) -> tuple[int, int, int | None]:
    return version.value, version.timestamp, version.valid_to


STORES: dict[str, tuple[StoreBuilder[Any], Put, Rows]] = {
    "plain": (builder(StoreKind.KEY_VALUE), put_plain, plain_rows),
    "timestamped": (builder(StoreKind.TIMESTAMPED_KEY_VALUE), put_timestamped, timestamped_rows),
    "lru": (builder(StoreKind.KEY_VALUE, backend=StoreBackend.LRU, max_entries=2), put_plain, plain_rows),
    "ttl": (builder(StoreKind.TIMESTAMPED_KEY_VALUE, ttl=Ttl(timedelta(days=1))), put_timestamped, timestamped_rows),
    "windows": (builder(StoreKind.WINDOW), put_window, window_rows),
    "timestamped windows": (
        builder(StoreKind.TIMESTAMPED_WINDOW),
        put_timestamped_window,
        timestamped_window_rows,
    ),
    "windows by time": (
        builder(StoreKind.TIMESTAMPED_WINDOW, time_ordered=True),
        put_timestamped_window,
        timestamped_window_rows,
    ),
    "sessions": (builder(StoreKind.SESSION), put_session, window_rows),
    "sessions by time": (builder(StoreKind.SESSION, time_ordered=True), put_session, window_rows),
    "versioned": (builder(StoreKind.VERSIONED_KEY_VALUE, caching=False), put_window, version_rows),
}
STEPS = st.lists(
    st.one_of(
        st.sampled_from(["flush", "commit"]),
        st.tuples(st.sampled_from(KEYS), st.sampled_from(TIMES_MS), st.none() | st.integers(0, 9)),
    ),
    min_size=1,
    max_size=25,
)
KEY = st.none() | st.sampled_from([key.encode() for key in KEYS])
BOUNDS = st.builds(
    Bounds, KEY, KEY, st.sampled_from([b"", b"a"]), st.sampled_from(TIMES_MS), st.sampled_from([*TIMES_MS, LONG_MAX])
)


def within(bounds: Bounds, kind: StoreKind, row: Any) -> bool:
    if not bounds.has(row[0].encode()):
        return False
    if kind is StoreKind.SESSION:
        return bool(row[2] >= bounds.time_from and row[1] <= bounds.time_to)
    has_windows = kind in (StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW)
    return not has_windows or bool(bounds.time_from <= row[1] <= bounds.time_to)


@pytest.mark.parametrize("in_memory", [False, True], ids=["on disk", "in memory"])
@pytest.mark.parametrize("cache_bytes", [0, 1_000_000], ids=["", "cached"])
@pytest.mark.parametrize("kind", STORES)
@settings(
    max_examples=examples(40),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes
    suppress_health_check=list(HealthCheck),
)
@given(steps=STEPS, bounds=BOUNDS)
def test_rows_are_those_of_the_store(
    kind: str, cache_bytes: int, in_memory: bool, steps: list[Any], bounds: Bounds
) -> None:
    of, put, rows = STORES[kind]
    if in_memory and of.backend is StoreBackend.ROCKSDB:
        of = builder(
            of.kind, caching=of.caching, time_ordered=of.time_ordered, ttl=of.ttl, backend=StoreBackend.IN_MEMORY
        )
    with tempfile.TemporaryDirectory() as directory:
        opened = OpenStore(of, None if in_memory else Path(directory), cache_bytes)
        for step in steps:
            if step == "flush":
                opened.store.flush()
            elif step == "commit":
                opened.commit()
            else:
                opened.task.timestamp = step[1]
                put(opened.store, *step)
        for store in (opened.store, opened.store.as_committed()):
            found = sorted(rows(store), key=repr)
            assert shown(table_of(store)) == found
            limited = [row for row in found if within(bounds, of.kind, row)]
            assert shown(table_of(store, bounds)) == limited
        opened.store.close()


def test_a_scan_keeps_its_rows_while_the_store_changes(tmp_path: Path) -> None:
    for directory in (tmp_path, None):
        opened = OpenStore(builder(StoreKind.TIMESTAMPED_WINDOW, caching=False), directory)
        for number in range(2_000):
            opened.store.put(f"{number:04}", (number, 1), 1_000)
        opened.commit()
        read = StoreColumns(opened.store)
        batches = read.batches(opened.store.stored_rows(Bounds()), read.schema(opened.store))
        for number in range(2_000):
            opened.store.put(f"{number:04}", (-1, 1), 1_000)
        opened.commit()
        values = [value for batch in batches for value in batch.column("value").to_pylist()]
        assert sorted(values) == list(range(2_000))
        opened.store.close()


def test_versions_that_ended_before_the_history_are_not_shown() -> None:
    opened = OpenStore(builder(StoreKind.VERSIONED_KEY_VALUE, caching=False))
    for key, time in (("a", 0), ("a", 10_000), ("a", 20_000), ("b", RETENTION_MS + 15_000)):
        opened.store.put(key, 1, time)
    expected = [("a", 1, 10_000, 20_000), ("a", 1, 20_000, None), ("b", 1, RETENTION_MS + 15_000, None)]
    assert shown(table_of(opened.store)) == expected
    assert opened.store.get("a", 10_000) is None
    assert opened.store.get("a", 15_000).value == 1


# -- only what is asked for is read


class Counted:
    """A serde of the user that notes what it reads."""

    def __init__(self) -> None:
        self.read: list[bytes] = []

    def serialize(self, _topic: str, value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    def deserialize(self, _topic: str, data: bytes | None) -> str | None:
        if data is None:
            return None
        self.read.append(data)
        return data.decode()


@pytest.mark.parametrize(
    "kind", [StoreKind.KEY_VALUE, StoreKind.WINDOW, StoreKind.SESSION, StoreKind.VERSIONED_KEY_VALUE]
)
def test_only_rows_within_the_bounds_and_columns_that_are_wanted_are_decoded(kind: StoreKind, tmp_path: Path) -> None:
    keys, values = Counted(), Counted()
    of = builder(kind, key_serde=Serdes.of(keys), value_serde=Serdes.of(values), caching=False)
    opened = OpenStore(of, tmp_path)
    for key in ("a", "b", "c"):
        for time in (0, 1_000, 150_000):
            if kind is StoreKind.SESSION:
                opened.store.put(Windowed(key, time, time), f"{key}{time}")
            elif kind is StoreKind.KEY_VALUE:
                opened.store.put(key, f"{key}{time}")
            else:
                opened.store.put(key, f"{key}{time}", time)
    opened.commit()
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    keys.read.clear()
    bounds = Bounds(b"b", b"b", b"", 1_000, 1_000)
    read = StoreColumns(opened.store)
    list(read.batches(opened.store.stored_rows(bounds), schema))
    expected = {
        StoreKind.KEY_VALUE: [b"b150000"],
        StoreKind.VERSIONED_KEY_VALUE: [b"b0", b"b1000", b"b150000"],
        StoreKind.WINDOW: [b"b1000"],
        StoreKind.SESSION: [b"b1000"],
    }[kind]
    assert sorted(values.read) == expected
    assert set(keys.read) == {b"b"}
    values.read.clear()
    list(read.batches(opened.store.stored_rows(Bounds()), pa.schema([schema.field("key")])))
    assert values.read == []
    opened.store.close()


def test_rows_outside_of_the_range_are_not_read_from_the_disk(tmp_path: Path) -> None:
    opened = OpenStore(builder(StoreKind.KEY_VALUE, caching=False), tmp_path)
    for number in range(5_000):
        opened.store.put(f"{number:05}", number)
    opened.commit()
    assert len(list(opened.store.stored_rows(Bounds(b"01000", b"01009")))) == 10
    assert len(list(opened.store.stored_rows(Bounds(prefix=b"0200")))) == 10
    assert list(opened.store.stored_rows(Bounds(b"2", b"1"))) == []
    opened.store.close()


# -- types


class Level(enum.Enum):
    LOW = "low"


class Point(msgspec.Struct):
    x: int
    y: float | None = None


class Order(msgspec.Struct, rename="camel"):
    carrier: str
    total_cents: int
    tags: list[str]
    at: Point | None
    day: date
    seen: datetime
    level: Level
    price: Decimal
    number: UUID
    raw: bytes
    key: str
    anything: Any = None
    either: int | str = 0
    extra: dict[str, int] = {}


ORDER = Order(
    *("AA", 7, ["x"], Point(1, 2.5), date(2026, 11, 30), datetime(2026, 11, 30, 12, tzinfo=UTC), Level.LOW),
    *(Decimal("1.10"), UUID(int=5), b"\xff", "own key", {"deep": [1]}, "text", {"n": 1}),
)


def of_values(serde: Any, *values: Any, key_serde: Any = None) -> pa.Table:
    opened = OpenStore(builder(StoreKind.KEY_VALUE, value_serde=serde, caching=False))
    for number, value in enumerate(values):
        opened.store.put(f"{number:05}", value)
    return table_of(opened.store)


def test_fields_of_a_type_are_columns() -> None:
    table = of_values(Serdes.json(Order), ORDER)
    assert {field.name: str(field.type) for field in table.schema} == {
        "key": "string",
        "carrier": "string",
        "totalCents": "int64",
        "tags": "list<item: string>",
        "at": "struct<x: int64, y: double>",
        "day": "date32[day]",
        "seen": "timestamp[us, tz=UTC]",
        "level": "string",
        "price": "string",
        "number": "string",
        "raw": "binary",
        "value_key": "string",
        "anything": "large_string",
        "either": "large_string",
        "extra": "large_string",
    }
    assert table.to_pylist() == [
        {
            "key": "00000",
            "carrier": "AA",
            "totalCents": 7,
            "tags": ["x"],
            "at": {"x": 1, "y": 2.5},
            "day": date(2026, 11, 30),
            "seen": datetime(2026, 11, 30, 12, tzinfo=UTC),
            "level": "low",
            "price": "1.10",
            "number": str(UUID(int=5)),
            "raw": b"\xff",
            "value_key": "own key",
            "anything": '{"deep": [1]}',
            "either": '"text"',
            "extra": '{"n": 1}',
        }
    ]
    assert of_values(Serdes.json(Order)).schema == table.schema


def test_aggregates_have_columns_before_there_is_a_row() -> None:
    fields = {"n": Count("n", Field(()), True), "last": Last("last", Field(("x",)), lambda value: value)}
    aggregation = Aggregation(tuple(fields), tuple(fields.values()))
    found = AggregatesSerde(aggregation, {"n": "count()", "last": 'last("x")'})
    opened = OpenStore(builder(StoreKind.TIMESTAMPED_KEY_VALUE, value_serde=found, caching=False))
    kinds = {field.name: str(field.type) for field in table_of(opened.store).schema}
    assert kinds == {
        "key": "string",
        "n": "int64",
        "last": "large_string",
        "timestamp": "timestamp[ms, tz=UTC]",
    }


class Pair(NamedTuple):
    left: int
    right: str


@dataclass
class Data:
    n: int


@pytest.mark.parametrize(
    ("serde", "values", "kinds", "rows"),
    [
        (Serdes.json(), [{"n": 1}, {"n": 2.5, "m": "x"}], {"n": "double", "m": "string"}, [(1.0, None), (2.5, "x")]),
        (Serdes.json(), [{"n": 1}, {"n": "x"}], {"n": "large_string"}, [("1",), ('"x"',)]),
        (Serdes.json(), [{"n": [1, None]}, {"n": []}], {"n": "list<item: int64>"}, [([1, None],), ([],)]),
        (
            Serdes.json(),
            [{"o": {"a": 1}}, {"o": {"b": True}}],
            None,
            [({"a": 1, "b": None},), ({"a": None, "b": True},)],
        ),
        (Serdes.json(), [1, 2], {"value": "int64"}, [(1,), (2,)]),
        (Serdes.json(), [1, {"n": 1}], {"value": "large_string"}, [("1",), ('{"n": 1}',)]),
        (Serdes.json(), [{}], {"value": "large_string"}, [("{}",)]),
        (Serdes.json(Data), [Data(3)], {"n": "int64"}, [(3,)]),
        (Serdes.json(list[int]), [[1, 2]], {"value": "list<item: int64>"}, [([1, 2],)]),
        (Serdes.float32(), [0.5], {"value": "float"}, [(0.5,)]),
        (Serdes.float64(), [0.1, float("inf")], {"value": "double"}, [(0.1,), (float("inf"),)]),
        (Serdes.int16(), [-5, 5], {"value": "int16"}, [(-5,), (5,)]),
        (Serdes.int32(), [-(2**31)], {"value": "int32"}, [(-(2**31),)]),
        (Serdes.boolean(), [True, False], {"value": "bool"}, [(True,), (False,)]),
        (Serdes.bytes(), [b"", b"\0\xff"], {"value": "binary"}, [(b"",), (b"\0\xff",)]),
        (Serdes.string(), ["", "é"], {"value": "string"}, [("",), ("é",)]),
        (Serdes.uuid(), [UUID(int=1)], {"value": "string"}, [(str(UUID(int=1)),)]),
        (Serdes.list(Serdes.int32()), [[1, 2]], {"value": "list<item: int64>"}, [([1, 2],)]),
    ],
)
def test_types_of_serdes(
    serde: Any, values: list[Any], kinds: dict[str, str] | None, rows: list[tuple[Any, ...]]
) -> None:
    table = of_values(serde, *values)
    if kinds is not None:
        assert {field.name: str(field.type) for field in table.schema} == {"key": "string", **kinds}
    assert [tuple(row.values())[1:] for row in table.to_pylist()] == rows


@pytest.mark.parametrize(
    ("serde", "keys"),
    [
        (Serdes.int64(), [5, -1]),
        (Serdes.int32(), [7]),
        (Serdes.bytes(), [b"\xff"]),
        (Serdes.json(Pair), [Pair(1, "x")]),
    ],
)
def test_keys_of_windows(serde: Any, keys: list[Any]) -> None:
    opened = OpenStore(builder(StoreKind.WINDOW, key_serde=serde, caching=False))
    for key in keys:
        opened.store.put(key, 1, 2_000)
    found = table_of(opened.store).column("key").to_pylist()
    assert found == [key._asdict() if isinstance(key, Pair) else key for key in keys]  # in the order of their bytes


def test_values_that_do_not_fit_the_types_of_the_first_rows_are_an_error() -> None:
    values: list[Any] = [{"n": 1}] * SAMPLE_ROWS
    with pytest.raises(StateStoreTypeError, match=r"a row of the store store does not fit .* schemas="):
        of_values(Serdes.json(), *values, {"n": {"a": 1}})


class Opaque:
    pass


class OpaqueSerde:
    def serialize(self, _topic: str, value: Any) -> bytes | None:
        return None if value is None else b"x"

    def deserialize(self, _topic: str, data: bytes | None) -> Any:
        return None if data is None else Opaque()


def test_objects_that_cannot_be_columns_are_an_error() -> None:
    with pytest.raises(StateStoreTypeError, match="an object of the class Opaque cannot be a column"):
        of_values(Serdes.of(OpaqueSerde()), Opaque())


def test_fields_that_differ_in_case_only_are_an_error() -> None:
    with pytest.raises(StateStoreTypeError, match=r"cannot distinguish the fields .*: N, key, n"):
        of_values(Serdes.json(), {"n": 1, "N": 2})


def test_damaged_rows_are_an_error() -> None:
    opened = OpenStore(builder(StoreKind.KEY_VALUE, caching=False))
    opened.store.rows.put(b"a", b"123")
    with pytest.raises(StreamsError, match="3 bytes are no row of the store"):
        table_of(opened.store)
    opened = OpenStore(builder(StoreKind.KEY_VALUE, value_serde=Serdes.string(), caching=False))
    opened.store.rows.put(b"a", b"\xff")
    with pytest.raises(StreamsError, match=r"Serdes.string\(\) cannot read a row"):
        table_of(opened.store)


def test_times_that_sql_does_not_have_are_null() -> None:
    opened = OpenStore(builder(StoreKind.TIMESTAMPED_KEY_VALUE, caching=False))
    opened.store.put("a", (1, -1))
    opened.store.put("b", (1, LONG_MAX))
    assert table_of(opened.store).column("timestamp").to_pylist() == [None, None]


# -- schema registries

AVRO = """{"type": "record", "name": "Order", "fields": [
    {"name": "carrier", "type": "string"},
    {"name": "n", "type": "long"},
    {"name": "small", "type": ["null", "int"], "default": null},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "raw", "type": "bytes"},
    {"name": "ratio", "type": "double"},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "extra", "type": {"type": "map", "values": "long"}},
    {"name": "level", "type": {"type": "enum", "name": "Level", "symbols": ["LOW", "HIGH"]}},
    {"name": "point", "type": {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "float"}]}}
]}"""


def test_fields_of_an_avro_schema_are_columns() -> None:
    at = datetime(2026, 11, 30, 12, tzinfo=UTC)
    value = {
        "carrier": "AA",
        "n": 7,
        "small": None,
        "at": at,
        "day": date(2026, 11, 30),
        "price": Decimal("1.10"),
        "raw": b"\xff",
        "ratio": 0.5,
        "tags": ["x"],
        "extra": {"a": 1},
        "level": "LOW",
        "point": {"x": 1.5},
    }
    table = of_values(Serdes.avro(AVRO, "mock://columns"), value)
    assert {field.name: str(field.type) for field in table.schema} == {
        "key": "string",
        "carrier": "string",
        "n": "int64",
        "small": "int64",
        "at": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "price": "string",
        "raw": "binary",
        "ratio": "double",
        "tags": "list<item: string>",
        "extra": "large_string",
        "level": "string",
        "point": "struct<x: double>",
    }
    assert table.to_pylist() == [{"key": "00000", **value, "price": "1.10", "extra": '{"a": 1}'}]


def test_fields_of_a_protobuf_message_are_columns() -> None:
    kind = struct_pb2.Value
    table = of_values(Serdes.protobuf(kind, "mock://columns"), kind(number_value=2.5), kind(string_value="x"))
    assert table.column("number_value").to_pylist() == [2.5, None]
    assert table.column("string_value").to_pylist() == [None, "x"]
    other = of_values(Serdes.protobuf(type_pb2.Option, "mock://columns"), type_pb2.Option(name="a"))
    assert other.select(["name"]).to_pylist() == [{"name": "a"}]


def test_rows_of_numbers_and_times_do_not_import_pandas(tmp_path: Path) -> None:
    """It takes 40 MB of each stream thread that has been scanned once."""
    program = f"""
import sys
from pathlib import Path
from tests.statestore.kinds import put_timestamped_window
from tests.statestore.test_store_columns import STORES, OpenStore, table_of
of_kind, put, _ = STORES["timestamped windows"]
store = OpenStore(of_kind, Path({str(tmp_path)!r})).store
put(store, "a", 1_000, 1)
assert table_of(store).num_rows == table_of(store, columns=()).num_rows == 1
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr
