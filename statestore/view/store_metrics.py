"""Metrics of an open store that need no measurement of calls (Kafka Streams: StateStoreMetrics, RocksDBMetrics)."""

from __future__ import annotations

from ..buffers.time_ordered_buffers import InMemoryTimeOrderedKeyValueChangeBuffer
from ..cache.caching_store import CachingStore
from ..metered_stores import scope
from ..rows.rocksdb_statistics import statistics_counters, statistics_metrics
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


def rocksdb_metrics(store: StateStore) -> dict[str, float]:
    """Return RocksDB's properties of a store, and its statistics if it keeps some; empty for other stores."""
    if not isinstance(store.rows, RocksDBStore):
        return {}
    # RocksDB itself does not know the rows that wait for the next checkpoint.
    found = store.rows.properties(PROPERTIES) | {"estimate-num-keys": float(store.rows.approximate_num_entries())}
    statistics = store.rows.statistics()
    return found | statistics_metrics(statistics) if statistics else found


def rocksdb_counters(store: StateStore) -> dict[str, int]:
    """Return the counters of RocksDB's statistics by the metrics that show their growth; empty without statistics."""
    text = store.rows.statistics() if isinstance(store.rows, RocksDBStore) else ""
    return statistics_counters(text) if text else {}


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
    if store.open_iterators is not None:
        found["num-open-iterators"] = float(len(store.open_iterators))
        found["oldest-iterator-open-since-ms"] = float(min(store.open_iterators.values(), default=0))
    return found


def cache_bytes(store: StateStore) -> float:
    """Return the estimated size of a store's part of the record cache, 0.0 without."""
    return store.cache_bytes if isinstance(store, CachingStore) else 0.0
