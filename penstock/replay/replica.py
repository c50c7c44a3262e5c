"""A task of an application again: the same operators and stores, from a start on, in a directory of this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from typing_extensions import override

from penstock.clients.log_context import PrefixedLogger
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.statestore.stores.state_store import StateStore
from penstock.testing.driver import EMIT_AT_ONCE
from penstock.testing.driver_task import Clock, DriverTask
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import TaskCorruptedError
from penstock.topology.processor_api import Punctuation
from penstock.topology.records import Message, SentRecord, TopicPartition
from penstock.workers.tasks.partition_group import MAX_TASK_IDLE_MS_DISABLED, PartitionGroup, ProcessRun

from .replayed_task import ReplayedTask
from .starts import Start

#: Runs the processing of one record.
Run = Callable[[Callable[[], None]], None]
#: Batches of records of a partition, in order.
Batches = Generator[Sequence[Message], None, None]


class ReplicaTask(DriverTask):
    """A driver's task that begins with the state of a checkpoint, whose files are in its directory.

    Raises TaskCorruptedError if a store is not as of the offset that the manifest has.
    """

    def __init__(self, start: Start, *arguments: Any) -> None:
        self._start = start
        super().__init__(*arguments)

    @override
    def restore(self) -> None:
        manifest = self._start.manifest
        if manifest is None:
            return
        self.processor_metadata.update(manifest.processor_metadata)
        self.stream_time_ms = max((each.time_ms for each in manifest.inputs), default=self.stream_time_ms)
        for name, stored in manifest.stores.items():
            if name not in self.stores:
                continue  # this version of the topology has no such store any more
            found = self.stores[name].committed_offset()
            if found != stored.offset:
                raise TaskCorruptedError(
                    f"The store {name} of checkpoint {manifest.name} of task {self.task_id} is at the changelog offset "
                    f"{found}, its manifest says {stored.offset}",
                    [self.task_id],
                )
            self.output.changelog_ends[name] = stored.offset

    def stores_by_changelog(self) -> dict[str, StateStore]:
        """Return the stores that have a changelog, by its full name."""
        changelogs = self.topology.changelog_topics.items()
        return {self.internal_topic(topic): self.stores[name] for name, topic in changelogs}

    def advance_wall_clock(self, now_ms: int) -> None:
        """Advance the wall clock, which never goes back, and run the punctuations that are due."""
        if now_ms <= self._clock.now_ms:
            return
        self._clock.now_ms = now_ms
        if self._punctuations[Punctuation.WALL_CLOCK_TIME] or self.timers or self._idle_parts:
            self.punctuate_wall_clock()


class Replica:
    """A context manager that closes the task. Nothing is written outside of directory.

    directory: the task's, with the files of the start's checkpoint in place. inputs: the records from the start on.
    open_global(clock): returns the task of the global tables, filled, or None. counts: the partitions of topics by
    name. processes: False only brings the records in their order, and leaves the state alone. Raises StreamsError for a
    topology that cannot run.
    """

    def __init__(
        self,
        task: ReplayedTask,
        config: StreamsConfig,
        start: Start,
        directory: Path,
        inputs: Mapping[TopicPartition, Batches],
        open_global: Callable[[Clock], DriverTask | None],
        counts: Mapping[str, int],
        processes: bool = True,
    ) -> None:
        self._processes = processes
        self._inputs = inputs
        #: The record that is being processed, or was last.
        self.message: Message | None = None
        self._run: Run = _run
        with ExitStack() as opened:
            for batches in inputs.values():
                opened.callback(batches.close)
            self._unread: dict[TopicPartition, Sequence[Message]] = {p: next(inputs[p], ()) for p in task.inputs}
            clock = Clock(self._first_ms(start))
            tables = open_global(clock)
            if tables is not None:
                opened.callback(tables.close)
            config = config.with_overrides(EMIT_AT_ONCE)
            self.task = ReplicaTask(
                *(start, task.topology, config, clock, directory),
                ThreadCache(config["statestore.cache.max.bytes"]),
                {} if tables is None else tables.stores,
                task.task_id,
                lambda topic: counts.get(topic, 1),
            )
            opened.callback(self.task.close)
            self._group = self._new_group(task, start)
            self._open = opened.pop_all()

    def _first_ms(self, start: Start) -> int:
        """Return the wall clock's first time: that of the checkpoint, or of the first record."""
        if start.manifest is not None:
            return start.manifest.time_ms
        return min((batch[0].timestamp()[1] for batch in self._unread.values() if batch), default=0)

    def _new_group(self, task: ReplayedTask, start: Start) -> PartitionGroup:
        # Each partition has buffered records or none at all, so the order never depends on a wait.
        log = PrefixedLogger("penstock.replay", f"task [{task.task_id}] ")
        sources = self.task.compiled.sources
        made = PartitionGroup(
            task.inputs, sources, lambda _: 0, lambda: None, MAX_TASK_IDLE_MS_DISABLED, log, self._processing
        )
        for each in () if start.manifest is None else start.manifest.inputs:
            made.set_partition_time(TopicPartition(each.topic, each.partition), each.time_ms)
        return made

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def partition_time(self, partition: TopicPartition) -> int:
        """Return the highest timestamp (ms) that was processed of a partition, if the task has several."""
        return self._group.partition_time(partition)

    def head(self) -> tuple[TopicPartition, int] | None:
        """Return partition and offset of the record that is processed next, None at the end of the input."""
        for partition in self._group.partitions:
            while not self._group.num_buffered(partition) and self._unread[partition]:
                self._group.add_raw_records(partition, self._unread[partition])
                self._unread[partition] = next(self._inputs[partition], ())
        head = self._group.head()
        if head is None:
            return None
        offset = self._group.head_offset(head[0])
        assert offset is not None, "it has buffered records"
        return head[0], offset

    def process_next(self, run: Run | None = None) -> list[SentRecord]:
        """Process the record that head() shows, with all that follows from it; return what it has sent.

        run(process): calls process, for example under a debugger. Changelogs are among the topics that are sent to.
        Raises the topology's exceptions.
        """
        self._run = run or _run
        self._group.process_next(1)
        return self.task.take_produced()

    def _processing(self, partition: TopicPartition, process: ProcessRun, stamped: bool) -> ProcessRun:
        source = self.task.compiled.sources[partition.topic]

        def one(records: list[Any]) -> None:
            record: Any = records[0]
            timestamp = record.timestamp if stamped else record.timestamp()[1]
            self.message = record.message if stamped else record

            def process_all() -> None:
                process(records)
                self.task.processed(source, timestamp)
                while self.task.batched_records:
                    self.task.complete_batches()

            if self._processes:
                self.task.advance_wall_clock(self.message.timestamp()[1])
                self._run(process_all)

        return one


def _run(process: Callable[[], None]) -> None:
    process()
