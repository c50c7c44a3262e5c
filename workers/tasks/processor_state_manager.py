"""The stores of one task and their changelogs (Kafka Streams: ProcessorStateManager).

A store holds its own changelog offset, written atomically with the data (KIP-1035), so no checkpoint file can disagree
with it. None means that the store must be restored from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from penstock.clients.log_context import PrefixedLogger
from penstock.statestore.directory.checkpoint import CHECKPOINT_FILE_NAME, OffsetCheckpoint
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.statestore.rows.rocksdb_errors import is_corruption
from penstock.statestore.stores.state_store import StateStore
from penstock.topology.context.store_interfaces import StoreBuilder
from penstock.topology.errors import ProcessorStateError, StreamsError, TaskCorruptedError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.records import Message, TaskId, TopicPartition

from ..group.topic_names import TopicNames

#: Stores are persisted after this many records and this many ms: after a SIGKILL, the next process replays no more than
#: that (Kafka: OFFSET_DELTA_THRESHOLD_FOR_CHECKPOINT). Without it, RocksDB's memtables could lose up to 16 MB of each
#: store.
PERSIST_RECORDS = 10_000
PERSIST_INTERVAL_MS = 10_000
#: The ends of changelogs are stored as often as stores are persisted; more often would not help.
CHECKPOINT_INTERVAL_MS = PERSIST_INTERVAL_MS
#: How long all commits store the ends of changelogs after a reader has asked for one, in ms: it asks for each page.
WANTED_MS = 5_000

#: Makes a store from its StoreBuilder, the task's directory, and the recycled store or None.
Build = Callable[[StoreBuilder, Path, StateStore | None], StateStore]


@dataclass(slots=True)
class RecycledStores:
    """Open stores handed from a standby task to an active one with the same id, or back (KIP-441).

    The lock on the task's directory goes with them. offsets_in_memory: the offsets of in-memory stores.
    """

    stores: dict[str, StateStore]
    offsets_in_memory: dict[TopicPartition, int]


class ProcessorStateManager:
    """Opens, restores, commits and closes a task's stores.

    stores: open stores by name, in Kafka Streams' order. changelogs: names of logged stores by changelog partition.
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
        self.stores: dict[str, StateStore] = {}
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
        #: Changelogs that are also input topics; nothing is written to them.
        self.source_changelogs = frozenset(p for p in self.changelogs if changelogs[p][1])
        self.written_changelogs = self.changelogs.keys() - self.source_changelogs
        self._task_id = task_id
        self._topology = topology
        self._state_directory = state_directory
        self._locked = False
        #: Offsets of in-memory stores, which cannot hold them, by changelog.
        self._offsets_in_memory: dict[TopicPartition, int] = {}
        self._recycled: RecycledStores | None = None
        #: Offsets of stores on disk as of the last commit, and the number of records since the last persist.
        self._committed: dict[TopicPartition, int] = {}
        self._unpersisted = 0
        self._last_persist_ms: int | None = None
        self._background = background
        self._persisting: Future[None] | None = None
        #: Whether there were commits without changelog offsets, and the time of the last one with them.
        self._owes_checkpoint = False
        self._last_checkpoint_ms: int | None = None
        #: Stores whose committed rows are newer than their stored offset, and until when commits must store offsets.
        self._ahead: set[str] = set()
        self._wanted_until_ms: int | None = None
        self._log = log

    def recycle(self) -> RecycledStores:
        """Release the open stores, for the task that continues here in the other role."""
        self._end_persisting()
        recycled = RecycledStores(dict(self.stores), self._offsets_in_memory)
        self.stores.clear()
        self._locked = False  # the directory keeps the lock for the next task
        return recycled

    def adopt(self, recycled: RecycledStores) -> None:
        """Take over the stores that a task with the same id has released; open uses them."""
        self._recycled = recycled
        self._locked = True

    @property
    def has_adopted(self) -> bool:
        """Whether it holds adopted stores that are not opened yet."""
        return self._recycled is not None

    def open(self, build: Build) -> None:
        """Lock the task's directory and open all stores, or continue with adopted ones.

        build(store builder, directory, adopted store or None) makes a store.

        Raises LockError if another process has locked the directory, TaskCorruptedError if its files are damaged.
        """
        if not self._topology.stores:
            return
        self._lock()
        recycled = self._recycled or RecycledStores({}, {})
        try:
            with self._damage_told():
                directory = self.directory()
                for name, builder in self._topology.stores.items():
                    self.stores[name] = store = build(builder, directory, recycled.stores.get(name))
                    recycled.stores.pop(name, None)
                    self._log.debug("Opened store %s, committed changelog offset %s", name, store.committed_offset())
        except BaseException:  # a retry starts afresh
            self.close()
            raise
        self._offsets_in_memory = recycled.offsets_in_memory
        self._recycled = None

    def _lock(self) -> None:
        self._state_directory.lock(self._task_id)
        self._locked = True

    def directory(self) -> Path:
        """Return the task's directory, created if necessary and locked until close; raises LockError like open."""
        if not self._locked:
            self._lock()
        return self._state_directory.get_or_create_directory_for_task(self._task_id)

    def changelog_offsets(self) -> dict[TopicPartition, int | None]:
        """Return the changelog offset that each store has reached, None for a store without data."""
        in_memory = self._offsets_in_memory if self._recycled is None else self._recycled.offsets_in_memory
        return {**self.stored_offsets(), **in_memory}

    def stored_offsets(self) -> dict[TopicPartition, int | None]:
        """Return the offsets on disk, None where there is none."""
        stores = self.stores if self._recycled is None else self._recycled.stores
        return {partition: stores[name].committed_offset() for partition, name in self.changelogs.items()}

    def restore(self, partition: TopicPartition, messages: Sequence[Message], next_offset: int) -> None:
        """Apply records of a changelog, together with the offset after them."""
        name = self.changelogs[partition]
        store = self.stores[name]
        try:
            store.restore(messages, next_offset)
            self._ahead.discard(name)
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
        """Raise TaskCorruptedError if a damaged file caused this error: the task must be restored."""
        if isinstance(error, TaskCorruptedError) and error.task_ids:
            raise error
        if is_corruption(error):
            raise TaskCorruptedError(
                f"{self._log.prefix}A store of the task is damaged on disk: {error}", [self._task_id]
            ) from error

    def flush(self, raise_failure: Callable[[str, BaseException], NoReturn]) -> None:
        """Flush all stores, so that caches forward their changes. Continues after an error.

        raise_failure(store name, error): raises the first error with the name of the failed operator.
        """
        first: tuple[str, BaseException] | None = None
        for name, store in self.stores.items():
            try:
                store.flush()
            except BaseException as error:  # noqa: BLE001  raised below
                # The first error is raised, and its traceback logged then.
                self._log.error("Failed to flush cache of store %s: %s", name, error, exc_info=first is not None)
                first = first or (name, error)
        if first is not None:
            raise_failure(*first)

    def log_removals(self) -> bool:
        """Write the tombstones that the stores hold; see Removals. False: they hold none."""
        return bool(sum([store.log_removals() for store in self.stores.values()]))

    def checkpoint_due(self, now_ms: int) -> bool:
        """Whether the next commit should store the changelog offsets.

        The first one should: without an offset a store is restored from the beginning.
        """
        last_ms = self._last_checkpoint_ms
        is_wanted = self._wanted_until_ms is not None and now_ms < self._wanted_until_ms
        due = is_wanted or last_ms is None or now_ms - last_ms >= CHECKPOINT_INTERVAL_MS
        return bool(self.written_changelogs) and due

    def checkpoint_needed(self, now_ms: int, enforced: bool) -> bool:
        """Whether a commit is needed without any work: earlier commits stored no offsets, and they are due.

        enforced: they are due because the stores are about to be closed. Kafka Streams:
        StateManagerUtil.checkpointNeeded.
        """
        return self._owes_checkpoint and (enforced or self.checkpoint_due(now_ms))

    def commit(self, offsets: Mapping[TopicPartition, int], now_ms: int) -> list[str]:
        """Commit all stores, each with the offset of its changelog if that is known.

        Without it, updates of a logged store may stay in memory: a restore begins at the last stored one in any case.
        Returns the stores of which all updates are committed now.
        """
        written = []
        by_store = {self.changelogs[partition]: offset for partition, offset in offsets.items()}
        logged = set(self.changelogs.values())
        with self._damage_told():
            for name, store in self.stores.items():
                offset = by_store.get(name)
                if offset is None and name in logged and store.can_wait():
                    if not store.rows.has_uncommitted():
                        written.append(name)
                    continue
                store.commit(offset)
                (self._ahead.add if offset is None else self._ahead.discard)(name)
                written.append(name)
        for partition, offset in offsets.items():
            self._unpersisted += offset - self._committed.get(partition, offset)
            self._note_offset(partition, self.stores[self.changelogs[partition]], offset)
        self._owes_checkpoint = not offsets.keys() >= self.written_changelogs
        if not self._owes_checkpoint:
            self._last_checkpoint_ms = now_ms
        return written

    def _note_offset(self, partition: TopicPartition, store: StateStore, offset: int) -> None:
        (self._committed if store.persistent else self._offsets_in_memory)[partition] = offset

    def write_checkpoint(self) -> None:
        """Write the changelog offsets to the checkpoint file, for assignments while this task is closed.

        The file is only a hint: when the task is opened again, the stores' own offsets count.
        """
        if self.stores:
            offsets = {p: offset for p, offset in self.stored_offsets().items() if offset is not None}
            directory = self._state_directory.directory_for_task(self._task_id)
            OffsetCheckpoint(directory / CHECKPOINT_FILE_NAME).write(offsets)

    def stores_with_rows(self) -> dict[str, bool]:
        """Return the stores with rows that are not from an input topic, and whether a task that ran committed each."""
        of_inputs = {self.changelogs[partition] for partition in self.source_changelogs}
        with self._damage_told():
            return {
                name: store.was_committed()
                for name, store in self.stores.items()
                if name not in of_inputs and store.has_rows()
            }

    def persist(self) -> None:
        """Make committed updates survive a SIGKILL."""
        self._end_persisting()
        with self._damage_told():
            persist_all(self.stores.values(), beside_writes=False)
        self._unpersisted = 0

    def persist_soon(self) -> None:
        """Persist without waiting for the interval: a restore has ended."""
        self._last_persist_ms = None

    def offset_of_rows(self, name: str, now_ms: int) -> int | None:
        """Return the changelog offset that a store's rows of the last commit are as of, the next to read.

        None if they are newer than the stored offset: the next commits store offsets then. Also None if nothing is
        written to a changelog of the store.
        """
        partition = next((p for p in self.written_changelogs if self.changelogs[p] == name), None)
        if partition is None:
            return None
        offset = None if name in self._ahead else self.changelog_offsets()[partition]
        self._wanted_until_ms = now_ms + WANTED_MS  # for the next page, too
        self._owes_checkpoint |= offset is None
        return offset

    def persist_if_due(self, now_ms: int) -> bool:
        """Start to persist in the background if the limits of records and time are reached. Returns whether it did.

        This takes 5 to 80 ms per store, while records are processed. Raises as persist() if the last run failed.
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
        """Wait for the background run to end."""
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
        """Close all stores and unlock the directory; continues after errors.

        Closing twice does nothing.
        """
        with ExitStack() as at_end:
            at_end.callback(self._unlock)
            for store in (*self.stores.values(), *(self._recycled.stores.values() if self._recycled else ())):
                at_end.callback(store.close)
            at_end.callback(self._end_persisting)  # runs first
            self.stores.clear()
            self._recycled = None

    def _unlock(self) -> None:
        if self._locked:
            self._state_directory.unlock(self._task_id)
            self._locked = False


def checkpointed_offsets(
    state_directory: StateDirectory, task_id: TaskId, log: PrefixedLogger
) -> Mapping[TopicPartition, int]:
    """Return the changelog offsets in the checkpoint file of a closed task; none if there is no file, or a damaged one.

    See ProcessorStateManager.write_checkpoint.
    """
    checkpoint = OffsetCheckpoint(state_directory.directory_for_task(task_id) / CHECKPOINT_FILE_NAME)
    try:
        return checkpoint.read()
    except ProcessorStateError as error:
        log.warning("%s. It is deleted, because it is only a hint.", error)
        checkpoint.delete()
        return {}


def persist_all(stores: Iterable[StateStore], beside_writes: bool) -> None:
    """Persist the committed updates of stores. beside_writes: their task continues to write."""
    for store in stores:
        store.persist(beside_writes)
