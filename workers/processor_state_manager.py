"""The stores of one task and their changelogs (Kafka Streams: ProcessorStateManager).

A store's changelog offset lies in the store itself, written together with the data in one step (KIP-1035): there is no
checkpoint file that could disagree with it. None means that nothing usable is there and everything is to be restored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from penstock.statestore.checkpoint import CHECKPOINT_FILE_NAME, OffsetCheckpoint
from penstock.statestore.state_directory import StateDirectory
from penstock.topology.errors import ProcessorStateError, StreamsError, TaskCorruptedError
from penstock.topology.processor_topology import ProcessorTopology
from penstock.topology.records import Message, TaskId, TopicPartition

from .log_context import PrefixedLogger
from .topic_names import TopicNames


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
        self._task_id = task_id
        self._topology = topology
        self._state_directory = state_directory
        self._locked = False
        self._log = log

    def open(self, build: Callable[[Any, Any], Any]) -> None:
        """Lock the task's directory and open all stores. build(store builder, directory) makes one.

        Raises LockError if another process holds the directory, TaskCorruptedError if its files are damaged.
        """
        if not self._topology.stores:
            return
        self._state_directory.lock(self._task_id)
        self._locked = True
        try:
            self._open_stores(build)
        except BaseException:  # another try begins from nothing
            self.close()
            raise

    def _open_stores(self, build: Callable[[Any, Any], Any]) -> None:
        directory = self._state_directory.get_or_create_directory_for_task(self._task_id)
        for name, builder in self._topology.stores.items():
            self.stores[name] = self._build(build, builder, directory)
            self._log.debug(
                "Opened store %s, committed changelog offset %s", name, self.stores[name].committed_offset()
            )

    def _build(self, build: Callable[[Any, Any], Any], builder: Any, directory: Any) -> Any:
        try:
            return build(builder, directory)
        except TaskCorruptedError as error:
            raise TaskCorruptedError(str(error), [self._task_id]) from error

    def changelog_offsets(self) -> dict[TopicPartition, int | None]:
        """Return up to which offset each changelog is in its store, None for not at all."""
        return {partition: self.stores[name].committed_offset() for partition, name in self.changelogs.items()}

    def restore(self, partition: TopicPartition, messages: Sequence[Message], next_offset: int) -> None:
        """Apply records of a changelog, together with the offset behind them."""
        name = self.changelogs[partition]
        try:
            self.stores[name].restore(messages, next_offset)
        except StreamsError:
            raise
        except Exception as error:
            raise ProcessorStateError(
                f"{self._log.prefix}Exception caught while trying to restore state from {partition} up to offset "
                f"{next_offset} into store {name}: {error}"
            ) from error

    def flush(self) -> None:
        """Flush all stores: caches send on what they hold. All stores get their turn; raises the first error."""
        first: Exception | None = None
        for name, store in self.stores.items():
            try:
                store.flush()
            except Exception as error:  # noqa: BLE001  raised below
                self._log.exception("Failed to flush cache of store %s: ", name)
                first = first or error
        if isinstance(first, StreamsError):
            raise first
        if first is not None:
            raise ProcessorStateError(f"{self._log.prefix}Failed to flush state stores: {first}") from first

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit all stores, each with the offset of its changelog; a store that is not logged has none."""
        by_store = {self.changelogs[partition]: offset for partition, offset in offsets.items()}
        for name, store in self.stores.items():
            store.commit(by_store.get(name))

    def write_checkpoint(self) -> None:
        """Note the changelog offsets in a file, for whoever plans where tasks go while this one is closed.

        Only a hint: stores know their own offsets, and are opened to ask them when the task is here again.
        """
        if self.stores:
            offsets = {p: offset for p, offset in self.changelog_offsets().items() if offset is not None}
            directory = self._state_directory.directory_for_task(self._task_id)
            OffsetCheckpoint(directory / CHECKPOINT_FILE_NAME).write(offsets)

    def persist(self) -> None:
        """Make what was committed survive a SIGKILL."""
        for store in self.stores.values():
            store.persist()

    def close(self) -> None:
        """Close all stores and give the directory back. Closing twice does nothing."""
        try:
            for store in self.stores.values():
                store.close()
        finally:
            self.stores.clear()
            if self._locked:
                self._state_directory.unlock(self._task_id)
                self._locked = False
