"""build_store: from a StoreBuilder to the store of one task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.context.task_context import TaskContext
from penstock.topology.errors import StreamsError, TaskCorruptedError

from .buffers.time_ordered_buffers import InMemoryTimeOrderedKeyValueChangeBuffer, RocksDBTimeOrderedKeyValueBuffer
from .cache.caching_store import CachingKeyValueStore
from .cache.caching_windows import CachingSessionStore, CachingWindowStore
from .cache.thread_cache import ThreadCache
from .directory.state_directory import CUSTOM_DIRECTORY, STORES_DIRECTORY
from .memory_store import InMemoryStore, MemoryLRUCache
from .metered_stores import metered, opened
from .rows.bytes_store import BytesStore
from .rows.own_rows import OwnRows, own_rows
from .rows.rocksdb_store import RocksDBStore
from .stores.custom_store import CustomStore, open_custom_store
from .stores.dated_stores import ExpiringStore, TimerStore, check_layout
from .stores.key_value_store import TaskKeyValueStore
from .stores.list_value_store import ListValueStore
from .stores.segmented_stores import TaskSessionStore, TaskWindowStore
from .stores.segments import segment_interval_ms
from .stores.state_store import StateStore
from .stores.versioned_store import VersionedStore

#: Kinds of stores that may have a cache: the uncached and the cached class.
CACHEABLE: dict[StoreKind, tuple[Callable[..., StateStore], Callable[..., StateStore]]] = {
    StoreKind.KEY_VALUE: (TaskKeyValueStore, CachingKeyValueStore),
    StoreKind.TIMESTAMPED_KEY_VALUE: (TaskKeyValueStore, CachingKeyValueStore),
    StoreKind.FOREIGN_KEY_SUBSCRIPTION: (TaskKeyValueStore, CachingKeyValueStore),
    StoreKind.WINDOW: (TaskWindowStore, CachingWindowStore),
    StoreKind.TIMESTAMPED_WINDOW: (TaskWindowStore, CachingWindowStore),
    StoreKind.SESSION: (TaskSessionStore, CachingSessionStore),
}

#: Kinds of stores that never have a cache.
UNCACHED: dict[StoreKind, Callable[..., StateStore]] = {
    StoreKind.VERSIONED_KEY_VALUE: VersionedStore,
    StoreKind.LIST_VALUE: ListValueStore,
    StoreKind.JOIN_BUFFER: RocksDBTimeOrderedKeyValueBuffer,
}


#: Opens the rows of a store, as build_rows does.
OpenRows = Callable[[StoreBuilder, TaskContext, Path | None], BytesStore]


def build_store(
    builder: StoreBuilder,
    task: TaskContext,
    directory: Path | None,
    cache: ThreadCache | None,
    recycled: StateStore | None = None,
    open_rows: OpenRows | None = None,
) -> Any:
    """Return an open store.

    directory: the task's directory, which gets the store in ``stores/<name>``, a custom one in ``custom/<name>``; None
    keeps every store in memory (Spark). cache: the thread's record cache; None or one of 0 bytes: stores without a
    cache. recycled: a store of the same builder, released by a standby or active task; its committed rows are taken
    over without reopening. open_rows: replaces build_rows, for a simulated disk. Raises TaskCorruptedError for damaged
    files (wipe the task and restore), LockError if another process has the store open, ProcessorStateError for a
    directory that cannot be used, and for a custom store that fails.
    """
    began = perf_counter_ns()
    store = _open(builder, task, directory, cache, recycled, open_rows)
    opened(store, perf_counter_ns() - began)
    return store


def _open(
    builder: StoreBuilder,
    task: TaskContext,
    directory: Path | None,
    cache: ThreadCache | None,
    recycled: StateStore | None,
    open_rows: OpenRows | None,
) -> object:
    if isinstance(recycled, InMemoryTimeOrderedKeyValueChangeBuffer | CustomStore):
        return recycled.passed_to(task)
    if builder.kind is StoreKind.SUPPRESS_BUFFER:
        return metered(InMemoryTimeOrderedKeyValueChangeBuffer, task)(builder, task)
    if builder.kind is StoreKind.CUSTOM:
        return open_custom_store(builder, task, directory and directory / CUSTOM_DIRECTORY / builder.name)
    if recycled is not None:
        rows = recycled_rows(recycled, task)
    else:
        rows = (open_rows or build_rows)(builder, task, directory)
    if builder.kind in UNCACHED:
        return metered(UNCACHED[builder.kind], task)(builder, task, rows)
    try:
        check_layout(builder, task, rows)
    except TaskCorruptedError:
        rows.close()
        raise
    if builder.is_dated:
        return metered(TimerStore if builder.timers else ExpiringStore, task)(builder, task, rows)
    plain, cached = CACHEABLE[builder.kind]
    if builder.caching and cache is not None and cache.max_bytes > 0 and not builder.retain_duplicates:
        return metered(cached, task)(builder, task, rows, cache)
    return metered(plain, task)(builder, task, rows)


def recycled_rows(recycled: StateStore, task: TaskContext) -> BytesStore:
    """Return the rows of a released store, for a new store of this task."""
    rows = recycled.detach()
    if isinstance(rows, RocksDBStore):
        rows.belongs_to(task.request_commit)
    elif isinstance(rows, OwnRows):
        rows.moved_to(task)
    return rows


def build_rows(builder: StoreBuilder, task: TaskContext, directory: Path | None) -> BytesStore:
    """Open the rows of a store."""
    if builder.backend is StoreBackend.CUSTOM:
        own = open_custom_store(builder, task, directory and directory / CUSTOM_DIRECTORY / builder.name)
        return own_rows(builder, own, segment_interval_ms(builder.retention_ms or 0))
    if builder.backend is StoreBackend.LRU:
        if builder.max_entries is None:
            raise StreamsError(f"The LRU store {builder.name} needs max_entries")
        return MemoryLRUCache(builder.max_entries)
    if directory is None or builder.backend is StoreBackend.IN_MEMORY:
        return InMemoryStore()
    setter = task.config.get("rocksdb.config.setter")
    configure = None if setter is None else lambda options: setter(builder.name, options, task.config)
    path = directory / STORES_DIRECTORY / builder.name
    # as in Kafka Streams, where metrics from statistics have the level DEBUG
    keeps_statistics = task.config.get("metrics.recording.level", "INFO") != "INFO"
    try:
        return RocksDBStore(
            path, request_commit=task.request_commit, configure=configure, keeps_statistics=keeps_statistics
        )
    except TaskCorruptedError as error:
        raise TaskCorruptedError(f"Task {task.task_id}: {error}", [task.task_id]) from error
