"""Declarations of stores; statestore.stores builds the stores, one per task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..serdes.serdes import Inline, Serde


class StoreKind(Enum):
    """The kind of a store; each kind has Kafka Streams' binary format."""

    KEY_VALUE = "key_value"  # plain values
    TIMESTAMPED_KEY_VALUE = "timestamped_key_value"  # 8-byte timestamp + value
    VERSIONED_KEY_VALUE = "versioned_key_value"  # KIP-889
    WINDOW = "window"  # key + window start (+ sequence number), plain values
    TIMESTAMPED_WINDOW = "timestamped_window"
    SESSION = "session"  # key + end + start
    LIST_VALUE = "list_value"  # non-joined records of an outer stream-stream join (KAFKA-10847)
    SUPPRESS_BUFFER = "suppress_buffer"  # InMemoryTimeOrderedKeyValueChangeBuffer
    JOIN_BUFFER = "join_buffer"  # RocksDBTimeOrderedKeyValueBuffer of a stream-table join with grace (KIP-923)
    FOREIGN_KEY_SUBSCRIPTION = "foreign_key_subscription"  # timestamped, keyed by CombinedKey (KIP-213)


class StoreBackend(Enum):
    """Where a store keeps its data."""

    ROCKSDB = "rocksDB"
    IN_MEMORY = "in_memory"
    LRU = "lru"


@dataclass(frozen=True, slots=True)
class StoreBuilder:
    """Everything that a topology declares about a store (Kafka Streams: StoreBuilder and its suppliers).

    Durations are in milliseconds. ``caching`` and ``logging`` are as declared; whether a cache is used also
    depends on ``statestore.cache.max.bytes``. ``log_config`` are overrides for the changelog topic.
    """

    name: str
    kind: StoreKind
    key_serde: Any = None
    value_serde: Any = None
    backend: StoreBackend = StoreBackend.ROCKSDB
    logging: bool = True
    caching: bool = False
    log_config: Mapping[str, str] = field(default_factory=dict)
    retention_ms: int | None = None  # window and session stores
    window_size_ms: int | None = None  # window stores
    retain_duplicates: bool = False  # window stores of stream-stream joins
    history_retention_ms: int | None = None  # versioned stores
    segment_interval_ms: int | None = None  # versioned stores
    max_entries: int | None = None  # LRU stores
    grace_ms: int | None = None  # join buffers
    time_ordered: bool = False  # emit on window close: scans go by window start (session end) first, as in KIP-825
    log_headers: bool = False  # the changelog gets each record's headers: the window stores of a DSL stream-stream join
    headers_format: bool = False  # dsl.store.format=HEADERS (KIP-1271): values keep the record's headers
    #: A timestamped key-value store whose bytes are plain values, read with the timestamp -1 (Kafka Streams:
    #: KeyValueToTimestampedKeyValueByteStoreAdapter, for Materialized with Stores.persistent_key_value_store).
    plain_values: bool = False

    @property
    def windowed(self) -> bool:
        """True if the changelog needs cleanup policy compact,delete with a retention."""
        return self.kind in (StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION)

    def with_caching_enabled(self) -> StoreBuilder:
        """Return a copy that deduplicates updates in the record cache."""
        return replace(self, caching=True)

    def with_caching_disabled(self) -> StoreBuilder:
        """Return a copy that forwards each update."""
        return replace(self, caching=False)

    def with_logging_enabled(self, config: Mapping[str, str] | None = None) -> StoreBuilder:
        """Return a copy with a changelog topic; config overrides the topic's settings."""
        return replace(self, logging=True, log_config=dict(config or {}))

    def with_logging_disabled(self) -> StoreBuilder:
        """Return a copy without a changelog: its contents are lost with the task's directory."""
        return replace(self, logging=False, log_config={})


#: An entry of a record cache, changed in place: value, stamp, timestamp (ms), headers, message, used, cache key.
#: stamp: 0 if the underlying store has the value, else the number of its put, which orders the forwarded changes.
#: timestamp, headers, message: the record context of the last put; message is None where no operator needs it.
#: used: whether the entry was read or changed since an eviction last skipped it.
#: A list, or penstock.kernel's Cell, which has the interface of one.
Cell = Any
VALUE, STAMP, TIMESTAMP, HEADERS, MESSAGE, USED, KEY = range(7)


class Cells(NamedTuple):
    """A store's record cache, for code that inlines the store's get and put; see topology/run/fusion.py.

    A cell's row is (held value, timestamp), or without timestamped the held value; None for nothing; see
    stores.values.Values. A key without timestamped is a session.
    load(cache key): a cell with the underlying store's value, None if it has none; grown(): evicts if necessary, once
    a loaded cell is in use.
    key_serde, encode_key, decode_key: between a record's key and its bytes, which are the cache key, or are in it.
    record_key(read): from a cache key to the key that goes downstream, with read of the bytes: decode_key, or nothing.
    hold(value): what is held of it; read(held value): a value of the reader's own; None for None.
    native: int, for integers of 64 bits, str, float or bytes, where held values are objects of that type; dict, where
    they are dicts of their own or bytes; else None.
    table: penstock.kernel's CellTable.
    bytes_serde: the serde whose bytes are what is held; None if objects are held.
    """

    load: Callable[[Any], Cell]
    grown: Callable[[], None]
    table: Any
    key_serde: Serde[Any]
    encode_key: Inline
    decode_key: Inline
    record_key: Callable[[Inline], Inline]
    hold: Callable[[Any], Any]
    read: Callable[[Any], Any]
    native: type | None
    bytes_serde: Serde[Any] | None
    timestamped: bool = True


class TimestampedRows(NamedTuple):
    """A store's rows, 8 bytes of timestamp and the value, for code that inlines the store's get and put.

    key_serde, value_serde, encode_key, encode_value, decode_value: between objects that are not None and bytes.
    exact_value, exact_value_type: as of the value's Serde.
    log_headers: whether the changelog gets the record's headers, with values and with tombstones.
    buffer: penstock.kernel's RowBuffer. Each change has to be written to the changelog first:
    penstock.kernel.sinks.row_writer does both.
    """

    key_serde: Serde[Any]
    value_serde: Serde[Any]
    encode_key: Inline
    encode_value: Inline
    decode_value: Inline
    exact_value: Callable[[Any], Any] | None
    exact_value_type: type | None
    log_headers: tuple[bool, bool]
    buffer: Any
