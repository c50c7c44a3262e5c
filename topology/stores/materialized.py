"""Materialization of an operation's result: Materialized, and the stores derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..common.arguments import check_type
from ..common.durations import Duration, non_negative_millis
from ..common.naming import NameProvider, validate_name
from ..config.config_keys import KEYS
from ..config.streams_config import StreamsConfig, import_reference
from ..context.store_interfaces import StoreBackend, StoreBuilder, StoreKind, Ttl
from ..errors import TopologyError
from ..serdes.serdes import Serde, SerdeLike, as_serde, or_default
from .dsl_store_suppliers import (
    DslKeyValueParams,
    DslSessionParams,
    DslStore,
    DslStoreSuppliers,
    DslWindowParams,
    InMemoryDslStoreSuppliers,
    RocksDBDslStoreSuppliers,
)
from .stores import Stores, StoreSupplier, SupplierKind, TtlLike, as_supplier, as_ttl
from .windows import CalendarWindows, EmitStrategy, SessionWindows, SlidingWindows, TimeWindows, Windows

#: A place of stores, or what chooses them.
StoreType = StoreBackend | DslStoreSuppliers
_BUILT_IN: Mapping[type[DslStoreSuppliers], StoreBackend] = {
    RocksDBDslStoreSuppliers: StoreBackend.ROCKSDB,
    InMemoryDslStoreSuppliers: StoreBackend.IN_MEMORY,
}
_BACKENDS = {"rocksdb": StoreBackend.ROCKSDB, "persistent": StoreBackend.ROCKSDB, "in_memory": StoreBackend.IN_MEMORY}


@dataclass(frozen=True, slots=True, init=False)
class Materialized:
    """How the result of an operation is kept (Kafka Streams: Materialized). with_…() methods return copies.

    store: its name, or a supplier or custom_store_builder() of Stores; without it the store gets a generated name and
    cannot be queried.
    caching: updates are merged until a commit or until the cache is full. logging: a changelog topic backs up the
    store; a mapping overrides the topic's settings. retention: of window stores, ``timedelta`` or ms, at least window
    size plus grace. store_type: "rocksDB", "in_memory" or DslStoreSuppliers; by default ``dsl.store.suppliers.class``.
    ttl: a duration, or a Ttl, after which the rows of a table end; such a table has no record cache.
    """

    store_name: str | None
    supplier: StoreSupplier | None
    key_serde: Serde | None
    value_serde: Serde | None
    caching: bool
    logging: bool
    log_config: Mapping[str, str] = field(hash=False)
    retention_ms: int | None
    store_type: StoreType | None
    ttl: Ttl | None

    def __init__(
        self,
        store: str | DslStore | None = None,
        *,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        caching: bool = True,
        logging: bool | Mapping[str, str] = True,
        retention: Duration | None = None,
        store_type: StoreType | type[DslStoreSuppliers] | str | None = None,
        supplier: StoreSupplier | None = None,
        ttl: TtlLike = None,
    ) -> None:
        if isinstance(store, StoreBuilder):
            store = as_supplier(store)
        if isinstance(store, StoreSupplier):
            store, supplier = None, store
        name = supplier.name if supplier is not None else store
        if supplier is not None and store_type is not None:
            raise TopologyError(f'Store "{name}": the supplier already determines the store type; omit store_type')
        values = {
            "store_name": name and validate_name(name),
            "supplier": supplier,
            "key_serde": as_serde(key_serde),
            "value_serde": as_serde(value_serde),
            "caching": caching,
            "logging": bool(logging) or isinstance(logging, Mapping),
            "log_config": dict(logging) if isinstance(logging, Mapping) else {},
            "retention_ms": None if retention is None else non_negative_millis(retention, "The retention"),
            "store_type": as_store_type(store_type),
            "ttl": as_ttl(ttl),
        }
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    @classmethod
    def as_(cls, store: str | DslStore | DslStoreSuppliers | type[DslStoreSuppliers]) -> Materialized:
        """Return one with a named store, or with suppliers of stores (Kafka Streams: Materialized.as)."""
        if isinstance(store, DslStoreSuppliers | type):
            return cls(store_type=store)
        return cls(store)

    @classmethod
    def with_(cls, key_serde: SerdeLike | None, value_serde: SerdeLike | None) -> Materialized:
        """Return one without a store name (Kafka Streams: Materialized.with)."""
        return cls(key_serde=key_serde, value_serde=value_serde)

    def with_key_serde(self, serde: SerdeLike | None) -> Materialized:
        """Return a copy with this key serde."""
        return _changed(self, key_serde=as_serde(serde))

    def with_value_serde(self, serde: SerdeLike | None) -> Materialized:
        """Return a copy with this value serde."""
        return _changed(self, value_serde=as_serde(serde))

    def with_caching_enabled(self) -> Materialized:
        """Return a copy whose updates are merged in the record cache."""
        return _changed(self, caching=True)

    def with_caching_disabled(self) -> Materialized:
        """Return a copy that forwards each update."""
        return _changed(self, caching=False)

    def with_logging_enabled(self, config: Mapping[str, str] | None = None) -> Materialized:
        """Return a copy with a changelog topic; config overrides its settings."""
        return _changed(self, logging=True, log_config=dict(config or {}))

    def with_logging_disabled(self) -> Materialized:
        """Return a copy without a changelog: its contents are lost with the task's directory."""
        return _changed(self, logging=False, log_config={})

    def with_retention(self, retention: Duration) -> Materialized:
        """Return a copy whose window store keeps windows for this long."""
        return _changed(self, retention_ms=non_negative_millis(retention, "The retention"))

    def with_store_type(self, store_type: StoreType | type[DslStoreSuppliers] | str) -> Materialized:
        """Return a copy kept in "rocksDB" or "in_memory", or as DslStoreSuppliers choose.

        Raises TopologyError if there is a supplier.
        """
        if self.supplier is not None:
            raise TopologyError(f'Store "{self.store_name}" has a supplier, which already determines the store type')
        return _changed(self, store_type=as_store_type(store_type))

    def with_ttl(self, ttl: TtlLike) -> Materialized:
        """Return a copy whose rows end after this time."""
        return _changed(self, ttl=as_ttl(ttl))

    @property
    def versioned(self) -> bool:
        """Whether the store keeps old versions."""
        return self.supplier is not None and self.supplier.versioned


def _changed(materialized: Materialized, **changes: object) -> Materialized:
    copied = object.__new__(Materialized)
    for name in Materialized.__slots__:
        object.__setattr__(copied, name, changes.get(name, getattr(materialized, name)))
    return copied


def as_store_type(store_type: StoreType | type[DslStoreSuppliers] | str | None) -> StoreType | None:
    """Return a place of stores, or an object that chooses them; raises TopologyError for anything else."""
    if isinstance(store_type, type) and issubclass(store_type, DslStoreSuppliers):
        store_type = store_type()
    if isinstance(store_type, DslStoreSuppliers):
        return _BUILT_IN.get(type(store_type), store_type)
    if store_type is None or isinstance(store_type, StoreBackend):
        return store_type
    check_type(store_type, str, "store_type", '"rocksDB", "in_memory" or DslStoreSuppliers')
    if store_type.lower() not in _BACKENDS:
        raise TopologyError(f'There is no store type "{store_type}"; use "rocksDB" or "in_memory"')
    return _BACKENDS[store_type.lower()]


_SUPPLIERS_KEY = "dsl.store.suppliers.class"
#: Accepted types of ``store=``: a name, a Materialized, or a supplier.
StoreOption = str | Materialized | DslStore | None


def materialized_option(
    store: StoreOption,
    key_serde: SerdeLike | None = None,
    value_serde: SerdeLike | None = None,
) -> Materialized | None:
    """Combine the options store=, key_serde= and value_serde=; None if none of them is given.

    Serdes in the options take precedence over those in a Materialized.
    """
    if store is None and key_serde is None and value_serde is None:
        return None
    if store is not None:
        kinds = (Materialized, str, StoreSupplier, StoreBuilder)
        check_type(store, kinds, "store=", "a name, a Materialized or a supplier")
    found = store if isinstance(store, Materialized) else Materialized(store)
    found = found if key_serde is None else found.with_key_serde(key_serde)
    return found if value_serde is None else found.with_value_serde(value_serde)


class MaterializedInternal:
    """A Materialized with a store name, generated if necessary (Kafka Streams: MaterializedInternal).

    queryable_store_name is None unless the user gave a name: then the table need not be stored at all.
    is_named_by_user_only: names are not generated, for the results of KTable.filter, map_values and transform_values.
    """

    def __init__(
        self,
        materialized: Materialized | None,
        names: NameProvider | None = None,
        prefix: str = "",
        *,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
    ) -> None:
        given = materialized or Materialized()
        self.given = given
        self.is_named_by_user_only = names is None
        self.queryable_store_name = given.store_name
        self.store_name = given.store_name or (names.new_store_name(prefix) if names is not None else "")
        self.key_serde = given.key_serde or key_serde
        self.value_serde = given.value_serde or value_serde

    @property
    def versioned(self) -> bool:
        """Whether the store keeps old versions."""
        return self.given.versioned


@dataclass(frozen=True, slots=True)
class StoreFactory:
    """A store of the graph, before the configuration is known (Kafka Streams: StoreFactory).

    named: the user named it. dsl: dsl.store.suppliers.class (unless the builder was given a store_type) and
    dsl.store.format apply. ignores_older_key: Kafka Streams ignores default.dsl.store for this store. Its tombstones
    therefore have headers, unlike those of other stores in memory, although Penstock does keep it in memory.
    emit_strategy, is_sliding: of the aggregation, for DslStoreSuppliers.
    """

    builder: StoreBuilder
    named: bool = True
    dsl: bool = False
    store_type: StoreType | None = None
    ignores_older_key: bool = False
    emit_strategy: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE
    is_sliding: bool = False

    @property
    def name(self) -> str:
        """The store's name."""
        return self.builder.name

    def without_logging(self) -> StoreFactory:
        """Return a copy without a changelog topic."""
        return replace(self, builder=self.builder.with_logging_disabled())

    def configure(self, config: Mapping[str, Any] | None) -> StoreBuilder:
        """Return the builder for an application's configuration, with default serdes if none were declared."""
        builder = replace(
            self.builder,
            key_serde=or_default(self.builder.key_serde, config, is_key=True),
            value_serde=or_default(self.builder.value_serde, config, is_key=False),
        )
        if not self.dsl:
            return builder
        configured = as_store_type(_imported(setting(config, _SUPPLIERS_KEY)))
        backend = self.store_type or configured or StoreBackend.ROCKSDB
        headers = setting(config, "dsl.store.format") == "HEADERS"
        if isinstance(backend, DslStoreSuppliers):
            backend.configure({} if config is None else config)
            return supplied(builder, self._chosen(backend, headers))
        # Kafka Streams' stores in memory have no format with headers.
        in_rocksdb = backend is StoreBackend.ROCKSDB or (
            self.ignores_older_key and self.store_type is None and not _is_given(config, _SUPPLIERS_KEY)
        )
        return replace(builder, backend=backend, headers_format=in_rocksdb and headers)

    def _chosen(self, suppliers: DslStoreSuppliers, headers: bool) -> DslStore:
        """Return the store that suppliers choose."""
        builder = self.builder
        if builder.kind in (StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW):
            return suppliers.window_store(
                DslWindowParams(
                    builder.name,
                    builder.retention_ms or 0,
                    builder.window_size_ms or 0,
                    builder.retain_duplicates,
                    self.emit_strategy,
                    self.is_sliding,
                    builder.kind is StoreKind.TIMESTAMPED_WINDOW,
                    headers,
                )
            )
        if builder.kind is StoreKind.SESSION:
            return suppliers.session_store(
                DslSessionParams(builder.name, builder.retention_ms or 0, self.emit_strategy, headers)
            )
        return suppliers.key_value_store(
            DslKeyValueParams(builder.name, builder.kind is not StoreKind.LIST_VALUE, headers)
        )


#: What a supplier must be for a store.
_KINDS: Mapping[StoreKind, SupplierKind] = {
    StoreKind.TIMESTAMPED_KEY_VALUE: SupplierKind.KEY_VALUE,
    StoreKind.FOREIGN_KEY_SUBSCRIPTION: SupplierKind.KEY_VALUE,
    StoreKind.LIST_VALUE: SupplierKind.KEY_VALUE,
    StoreKind.WINDOW: SupplierKind.WINDOW,
    StoreKind.TIMESTAMPED_WINDOW: SupplierKind.WINDOW,
    StoreKind.SESSION: SupplierKind.SESSION,
}


def supplied(builder: StoreBuilder, store: DslStore) -> StoreBuilder:
    """Return the builder of an operator's store with what DslStoreSuppliers have chosen for it.

    Raises TopologyError if that does not fit the operator.
    """
    check_type(store, (StoreSupplier, StoreBuilder), f'The store "{builder.name}"', "a supplier that Stores creates")
    supplier = as_supplier(store)
    supplier.require((_KINDS[builder.kind],), f'The operator of store "{builder.name}"')
    if supplier.name != builder.name:
        raise TopologyError(f'The store "{builder.name}" must have this name, but its supplier is "{supplier.name}"')
    if supplier.ttl is not None or (supplier.make is not None and builder.ttl is not None):
        raise TopologyError(f'The store "{builder.name}": a store of DslStoreSuppliers has no ttl')
    if supplier.make is None and supplier.retain_duplicates != builder.retain_duplicates:
        raise TopologyError(
            f'The store "{builder.name}" needs a supplier with retain_duplicates={builder.retain_duplicates}'
        )
    has_timestamps = builder.kind is not StoreKind.TIMESTAMPED_KEY_VALUE or supplier.timestamped
    return replace(
        builder,
        backend=supplier.backend,
        max_entries=supplier.max_entries,
        headers_format=supplier.headers,
        plain_values=not has_timestamps,
        retention_ms=builder.retention_ms if supplier.retention_ms is None else supplier.retention_ms,
        window_size_ms=builder.window_size_ms if supplier.window_size_ms is None else supplier.window_size_ms,
        time_ordered=supplier.time_ordered if supplier.make is None else builder.time_ordered,
        supplier=supplier.make,
    )


def _imported(configured: Any) -> Any:
    """Return a configured class, which a plain mapping has as a reference."""
    if isinstance(configured, str) and ":" in configured:
        return import_reference(configured, _SUPPLIERS_KEY)
    return configured


def _is_given(config: Mapping[str, object] | None, name: str) -> bool:
    """Return whether a key was set directly, not through a deprecated one."""
    given = config.originals() if isinstance(config, StreamsConfig) else config
    return given is not None and given.get(name) is not None


def setting(config: Mapping[str, Any] | None, name: str) -> Any:
    """Return a parsed setting from any mapping, or its default. Ignores the rest of the mapping."""
    key = KEYS[name]
    older = next((other.name for other in KEYS.values() if other.deprecated_for == name), None)
    for candidate in (name, older):
        if config is not None and candidate is not None and config.get(candidate) is not None:
            return key.parse(config[candidate])
    return key.default


def key_value_store(materialized: MaterializedInternal) -> StoreFactory:
    """Return a table's store: timestamped, or versioned by its supplier (Kafka Streams: KeyValueStoreMaterializer)."""
    supplier = _supplier(materialized, (SupplierKind.KEY_VALUE, SupplierKind.VERSIONED), "A table")
    ttl = materialized.given.ttl or supplier.ttl
    if ttl is not None and (supplier.versioned or supplier.headers or supplier.max_entries is not None):
        raise TopologyError(f'Store "{supplier.name}": versioned, LRU and headers stores have no ttl')
    supplier = replace(supplier, ttl=ttl)
    make = (
        Stores.versioned_key_value_store_builder if supplier.versioned else Stores.timestamped_key_value_store_builder
    )
    # Versioned stores do not support caching, and in a cache rows would outlive their ttl.
    caching = materialized.given.caching and not supplier.versioned and ttl is None
    return _factory(materialized, make(supplier, materialized.key_serde, materialized.value_serde), caching)


def window_store(
    materialized: MaterializedInternal, windows: Windows | SlidingWindows, emit_strategy: EmitStrategy
) -> StoreFactory:
    """Return the store of a windowed aggregation; raises TopologyError if its retention is too short."""
    if isinstance(windows, SlidingWindows):
        # A record creates windows that start as early as two differences before it.
        size, needed, rule = windows.time_difference_ms, 2 * windows.time_difference_ms, "2 * time difference"
    else:
        size, needed, rule = windows.size_ms, windows.size_ms, "window size"
    retention = _retention(materialized, needed + windows.grace_ms, rule)
    times = {"retention_ms": retention, "window_size_ms": size}
    calendar = windows if isinstance(windows, CalendarWindows) else None
    supplier = _supplier(materialized, (SupplierKind.WINDOW,), "A windowed aggregation", **times)
    builder = Stores.timestamped_window_store_builder(supplier, materialized.key_serde, materialized.value_serde)
    builder = replace(
        builder,
        time_ordered=_time_ordered(materialized, emit_strategy),
        logged_in_window=isinstance(windows, TimeWindows | SlidingWindows | CalendarWindows),
        window_end=None if calendar is None else calendar.window_end,
    )
    is_sliding = isinstance(windows, SlidingWindows)
    # Kafka Streams: TimeOrderedCachingWindowStore
    caches = _caches(materialized, emit_strategy) if is_sliding else materialized.given.caching
    return replace(_factory(materialized, builder, caches, emit_strategy), is_sliding=is_sliding)


def session_store(
    materialized: MaterializedInternal, windows: SessionWindows, emit_strategy: EmitStrategy
) -> StoreFactory:
    """Return the store of a session aggregation; raises TopologyError if its retention is too short."""
    retention = _retention(materialized, windows.inactivity_gap_ms + windows.grace_ms, "session inactivity gap")
    supplier = _supplier(materialized, (SupplierKind.SESSION,), "A session aggregation", retention_ms=retention)
    builder = Stores.session_store_builder(supplier, materialized.key_serde, materialized.value_serde)
    builder = replace(builder, time_ordered=_time_ordered(materialized, emit_strategy))
    return _factory(materialized, builder, _caches(materialized, emit_strategy), emit_strategy)


def _supplier(
    materialized: MaterializedInternal, kinds: tuple[SupplierKind, ...], where: str, **times: Any
) -> StoreSupplier:
    """Return the given supplier, by default one of the first kind; raises TopologyError if it is of another kind."""
    given = materialized.given
    backend = given.store_type if isinstance(given.store_type, StoreBackend) else StoreBackend.ROCKSDB
    if given.ttl is not None and SupplierKind.KEY_VALUE not in kinds:
        raise TopologyError(f"{where} has no ttl: its windows end after their retention, see retention=")
    return (given.supplier or StoreSupplier(materialized.store_name, kinds[0], backend, **times)).require(kinds, where)


def _caches(materialized: MaterializedInternal, emit_strategy: EmitStrategy) -> bool:
    """Return whether the store is cached: a cache would delay the results of closing windows."""
    return materialized.given.caching and emit_strategy is not EmitStrategy.ON_WINDOW_CLOSE


def _time_ordered(materialized: MaterializedInternal, emit_strategy: EmitStrategy) -> bool:
    """Return whether the store is ordered by time, as closing windows are emitted; a supplier's store keeps its own
    order.
    """
    supplier = materialized.given.supplier
    return emit_strategy is EmitStrategy.ON_WINDOW_CLOSE and (supplier is None or supplier.make is not None)


def _retention(materialized: MaterializedInternal, needed_ms: int, rule: str) -> int:
    retention = materialized.given.retention_ms
    if retention is None:
        return needed_ms
    if retention < needed_ms:
        raise TopologyError(
            f'The retention of store "{materialized.store_name}" must be no smaller than {rule} plus grace, '
            f"{needed_ms} ms; it is {retention} ms"
        )
    return retention


def _factory(
    materialized: MaterializedInternal,
    builder: StoreBuilder,
    caching: bool,
    emit_strategy: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE,
) -> StoreFactory:
    given = materialized.given
    headers = given.supplier is not None and given.supplier.headers
    builder = replace(
        builder, caching=caching, logging=given.logging, log_config=given.log_config, headers_format=headers
    )
    if given.supplier is not None and given.supplier.make is not None:
        builder = supplied(builder, given.supplier)
    return StoreFactory(
        builder,
        named=materialized.queryable_store_name is not None,
        dsl=given.supplier is None,
        store_type=given.store_type,
        emit_strategy=emit_strategy,
        ignores_older_key=materialized.is_named_by_user_only,
    )
