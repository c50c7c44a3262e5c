"""Answers queries of interactive queries v2 from a store (Kafka Streams: StoreQueryUtils, Metered…Store)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from penstock.topology.context.store_facades import view_of_results
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.context.timestamp_extractors import TIMESTAMP_MAX
from penstock.topology.query.state_queries import (
    KeyQuery,
    MultiVersionedKeyQuery,
    Query,
    RangeQuery,
    ResultOrder,
    TimestampedKeyQuery,
    TimestampedKeyWithHeadersQuery,
    TimestampedRangeQuery,
    TimestampedRangeWithHeadersQuery,
    TimestampedWindowKeyWithHeadersQuery,
    TimestampedWindowRangeWithHeadersQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from penstock.topology.query.state_query_result import FailureReason, QueryResult
from penstock.topology.records import (
    AggregationWithHeaders,
    Record,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
)

R = TypeVar("R")
_KEY_VALUE = frozenset((StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE))
_TIMESTAMPED = frozenset((StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW))
_WINDOWS = frozenset((StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW))
_PLAIN_QUERIES = (KeyQuery, RangeQuery)
_HEADERS_QUERIES = (
    *(TimestampedKeyWithHeadersQuery, TimestampedRangeWithHeadersQuery),
    *(TimestampedWindowKeyWithHeadersQuery, TimestampedWindowRangeWithHeadersQuery),
)


def query_store(store: Any, query: Query[R], rows_max: int | None = None) -> QueryResult[R]:
    """Return the answer of a task's store; errors of its serdes become a failure with STORE_EXCEPTION.

    rows_max: the number of rows after which a list ends; None for all.
    """
    builder: StoreBuilder = store.builder
    read = _reader(builder, query)
    if read is None:
        described = f"{builder.name}, a {builder.kind.value} store"
        if builder.keeps_headers or builder.headers_format:
            described += " with headers"
        return QueryResult.for_unknown_query_type(query, described)
    try:
        found = read(store, query)
        if read not in (_of_key, _of_version):
            found = list(islice(found, rows_max))
        return QueryResult.for_result(found)
    except Exception as error:  # noqa: BLE001  the caller's key, or a user's serde
        return QueryResult.for_failure(FailureReason.STORE_EXCEPTION, f"{type(error).__name__}: {error}")


def _reader(builder: StoreBuilder, query: Query) -> Callable[[Any, Any], Any] | None:
    """Return the function that answers a query, None if this kind of store cannot."""
    kind, has_headers = builder.kind, builder.keeps_headers or builder.headers_format
    if isinstance(query, _HEADERS_QUERIES) and not (has_headers and kind in _TIMESTAMPED):
        return None
    match query:
        case KeyQuery() | RangeQuery() if kind in _KEY_VALUE:
            return _of_key if isinstance(query, KeyQuery) else _of_range
        case TimestampedKeyQuery() | TimestampedKeyWithHeadersQuery() if kind is StoreKind.TIMESTAMPED_KEY_VALUE:
            return _of_key
        case TimestampedRangeQuery() | TimestampedRangeWithHeadersQuery() if kind is StoreKind.TIMESTAMPED_KEY_VALUE:
            return _of_range
        case WindowKeyQuery() | TimestampedWindowKeyWithHeadersQuery() if kind in _WINDOWS:
            return _of_windows
        case WindowRangeQuery() | TimestampedWindowRangeWithHeadersQuery() if kind in _WINDOWS and query.key is None:
            return _of_window_starts
        case WindowRangeQuery() if kind is StoreKind.SESSION and query.key is not None:
            return _of_sessions
        case VersionedKeyQuery() if kind is StoreKind.VERSIONED_KEY_VALUE:
            return _of_version
        case MultiVersionedKeyQuery() if kind is StoreKind.VERSIONED_KEY_VALUE:
            return _of_versions
    return None


def _of_key(store: Any, query: Any) -> Any:
    found = (store.get_stored if query.is_skip_cache else store.get)(query.key)
    return None if found is None else _shown(store, query, query.key, found)


def _of_range(store: Any, query: Any) -> Iterator[Any]:
    scan = store.reverse_range if query.result_order is ResultOrder.DESCENDING else store.range
    return _rows(store, query, scan(query.lower_bound, query.upper_bound))


def _of_windows(store: Any, query: Any) -> Iterator[Any]:
    found = store.fetch_range(query.key, query.time_from, query.time_to)
    if isinstance(query, WindowKeyQuery):
        return _rows(store, query, found)
    return _rows(store, query, ((Windowed(query.key, at, store.window_end(at)), value) for at, value in found))


def _of_window_starts(store: Any, query: Any) -> Iterator[Any]:
    first = 0 if query.time_from is None else query.time_from
    last = TIMESTAMP_MAX if query.time_to is None else query.time_to
    return _rows(store, query, store.fetch_all(first, last))


def _of_sessions(store: Any, query: Any) -> Iterator[Any]:
    return _rows(store, query, store.fetch(query.key))


def _of_version(store: Any, query: VersionedKeyQuery) -> Any:
    """Return the version; as in Kafka Streams, that of a time has its end, which get() does not give."""
    as_of = query.as_of_timestamp
    if as_of is None:
        found = store.get(query.key)
    else:
        found = next(iter(store.get_versions(query.key, as_of, as_of)), None)
    return None if found is None else _view(store, found)


def _of_versions(store: Any, query: MultiVersionedKeyQuery) -> Iterator[Any]:
    first = 0 if query.from_timestamp is None else query.from_timestamp
    last = TIMESTAMP_MAX if query.to_timestamp is None else query.to_timestamp
    found = store.get_versions(query.key, first, last)
    if query.result_order is ResultOrder.ASCENDING:
        found = reversed(list(found))
    return (_view(store, version) for version in found)


def _rows(store: Any, query: Query, rows: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
    if isinstance(query, _HEADERS_QUERIES):
        return (_shown(store, query, key, value) for key, value in rows)
    return ((key, _shown(store, query, key, value)) for key, value in rows)


def _shown(store: Any, query: Query, key: Any, value: Any) -> Any:
    """Return a value in the form of the query's results."""
    value = _view(store, value)
    if isinstance(value, AggregationWithHeaders):
        return value.aggregation
    if store.builder.kind not in _TIMESTAMPED:
        return value
    if isinstance(query, _HEADERS_QUERIES):
        headers = value.headers if isinstance(value, ValueTimestampHeaders) else None
        return Record(key, value[0], value[1], headers)
    return value[0] if isinstance(query, _PLAIN_QUERIES) else ValueAndTimestamp(*value[:2])


def _view(store: Any, value: Any) -> Any:
    view = view_of_results(store.builder)
    return value if view is None else view.show(value)
