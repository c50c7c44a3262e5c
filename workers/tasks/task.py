"""The common part of active and standby tasks: life cycle and state (Kafka Streams: Task, AbstractTask)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from typing_extensions import override

from penstock.clients.log_context import PrefixedLogger
from penstock.clients.state_machine import StateMachine
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.statestore.store_factory import OpenRows, build_store
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.async_calls import AsyncCalls
from penstock.topology.context.task_context import TaskContext
from penstock.topology.context.task_output import TaskOutput
from penstock.topology.errors import TaskCorruptedError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position
from penstock.topology.records import TaskId, TopicPartition

from ..group.topic_names import TopicNames
from ..metrics.custom_metrics import CustomMetrics
from ..metrics.loop_time import LoopTime
from ..metrics.rocksdb_rates import RocksDBRates
from ..metrics.sensors import ThreadMetrics
from ..metrics.spans import Spans
from ..metrics.task_metrics import TaskMetrics
from .checkpoints import Checkpoints, Restorable, on_disk
from .idle_inputs import TopicTimes
from .processor_state_manager import ProcessorStateManager, RecycledStores
from .task_state import TASK_TRANSITIONS, TaskState


class Changelogs(Protocol):
    """Reads changelogs into the stores of tasks; implemented by StoreChangelogReader."""

    def register(self, task: Task) -> None:
        """Start to read the changelogs of a task, whose stores are open."""

    def unregister(self, task: Task, promoted: bool = False) -> None:
        """Stop reading them: its stores are about to be closed, or (promoted) taken over by an active task here."""


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """The part shared by all tasks of one stream thread. global_store(name) returns a global table's store.

    open_rows: opens the rows of a store, by default in RocksDB; the simulation passes a simulated disk. background:
    persists stores outside the stream thread. streams_metrics: metrics added by processors. async_calls: runs users'
    async functions. topic_times: asks the brokers for the ends of topics. topic_ids: of the topics of this application,
    as of the last assignment. checkpoints: of stores, in object storage.
    """

    config: StreamsConfig
    time: LoopTime
    topics: TopicNames
    state_directory: StateDirectory
    cache: ThreadCache
    metrics: ThreadMetrics
    changelogs: Changelogs
    global_store: Callable[[str], object]
    log_prefix: str
    background: Executor
    streams_metrics: CustomMetrics
    async_calls: AsyncCalls
    topic_times: TopicTimes
    topic_ids: Callable[[], Mapping[str, bytes]]
    checkpoints: Checkpoints
    open_rows: OpenRows | None = None
    spans: Spans = field(default_factory=Spans)


class Task(TaskContext, ABC):
    """One sub-topology and one partition, active or standby."""

    #: The prefix in log lines: "task" or "standby-task".
    kind: ClassVar[str]

    def __init__(
        self,
        task_id: TaskId,
        input_partitions: Collection[TopicPartition],
        topology: ProcessorTopology,
        environment: TaskEnvironment,
        output: TaskOutput,
    ) -> None:
        super().__init__(task_id, environment.config, output)
        self.input_partitions = frozenset(input_partitions)
        self.topology = topology
        self.environment = environment
        self.async_calls = environment.async_calls
        prefix = f"{environment.log_prefix}{self.kind} [{task_id}] "
        self.log = PrefixedLogger(f"penstock.workers.{type(self).__name__}", prefix)
        self.state_manager = ProcessorStateManager(
            task_id,
            self.input_partitions,
            topology,
            environment.topics,
            environment.state_directory,
            environment.background,
            self.log,
        )
        self.metrics = TaskMetrics(environment.metrics, topology, environment.topics.full, self.tallies)
        #: None without statistics.
        self.rocksdb_rates = None if self.tallies is None else RocksDBRates(environment.metrics)
        #: The changelog offsets of stores that were loaded from a checkpoint, until they are open.
        self._loaded_offsets: dict[str, int] = {}
        self._states = StateMachine(TaskState.CREATED, TASK_TRANSITIONS, self.log, level=logging.DEBUG)

    @property
    def state(self) -> TaskState:
        """The task's state."""
        return self._states.state

    @property
    def changelog_partitions(self) -> frozenset[TopicPartition]:
        """The changelogs of the task's stores."""
        return frozenset(self.state_manager.changelogs)

    @property
    def has_state_stores(self) -> bool:
        """Whether the task keeps state."""
        return bool(self.topology.stores)

    @abstractmethod
    def initialize_state_stores(self) -> bool:
        """Lock the task's directory and open its stores. Returns True if nothing must be restored.

        Raises LockError if another process has locked the directory (retry later), TaskCorruptedError if the files
        cannot be used.
        """

    def _load_checkpoint(self) -> None:
        """Load a checkpoint if this task has no state on disk; raises LoadingError until it has ended."""
        if self.environment.checkpoints.enabled and not self.state_manager.has_adopted and self._restorable_stores:
            self._loaded_offsets |= self.environment.checkpoints.load(self._restorable())

    @property
    def _restorable_stores(self) -> Mapping[str, TopicPartition]:
        return on_disk(self.topology.stores, self.state_manager.changelogs)

    def _restorable(self) -> Restorable:
        return Restorable(self.task_id, self.state_manager.directory(), self._restorable_stores)

    def _check_loaded(self) -> None:
        """Raise TaskCorruptedError if a loaded store is not as of the offset of its checkpoint."""
        loaded, self._loaded_offsets = self._loaded_offsets, {}
        for name, offset in loaded.items():
            found = self.state_manager.stores[name].committed_offset()
            if found != offset:
                self.state_manager.close()
                raise TaskCorruptedError(
                    f"The store {name} of a checkpoint of task {self.task_id} is at the changelog offset {found}, its "
                    f"manifest says {offset}",
                    [self.task_id],
                )

    def _open_stores(self, cache: ThreadCache | None) -> None:
        self.state_manager.open(
            lambda builder, directory, recycled: build_store(
                builder, self, directory, cache, recycled, self.environment.open_rows
            )
        )
        self._check_loaded()
        self.environment.changelogs.register(self)
        self._states.transition_to(TaskState.RESTORING)
        self.log.info("Initialized")

    def position(self, store: str, isolation: IsolationLevel) -> Position | None:
        """Return the position of a store's rows in the task's input; None if the task does not know (KIP-796).

        isolation: of the rows: as of now, or as of the last commit.
        """
        return None

    def changelog_offset(self, store: str) -> int | None:
        """Return the offset in its changelog that a store's rows of the last commit are as of, the next to read.

        None if the task does not know it yet, or the store has no changelog; a running task then commits soon, so that
        it does.
        """
        return None

    def offset_sum(self) -> int | None:
        """Return the sum of the changelog offsets of its stores; None without a changelog, or while they are unknown.

        Kafka Streams: Task.changelogOffsets, summed up by the TaskManager.
        """
        if self.state is TaskState.CREATED and not self.state_manager.has_adopted:
            return None
        offsets = self.state_manager.changelog_offsets()
        return sum(offset or 0 for offset in offsets.values()) if offsets else None

    @abstractmethod
    def initialize_topology(self) -> None:
        """Change from RESTORING to RUNNING."""

    @abstractmethod
    def suspend(self) -> None:
        """Stop running and change to SUSPENDED; the stores stay open. Does nothing if the task is already suspended."""

    def resume(self) -> None:
        """Change from SUSPENDED back to RESTORING; the stores remain valid."""
        if self.state is TaskState.SUSPENDED:
            self._states.transition_to(TaskState.RESTORING)
            self.log.info("Resumed to restoring state")
        else:
            self.log.trace("Skip resuming since state is %s", self.state.name)

    def close(self, clean: bool) -> None:
        """Suspend if necessary, then close the stores and unlock the directory. Does not commit.

        clean: errors are raised; otherwise they are logged, because the task is being closed after an error.
        """
        if self.state is TaskState.CLOSED:
            self.log.trace("Skip closing since state is %s", self.state.name)
            return
        restoring = self.state is TaskState.RESTORING
        self.environment.checkpoints.stop(self.task_id)
        if self.state is not TaskState.SUSPENDED:
            self._attempt(clean, "suspend", self.suspend)
        self._attempt(clean, "changelog reader unregistration", lambda: self.environment.changelogs.unregister(self))
        if clean:
            self.state_manager.persist()
        if clean or restoring:  # keep restored rows: a leader that does not know of them would move the task elsewhere
            self._attempt(clean, "checkpoint", self.state_manager.write_checkpoint)
        self._attempt(clean, "state manager close", self.state_manager.close)
        self._states.transition_to(TaskState.CLOSED)
        self.environment.metrics.task_closed.record(1, self.environment.time.now_ms)
        self.log.info("Closed %s", "clean" if clean else "dirty")

    def recycle(self) -> RecycledStores:
        """Close this suspended task, and return its open stores for its successor (active or standby) in this thread.

        Uncommitted updates are dropped when the successor opens them. Kafka Streams: Task.recycleStateAndConvert.
        """
        self.environment.changelogs.unregister(self, promoted=True)
        self.environment.checkpoints.stop(self.task_id)
        recycled = self.state_manager.recycle()
        self._states.transition_to(TaskState.CLOSED)
        self.environment.metrics.task_closed.record(1, self.environment.time.now_ms)
        self.log.info("Closed and recycled state")
        return recycled

    def _attempt(self, clean: bool, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            if clean:
                raise
            self.log.exception("Error at %s; continuing, because the task is being closed dirty", what)

    def look(self, restored: int) -> None:
        """Update the metrics. restored: the number of restored records."""
        self.metrics.look(None, restored, self.environment.time.now_ms)

    def describe(self, indent: str = "") -> str:
        """Return a description of several lines, as Kafka Streams' toString."""
        partitions = ", ".join(map(str, sorted(self.input_partitions)))
        return f"{indent}TaskId: {self.task_id}\n{indent}\tPartitions [{partitions}]\n"

    # -- TaskContext, as stores use it

    @property
    @override
    def state_dir(self) -> Path:
        """The task's directory, created and locked if necessary; raises LockError if another process has locked it."""
        return self.state_manager.directory()

    @property
    @override
    def streams_metrics(self) -> CustomMetrics:
        return self.environment.streams_metrics

    @override
    def wall_clock_ms(self) -> int:
        return self.environment.time.wall_clock_ms

    @override
    def store(self, name: str) -> Any:
        """Return a state store of this task, or a global one; raises UnknownStateStoreError."""
        if name in self.state_manager.stores:
            return self.state_manager.stores[name].exposed
        return self.environment.global_store(name)

    @override
    def internal_topic(self, name: str) -> str:
        return self.environment.topics.full(name)
