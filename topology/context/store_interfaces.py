"""Declarations of stores; statestore.stores builds the stores, one per task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from typing_extensions import TypeVar

from penstock.kernel.cells import Cell, CellTable
from penstock.kernel.rows import RowBuffer, SegmentTimes

from ..clocks import Punctuation
from ..common.arguments import check_type
from ..common.durations import Duration, to_millis
from ..errors import TopologyError

if TYPE_CHECKING:
    from ..serdes.serdes import Serde


#: A type of store, such as KeyValueStore[str, int].
S_co = TypeVar("S_co", covariant=True, default=Any)


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
    CUSTOM = "custom"  # a class of the user: topology/stores/custom_store.py


class StoreBackend(Enum):
    """Where a store keeps its data."""

    ROCKSDB = "rocksDB"
    IN_MEMORY = "in_memory"
    LRU = "lru"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long the rows of a store live after they were written, in milliseconds of a clock.

    By stream time: after the row's timestamp. refreshed_on_read: also after a processor or operator has read them.
    """

    duration_ms: int
    clock: Punctuation
    refreshed_on_read: bool

    def __init__(
        self, duration: Duration, clock: Punctuation = Punctuation.STREAM_TIME, *, refreshed_on_read: bool = False
    ) -> None:
        duration_ms = to_millis(duration, "A ttl")
        if duration_ms < 1:
            raise TopologyError(f"A ttl must be at least a millisecond, got {duration!r}")
        check_type(clock, Punctuation, "The clock of a ttl", "Punctuation.STREAM_TIME or WALL_CLOCK_TIME")
        object.__setattr__(self, "duration_ms", duration_ms)
        object.__setattr__(self, "clock", clock)
        object.__setattr__(self, "refreshed_on_read", refreshed_on_read)


@dataclass(frozen=True)  # no slots: with them StoreBuilder[…](…) raises TypeError before Python 3.13
class StoreBuilder(Generic[S_co]):
    """Everything that a topology declares about a store (Kafka Streams: StoreBuilder and its suppliers).

    Its type parameter is the type of the store, such as KeyValueStore[str, int]. Durations are in milliseconds.
    ``caching`` and ``logging`` are as declared; whether a cache is used also depends on ``statestore.cache.max.bytes``.
    ``log_config`` are overrides for the changelog topic.
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
    #: The end of a window by its start, in ms; None if that is window_size_ms later.
    window_end: Callable[[int], int] | None = None
    retain_duplicates: bool = False  # window stores of stream-stream joins
    history_retention_ms: int | None = None  # versioned stores
    segment_interval_ms: int | None = None  # versioned stores
    max_entries: int | None = None  # LRU stores
    grace_ms: int | None = None  # join buffers
    time_ordered: bool = False  # emit on window close: scans go by window start (session end) first, as in KIP-825
    log_headers: bool = False  # the changelog gets each record's headers: the window stores of a DSL stream-stream join
    #: Tombstones are logged with the record's headers: dsl.store.format=HEADERS, and stores with headers (KIP-1271).
    headers_format: bool = False
    #: Values are ValueTimestampHeaders or AggregationWithHeaders: stores with headers of processors. Those of operators
    #: have headers_format only, because Kafka Streams 4.4's operators put values with empty headers.
    keeps_headers: bool = False
    #: No record in the changelog is older than the start of its row's window, so older records need not be restored.
    #: Not so for stores of processors, which may put any window, and for sessions, which a late record may change.
    logged_in_window: bool = False
    #: A timestamped key-value store whose bytes are plain values, read with the timestamp -1 (Kafka Streams:
    #: KeyValueToTimestampedKeyValueByteStoreAdapter, for Materialized with Stores.persistent_key_value_store).
    plain_values: bool = False
    #: Makes the user's store from its name; only of custom stores.
    supplier: Callable[[str], S_co] | None = None
    #: When rows end; None: when they are deleted.
    ttl: Ttl | None = None
    #: The rows are the timers of a processor.
    timers: bool = False

    @property
    def is_dated(self) -> bool:
        """Whether each row is due at a time: see statestore.rows.dated_rows."""
        return self.timers or self.ttl is not None

    @property
    def windowed(self) -> bool:
        """True if the changelog needs cleanup policy compact,delete with a retention."""
        return self.kind in (StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION)

    def build(self) -> S_co:
        """Return a new custom store; raises TopologyError for other kinds, which tasks make."""
        if self.supplier is None:
            raise TopologyError(f"The store {self.name} is made by its task: only custom stores can be built")
        return self.supplier(self.name)

    def with_caching_enabled(self) -> StoreBuilder[S_co]:
        """Return a copy that deduplicates updates in the record cache."""
        return replace(self, caching=True)

    def with_caching_disabled(self) -> StoreBuilder[S_co]:
        """Return a copy that forwards each update."""
        return replace(self, caching=False)

    def with_logging_enabled(self, config: Mapping[str, str] | None = None) -> StoreBuilder[S_co]:
        """Return a copy with a changelog topic; config overrides the topic's settings."""
        return replace(self, logging=True, log_config=dict(config or {}))

    def with_logging_disabled(self) -> StoreBuilder[S_co]:
        """Return a copy without a changelog: its contents are lost with the task's directory."""
        return replace(self, logging=False, log_config={})


class CacheKeys(IntEnum):
    """The keys of a cache, by their number of times: key, (key, start), (key, end, start); key: bytes."""

    PLAIN = 0
    WINDOW = 1
    SESSION = 2


class Cells(NamedTuple):
    """A store's record cache, for the kernel's nodes; see docs/nodes.md.

    A cell's row is (held value, timestamp), or for stores without timestamps the held value; None for nothing; see
    stores.values.Values.
    load(cache key): a cell with the underlying store's value, None if it has none; grown(): evicts if necessary, once
    a loaded cell is in use.
    key_serde, encode_key, decode_key: between a record's key and its bytes, which are the cache key, or are in it.
    encode_key gets only keys other than None; it is None if the keys are bytes.
    form: of the cache keys; size_ms: of the windows; window_end: see StoreBuilder.
    hold(value): what is held of it; read(held value): a value of the reader's own; None for None.
    native: int, for integers of 64 bits, str, float or bytes, where held values are objects of that type; dict, where
    they are dicts of their own or bytes; else None.
    table: the cells of the cache.
    bytes_serde: the serde whose bytes are what is held; None if objects are held.
    """

    load: Callable[[Any], Cell]
    grown: Callable[[], None]
    table: CellTable
    key_serde: Serde
    encode_key: Callable[[Any], bytes] | None
    decode_key: Callable[[bytes], Any]
    hold: Callable[[Any], Any]
    read: Callable[[Any], Any]
    native: type | None
    bytes_serde: Serde | None
    form: CacheKeys
    size_ms: int = 0
    window_end: Callable[[int], int] | None = None


class WindowRows(NamedTuple):
    """The rows of a window store with duplicates, for the kernel's nodes: JoinWindow in kernel/window_nodes.pyx.

    key_serde, encode_key, encode_value, decode_value: between objects that are not None and bytes; a function is None
    if they are the same. log_headers: whether the changelog gets the record's headers.
    """

    key_serde: Serde
    encode_key: Callable[[Any], bytes] | None
    encode_value: Callable[[Any], bytes] | None
    decode_value: Callable[[bytes], Any] | None
    log_headers: bool
    segments: SegmentTimes


class NodeRows(NamedTuple):
    """A store's rows, for the kernel's nodes: 8 bytes of timestamp and the value; of sessions the value alone.

    key_serde, value_serde, encode_key, encode_value, decode_value: between objects that are not None and bytes; a
    function is None if they are the same.
    exact_value, exact_value_type: as of the value's Serde.
    log_headers: whether the changelog gets the record's headers, with values and with tombstones.
    buffer: where they are between two commits. Each change has to be written to the changelog first, as
    StoredRows does in kernel/table_nodes.pyx.
    """

    key_serde: Serde
    value_serde: Serde
    encode_key: Callable[[Any], bytes] | None
    encode_value: Callable[[Any], bytes] | None
    decode_value: Callable[[bytes], Any] | None
    exact_value: Callable[[Any], object] | None
    exact_value_type: type | None
    log_headers: tuple[bool, bool]
    buffer: RowBuffer
