"""The application of held_commits.py with stores of further kinds: versions, headers, rows that end, plain rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from held_commits import TEXT, Held

from penstock import (
    AggregationWithHeaders,
    Materialized,
    Processor,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    ValueTimestampHeaders,
    Windowed,
)

#: The value of a record that deletes the rows of its key.
DELETE = "delete"
SECOND_MS = 1_000
TTL = timedelta(seconds=10)
_DAY = timedelta(days=1)
_NUMBER = Serdes.int64()
_STORES = (
    Stores.key_value_store_builder(Stores.persistent_key_value_store("plain"), TEXT, _NUMBER),
    Stores.versioned_key_value_store_builder(
        Stores.persistent_versioned_key_value_store("versioned", _DAY), TEXT, _NUMBER
    ),
    Stores.timestamped_key_value_store_with_headers_builder(
        Stores.persistent_timestamped_key_value_store_with_headers("headers"), TEXT, _NUMBER
    ),
    Stores.timestamped_window_store_with_headers_builder(
        Stores.persistent_timestamped_window_store_with_headers("headers-windows", _DAY, timedelta(seconds=1)),
        TEXT,
        _NUMBER,
    ),
    Stores.session_store_with_headers_builder(
        Stores.persistent_session_store_with_headers("headers-sessions", _DAY), TEXT, _NUMBER
    ),
)
#: The stores beside those of Held.
NAMES = (*(store.name for store in _STORES), "ended")


class Fills(Processor[str, str, Any, Any]):
    """Counts the records of each key in all stores; a count is also the version's time, and a header."""

    def process(self, record: Record[str, str]) -> None:
        plain, versioned, headers, windows, sessions = (self.context.get_state_store(each.name) for each in _STORES)
        count = (plain.get(record.key) or 0) + 1
        value = None if record.value == DELETE else count
        time = record.timestamp
        named = {"n": str(count)}
        plain.put(record.key, value)
        versioned.put(record.key, value, time + count)
        headers.put(record.key, None if value is None else ValueTimestampHeaders(value, time, named))
        windows.put(record.key, None if value is None else ValueTimestampHeaders(value, time, named), time)
        session = Windowed(record.key, time, time)
        sessions.put(session, None if value is None else AggregationWithHeaders(value, named))


class HeldRows(Held):
    """Has all kinds of stores."""

    def declare(self, builder: StreamsBuilder) -> Any:
        stream = super().declare(builder)
        for store in _STORES:
            builder.add_state_store(store)
        stream.process(Fills, *(store.name for store in _STORES))
        stream.group_by_key().count(store=Materialized("ended", ttl=TTL))
        return stream
