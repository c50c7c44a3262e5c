"""The stores of a task on Spark: statestore's own, over rows that are kept in Spark's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from penstock.statestore.buffers.time_ordered_buffers import HEADERS
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.statestore.memory_store import MemoryLRUCache
from penstock.statestore.rows.bytes_store import NO_MARKS, Marks
from penstock.statestore.store_factory import build_store
from penstock.statestore.stores.state_store import StateStore
from penstock.topology.context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from penstock.topology.context.task_context import TaskContext
from penstock.topology.context.task_output import RecordOutput
from penstock.topology.records import Headers, RawRecord, SentRecord

from .packed_rows import pack_rows, unpack_rows
from .sorted_runs import PACKED_ROWS, SortedRuns


class TaskState(Protocol):
    """The state of one task, as Spark keeps it: blobs by store and number. The store "" is the task's own.

    directory: on this machine, for what is read often; see blob_files.Blobs.
    """

    @property
    def directory(self) -> Path:
        """Return it; it need not exist."""

    def read(self, store: str, numbers: Sequence[int]) -> list[bytes | None]:
        """Return blobs, None for one that does not exist."""

    def write(self, store: str, number: int, data: bytes) -> None:
        """Keep a blob."""

    def remove(self, store: str, number: int) -> None:
        """Remove a blob, which must exist."""


class StoreBlobs:
    """The blobs of one store; see blob_files.Blobs."""

    def __init__(self, state: TaskState, store: str) -> None:
        self._state = state
        self._store = store
        self.directory = state.directory

    def read(self, numbers: Sequence[int]) -> list[bytes | None]:
        """Return blobs, None for one that does not exist."""
        return self._state.read(self._store, numbers)

    def write(self, number: int, data: bytes) -> None:
        """Keep a blob."""
        self._state.write(self._store, number, data)

    def remove(self, number: int) -> None:
        """Remove a blob, which must exist."""
        self._state.remove(self._store, number)


class PersistentLRUCache(MemoryLRUCache):
    """An LRU store whose rows are kept in one blob, least recently used first."""

    def __init__(self, blobs: StoreBlobs, max_entries: int) -> None:
        super().__init__(max_entries)
        self._blobs = blobs
        (blob,) = blobs.read([PACKED_ROWS])
        for key, value in unpack_rows(blob or b""):
            self._set(key, value, None)

    @override
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Reads, too, change the order, so the blob is always written."""
        super().commit(changelog_offset, marks)
        self._blobs.write(PACKED_ROWS, pack_rows((key, self._data[key]) for key in self._recency))


class SparkOutput:
    """The TaskOutput of a task on Spark. sink: takes what the task sends; without it, records wait for take_sent().

    images: the changelogs that are read again, by store; see SparkStores.
    """

    def __init__(self, sink: RecordOutput | None = None) -> None:
        self._sink = sink
        self._sent: list[SentRecord] = []
        self.images: dict[str, SortedRuns] = {}

    def send(self, topic: str, *record: Any) -> None:
        """See TaskOutput.send."""
        if self._sink is None:
            self._sent.append(SentRecord(topic, *record))
        else:
            self._sink.send(topic, *record)

    def take_sent(self) -> list[SentRecord]:
        """Return the records since the last call."""
        sent, self._sent = self._sent, []
        return sent

    def log_change(
        self, store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers = None
    ) -> None:
        """Keep a changelog record in Spark's state, if it is read again."""
        image = self.images.get(store_name)
        if image is not None:
            image.put(key, value)


class SparkStores:
    """The open stores of one task. images: of its SparkOutput.

    A suppress buffer has no rows: its changelog records are kept in runs, and fill the buffer of the next micro-batch.
    The changelogs of other stores have no readers here.
    """

    def __init__(
        self,
        builders: dict[str, StoreBuilder],
        task: TaskContext,
        images: dict[str, SortedRuns],
        state: TaskState,
        cache: ThreadCache | None,
    ) -> None:
        self._task = task
        self._state = state
        self._images = images
        self.by_name: dict[str, StateStore] = {name: self._open(each, cache) for name, each in builders.items()}

    def _open(self, builder: StoreBuilder, cache: ThreadCache | None) -> Any:
        blobs = StoreBlobs(self._state, builder.name)
        if builder.kind is StoreKind.SUPPRESS_BUFFER:
            return self._suppress_buffer(builder, blobs)

        def open_rows(builder: StoreBuilder, *_: object) -> Any:
            if builder.backend is StoreBackend.LRU and builder.max_entries is not None:
                return PersistentLRUCache(blobs, builder.max_entries)
            return SortedRuns(blobs)

        return build_store(builder, self._task, None, cache, open_rows=open_rows)

    def _suppress_buffer(self, builder: StoreBuilder, blobs: StoreBlobs) -> object:
        # Also one without a changelog: the local engine keeps it in memory, but on Spark the task ends with the
        # micro-batch.
        store = build_store(replace(builder, logging=True), self._task, None, None)
        image = self._images[builder.name] = SortedRuns(blobs)
        rows = image.rows(None, None)
        store.restore([RawRecord("", 0, 0, -1, key, value, list(HEADERS)) for key, value in rows], None)
        return store

    def commit(self) -> None:
        """Write all changes to Spark's state."""
        for store in self.by_name.values():
            store.commit(None)
        for image in self._images.values():
            image.commit(None)

    def close(self) -> None:
        """Close all stores."""
        for store in self.by_name.values():
            store.close()
        for image in self._images.values():
            image.close()
