"""The queries of interactive queries v2 (KIP-796, KIP-805, KIP-806, KIP-960, KIP-968, KIP-992, KIP-1356).

A query is a value that says what to read. Its type decides which stores can answer it, and in which form; see
docs/state-stores.md. Rows are lists. Times are in ms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, Self

from ..records import Record, ValueAndTimestamp, VersionedRecord, Windowed
from ..type_variables import K, R, V


class ResultOrder(Enum):
    """The order of rows in a result; ANY is ascending by the keys' bytes, and descending for versions."""

    ANY = "any"
    ASCENDING = "ascending"
    DESCENDING = "descending"


class Query(Generic[R]):
    """A question to a state store; its type parameter is the result. Subclass it for stores of your own."""

    __slots__ = ()


@dataclass(frozen=True)
class _OneKey(Query[R], Generic[K, R]):
    """A query of one key. is_skip_cache: read only what the record cache has passed on to the store."""

    key: K
    is_skip_cache: bool = False

    @classmethod
    def with_key(cls, key: K) -> Self:
        """Return the query of a key."""
        return cls(key)

    def skip_cache(self) -> Self:
        """Return the same query without the record cache."""
        return replace(self, is_skip_cache=True)


class KeyQuery(_OneKey[K, V | None], Generic[K, V]):
    """The value of a key in a key-value store, None if there is none."""


class TimestampedKeyQuery(_OneKey[K, ValueAndTimestamp[V] | None], Generic[K, V]):
    """The value of a key in a timestamped key-value store, with its timestamp (KIP-992)."""


class TimestampedKeyWithHeadersQuery(_OneKey[K, Record[K, V] | None], Generic[K, V]):
    """The value of a key in a key-value store with headers, as a Record (KIP-1356)."""


@dataclass(frozen=True)
class _KeyRange(Query[R], Generic[K, R]):
    """A query of a range of keys, both bounds included; None leaves a side open."""

    lower_bound: K | None = None
    upper_bound: K | None = None
    result_order: ResultOrder = ResultOrder.ANY

    @classmethod
    def with_range(cls, lower: K | None, upper: K | None) -> Self:
        """Return the query of the keys from one to another."""
        return cls(lower, upper)

    @classmethod
    def with_lower_bound(cls, lower: K) -> Self:
        """Return the query of the keys from one on."""
        return cls(lower)

    @classmethod
    def with_upper_bound(cls, upper: K) -> Self:
        """Return the query of the keys up to one."""
        return cls(None, upper)

    @classmethod
    def with_no_bounds(cls) -> Self:
        """Return the query of all keys."""
        return cls()

    def with_ascending_keys(self) -> Self:
        """Return the same query with rows from the lowest key up."""
        return replace(self, result_order=ResultOrder.ASCENDING)

    def with_descending_keys(self) -> Self:
        """Return the same query with rows from the highest key down (KIP-969)."""
        return replace(self, result_order=ResultOrder.DESCENDING)


class RangeQuery(_KeyRange[K, list[tuple[K, V]]], Generic[K, V]):
    """The rows of a range of keys in a key-value store (KIP-805)."""


class TimestampedRangeQuery(_KeyRange[K, list[tuple[K, ValueAndTimestamp[V]]]], Generic[K, V]):
    """The rows of a range of keys in a timestamped key-value store, with timestamps (KIP-992)."""


class TimestampedRangeWithHeadersQuery(_KeyRange[K, list[Record[K, V]]], Generic[K, V]):
    """The rows of a range of keys in a key-value store with headers, as Records (KIP-1356)."""


@dataclass(frozen=True)
class _WindowsOfKey(Query[R], Generic[K, R]):
    """A query of a key's windows that start from time_from to time_to, in ms."""

    key: K
    time_from: int
    time_to: int

    @classmethod
    def with_key_and_window_start_range(cls, key: K, time_from: int, time_to: int) -> Self:
        """Return the query of a key's windows that start between two times, both included."""
        return cls(key, time_from, time_to)


class WindowKeyQuery(_WindowsOfKey[K, list[tuple[int, V]]], Generic[K, V]):
    """(window start, value) of a key's windows in a window store (KIP-806)."""


class TimestampedWindowKeyWithHeadersQuery(_WindowsOfKey[K, list[Record[Windowed[K], V]]], Generic[K, V]):
    """A key's windows in a window store with headers, as Records (KIP-1356)."""


@dataclass(frozen=True)
class _Windows(Query[R], Generic[K, R]):
    """A query of the windows of all keys that start in a range of times, or of all sessions of a key."""

    key: K | None = None
    time_from: int | None = None
    time_to: int | None = None

    @classmethod
    def with_key(cls, key: K) -> Self:
        """Return the query of a key's sessions, for session stores."""
        return cls(key)

    @classmethod
    def with_window_start_range(cls, time_from: int, time_to: int) -> Self:
        """Return the query of the windows that start between two times, both included, for window stores."""
        return cls(None, time_from, time_to)


class WindowRangeQuery(_Windows[K, list[tuple[Windowed[K], V]]], Generic[K, V]):
    """(windowed key, value) of windows or sessions (KIP-806)."""


class TimestampedWindowRangeWithHeadersQuery(_Windows[K, list[Record[Windowed[K], V]]], Generic[K, V]):
    """Windows of a window store with headers, as Records (KIP-1356)."""


@dataclass(frozen=True)
class VersionedKeyQuery(Query[VersionedRecord[V] | None], Generic[K, V]):
    """The newest version of a key in a versioned store, or the one that was valid at a time (KIP-960)."""

    key: K
    as_of_timestamp: int | None = None

    @classmethod
    def with_key(cls, key: K) -> Self:
        """Return the query of the newest version of a key."""
        return cls(key)

    def as_of(self, timestamp: int) -> Self:
        """Return the query of the version that was valid at a time (ms)."""
        return replace(self, as_of_timestamp=timestamp)


@dataclass(frozen=True)
class MultiVersionedKeyQuery(Query[list[VersionedRecord[V]]], Generic[K, V]):
    """The versions of a key in a versioned store that were valid at any time of a range (KIP-968)."""

    key: K
    from_timestamp: int | None = None
    to_timestamp: int | None = None
    result_order: ResultOrder = ResultOrder.ANY

    @classmethod
    def with_key(cls, key: K) -> Self:
        """Return the query of all versions of a key."""
        return cls(key)

    def from_time(self, timestamp: int) -> Self:
        """Return the query of the versions that were still valid at a time (ms) or later."""
        return replace(self, from_timestamp=timestamp)

    def to_time(self, timestamp: int) -> Self:
        """Return the query of the versions that were valid at a time (ms) or earlier."""
        return replace(self, to_timestamp=timestamp)

    def with_ascending_timestamps(self) -> Self:
        """Return the same query with the oldest version first."""
        return replace(self, result_order=ResultOrder.ASCENDING)

    def with_descending_timestamps(self) -> Self:
        """Return the same query with the newest version first."""
        return replace(self, result_order=ResultOrder.DESCENDING)
