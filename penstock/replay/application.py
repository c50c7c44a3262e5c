"""An application whose tasks are replayed: its topology, its cluster, its checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

from penstock.statestore.checkpoints.bucket import Bucket, BucketError
from penstock.statestore.checkpoints.task_checkpoints import Found, TaskCheckpoints
from penstock.statestore.directory.state_directory import STORES_DIRECTORY
from penstock.supervisor.source.topology_gate import plain_facts
from penstock.testing.driver_task import Clock, DriverTask
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError, StreamsError
from penstock.topology.graph.topology import Topology
from penstock.topology.records import Message, TaskId, TopicPartition

from .cluster_topics import Bounds, ClusterTopics
from .global_tables import open_global_tables
from .replayed_task import ReplayedTask, check_stores, replayed_tasks
from .replica import Replica
from .starts import Skipped, Start, StartFacts, Wanted, starts

_TABLE_FILES = ".sst"


class ReplayedApplication:
    """A context manager that closes its connections.

    Raises ConfigError, BrokerUnavailableError, and MissingSourceTopicError if the cluster lacks an input topic.
    """

    def __init__(self, topology: Topology, config: StreamsConfig) -> None:
        self.config = config
        self.application_id: str = config["application.id"]
        self._topology = topology
        uri = config["penstock.checkpoint.uri"]
        self._bucket = Bucket(uri, self.application_id) if uri else None
        self._cluster = ClusterTopics(config)
        try:
            self.tasks = replayed_tasks(topology, config, self._cluster.counts)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def __enter__(self) -> ReplayedApplication:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- tasks

    def task(self, task_id: TaskId) -> ReplayedTask:
        """Return a task. Raises ConfigError if there is none, or if a replay of it would write somewhere."""
        if task_id not in self.tasks:
            known = ", ".join(map(str, self.tasks))
            raise ConfigError(f"The application {self.application_id} has no task {task_id}; its tasks are {known}.")
        task = self.tasks[task_id]
        check_stores(f"Task {task_id}", task.topology)
        return task

    def task_that_reads(self, partition: TopicPartition) -> ReplayedTask:
        """Return the task that reads a partition. Raises ConfigError as task() does."""
        found = next((task for task in self.tasks.values() if partition in task.inputs), None)
        if found is None:
            raise ConfigError(f"No task of the application {self.application_id} reads {partition}.")
        return self.task(found.task_id)

    def bounds(self, task: ReplayedTask) -> dict[TopicPartition, Bounds]:
        """Return the offsets that the inputs of a task have now."""
        return self._cluster.bounds(task.inputs)

    # -- starts

    def starts(
        self, task: ReplayedTask, wanted: Wanted, bounds: Mapping[TopicPartition, Bounds], skipped: Skipped
    ) -> Iterator[Start]:
        """Yield the starts of a task that fit, the nearest first; raises as starts() does."""
        stores = plain_facts(self._topology, self.config)
        facts = StartFacts(self.application_id, stores, self._cluster.ids, bounds)
        yield from starts(task, self._checkpoints(task), wanted, facts, skipped)

    def _checkpoints(self, task: ReplayedTask) -> Iterator[Found]:
        if self._bucket is None or not task.topology.stores:
            return
        try:
            yield from TaskCheckpoints(self._bucket, str(task.task_id)).found()
        except BucketError as error:
            raise StreamsError(f"The checkpoints of task {task.task_id} cannot be read: {error}") from error

    def load(self, task: ReplayedTask, start: Start, directory: Path, on_bytes: Callable[[int], None]) -> None:
        """Load the files of a start into the directory of a task, which has no stores yet. Raises StreamsError."""
        if start.manifest is None or self._bucket is None:
            return
        try:
            checkpoints = TaskCheckpoints(self._bucket, str(task.task_id))
            checkpoints.load(start.manifest, directory / STORES_DIRECTORY, on_bytes)
        except BucketError as error:
            raise StreamsError(
                f"The checkpoint {start.manifest.name} of task {task.task_id} cannot be loaded: {error}. "
                "--from NAME begins at another one"
            ) from error

    # -- replays

    def replica(
        self,
        task: ReplayedTask,
        start: Start,
        directory: Path,
        ends: Mapping[TopicPartition, Bounds],
        processes: bool = True,
    ) -> Replica:
        """Return a task again, from a start whose files are in its directory. ends: the input to read ends there."""
        inputs = {p: self._cluster.records(p, start.offsets[p], ends[p].end) for p in task.inputs}

        def open_global(clock: Clock) -> DriverTask | None:
            return open_global_tables(self._topology, self.config, clock, directory / "global", self.all_records)

        return Replica(task, self.config, start, directory, inputs, open_global, self._cluster.counts, processes)

    # -- input

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of partitions of each topic of the cluster."""
        return self._cluster.counts

    def records(self, partition: TopicPartition, start: int, end: int) -> Generator[Sequence[Message], None, None]:
        """Yield the records of a partition from an offset up to end (exclusive) in batches."""
        return self._cluster.records(partition, start, end)

    def all_records(self, topic: str) -> Iterator[Sequence[Message]]:
        """Yield the records that a topic has now in batches, partition by partition."""
        partitions = [TopicPartition(topic, number) for number in range(self._cluster.counts.get(topic, 0))]
        for partition, bounds in self._cluster.bounds(partitions).items():
            yield from self._cluster.records(partition, bounds.first, bounds.end)


def copy_state(source: Path, target: Path) -> None:
    """Copy the directory of a closed task; the files that RocksDB never changes become hard links."""
    if source.exists():
        shutil.copytree(source, target, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith(_TABLE_FILES):
        try:
            os.link(source, target)
            return
        except OSError:  # another file system, or one without hard links
            pass
    shutil.copy2(source, target)
