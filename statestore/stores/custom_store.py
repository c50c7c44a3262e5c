"""Runs a user's store (topology/stores/custom_store.py) behind the interface of the other stores."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.context.task_context import TaskContext
from penstock.topology.errors import PenstockError, ProcessorStateError, StreamsError
from penstock.topology.operators.user_context import UserContext
from penstock.topology.query.state_queries import Query
from penstock.topology.query.state_query_result import QueryResult
from penstock.topology.records import HeadersLike, Message, TopicPartition, as_headers, make_record
from penstock.topology.stores import custom_store
from penstock.topology.stores.custom_store import CommitCallback, StateRestoreCallback

from ..memory_store import InMemoryStore
from ..rows.rocksdb_resources import process_resources
from .state_store import StateStore

R = TypeVar("R")

#: A restore is committed after this many records: after a crash no more are read again. Kafka Streams:
#: OFFSET_DELTA_THRESHOLD_FOR_CHECKPOINT.
RESTORED_RECORDS = 10_000


class CustomStore(StateStore):
    """A user's store in its task. directory: the store's own, None if there is no disk.

    Its rows are always empty: a custom store has neither a cache nor a part in snapshots. Of the store of an operator
    it runs the user's part; the rest is OwnRows.
    """

    def __init__(self, builder: StoreBuilder, task: TaskContext, directory: Path | None) -> None:
        super().__init__(builder, task, InMemoryStore())
        self.directory = directory
        self.restore_callback: StateRestoreCallback | None = None
        self.commit_callback: CommitCallback | None = None
        self._partition = TopicPartition(self.changelog_topic, task.task_id.partition)
        #: The offset after the last restored record, the number of records since the last commit, and whether there
        #: were any.
        self._restored_offset: int | None = None
        self._uncommitted = 0
        self._filled = False
        with self._named("making it"):
            self._custom: custom_store.StateStore = builder.build()
        self._persistent = self._custom.persistent
        self._context = _StoreContext(self)
        with self._named("init()"):
            self._custom.init(self._context, self._custom)
        if builder.logging and self.restore_callback is None and builder.kind is StoreKind.CUSTOM:
            raise ProcessorStateError(f"{self}: init() did not call context.register(), so it could not be restored")
        self._custom.is_open = True

    def __str__(self) -> str:
        return f"The store {self.name} of task {self.task.task_id}"

    @property
    @override
    def exposed(self) -> custom_store.StateStore:
        return self._custom

    @override
    def query(self, query: Query[R], rows_max: int | None = None) -> QueryResult[R]:
        with self._named("query()"):
            return self._custom.query(query)

    def limit_uncommitted(self) -> None:
        """Request a commit if the changes since the last one take too much memory, as other stores do."""
        with self._named("approximate_num_uncommitted_bytes()"):
            size = self._custom.approximate_num_uncommitted_bytes()
        if size > process_resources().config.uncommitted_max_bytes:
            self.task.request_commit()

    @property
    @override
    def own_reads(self) -> tuple[str, ...]:
        return self._custom.reads

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            raise ProcessorStateError(f"{self}: {what} failed with {type(error).__name__}: {error}") from error

    @override
    def flush(self) -> None:
        with self._named("flush()"):
            self._custom.flush()

    @override
    def commit(self, changelog_offset: int | None) -> None:
        """Commit with a known offset, or without a changelog. In between nothing need be on disk: see
        StateStore.can_wait.
        """
        if self.commit_callback is not None:
            with self._named("the commit callback"):
                self.commit_callback()
        if changelog_offset is not None or not self.builder.logging:
            self._commit({} if changelog_offset is None else {self._partition: changelog_offset})

    def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        with self._named("commit()"):
            self._custom.commit(offsets)
        self._restored_offset, self._uncommitted = None, 0

    @override
    def committed_offset(self) -> int | None:
        if not self.persistent:
            return None
        with self._named("committed_offset()"):
            return self._custom.committed_offset(self._partition)

    @override
    def has_rows(self) -> bool:
        """Return whether anything was restored or committed."""
        return self._filled or bool(self.committed_offset())

    @override
    def was_committed(self) -> bool:
        """Return False: a custom store does not say whether a restore or a running task has committed it."""
        return False

    @override
    def restore(self, messages: Sequence[Message], next_offset: int | None) -> None:
        if messages and self.restore_callback is not None:
            self._filled = True
            self.restore_callback(
                [
                    make_record(message.key(), message.value(), message.timestamp()[1], message.headers())
                    for message in messages
                ]
            )
        self.note_restored(len(messages), next_offset)

    def note_restored(self, count: int, next_offset: int | None) -> None:
        """Count restored records; commit them with the offset after them, if they are many."""
        if next_offset is not None:
            self._restored_offset = next_offset
            self._uncommitted += count
            if self._uncommitted >= RESTORED_RECORDS:
                self.persist()

    @override
    def persist(self, beside_writes: bool = False) -> None:
        """Commit restored records. Changes of a running task wait for its commit."""
        if self._restored_offset is not None and self.persistent and not beside_writes:
            self._commit({self._partition: self._restored_offset})

    def approximate_num_entries(self) -> int:
        """Return the number that the user's method of this name returns, 0 without one."""
        count = getattr(self._custom, "approximate_num_entries", None)
        return 0 if count is None else count()

    def passed_to(self, task: TaskContext) -> CustomStore:
        """Move the open store to another task with the same id, which is committed."""
        self.persist()
        self.task = task
        self._context.moved_to(task)
        return self

    @override
    def close(self) -> None:
        if self._custom.is_open:
            self._custom.is_open = False
            with self._named("close()"):
                self._custom.close()
        super().close()


class _StoreContext(UserContext):
    """The StateStoreContext of one store."""

    def __init__(self, store: CustomStore) -> None:
        super().__init__(store.task, f"the store {store.name}")
        self._store = store

    def moved_to(self, task: TaskContext) -> None:
        """Serve another task."""
        self._task = task

    @property
    def state_dir(self) -> Path:
        directory = self._store.directory
        if directory is None:
            raise StreamsError(f"{self._store} has no directory here: it must not be persistent")
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def register(
        self, store: custom_store.StateStore, restore: StateRestoreCallback, commit: CommitCallback | None = None
    ) -> None:
        self._store.restore_callback = restore
        self._store.commit_callback = commit

    def log_change(
        self, key: bytes, value: bytes | None, timestamp: int | None = None, headers: HeadersLike = None
    ) -> None:
        if self._store.builder.kind is not StoreKind.CUSTOM:
            raise StreamsError(f"{self._store} is an operator's, which logs the changes itself")
        if self._store.builder.logging:
            at = self._task.timestamp if timestamp is None else timestamp
            self._task.output.log_change(self._store.name, key, value, at, as_headers(headers))


def open_custom_store(builder: StoreBuilder, task: TaskContext, directory: Path | None) -> CustomStore:
    """Return an open store. directory: the store's own.

    Files without a committed offset are deleted first: they may hold changes of an aborted transaction.
    """
    has_files = directory is not None and directory.exists()
    store = CustomStore(builder, task, directory)
    if directory is None or not has_files or not builder.logging:
        return store
    if store.persistent and store.committed_offset() is not None:
        return store
    store.close()
    shutil.rmtree(directory)
    return CustomStore(builder, task, directory)
