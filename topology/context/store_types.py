"""The types of state stores, for annotations (Kafka Streams: KeyValueStore, WindowStore, SessionStore …).

docs/state-stores.md describes the methods. The stores of tasks, of the test driver and of KafkaStreams.store() have
them without inheriting from these classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, Self, TypeAlias

from typing_extensions import TypeVar

from penstock.kernel.rows import StoreIterator

from ..query.isolation_level import IsolationLevel
from ..records import AggregationWithHeaders, ValueAndTimestamp, ValueTimestampHeaders, VersionedRecord, Windowed
from ..type_variables import K, V, V_co
from .timestamp_extractors import TIMESTAMP_MAX

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
#: The keys of a versioned store are only looked up, never listed.
K_contra = TypeVar("K_contra", contravariant=True, default=Any)


class Closeable(ABC):
    """Rows to iterate over; ``close``, or the end of a ``with`` block, ends the read."""

    __slots__ = ()

    @abstractmethod
    def mapped(self, function: Callable[[Any], object]) -> Closeable:
        """Return the results of a function for the rows."""

    @abstractmethod
    def close(self) -> None:
        """Release resources; closing twice does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Rows(list[T], Closeable):
    """The rows of a short read. They remain after close(), which has nothing to release."""

    __slots__ = ()

    def mapped(self, function: Callable[[T], U]) -> Rows[U]:
        """Return the results of a function for the rows."""
        return Rows(map(function, self))

    def close(self) -> None:
        """Do nothing."""


Closeable.register(StoreIterator)


class StoreRows(Protocol[T_co]):
    """The rows of a scan: iterate over them, then close them, or use them as a context manager."""

    def __iter__(self) -> Iterator[T_co]: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """Release resources; closing twice does nothing."""


class ReadOnlyKeyValueStore(Protocol[K, V_co]):
    """The reads of a key-value store."""

    def read_only(self, isolation: IsolationLevel) -> ReadOnlyKeyValueStore[K, V_co]:
        """Return the store for reads of an isolation level (KIP-892): as of now, or as of the last commit."""

    def get(self, key: K) -> V_co | None:
        """Return the value of a key, None if there is none."""

    def range(self, key_from: K | None = None, key_to: K | None = None) -> StoreRows[tuple[K, V_co]]:
        """Return the rows from key to key in the order of the keys' bytes, both included; None leaves a side open."""

    def reverse_range(self, key_from: K | None = None, key_to: K | None = None) -> StoreRows[tuple[K, V_co]]:
        """Return the rows of range, from the highest key down."""

    def all(self) -> StoreRows[tuple[K, V_co]]:
        """Return all rows."""

    def reverse_all(self) -> StoreRows[tuple[K, V_co]]:
        """Return all rows, from the highest key down."""

    def prefix_scan(
        self, prefix: object, serializer: Callable[[Any], bytes | None] | None = None
    ) -> StoreRows[tuple[K, V_co]]:
        """Return the rows whose key bytes begin with a prefix: bytes, or an object for serializer(prefix)."""

    def approximate_num_entries(self) -> int:
        """Return the approximate number of rows."""


class KeyValueStore(ReadOnlyKeyValueStore[K, V], Protocol[K, V]):
    """A key-value store."""

    def put(self, key: K, value: V | None) -> None:
        """Set the value of a key; None deletes it."""

    def put_if_absent(self, key: K, value: V | None) -> V | None:
        """Set the value of a key that has none; return the previous value."""

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> None:
        """Put (key, value) pairs one after the other."""

    def delete(self, key: K) -> V | None:
        """Delete a key; return the previous value."""


class VersionedKeyValueStore(Protocol[K_contra, V]):
    """A key-value store that keeps old versions (KIP-889). Times are in ms."""

    def read_only(self, isolation: IsolationLevel) -> VersionedKeyValueStore[K_contra, V]:
        """Return the store for reads of an isolation level (KIP-892): as of now, or as of the last commit."""

    def put(self, key: K_contra, value: V | None, timestamp: int) -> int:
        """Add a version, None for a deletion; return the end of its validity."""

    def delete(self, key: K_contra, timestamp: int) -> VersionedRecord[V] | None:
        """Add a deletion; return the version that was valid at that time before."""

    def get(self, key: K_contra, as_of: int | None = None) -> VersionedRecord[V] | None:
        """Return the newest version, or the one that was valid at as_of; None if there was none."""

    def get_versions(self, key: K_contra, time_from: int, time_to: int) -> Rows[VersionedRecord[V]]:
        """Return the versions that were valid at any time from time_from to time_to, newest first."""


class ReadOnlyWindowStore(Protocol[K, V]):
    """The reads of a window store. Times are window starts in ms."""

    def read_only(self, isolation: IsolationLevel) -> ReadOnlyWindowStore[K, V]:
        """Return the store for reads of an isolation level (KIP-892): as of now, or as of the last commit."""

    def fetch(self, key: K, time: int) -> V | None:
        """Return the value of the window that starts at time, None if there is none."""

    def fetch_range(self, key: K, time_from: int, time_to: int) -> Rows[tuple[int, V]]:
        """Return (window start, value) of a key's windows, earliest first."""

    def backward_fetch_range(self, key: K, time_from: int, time_to: int) -> Rows[tuple[int, V]]:
        """Return the rows of fetch_range, latest first."""

    def fetch_keys(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> StoreRows[tuple[Windowed[K], V]]:
        """Return the windows of a range of keys; None leaves a side open."""

    def backward_fetch_keys(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> StoreRows[tuple[Windowed[K], V]]:
        """Return the rows of fetch_keys in the opposite order."""

    def fetch_all(self, time_from: int, time_to: int) -> StoreRows[tuple[Windowed[K], V]]:
        """Return the windows of all keys that start in this time."""

    def backward_fetch_all(self, time_from: int, time_to: int) -> StoreRows[tuple[Windowed[K], V]]:
        """Return the rows of fetch_all in the opposite order."""

    def all(self) -> StoreRows[tuple[Windowed[K], V]]:
        """Return all rows."""

    def backward_all(self) -> StoreRows[tuple[Windowed[K], V]]:
        """Return all rows in the opposite order."""


class WindowStore(ReadOnlyWindowStore[K, V], Protocol[K, V]):
    """A window store."""

    def put(self, key: K, value: V | None, window_start: int) -> None:
        """Set the value of a key's window; None deletes it."""


class ReadOnlySessionStore(Protocol[K, V]):
    """The reads of a session store. Times are in ms."""

    def read_only(self, isolation: IsolationLevel) -> ReadOnlySessionStore[K, V]:
        """Return the store for reads of an isolation level (KIP-892): as of now, or as of the last commit."""

    def fetch_session(self, key: K, start: int, end: int) -> V | None:
        """Return the value of exactly this session, None if there is none."""

    def fetch(self, key: K) -> Rows[tuple[Windowed[K], V]]:
        """Return all sessions of a key."""

    def backward_fetch(self, key: K) -> Rows[tuple[Windowed[K], V]]:
        """Return the rows of fetch, latest first."""

    def find_sessions(self, key: K, earliest_end: int, latest_start: int) -> Rows[tuple[Windowed[K], V]]:
        """Return a key's sessions that end at earliest_end or later and start at latest_start or earlier."""

    def backward_find_sessions(self, key: K, earliest_end: int, latest_start: int) -> Rows[tuple[Windowed[K], V]]:
        """Return the rows of find_sessions, latest first."""

    def find_sessions_ending(self, earliest_end: int, latest_end: int) -> StoreRows[tuple[Windowed[K], V]]:
        """Return the sessions of all keys that end in this time."""

    def fetch_keys(
        self,
        key_from: K | None = None,
        key_to: K | None = None,
        earliest_end: int = 0,
        latest_start: int = TIMESTAMP_MAX,
    ) -> StoreRows[tuple[Windowed[K], V]]:
        """Return what find_sessions returns, of a range of keys; None leaves a side open."""

    def backward_fetch_keys(
        self,
        key_from: K | None = None,
        key_to: K | None = None,
        earliest_end: int = 0,
        latest_start: int = TIMESTAMP_MAX,
    ) -> StoreRows[tuple[Windowed[K], V]]:
        """Return the rows of fetch_keys in the opposite order."""

    def all(self) -> StoreRows[tuple[Windowed[K], V]]:
        """Return all sessions."""


class SessionStore(ReadOnlySessionStore[K, V], Protocol[K, V]):
    """A session store."""

    def put(self, session: Windowed[K], value: V | None) -> None:
        """Set the value of a session; None deletes it."""

    def remove(self, session: Windowed[K]) -> None:
        """Delete a session."""


TimestampedKeyValueStore: TypeAlias = KeyValueStore[K, ValueAndTimestamp[V]]
TimestampedWindowStore: TypeAlias = WindowStore[K, ValueAndTimestamp[V]]
TimestampedKeyValueStoreWithHeaders: TypeAlias = KeyValueStore[K, ValueTimestampHeaders[V]]
TimestampedWindowStoreWithHeaders: TypeAlias = WindowStore[K, ValueTimestampHeaders[V]]
SessionStoreWithHeaders: TypeAlias = SessionStore[K, AggregationWithHeaders[V]]
