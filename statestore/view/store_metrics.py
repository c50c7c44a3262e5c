"""Metrics of an open store that need no measurement of calls (Kafka Streams: StateStoreMetrics, RocksDBMetrics)."""

from __future__ import annotations

from penstock.topology.context.store_interfaces import StoreBackend, StoreKind

from ..buffers.time_ordered_buffers import InMemoryTimeOrderedKeyValueChangeBuffer
from ..cache.caching_store import CachingStore
from ..rows.rocksdb_statistics import statistics_metrics
from ..rows.rocksdb_store import RocksDBStore
from ..stores.custom_store import CustomStore
from ..stores.state_store import StateStore

#: RocksDB's properties of one store, without "rocksdb.", which are Kafka Streams' names (KIP-607, RocksDBMetrics).
PROPERTIES = (
    "num-immutable-mem-table",
    "cur-size-active-mem-table",
    "cur-size-all-mem-tables",
    "size-all-mem-tables",
    "num-entries-active-mem-table",
    "num-entries-imm-mem-tables",
    "num-deletes-active-mem-table",
    "num-deletes-imm-mem-tables",
    "mem-table-flush-pending",
    "num-running-flushes",
    "compaction-pending",
    "num-running-compactions",
    "estimate-pending-compaction-bytes",
    "total-sst-files-size",
    "live-sst-files-size",
    "num-live-versions",
    "block-cache-capacity",
    "block-cache-usage",
    "block-cache-pinned-usage",
    "estimate-table-readers-mem",
    "background-errors",
)

_KINDS = {
    StoreKind.WINDOW: "window-",
    StoreKind.TIMESTAMPED_WINDOW: "window-",
    StoreKind.SESSION: "session-",
}


def scope(store: StateStore) -> str:
    """Return the first part of the tag that names a store, as Kafka Streams' suppliers' metricsScope.

    E.g. "rocksdb", "rocksdb-window", "in-memory-session", "in-memory-suppression".
    """
    kind = store.builder.kind
    if kind is StoreKind.SUPPRESS_BUFFER:
        return "in-memory-suppression"
    if store.builder.backend is StoreBackend.LRU:
        return "in-memory-lru"
    if store.builder.backend is StoreBackend.CUSTOM:
        return "custom"
    where = "rocksdb" if store.persistent else "in-memory"
    return f"{where}-{_KINDS.get(kind, '')}".rstrip("-")


def rocksdb_metrics(store: StateStore) -> dict[str, float]:
    """Return RocksDB's properties of a store, and its statistics if it keeps some; empty for other stores."""
    if not isinstance(store.rows, RocksDBStore):
        return {}
    # RocksDB itself does not know the rows that wait for the next checkpoint.
    found = store.rows.properties(PROPERTIES) | {"estimate-num-keys": float(store.rows.approximate_num_entries())}
    statistics = store.rows.statistics()
    return found | statistics_metrics(statistics) if statistics else found


def store_metrics(store: StateStore) -> dict[str, float]:
    """Return the size of a store under Kafka Streams' names (KIP-1250), of those on disk the number of rows."""
    if isinstance(store, InMemoryTimeOrderedKeyValueChangeBuffer):
        return {
            "suppression-buffer-size-current": float(store.buffer_size()),
            "suppression-buffer-count-current": float(store.num_records()),
        }
    entries = store.approximate_num_entries if isinstance(store, CustomStore) else store.rows.approximate_num_entries
    found = {"approximate-num-entries": float(entries())}
    if scope(store).startswith("in-memory"):
        found["num-keys"] = found["approximate-num-entries"]
    return found


def cache_bytes(store: StateStore) -> float:
    """Return the estimated size of a store's part of the record cache, 0.0 without."""
    return store.cache_bytes if isinstance(store, CachingStore) else 0.0
