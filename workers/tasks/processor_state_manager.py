"""The stores of one task and their changelogs (Kafka Streams: ProcessorStateManager).

A store's changelog offset lies in the store itself, written together with the data in one step (KIP-1035): there is no
checkpoint file that could disagree with it. None means that nothing usable is there and everything is to be restored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from penstock.clients.log_context import PrefixedLogger
from penstock.statestore.directory.checkpoint import CHECKPOINT_FILE_NAME, OffsetCheckpoint
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.statestore.rows.rocksdb_errors import is_corruption
from penstock.statestore.stores.state_store import StateStore
from penstock.topology.errors import ProcessorStateError, StreamsError, TaskCorruptedError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.records import Message, TaskId, TopicPartition

from ..group.topic_names import TopicNames

#: Stores that have taken in so many records, and were not made to survive a SIGKILL for so many ms, are: a process that
#: follows a killed one then replays no more than that (Kafka: OFFSET_DELTA_THRESHOLD_FOR_CHECKPOINT). RocksDB's
#: memtables alone would hold back up to 16 MB of each store.
PERSIST_RECORDS = 10_000
PERSIST_INTERVAL_MS = 10_000
#: Stores learn where their changelogs end as often as they are persisted: more often would gain nothing.
CHECKPOINT_INTERVAL_MS = PERSIST_INTERVAL_MS

#: Makes a store of its StoreBuilder and the task's directory; of a store that is taken over if there is one.
Build = Callable[[Any, Any, Any], Any]


@dataclass(slots=True)
class RecycledStores:
    """Open stores that pass from a standby task to an active one of the same id, or back (KIP-441).

    The task's lock on its directory goes with them. offsets_in_memory: up to where stores that keep no offset are.
    """

    stores: dict[str, Any]
    offsets_in_memory: dict[TopicPartition, int]


class ProcessorStateManager:
    """stores: open stores by name, in Kafka Streams' order. changelogs: the logged stores' names by changelog
    partition.
    """

    def __init__(
        self,
        task_id: TaskId,
        input_partitions: Collection[TopicPartition],
        topology: ProcessorTopology,
        topics: TopicNames,
        state_directory: StateDirectory,
        background: Executor,
        log: PrefixedLogger,
    ) -> None:
        self.stores: dict[str, Any] = {}
        changelogs = {
            TopicPartition(topics.full(topic), task_id.partition): (store, topic in topology.source_topics)
            for store, topic in topology.changelog_topics.items()
        }
        # A source topic may have fewer partitions than the sub-topology has tasks.
        self.changelogs: dict[TopicPartition, str] = {
            partition: store
            for partition, (store, is_source) in changelogs.items()
            if not is_source or partition in input_partitions
        }
        #: Changelogs that are an input topic at the same time: nothing is written to them.
        self.source_changelogs = frozenset(p for p in self.changelogs if changelogs[p][1])
        self.written_changelogs = self.changelogs.keys() - self.source_changelogs
        self._task_id = task_id
        self._topology = topology
        self._state_directory = state_directory
        self._locked = False
        #: Offsets of stores that keep none themselves because they are in memory, by changelog.
        self._offsets_in_memory: dict[TopicPartition, int] = {}
        self._recycled: RecycledStores | None = None
        #: Offsets of stores on disk as of the last commit, and how many records have come since the last persist.
        self._committed: dict[TopicPartition, int] = {}
        self._unpersisted = 0
        self._last_persist_ms: int | None = None
        self._background = background
        self._persisting: Future[None] | None = None
        #: Whether there are commits without offsets of changelogs, and when there was one with them last.
        self._owes_checkpoint = False
        self._last_checkpoint_ms: int | None = None
        self._log = log

    def recycle(self) -> RecycledStores:
        """Release the stores without closing them, for the task that continues here in the other role."""
        self._end_persisting()
        recycled = RecycledStores(dict(self.stores), self._offsets_in_memory)
        self.stores.clear()
        self._locked = False  # the lock is the directory's, which keeps it for the task that follows
        return recycled

    def adopt(self, recycled: RecycledStores) -> None:
        """Take over the stores that a task of the same id has released; open builds upon them."""
        self._recycled = recycled
        self._locked = True

    @property
    def has_adopted(self) -> bool:
        """Whether it holds stores that it has taken over and not opened yet."""
        return self._recycled is not None

    def open(self, build: Build) -> None:
        """Lock the task's directory and open all stores, or continue with adopted ones.

        build(store builder, directory, store to be taken over or None) makes one.

        Raises LockError if another process holds the directory, TaskCorruptedError if its files are damaged.
        """
        if not self._topology.stores:
            return
        self._lock()
        try:
            with self._damage_told():
                self._open_stores(build)
        except BaseException:  # another try begins from nothing
            self.close()
            raise

    def _lock(self) -> None:
        self._state_directory.lock(self._task_id)
        self._locked = True

    def directory(self) -> Path:
        """Return the task's directory, made if need be, and locked until close; raises LockError like open."""
        if not self._locked:
            self._lock()
        return self._state_directory.get_or_create_directory_for_task(self._task_id)

    def _open_stores(self, build: Build) -> None:
        directory = self.directory()
        recycled = self._recycled or RecycledStores({}, {})
        for name, builder in self._topology.stores.items():
            self.stores[name] = build(builder, directory, recycled.stores.get(name))
            recycled.stores.pop(name, None)
            self._log.debug(
                "Opened store %s, committed changelog offset %s", name, self.stores[name].committed_offset()
            )

        self._offsets_in_memory = recycled.offsets_in_memory
        self._recycled = None

    def changelog_offsets(self) -> dict[TopicPartition, int | None]:
        """Return up to which offset each changelog is in its store, None for not at all."""
        in_memory = self._offsets_in_memory if self._recycled is None else self._recycled.offsets_in_memory
        return {**self.stored_offsets(), **in_memory}

    def stored_offsets(self) -> dict[TopicPartition, int | None]:
        """Return the offsets that lie on disk, None where nothing does."""
        stores = self.stores if self._recycled is None else self._recycled.stores
        return {partition: stores[name].committed_offset() for partition, name in self.changelogs.items()}

    def restore(self, partition: TopicPartition, messages: Sequence[Message], next_offset: int) -> None:
        """Apply records of a changelog, together with the offset behind them."""
        name = self.changelogs[partition]
        store = self.stores[name]
        try:
            store.restore(messages, next_offset)
            self._note_offset(partition, store, next_offset)
            self._unpersisted += len(messages)
        except StreamsError as error:
            self.raise_if_corrupted(error)
            raise
        except Exception as error:
            raise ProcessorStateError(
                f"{self._log.prefix}Exception caught while trying to restore state from {partition} up to offset "
                f"{next_offset} into store {name}: {error}"
            ) from error

    def raise_if_corrupted(self, error: Exception) -> None:
        """Raise TaskCorruptedError if a damaged file is what an error began with: the task is to be restored."""
        if isinstance(error, TaskCorruptedError) and error.task_ids:
            raise error
        if is_corruption(error):
            raise TaskCorruptedError(
                f"{self._log.prefix}A store of the task is damaged on disk: {error}", [self._task_id]
            ) from error

    def flush(self, raise_failure: Callable[[str, BaseException], NoReturn]) -> None:
        """Flush all stores: caches send on what they hold. All stores get their turn.

        raise_failure(store name, error): raises the first error, naming the operator that failed.
        """
        first: tuple[str, BaseException] | None = None
        for name, store in self.stores.items():
            try:
                store.flush()
            except BaseException as error:  # noqa: BLE001  raised below
                # The first one's traceback is logged with what it leads to.
                self._log.error("Failed to flush cache of store %s: %s", name, error, exc_info=first is not None)
                first = first or (name, error)
        if first is not None:
            raise_failure(*first)

    def checkpoint_due(self, now_ms: int) -> bool:
        """Whether the next commit should come with the offsets of the changelogs.

        The first one should: a new store has none, and without one it would be restored from the beginning.
        """
        last_ms = self._last_checkpoint_ms
        return bool(self.written_changelogs) and (last_ms is None or now_ms - last_ms >= CHECKPOINT_INTERVAL_MS)

    def checkpoint_needed(self, now_ms: int, enforced: bool) -> bool:
        """Whether a commit is needed though nothing was done: there were some without offsets, and it is time.

        enforced: it is, because the stores are about to be closed. Kafka Streams: StateManagerUtil.checkpointNeeded.
        """
        return self._owes_checkpoint and (enforced or self.checkpoint_due(now_ms))

    def commit(self, offsets: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Commit all stores, each with the offset of its changelog as far as it is known."""
        by_store = {self.changelogs[partition]: offset for partition, offset in offsets.items()}
        with self._damage_told():
            for name, store in self.stores.items():
                store.commit(by_store.get(name))
        for partition, offset in offsets.items():
            self._unpersisted += offset - self._committed.get(partition, offset)
            self._note_offset(partition, self.stores[self.changelogs[partition]], offset)
        self._owes_checkpoint = not offsets.keys() >= self.written_changelogs
        if not self._owes_checkpoint:
            self._last_checkpoint_ms = now_ms

    def _note_offset(self, partition: TopicPartition, store: StateStore, offset: int) -> None:
        (self._committed if store.persistent else self._offsets_in_memory)[partition] = offset

    def write_checkpoint(self) -> None:
        """Note the changelog offsets in a file, for the placement of tasks while this one is closed.

        Only a hint: stores know their own offsets, and are opened to ask them when the task is here again.
        """
        if self.stores:
            offsets = {p: offset for p, offset in self.stored_offsets().items() if offset is not None}
            directory = self._state_directory.directory_for_task(self._task_id)
            OffsetCheckpoint(directory / CHECKPOINT_FILE_NAME).write(offsets)

    def persist(self) -> None:
        """Make what was committed survive a SIGKILL."""
        self._end_persisting()
        with self._damage_told():
            persist_all(self.stores.values(), beside_writes=False)
        self._unpersisted = 0

    def persist_soon(self) -> None:
        """Persist as soon as much has come in, however short ago the last time was: a restore has ended."""
        self._last_persist_ms = None

    def persist_if_due(self, now_ms: int) -> bool:
        """Begin to persist if much was committed since the last time, and that was long ago. Returns whether it did.

        It takes 5 to 80 ms for a store, in which records are processed. Raises what persist() does if the last time has
        failed.
        """
        if self._persisting is not None:
            if not self._persisting.done():
                return False
            self._end_persisting()
        last_ms = self._last_persist_ms
        if self._unpersisted < PERSIST_RECORDS or (last_ms is not None and now_ms - last_ms < PERSIST_INTERVAL_MS):
            return False
        self._persisting = self._background.submit(persist_all, list(self.stores.values()), True)
        self._unpersisted = 0
        self._last_persist_ms = now_ms
        return True

    def _end_persisting(self) -> None:
        """Wait until nothing is persisted beside this thread any more."""
        persisting, self._persisting = self._persisting, None
        if persisting is not None:
            with self._damage_told():
                persisting.result()

    @contextmanager
    def _damage_told(self) -> Iterator[None]:
        try:
            yield
        except StreamsError as error:
            self.raise_if_corrupted(error)
            raise

    def close(self) -> None:
        """Close all stores and give the directory back; each gets its turn, whatever the others raise.

        Closing twice does nothing.
        """
        with ExitStack() as at_end:
            at_end.callback(self._unlock)
            for store in (*self.stores.values(), *(self._recycled.stores.values() if self._recycled else ())):
                at_end.callback(store.close)
            at_end.callback(self._end_persisting)  # the first of all
            self.stores.clear()
            self._recycled = None

    def _unlock(self) -> None:
        if self._locked:
            self._state_directory.unlock(self._task_id)
            self._locked = False


def persist_all(stores: Iterable[Any], beside_writes: bool) -> None:
    """Make what stores have committed survive a SIGKILL; beside_writes: while their task continues."""
    for store in stores:
        store.persist(beside_writes)
