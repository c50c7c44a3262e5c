"""Stores whose values have headers (KIP-1271): rows, changelog records, restore, with and without a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AggregationWithHeaders,
    Serdes,
    StoreBuilder,
    Stores,
    TopologyError,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
)
from penstock.pipeline.handover.store_changelogs import StoreChangelog, changelog_records
from penstock.statestore.stores.headers_format import HeadersFormat
from penstock.statestore.view.store_view import parts_of, plain
from penstock.topology.context.store_interfaces import StoreBackend
from penstock.topology.records import RawRecord
from tests.statestore.support import OpenStore

TEXT = Serdes.string()
HEADERS = [("a", b"1"), ("é", None), ("a", b"")]
#: Number of headers, then names and values with their lengths, as zigzag varints.
HEADERS_BYTES = b"\x06" + b"\x02a\x021" + b"\x04\xc3\xa9\x01" + b"\x02a\x00"
TIME_BYTES = (7).to_bytes(8, "big")


def rows_builder(**more: Any) -> StoreBuilder[Any]:
    supplier = Stores.persistent_timestamped_key_value_store_with_headers("rows")
    return Stores.timestamped_key_value_store_with_headers_builder(supplier, TEXT, more.get("value", TEXT))


def windows_builder() -> StoreBuilder[Any]:
    supplier = Stores.persistent_timestamped_window_store_with_headers("windows", 1000, 10)
    return Stores.timestamped_window_store_with_headers_builder(supplier, TEXT, TEXT)


def sessions_builder() -> StoreBuilder[Any]:
    supplier = Stores.persistent_session_store_with_headers("sessions", 1000)
    return Stores.session_store_with_headers_builder(supplier, TEXT, TEXT)


@pytest.fixture(params=["disk", "disk with cache", "memory", "memory with cache"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return arguments of OpenStore."""
    directory = tmp_path if "disk" in request.param else None
    return {"directory": directory, "cache_bytes": 10_000 if "cache" in request.param else 0}


def opened(builder: StoreBuilder[Any], place: dict[str, Any]) -> OpenStore:
    return OpenStore(builder.with_caching_enabled(), **place)


def logged(store: OpenStore) -> list[tuple[bytes | None, int, object]]:
    """Return value, timestamp and headers of the changelog records."""
    return [(record.value(), record.timestamp()[1], record.headers()) for record in store.task.changelog]


def test_a_row_has_the_bytes_of_kafka_streams() -> None:
    value = ValueTimestampHeaders("v", 7, HEADERS)
    assert HeadersFormat(timestamped=True).to_row(b"v", value) == b"\x18" + HEADERS_BYTES + TIME_BYTES + b"v"
    assert HeadersFormat(timestamped=False).to_row(b"v", (0, HEADERS)) == b"\x18" + HEADERS_BYTES + b"v"
    assert HeadersFormat(timestamped=True).to_row(b"v", ("v", 7, None)) == b"\x00" + TIME_BYTES + b"v"


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 2_000_000])
def test_headers_of_any_size_can_be_read(size: int) -> None:
    headers = [("n" * size, b"x" * size)]
    row = HeadersFormat(timestamped=True).to_row(b"v", (None, -1, headers))
    assert HeadersFormat(timestamped=True).split(row) == (b"v", -1, headers)


def test_a_put_is_logged_with_the_headers_of_the_value(place: dict[str, Any]) -> None:
    store = opened(rows_builder(), place)
    store.task.timestamp, store.task.headers = 100, [("of", b"record")]
    store.store.put("k", ValueTimestampHeaders("v", 7, HEADERS))
    assert store.store.get("k") == ValueTimestampHeaders("v", 7, HEADERS)
    assert list(store.store.all()) == [("k", ValueTimestampHeaders("v", 7, HEADERS))]
    store.commit()
    store.store.put("k", ValueTimestampHeaders("w", 8))
    store.commit()
    assert store.store.get("k").headers is None
    store.store.put("k", ValueTimestampHeaders(None, 9, HEADERS))
    store.commit()
    assert store.store.get("k") is None
    assert logged(store) == [(b"v", 7, HEADERS), (b"w", 8, None), (None, 100, [("of", b"record")])]


def test_windows_and_sessions_keep_headers(place: dict[str, Any]) -> None:
    windows, sessions = opened(windows_builder(), place), opened(sessions_builder(), place)
    for store in (windows, sessions):
        store.task.timestamp, store.task.headers = 100, [("of", b"record")]
    windows.store.put("k", ValueTimestampHeaders("v", 7, {"h": "1"}), 20)
    sessions.store.put(Windowed("k", 20, 25), AggregationWithHeaders("v", {"h": "1"}))
    for _ in range(2):  # from the cache, then from the store below
        assert windows.store.fetch("k", 20) == ("v", 7, [("h", b"1")])
        assert [value for _, value in windows.store.fetch_range("k", 0, 99)] == [("v", 7, [("h", b"1")])]
        assert [value for _, value in windows.store.all()] == [("v", 7, [("h", b"1")])]
        assert sessions.store.fetch_session("k", 20, 25) == AggregationWithHeaders("v", {"h": "1"})
        assert [value.headers for _, value in sessions.store.find_sessions("k", 0, 99)] == [[("h", b"1")]]
        windows.commit()
        sessions.commit()
    sessions.store.remove(Windowed("k", 20, 25))
    sessions.commit()
    assert logged(windows) == [(b"v", 7, [("h", b"1")])]
    assert logged(sessions) == [(b"v", 100, [("h", b"1")]), (None, 100, [("of", b"record")])]


@pytest.mark.parametrize("make", [rows_builder, windows_builder, sessions_builder])
def test_rows_are_the_same_after_a_restore(make: Any, place: dict[str, Any], tmp_path: Path) -> None:
    written = opened(make(), place)
    put_some(written)
    written.commit()
    restored = OpenStore(make(), None if place["directory"] is None else tmp_path / "other")
    restored.task.changelog = written.task.changelog
    restored.restore_missing()
    rows = list(written.store.rows.scan(None, None))
    assert list(restored.store.rows.scan(None, None)) == rows
    assert len(rows) >= 3
    assert list(restored.store.all()) == list(written.store.all())


def test_rows_from_before_a_store_had_headers_have_none() -> None:
    """As after a `rebuild` of `penstock plan`."""
    supplier = Stores.persistent_timestamped_key_value_store("rows")
    before = OpenStore(Stores.timestamped_key_value_store_builder(supplier, TEXT, TEXT))
    before.task.headers = [("of", b"record")]
    before.store.put("k", ValueAndTimestamp("v", 7))
    after = OpenStore(rows_builder())
    after.store.restore(before.task.changelog, None)
    assert after.store.get("k") == ValueTimestampHeaders("v", 7)


def put_some(store: OpenStore) -> None:
    for number, headers in enumerate((None, HEADERS, {"h": b"\0" * 500})):
        key = f"key-{number}"
        if store.builder.name == "sessions":
            store.store.put(Windowed(key, 20, 25), AggregationWithHeaders("v", headers))
        elif store.builder.name == "windows":
            store.store.put(key, ValueTimestampHeaders("v", number, headers), 20)
        else:
            store.store.put(key, ValueTimestampHeaders("v", number, headers))


def test_a_reopened_store_has_its_rows(tmp_path: Path) -> None:
    store = OpenStore(rows_builder(), tmp_path)
    put_some(store)
    store.commit()
    store.store.put("key-0", None)
    store.reopen()
    assert store.store.get("key-0") == ValueTimestampHeaders("v", 0)
    assert store.store.get("key-1") == ValueTimestampHeaders("v", 1, HEADERS)


def test_an_object_that_is_changed_later_does_not_change_the_store(place: dict[str, Any]) -> None:
    store = opened(rows_builder(value=Serdes.json()), place)
    document = {"a": [1]}
    store.store.put("k", ValueTimestampHeaders(document, 1, HEADERS))
    document["a"].append(2)
    store.store.get("k").value["a"].append(3)
    assert store.store.get("k") == ValueTimestampHeaders({"a": [1]}, 1, HEADERS)


def test_invalid_headers_are_refused(place: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="the value of header a"):
        ValueTimestampHeaders("v", 1, {"a": 1})  # type: ignore[arg-type]
    store = opened(rows_builder(), place)
    with pytest.raises(TypeError, match="headers are a dict"):
        store.store.put("k", ("v", 1, b"no headers"))


def test_a_supplier_without_headers_is_refused_unless_it_is_in_memory() -> None:
    with pytest.raises(TopologyError, match="ends with _with_headers"):
        Stores.timestamped_key_value_store_with_headers_builder(Stores.persistent_timestamped_key_value_store("s"))
    with pytest.raises(TopologyError, match="ends with _with_headers"):
        Stores.session_store_with_headers_builder(Stores.persistent_session_store("s", 10))
    built = Stores.timestamped_key_value_store_with_headers_builder(Stores.lru_map("s", 3))
    assert built.keeps_headers
    assert built.backend is StoreBackend.LRU


def test_people_and_programs_see_headers() -> None:
    kind = rows_builder().kind
    shown = plain(parts_of(kind, ValueTimestampHeaders("v", 7, [("a", b"\xff"), ("b", None)])))
    assert shown == {"value": "v", "timestamp": 7, "headers": [["a", "0xff"], ["b", None]]}
    shown = plain(parts_of(sessions_builder().kind, AggregationWithHeaders("v", {"a": "1"})))
    assert shown == {"value": "v", "headers": [["a", "1"]]}


@pytest.mark.parametrize("make", [rows_builder, windows_builder, sessions_builder])
def test_a_handover_from_spark_writes_the_changelog_of_the_rows(make: Any) -> None:
    store = OpenStore(make())
    put_some(store)
    store.task.timestamp = 20
    store.commit()
    rows = list(store.store.rows.scan(None, None))
    sent = list(changelog_records(StoreChangelog(make(), "log", False), 3, rows, 20))
    again = OpenStore(make())
    for record in sent:
        headers = None if record.headers is None else list(record.headers)
        again.store.restore([RawRecord("log", 3, 0, record.timestamp or 0, record.key, record.value, headers)], None)
    assert list(again.store.rows.scan(None, None)) == rows
