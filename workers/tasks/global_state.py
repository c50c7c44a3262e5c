"""Global tables: every process keeps its own copy (Kafka Streams: GlobalStateManagerImpl, GlobalStateUpdateTask).

The copy is read to the end before the thread joins its group, so the first record sees complete tables. After that the
thread's loop updates it. Kafka Streams has one global thread for all stream threads, but processes share no memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from penstock.clients.log_context import PrefixedLogger
from penstock.clients.reading.reader import Records
from penstock.statestore.directory.checkpoint import CHECKPOINT_FILE_NAME, OffsetCheckpoint
from penstock.statestore.store_factory import build_store
from penstock.statestore.stores.state_store import StateStore
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.task_context import Cancellable, TaskContext
from penstock.topology.context.task_output import NoOutput
from penstock.topology.errors import ProcessorStateError, StreamsError, UnknownStateStoreError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.processor_api import Punctuation
from penstock.topology.query.position import Position
from penstock.topology.records import Message, TaskId, TopicPartition
from penstock.topology.run.compiled import CompiledTopology, compile_topology

from ..group.topic_names import TopicNames
from ..metrics.custom_metrics import CustomMetrics
from ..metrics.loop_time import LoopTime
from ..metrics.sensors import ThreadMetrics
from .partition_consumer import InvalidOffsetError, PartitionConsumer
from .partition_offsets import OFFSET_BEGINNING, PartitionOffsets

#: Records per batch.
BATCH_RECORDS = 10_000
#: How long one call waits for records while the tables are incomplete, in seconds.
CATCH_UP_POLL_SECONDS = 0.1


class GlobalTask(TaskContext):
    """The context of global stores, with state and time, but without output and punctuation.

    directory: the directory of the stores; no other process uses it.
    """

    def __init__(
        self,
        config: StreamsConfig,
        topics: TopicNames,
        time: LoopTime,
        metrics: ThreadMetrics,
        streams_metrics: CustomMetrics,
        directory: Path,
        log: PrefixedLogger,
    ) -> None:
        output = NoOutput("The processor of a global store cannot send, because each process would send the same")
        super().__init__(TaskId(-1, -1), config, output)
        self.stores: dict[str, StateStore] = {}
        self.commit_requested = False
        self._topics = topics
        self._streams_metrics = streams_metrics
        self._directory = directory
        self._time = time
        self._metrics = metrics
        self._log = log

    @property
    @override
    def state_dir(self) -> Path:
        """The directory of the global stores of this process."""
        self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory

    @property
    @override
    def streams_metrics(self) -> CustomMetrics:
        return self._streams_metrics

    @override
    def internal_topic(self, name: str) -> str:
        return self._topics.full(name)

    @override
    def wall_clock_ms(self) -> int:
        return self._time.wall_clock_ms

    @override
    def store(self, name: str) -> Any:
        """Return a global store; raises UnknownStateStoreError."""
        if name not in self.stores:
            raise UnknownStateStoreError(
                f"There is no state store {name}: neither in this sub-topology nor a global one"
            )
        return self.stores[name].exposed

    @override
    def request_commit(self) -> None:
        """Request that the stores be written to disk."""
        self.commit_requested = True

    @override
    def record_dropped(self, node: str, reason: str) -> None:
        self._metrics.dropped_records.record(1, self._time.now_ms)
        self._log.debug("Skipping a record of a global table at %s: %s", node, reason)

    @override
    def schedule(
        self, interval_ms: int, punctuation: Punctuation, callback: Callable[[int], None], start_ms: int | None = None
    ) -> Cancellable:
        """Raise StreamsError, as Kafka Streams does."""
        raise StreamsError("schedule() is not supported in the processor of a global store")


@dataclass(eq=False)
class GlobalState:
    """The global stores of this process. directory: only for this process; None keeps the stores in memory.

    A clean shutdown writes the positions of persistent stores to a checkpoint, and the next start removes it. So after
    a crash or a failed record the tables are read again from the beginning, like those in memory at every start.
    """

    topology: ProcessorTopology
    task: GlobalTask
    consumer: PartitionConsumer
    offsets: PartitionOffsets
    directory: Path | None
    log: PrefixedLogger

    def __post_init__(self) -> None:
        self._store_of = {topic: store for store, topic in self.topology.changelog_topics.items()}
        self._compiled: CompiledTopology | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._has_gap = False

    def store(self, name: str) -> Any:
        """Return a global store; raises UnknownStateStoreError."""
        return self.task.store(name)

    def position(self, store: str) -> Position:
        """Return the position of a store's rows in its topic."""
        topic = self.topology.changelog_topics[store]
        partitions = [partition for partition in self.consumer.assignment() if partition.topic == topic]
        positions = {partition: self.consumer.position(partition) for partition in partitions}
        return Position.before({p: offset for p, offset in positions.items() if offset is not None})

    def start(self) -> None:
        """Open the stores and request the end offsets of their topics."""
        noted = self._take_checkpoint()
        for name, builder in self.topology.stores.items():
            self.task.stores[name] = build_store(builder, self.task, self.directory, None)
        self._compiled = compile_topology(self.topology, self.task)
        self._compiled.init()
        partitions = [p for topic in self._store_of for p in self.offsets.partitions_of(topic)]
        self._ends = self.offsets.end_offsets(partitions)
        self.consumer.assign({partition: noted.get(partition, OFFSET_BEGINNING) for partition in partitions})
        self.log.info("Restoring global state stores %s from %s", sorted(self.task.stores), partitions)

    def catch_up(self) -> bool:
        """Read a batch; returns True once the tables hold all records that existed at the start."""
        if not self._ends:
            return True
        self._apply(self._poll(CATCH_UP_POLL_SECONDS), self._restore)
        for partition, end in list(self._ends.items()):
            position = self.consumer.position(partition)
            if end == 0 or (position is not None and position >= end):
                del self._ends[partition]
        if not self._ends:
            self.log.info("Global state stores are complete")
        return not self._ends

    def update(self) -> None:
        """Apply the records that have arrived since the last call, without blocking."""
        self._apply(self._poll(0), self._process)
        if self.task.commit_requested:
            self._commit()

    def close(self) -> None:
        """Close the stores, and write their positions to the checkpoint."""
        if self._compiled is None:
            return
        self._compiled.close()
        self._commit()
        complete = not self._ends and not self._has_gap
        for store in self.task.stores.values():
            store.persist()
            store.close()
        if self.directory is not None and complete:
            lasting = {topic for topic, store in self._store_of.items() if self.task.stores[store].persistent}
            positions = {p: self.consumer.position(p) for p in self.consumer.assignment() if p.topic in lasting}
            known = {p: offset for p, offset in positions.items() if offset is not None}
            OffsetCheckpoint(self.directory / CHECKPOINT_FILE_NAME).write(known)
        self.consumer.close()

    def _take_checkpoint(self) -> dict[TopicPartition, int]:
        if self.directory is None:
            return {}
        checkpoint = OffsetCheckpoint(self.directory / CHECKPOINT_FILE_NAME)
        try:
            offsets = checkpoint.read()
        except ProcessorStateError as error:
            self.log.warning("%s. The global tables are read from the beginning.", error)
            offsets = {}
        checkpoint.delete()
        if not offsets:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        return offsets

    def _poll(self, seconds: float) -> Records:
        try:
            return self.consumer.poll(BATCH_RECORDS, seconds)
        except InvalidOffsetError as error:
            # The store may still have rows whose records were deleted; only a new store is correct.
            raise StreamsError(
                f"{error}. The global table no longer matches its topic; the next start reads it again."
            ) from error

    def _apply(self, records: Records, apply: Callable[[TopicPartition, list[Message]], None]) -> None:
        self._has_gap = True  # if one fails: the consumer's position is already behind all of them
        for partition, messages in records.items():
            apply(partition, messages)
        self._has_gap = False

    def _restore(self, partition: TopicPartition, messages: list[Message]) -> None:
        store = self._store_of[partition.topic]
        if store in self.topology.reprocess_on_restore:
            self._process(partition, messages)
        else:
            self.task.stores[store].restore(messages, None)

    def _process(self, partition: TopicPartition, messages: list[Message]) -> None:
        if self._compiled is not None:
            self._compiled.sources[partition.topic].process_batch(messages)

    def _commit(self) -> None:
        self.task.commit_requested = False
        for store in self.task.stores.values():
            store.flush()
            store.commit(None)


class NoGlobalState(GlobalState):
    """The global state of a topology without global tables."""

    def __init__(self) -> None:
        pass

    def store(self, name: str) -> Any:
        """Raise UnknownStateStoreError."""
        raise UnknownStateStoreError(f"There is no state store {name} in this sub-topology")

    def start(self) -> None:
        """Do nothing."""

    def catch_up(self) -> bool:
        """Return True."""
        return True

    def update(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
