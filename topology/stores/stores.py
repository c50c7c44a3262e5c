"""Factories of stores (Kafka Streams: Stores).

A *supplier* names a kind of store and goes into ``Materialized``; a *builder* adds serdes and goes to
``StreamsBuilder.add_state_store``, ``Topology.add_state_store`` or a processor supplier's ``stores``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar, overload

from ..common.arguments import check_function, check_type
from ..common.durations import Duration, non_negative_millis
from ..common.naming import validate_name
from ..context.store_interfaces import StoreBackend, StoreBuilder, StoreKind, Ttl
from ..context.store_types import (
    KeyValueStore,
    SessionStore,
    SessionStoreWithHeaders,
    TimestampedKeyValueStore,
    TimestampedKeyValueStoreWithHeaders,
    TimestampedWindowStore,
    TimestampedWindowStoreWithHeaders,
    VersionedKeyValueStore,
    WindowStore,
)
from ..errors import TopologyError
from ..serdes.serdes import Serde, SerdeLike, Serdes, as_serde
from ..type_variables import K, V
from .custom_store import StateStore
from .timer import Timer, TimerSerde

#: The class of a user's store.
C = TypeVar("C", bound=StateStore)


class SupplierKind(Enum):
    """The possible uses of a supplier's store."""

    KEY_VALUE = "key-value"
    VERSIONED = "versioned key-value"
    WINDOW = "window"
    SESSION = "session"
    #: Of a class of the user, whose interface decides.
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class StoreSupplier:
    """A store without serdes, as returned by Stores' supplier methods (Kafka Streams: KeyValueBytesStoreSupplier …).

    timestamped: values are kept with their timestamps; headers: with their headers, too (KIP-1271). ttl: see Ttl.
    Durations are in milliseconds.
    """

    name: str
    kind: SupplierKind
    backend: StoreBackend
    timestamped: bool = True
    max_entries: int | None = None
    history_retention_ms: int | None = None
    segment_interval_ms: int | None = None
    retention_ms: int | None = None
    window_size_ms: int | None = None
    retain_duplicates: bool = False
    headers: bool = False
    ttl: Ttl | None = None
    #: Ordered by time, as stores of results emitted on window close are.
    time_ordered: bool = False
    #: Makes the user's store from its name; only of custom stores.
    make: Callable[[str], StateStore] | None = None

    @property
    def versioned(self) -> bool:
        """Whether old versions of values are kept."""
        return self.kind is SupplierKind.VERSIONED

    def require(self, kinds: tuple[SupplierKind, ...], where: str) -> StoreSupplier:
        """Return this supplier; raises TopologyError if it is of another kind than where can use."""
        if self.kind not in kinds and (self.kind is not SupplierKind.CUSTOM or kinds == (SupplierKind.VERSIONED,)):
            wanted = " or ".join(kind.value for kind in kinds)
            raise TopologyError(f'{where} needs a {wanted} store, but "{self.name}" is a {self.kind.value} store')
        return self


def operator_supplier(
    name: str, kind: SupplierKind, backend: StoreBackend, timestamped: bool, headers: bool, **more: Any
) -> StoreSupplier:
    """Return the supplier of an operator's default store in this place."""
    in_rocksdb = backend is StoreBackend.ROCKSDB  # Kafka Streams' stores in memory have no format with headers
    return StoreSupplier(name, kind, backend, timestamped, headers=headers and in_rocksdb, **more)


def as_supplier(store: StoreSupplier | StoreBuilder) -> StoreSupplier:
    """Return the supplier of an operator's store; raises TopologyError for the builder of a store of processors."""
    if isinstance(store, StoreSupplier):
        return store
    if store.kind is not StoreKind.CUSTOM:
        raise TopologyError(
            f'The builder of store "{store.name}" is for processors; operators need a supplier of Stores, or '
            "custom_store_builder()"
        )
    return StoreSupplier(store.name, SupplierKind.CUSTOM, StoreBackend.CUSTOM, make=store.supplier)


#: A time to live: a duration of stream time, or a Ttl.
TtlLike = Duration | Ttl | None


def as_ttl(given: TtlLike) -> Ttl | None:
    """Return it as a Ttl."""
    return given if given is None or isinstance(given, Ttl) else Ttl(given)


def _require(supplier: StoreSupplier, kinds: tuple[SupplierKind, ...], where: str) -> None:
    check_type(supplier, StoreSupplier, f"The supplier of {where}()", "one that Stores creates")
    supplier.require(kinds, where)


def _window_supplier(
    name: str, backend: StoreBackend, retention: Duration, size: Duration, duplicates: bool, timestamped: bool
) -> StoreSupplier:
    retention_ms = non_negative_millis(retention, f'The retention of store "{name}"')
    size_ms = non_negative_millis(size, f'The window size of store "{name}"')
    if size_ms > retention_ms:
        raise TopologyError(
            f'The retention period of window store "{name}" must be no smaller than its window size: '
            f"size {size_ms} ms, retention {retention_ms} ms"
        )
    return StoreSupplier(
        validate_name(name),
        SupplierKind.WINDOW,
        backend,
        timestamped,
        retention_ms=retention_ms,
        window_size_ms=size_ms,
        retain_duplicates=duplicates,
    )


def _session_supplier(name: str, backend: StoreBackend, retention: Duration) -> StoreSupplier:
    millis = non_negative_millis(retention, f'The retention of store "{name}"')
    return StoreSupplier(validate_name(name), SupplierKind.SESSION, backend, timestamped=False, retention_ms=millis)


def _builder(supplier: StoreSupplier, kind: StoreKind, key_serde: Any, value_serde: Any, **more: Any) -> StoreBuilder:
    return StoreBuilder(
        supplier.name,
        kind,
        as_serde(key_serde),
        as_serde(value_serde),
        supplier.backend,
        retention_ms=supplier.retention_ms,
        window_size_ms=supplier.window_size_ms,
        retain_duplicates=supplier.retain_duplicates,
        history_retention_ms=supplier.history_retention_ms,
        segment_interval_ms=supplier.segment_interval_ms,
        max_entries=supplier.max_entries,
        ttl=supplier.ttl,
        **more,
    )


def _builder_with_headers(
    supplier: StoreSupplier, where: str, supplied: SupplierKind, kind: StoreKind, key_serde: object, value_serde: object
) -> StoreBuilder:
    """Raises TopologyError for a store on disk that would drop headers: Kafka Streams accepts it, and loses them."""
    _require(supplier, (supplied,), where)
    if not supplier.headers and supplier.backend is StoreBackend.ROCKSDB:
        raise TopologyError(
            f'{where} needs a store that keeps headers, but "{supplier.name}" does not: use the supplier of Stores '
            "whose name ends with _with_headers, or one in memory"
        )
    return _builder(supplier, kind, key_serde, value_serde, headers_format=True, keeps_headers=True)


class Stores:
    """Suppliers and builders of all kinds of stores. Durations are ``timedelta`` or int milliseconds."""

    @staticmethod
    def persistent_key_value_store(name: str, *, ttl: TtlLike = None) -> StoreSupplier:
        """A RocksDB store of plain values; a table in it loses its rows' timestamps. ttl: see Ttl."""
        return StoreSupplier(
            validate_name(name), SupplierKind.KEY_VALUE, StoreBackend.ROCKSDB, timestamped=False, ttl=as_ttl(ttl)
        )

    @staticmethod
    def persistent_timestamped_key_value_store(name: str, *, ttl: TtlLike = None) -> StoreSupplier:
        """A RocksDB store of values with their timestamps, the default of tables. ttl: see Ttl."""
        return StoreSupplier(validate_name(name), SupplierKind.KEY_VALUE, StoreBackend.ROCKSDB, ttl=as_ttl(ttl))

    @staticmethod
    def persistent_timestamped_key_value_store_with_headers(name: str) -> StoreSupplier:
        """A RocksDB store of values with their timestamps and headers (KIP-1271)."""
        return replace(Stores.persistent_timestamped_key_value_store(name), headers=True)

    @staticmethod
    def in_memory_key_value_store(name: str, *, ttl: TtlLike = None) -> StoreSupplier:
        """A store in memory. ttl: see Ttl."""
        return StoreSupplier(validate_name(name), SupplierKind.KEY_VALUE, StoreBackend.IN_MEMORY, ttl=as_ttl(ttl))

    @staticmethod
    def lru_map(name: str, max_cache_size: int) -> StoreSupplier:
        """A store in memory that evicts the least recently used entries beyond max_cache_size."""
        if max_cache_size < 0:
            raise TopologyError(f'The size of LRU store "{name}" must not be negative, got {max_cache_size}')
        return StoreSupplier(validate_name(name), SupplierKind.KEY_VALUE, StoreBackend.LRU, max_entries=max_cache_size)

    @staticmethod
    def persistent_versioned_key_value_store(
        name: str, history_retention: Duration, segment_interval: Duration | None = None
    ) -> StoreSupplier:
        """A RocksDB store that keeps old versions of values as long as history_retention (KIP-889)."""
        segment_ms = None
        if segment_interval is not None:
            segment_ms = non_negative_millis(segment_interval, f'The segment interval of store "{name}"')
            if segment_ms == 0:
                raise TopologyError(f'The segment interval of store "{name}" must not be zero')
        return StoreSupplier(
            validate_name(name),
            SupplierKind.VERSIONED,
            StoreBackend.ROCKSDB,
            history_retention_ms=non_negative_millis(history_retention, f'The history retention of store "{name}"'),
            segment_interval_ms=segment_ms,
        )

    @staticmethod
    def persistent_window_store(
        name: str, retention_period: Duration, window_size: Duration, retain_duplicates: bool = False
    ) -> StoreSupplier:
        """A RocksDB store by key and window start, of plain values."""
        return _window_supplier(
            name, StoreBackend.ROCKSDB, retention_period, window_size, retain_duplicates, timestamped=False
        )

    @staticmethod
    def persistent_timestamped_window_store(
        name: str, retention_period: Duration, window_size: Duration, retain_duplicates: bool = False
    ) -> StoreSupplier:
        """A RocksDB store by key and window start, of values with their timestamps."""
        return _window_supplier(
            name, StoreBackend.ROCKSDB, retention_period, window_size, retain_duplicates, timestamped=True
        )

    @staticmethod
    def persistent_timestamped_window_store_with_headers(
        name: str, retention_period: Duration, window_size: Duration, retain_duplicates: bool = False
    ) -> StoreSupplier:
        """A RocksDB store by key and window start, of values with their timestamps and headers (KIP-1271)."""
        supplier = Stores.persistent_timestamped_window_store(name, retention_period, window_size, retain_duplicates)
        return replace(supplier, headers=True)

    @staticmethod
    def in_memory_window_store(
        name: str, retention_period: Duration, window_size: Duration, retain_duplicates: bool = False
    ) -> StoreSupplier:
        """A store by key and window start in memory."""
        return _window_supplier(
            name, StoreBackend.IN_MEMORY, retention_period, window_size, retain_duplicates, timestamped=True
        )

    @staticmethod
    def persistent_session_store(name: str, retention_period: Duration) -> StoreSupplier:
        """A RocksDB store by key and session."""
        return _session_supplier(name, StoreBackend.ROCKSDB, retention_period)

    @staticmethod
    def persistent_session_store_with_headers(name: str, retention_period: Duration) -> StoreSupplier:
        """A RocksDB store by key and session, of aggregates with their headers (KIP-1271)."""
        return replace(Stores.persistent_session_store(name, retention_period), headers=True)

    @staticmethod
    def in_memory_session_store(name: str, retention_period: Duration) -> StoreSupplier:
        """A store by key and session in memory."""
        return _session_supplier(name, StoreBackend.IN_MEMORY, retention_period)

    @overload
    @staticmethod
    def key_value_store_builder(
        supplier: StoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> StoreBuilder[KeyValueStore[K, V]]: ...
    @overload
    @staticmethod
    def key_value_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder[KeyValueStore]: ...
    @staticmethod
    def key_value_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder:
        """A store whose ``get`` gives plain values."""
        _require(supplier, (SupplierKind.KEY_VALUE,), "key_value_store_builder")
        return _builder(supplier, StoreKind.KEY_VALUE, key_serde, value_serde)

    @overload
    @staticmethod
    def timestamped_key_value_store_builder(
        supplier: StoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> StoreBuilder[TimestampedKeyValueStore[K, V]]: ...
    @overload
    @staticmethod
    def timestamped_key_value_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder[TimestampedKeyValueStore]: ...
    @staticmethod
    def timestamped_key_value_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder:
        """A store whose ``get`` gives ValueAndTimestamp."""
        _require(supplier, (SupplierKind.KEY_VALUE,), "timestamped_key_value_store_builder")
        return _builder(
            supplier, StoreKind.TIMESTAMPED_KEY_VALUE, key_serde, value_serde, plain_values=not supplier.timestamped
        )

    @overload
    @staticmethod
    def versioned_key_value_store_builder(
        supplier: StoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> StoreBuilder[VersionedKeyValueStore[K, V]]: ...
    @overload
    @staticmethod
    def versioned_key_value_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder[VersionedKeyValueStore]: ...
    @staticmethod
    def versioned_key_value_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder:
        """A store whose ``get`` gives VersionedRecord."""
        _require(supplier, (SupplierKind.VERSIONED,), "versioned_key_value_store_builder")
        return _builder(supplier, StoreKind.VERSIONED_KEY_VALUE, key_serde, value_serde)

    @overload
    @staticmethod
    def window_store_builder(
        supplier: StoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> StoreBuilder[WindowStore[K, V]]: ...
    @overload
    @staticmethod
    def window_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder[WindowStore]: ...
    @staticmethod
    def window_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder:
        """A window store whose ``fetch`` gives plain values."""
        _require(supplier, (SupplierKind.WINDOW,), "window_store_builder")
        return _builder(supplier, StoreKind.WINDOW, key_serde, value_serde)

    @overload
    @staticmethod
    def timestamped_window_store_builder(
        supplier: StoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> StoreBuilder[TimestampedWindowStore[K, V]]: ...
    @overload
    @staticmethod
    def timestamped_window_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder[TimestampedWindowStore]: ...
    @staticmethod
    def timestamped_window_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder:
        """A window store whose ``fetch`` gives ValueAndTimestamp."""
        _require(supplier, (SupplierKind.WINDOW,), "timestamped_window_store_builder")
        return _builder(
            supplier, StoreKind.TIMESTAMPED_WINDOW, key_serde, value_serde, plain_values=not supplier.timestamped
        )

    @overload
    @staticmethod
    def session_store_builder(
        supplier: StoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> StoreBuilder[SessionStore[K, V]]: ...
    @overload
    @staticmethod
    def session_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder[SessionStore]: ...
    @staticmethod
    def session_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder:
        """A session store."""
        _require(supplier, (SupplierKind.SESSION,), "session_store_builder")
        return _builder(supplier, StoreKind.SESSION, key_serde, value_serde)

    @overload
    @staticmethod
    def timestamped_key_value_store_with_headers_builder(
        supplier: StoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> StoreBuilder[TimestampedKeyValueStoreWithHeaders[K, V]]: ...
    @overload
    @staticmethod
    def timestamped_key_value_store_with_headers_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder[TimestampedKeyValueStoreWithHeaders]: ...
    @staticmethod
    def timestamped_key_value_store_with_headers_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder:
        """A store whose ``get`` gives ValueTimestampHeaders (KIP-1271)."""
        where = "timestamped_key_value_store_with_headers_builder"
        kinds = SupplierKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE
        return _builder_with_headers(supplier, where, *kinds, key_serde, value_serde)

    @overload
    @staticmethod
    def timestamped_window_store_with_headers_builder(
        supplier: StoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> StoreBuilder[TimestampedWindowStoreWithHeaders[K, V]]: ...
    @overload
    @staticmethod
    def timestamped_window_store_with_headers_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder[TimestampedWindowStoreWithHeaders]: ...
    @staticmethod
    def timestamped_window_store_with_headers_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder:
        """A window store whose ``fetch`` gives ValueTimestampHeaders (KIP-1271)."""
        where = "timestamped_window_store_with_headers_builder"
        kinds = SupplierKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW
        return _builder_with_headers(supplier, where, *kinds, key_serde, value_serde)

    @overload
    @staticmethod
    def session_store_with_headers_builder(
        supplier: StoreSupplier, key_serde: Serde[K], value_serde: Serde[V]
    ) -> StoreBuilder[SessionStoreWithHeaders[K, V]]: ...
    @overload
    @staticmethod
    def session_store_with_headers_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder[SessionStoreWithHeaders]: ...
    @staticmethod
    def session_store_with_headers_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> StoreBuilder:
        """A session store of AggregationWithHeaders (KIP-1271)."""
        where = "session_store_with_headers_builder"
        kinds = SupplierKind.SESSION, StoreKind.SESSION
        return _builder_with_headers(supplier, where, *kinds, key_serde, value_serde)

    @overload
    @staticmethod
    def timer_store_builder(supplier: StoreSupplier, key_serde: Serde[K]) -> StoreBuilder[KeyValueStore[K, Timer]]: ...
    @overload
    @staticmethod
    def timer_store_builder(
        supplier: StoreSupplier, key_serde: SerdeLike | None = None
    ) -> StoreBuilder[KeyValueStore[Any, Timer]]: ...
    @staticmethod
    def timer_store_builder(supplier: StoreSupplier, key_serde: SerdeLike | None = None) -> StoreBuilder:
        """The timers of one processor, by key; see ProcessorContext.timer. ``get`` gives Timer.

        supplier: persistent_key_value_store, or in_memory_key_value_store for few timers.
        """
        _require(supplier, (SupplierKind.KEY_VALUE,), "timer_store_builder")
        if supplier.ttl is not None or supplier.max_entries is not None or supplier.headers:
            raise TopologyError(
                f'The timers "{supplier.name}" need a plain store: persistent_key_value_store(name) or '
                "in_memory_key_value_store(name)"
            )
        return _builder(supplier, StoreKind.KEY_VALUE, key_serde, TimerSerde(), timers=True)

    @staticmethod
    def custom_store_builder(name: str, supplier: Callable[[str], C]) -> StoreBuilder[C]:
        """A store of your own. supplier: a StateStore class, or a function; called with the name for each task."""
        check_function(supplier, "The supplier of custom_store_builder()")
        rows = Serdes.bytes()
        return StoreBuilder(validate_name(name), StoreKind.CUSTOM, rows, rows, StoreBackend.CUSTOM, supplier=supplier)
