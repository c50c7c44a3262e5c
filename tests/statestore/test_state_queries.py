"""Queries of interactive queries v2 against each kind of store: their results, and those that a store cannot answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    FailureReason,
    IsolationLevel,
    KeyQuery,
    MultiVersionedKeyQuery,
    Query,
    RangeQuery,
    Record,
    Serdes,
    StreamsError,
    TimestampedKeyQuery,
    TimestampedKeyWithHeadersQuery,
    TimestampedRangeQuery,
    TimestampedRangeWithHeadersQuery,
    TimestampedWindowKeyWithHeadersQuery,
    TimestampedWindowRangeWithHeadersQuery,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    VersionedKeyQuery,
    VersionedRecord,
    Windowed,
    WindowKeyQuery,
    WindowRangeQuery,
)
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from tests.statestore.support import OpenStore

HEADERS = [("h", b"1")]


def store(kind: StoreKind, cache_bytes: int = 0, **more: Any) -> OpenStore:
    values: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.int64(), "caching": cache_bytes > 0}
    if kind in (StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION):
        values |= {"retention_ms": 100_000, "window_size_ms": 10}
    if kind is StoreKind.VERSIONED_KEY_VALUE:
        values["history_retention_ms"] = 100_000
    return OpenStore(StoreBuilder("store", kind, **(values | more)), None, cache_bytes)


def plain() -> Any:
    made = store(StoreKind.KEY_VALUE).store
    made.put_all([("a", 1), ("b", 2), ("c", 3)])
    return made


def timestamped() -> Any:
    made = store(StoreKind.TIMESTAMPED_KEY_VALUE).store
    made.put_all([("a", (1, 10)), ("b", (2, 20))])
    return made


def with_headers() -> Any:
    made = store(StoreKind.TIMESTAMPED_KEY_VALUE, headers_format=True, keeps_headers=True).store
    made.put("a", ValueTimestampHeaders(1, 10, HEADERS))
    return made


def without_headers_in_their_format() -> Any:
    """As the store of an operator with dsl.store.format=HEADERS."""
    made = store(StoreKind.TIMESTAMPED_KEY_VALUE, headers_format=True).store
    made.put("a", (1, 10))
    return made


def windows() -> Any:
    made = store(StoreKind.WINDOW).store
    for key, value, start in (("a", 1, 0), ("a", 2, 10), ("b", 3, 10), ("a", 4, 20)):
        made.put(key, value, start)
    return made


def timestamped_windows() -> Any:
    made = store(StoreKind.TIMESTAMPED_WINDOW).store
    made.put("a", (1, 5), 0)
    return made


def windows_with_headers() -> Any:
    made = store(StoreKind.TIMESTAMPED_WINDOW, headers_format=True, keeps_headers=True).store
    made.put("a", ValueTimestampHeaders(1, 5, HEADERS), 0)
    return made


def sessions() -> Any:
    made = store(StoreKind.SESSION).store
    made.put(Windowed("a", 0, 5), 1)
    made.put(Windowed("b", 0, 5), 2)
    made.put(Windowed("a", 10, 15), 3)
    return made


def versions() -> Any:
    made = store(StoreKind.VERSIONED_KEY_VALUE).store
    for value, at in ((1, 10), (2, 20), (3, 30)):
        made.put("a", value, at)
    return made


OLD, MIDDLE, NEW = VersionedRecord(1, 10, 20), VersionedRecord(2, 20, 30), VersionedRecord(3, 30)
VERSIONS = MultiVersionedKeyQuery[str, int].with_key("a")


@pytest.mark.parametrize(
    ("make", "query", "expected"),
    [
        (plain, KeyQuery.with_key("a"), 1),
        (plain, KeyQuery.with_key("x"), None),
        (plain, RangeQuery.with_range("a", "b"), [("a", 1), ("b", 2)]),
        (plain, RangeQuery.with_lower_bound("b"), [("b", 2), ("c", 3)]),
        (plain, RangeQuery.with_upper_bound("b").with_ascending_keys(), [("a", 1), ("b", 2)]),
        (plain, RangeQuery.with_no_bounds().with_descending_keys(), [("c", 3), ("b", 2), ("a", 1)]),
        (timestamped, KeyQuery.with_key("a"), 1),
        (timestamped, RangeQuery.with_no_bounds(), [("a", 1), ("b", 2)]),
        (timestamped, TimestampedKeyQuery.with_key("a"), ValueAndTimestamp(1, 10)),
        (timestamped, TimestampedKeyQuery.with_key("x"), None),
        (timestamped, TimestampedRangeQuery.with_lower_bound("b"), [("b", ValueAndTimestamp(2, 20))]),
        (with_headers, KeyQuery.with_key("a"), 1),
        (with_headers, TimestampedKeyQuery.with_key("a"), ValueAndTimestamp(1, 10)),
        (with_headers, TimestampedKeyWithHeadersQuery.with_key("a"), Record("a", 1, 10, HEADERS)),
        (with_headers, TimestampedRangeWithHeadersQuery.with_no_bounds(), [Record("a", 1, 10, HEADERS)]),
        (without_headers_in_their_format, TimestampedKeyWithHeadersQuery.with_key("a"), Record("a", 1, 10)),
        (windows, WindowKeyQuery.with_key_and_window_start_range("a", 0, 10), [(0, 1), (10, 2)]),
        (
            windows,
            WindowRangeQuery.with_window_start_range(10, 10),
            [(Windowed("a", 10, 20), 2), (Windowed("b", 10, 20), 3)],
        ),
        (
            timestamped_windows,
            WindowKeyQuery.with_key_and_window_start_range("a", 0, 10),
            [(0, ValueAndTimestamp(1, 5))],
        ),
        (
            windows_with_headers,
            TimestampedWindowKeyWithHeadersQuery.with_key_and_window_start_range("a", 0, 10),
            [Record(Windowed("a", 0, 10), 1, 5, HEADERS)],
        ),
        (
            windows_with_headers,
            TimestampedWindowRangeWithHeadersQuery.with_window_start_range(0, 10),
            [Record(Windowed("a", 0, 10), 1, 5, HEADERS)],
        ),
        (sessions, WindowRangeQuery.with_key("a"), [(Windowed("a", 0, 5), 1), (Windowed("a", 10, 15), 3)]),
        (versions, VersionedKeyQuery.with_key("a"), VersionedRecord(3, 30)),
        (versions, VersionedKeyQuery.with_key("a").as_of(25), MIDDLE),
        (versions, VersionedKeyQuery.with_key("a").as_of(5), None),
        (versions, VERSIONS, [NEW, MIDDLE, OLD]),
        (versions, VERSIONS.with_ascending_timestamps(), [OLD, MIDDLE, NEW]),
        (versions, VERSIONS.from_time(15).to_time(25).with_descending_timestamps(), [MIDDLE, OLD]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_store_answers_a_query(make: Callable[[], Any], query: Query[Any], expected: object) -> None:
    answer = make().query(query)
    assert (answer.is_success, answer.result) == (True, expected)
    if isinstance(expected, list):
        assert [type(row) for row in answer.result] == [type(row) for row in expected]


@pytest.mark.parametrize(
    ("make", "query"),
    [
        (plain, TimestampedKeyQuery.with_key("a")),
        (plain, TimestampedRangeQuery.with_no_bounds()),
        (plain, WindowKeyQuery.with_key_and_window_start_range("a", 0, 1)),
        (timestamped, TimestampedKeyWithHeadersQuery.with_key("a")),
        (timestamped, TimestampedRangeWithHeadersQuery.with_no_bounds()),
        (timestamped, VersionedKeyQuery.with_key("a")),
        (windows, KeyQuery.with_key("a")),
        (windows, WindowRangeQuery.with_key("a")),
        (timestamped_windows, TimestampedWindowKeyWithHeadersQuery.with_key_and_window_start_range("a", 0, 1)),
        (timestamped_windows, TimestampedWindowRangeWithHeadersQuery.with_window_start_range(0, 1)),
        (sessions, WindowRangeQuery.with_window_start_range(0, 1)),
        (sessions, WindowKeyQuery.with_key_and_window_start_range("a", 0, 1)),
        (versions, KeyQuery.with_key("a")),
        (versions, RangeQuery.with_no_bounds()),
        (plain, Query()),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_store_of_another_kind_does_not_know_the_query(make: Callable[[], Any], query: Query[Any]) -> None:
    answer = make().query(query)
    assert (answer.is_failure, answer.failure_reason) == (True, FailureReason.UNKNOWN_QUERY_TYPE)
    assert f"cannot answer a {type(query).__name__}" in answer.failure_message
    with pytest.raises(StreamsError, match=r"UNKNOWN_QUERY_TYPE: store, a .* store"):
        _ = answer.result


def test_a_key_that_its_serde_refuses_is_a_failure_of_the_answer() -> None:
    answer = plain().query(KeyQuery.with_key(7))
    assert answer.failure_reason is FailureReason.STORE_EXCEPTION


@pytest.mark.parametrize("kind", [StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE])
def test_a_query_can_skip_the_record_cache(kind: StoreKind) -> None:
    opened = store(kind, 1_000_000)
    put = (lambda value: value) if kind is StoreKind.KEY_VALUE else (lambda value: (value, 5))
    opened.store.put("a", put(1))
    opened.store.flush()
    opened.store.put("a", put(2))
    query = KeyQuery[str, int].with_key("a")
    assert (opened.store.query(query).result, opened.store.query(query.skip_cache()).result) == (2, 1)
    committed = opened.store.read_only(IsolationLevel.READ_COMMITTED)
    assert committed.query(query).result is None
