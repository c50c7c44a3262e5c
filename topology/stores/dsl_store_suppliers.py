"""Chooses the stores of operators that name none (Kafka Streams: DslStoreSuppliers; KIP-591, KIP-954)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from ..context.store_interfaces import StoreBackend, StoreBuilder
from .stores import StoreSupplier, SupplierKind, operator_supplier
from .windows import EmitStrategy


@dataclass(frozen=True, slots=True)
class DslKeyValueParams:
    """The key-value store that an operator needs. is_timestamped: its values have timestamps.

    headers: ``dsl.store.format`` is HEADERS.
    """

    name: str
    is_timestamped: bool
    headers: bool = False


@dataclass(frozen=True, slots=True)
class DslWindowParams:
    """The window store that an operator needs. Durations are in milliseconds.

    retain_duplicates: each put adds a value, as in the stores of stream-stream joins. The other attributes are as for
    DslKeyValueParams.
    """

    name: str
    retention_ms: int
    window_size_ms: int
    retain_duplicates: bool
    emit_strategy: EmitStrategy
    is_sliding_window: bool
    is_timestamped: bool
    headers: bool = False


@dataclass(frozen=True, slots=True)
class DslSessionParams:
    """The session store that an operator needs; see DslWindowParams."""

    name: str
    retention_ms: int
    emit_strategy: EmitStrategy
    headers: bool = False


#: A supplier of Stores, or the builder of a store of your own: Stores.custom_store_builder.
DslStore = StoreSupplier | StoreBuilder


class DslStoreSuppliers(ABC):
    """Returns the stores of operators: set it as ``dsl.store.suppliers.class``, or as store_type of a Materialized.

    Each method returns a supplier of Stores, or ``Stores.custom_store_builder`` with a class of your own, with the name
    of its parameters. docs/state-stores.md says which methods such a class needs.
    """

    def configure(self, config: Mapping[str, object]) -> None:  # noqa: B027  most need no settings
        """Take over the application's configuration, before the first store."""

    @abstractmethod
    def key_value_store(self, params: DslKeyValueParams) -> DslStore:
        """Return the store of a table, an aggregation, or of what an outer or foreign-key join keeps."""

    @abstractmethod
    def window_store(self, params: DslWindowParams) -> DslStore:
        """Return the store of a windowed aggregation, or of one side of a stream-stream join."""

    @abstractmethod
    def session_store(self, params: DslSessionParams) -> DslStore:
        """Return the store of sessions."""


class _BuiltIn(DslStoreSuppliers):
    backend: StoreBackend

    def key_value_store(self, params: DslKeyValueParams) -> DslStore:
        """Return the default store."""
        return operator_supplier(
            params.name, SupplierKind.KEY_VALUE, self.backend, params.is_timestamped, params.headers
        )

    def window_store(self, params: DslWindowParams) -> DslStore:
        """Return the default store."""
        return operator_supplier(
            params.name,
            SupplierKind.WINDOW,
            self.backend,
            params.is_timestamped,
            params.headers,
            retention_ms=params.retention_ms,
            window_size_ms=params.window_size_ms,
            retain_duplicates=params.retain_duplicates,
            time_ordered=params.emit_strategy is EmitStrategy.ON_WINDOW_CLOSE,
        )

    def session_store(self, params: DslSessionParams) -> DslStore:
        """Return the default store."""
        return operator_supplier(
            params.name,
            SupplierKind.SESSION,
            self.backend,
            False,
            params.headers,
            retention_ms=params.retention_ms,
            time_ordered=params.emit_strategy is EmitStrategy.ON_WINDOW_CLOSE,
        )


class RocksDBDslStoreSuppliers(_BuiltIn):
    """Stores in RocksDB, the default. Override the methods for which you have another store."""

    backend = StoreBackend.ROCKSDB


class InMemoryDslStoreSuppliers(_BuiltIn):
    """Stores in memory. Override the methods for which you have another store."""

    backend = StoreBackend.IN_MEMORY
