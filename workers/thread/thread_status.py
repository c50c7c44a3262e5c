"""Reports of a stream thread: the liveness beat to the supervisor, and a summary in the log."""

from __future__ import annotations

from dataclasses import InitVar, dataclass

from penstock.clients.log_context import PrefixedLogger
from penstock.clients.state_machine import StateMachine
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import TopicPartition

from ..control.messages import Status, TaskStatus, ThreadControl
from ..control.stream_thread_state import StreamThreadState
from ..metrics.loop_time import LoopTime
from ..metrics.sensors import ThreadMetrics
from ..restore.store_changelog_reader import StoreChangelogReader
from ..tasks.partition_consumer import PartitionConsumer
from ..tasks.stream_task import StreamTask
from ..tasks.task import Task
from ..tasks.task_manager import TaskManager


@dataclass(eq=False)
class StatusReporter:
    """Called once per iteration; reports at most every penstock.worker.beat.interval.ms."""

    config: InitVar[StreamsConfig]
    time: LoopTime
    states: StateMachine[StreamThreadState]
    control: ThreadControl
    task_manager: TaskManager
    consumer: PartitionConsumer
    changelog_reader: StoreChangelogReader
    metrics: ThreadMetrics
    log: PrefixedLogger

    def __post_init__(self, config: StreamsConfig) -> None:
        self.records_processed = 0
        self._beat_interval_ms: int = config["penstock.worker.beat.interval.ms"]
        self._summary_interval_ms: int = config["log.summary.interval.ms"]
        self._last_beat_ms = self._last_summary_ms = self.time.now_ms
        self._last_restored = 0
        self._processed = self._punctuated = self._committed = 0

    def count(self, processed: int, punctuated: int, committed: int) -> None:
        """Add to the totals."""
        self.records_processed += processed
        self._processed += processed
        self._punctuated += punctuated
        self._committed += committed

    def report(self) -> None:
        """Send the beat and log the summary, if they are due."""
        now_ms = self.time.now_ms
        if now_ms - self._last_beat_ms >= self._beat_interval_ms:
            self.control.report(self.status(now_ms))
            self._last_beat_ms = now_ms
        if 0 < self._summary_interval_ms < now_ms - self._last_summary_ms:
            self.log.info(
                "Processed %s total records, ran %s punctuators, and committed %s total tasks since the last update",
                self._processed,
                self._punctuated,
                self._committed,
            )
            self._processed = self._punctuated = self._committed = 0
            self._last_summary_ms = now_ms

    def status(self, now_ms: int) -> Status:
        """Return the current status of the thread."""
        reader, tasks = self.changelog_reader, self.task_manager.all_tasks()
        statuses = tuple(self._task_status(task) for task in sorted(tasks, key=lambda task: task.task_id))
        passed_ms = max(now_ms - self._last_beat_ms, 1)
        restored = reader.total_restored - self._last_restored
        self._last_restored = reader.total_restored
        self.metrics.restore_remaining = reader.remaining()
        for task in tasks:
            task.look(sum(reader.restored(task).values()))
        return Status(
            self.states.state.name,
            statuses,
            self.records_processed,
            sum(lag or 0 for status in statuses for lag in status.lags.values()),
            restored * 1000 / passed_ms,
            self.metrics.snapshot(now_ms),
        )

    def _task_status(self, task: Task) -> TaskStatus:
        reader = self.changelog_reader
        remaining, total = reader.progress(task)
        rate, state = reader.rate(task), task.state.name
        if not isinstance(task, StreamTask):
            return TaskStatus(str(task.task_id), "standby", state, remaining, total, rate)
        lags = {partition: self._lag(task, partition) for partition in sorted(task.input_partitions)}
        buffered, waiting = task.num_buffered(), task.records_waiting
        return TaskStatus(str(task.task_id), "active", state, remaining, total, rate, lags, buffered, waiting)

    def _lag(self, task: StreamTask, partition: TopicPartition) -> int | None:
        """Return the number of unprocessed records of a partition, None if it is unknown."""
        consumer, buffered = self.consumer, task.num_buffered(partition)
        lag = consumer.lag(partition)
        if lag == 1 and consumer.end(partition) == consumer.position(partition):
            lag = 0  # the consumer reports at least 1 until it has seen the end
        return lag if lag is None and not buffered else (lag or 0) + buffered
