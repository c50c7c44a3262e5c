"""Reports of a stream thread: the liveness beat, a summary in the log, and on request all metrics.

Metrics have Kafka Streams' names and tags (StreamsMetricsImpl).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import InitVar, dataclass, replace

from penstock.clients.log_context import PrefixedLogger
from penstock.clients.state_machine import StateMachine
from penstock.statestore.metered_stores import scope
from penstock.statestore.view.store_metrics import cache_bytes, rocksdb_metrics, store_metrics
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.async_calls import AsyncCalls
from penstock.topology.context.tallies import STORE_GROUP
from penstock.topology.records import TopicPartition

from ..control.messages import SinkStatus, Status, TaskStatus, ThreadControl
from ..control.stream_thread_state import StreamThreadState
from ..metrics.client_health import FETCH_GROUP, ClientHealth
from ..metrics.custom_metrics import CustomMetrics
from ..metrics.loop_time import LoopTime
from ..metrics.sensors import MetricGroup, ThreadMetrics
from ..metrics.task_metrics import DEAD_LETTER_GROUP
from ..restore.store_changelog_reader import StoreChangelogReader
from ..tasks.checkpoints import Checkpoints
from ..tasks.partition_consumer import PartitionConsumer
from ..tasks.record_collector import PRODUCER_NODE
from ..tasks.stream_task import StreamTask
from ..tasks.streams_producer import StreamsProducer
from ..tasks.task import Task
from ..tasks.task_manager import TaskManager
from ..tasks.task_state import TaskState

THREAD_GROUP = "stream-thread-metrics"
UPDATER_GROUP = "stream-state-updater-metrics"
#: Penstock's own.
TRANSACTION_GROUP = "penstock-transaction-metrics"
CHECKPOINT_GROUP = "penstock-checkpoint-metrics"


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
    clients: ClientHealth
    metrics: ThreadMetrics
    async_calls: AsyncCalls
    checkpoints: Checkpoints
    log: PrefixedLogger

    def __post_init__(self, config: StreamsConfig) -> None:
        self.records_processed = 0
        #: The operation that the thread waits for, "" for none; see Status.
        self.waiting_for = ""
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

    def wait_for(self, what: str) -> None:
        """Report now, and from now on, that the thread waits for an operation before it can process; "" for none."""
        self.waiting_for = what
        self.control.report(Status(self.states.state.name, waits=tuple(self._own_waits())))

    def _own_waits(self) -> Iterator[str]:
        """Yield the operations that the thread itself waits for, without those of its Kafka clients."""
        for what in (self.waiting_for, self.async_calls.opening()):
            if what:
                yield f"waiting for {what}"
        yield from self.checkpoints.waits()

    def status(self, now_ms: int) -> Status:
        """Return the current status of the thread."""
        reader, tasks = self.changelog_reader, self.task_manager.all_tasks().values()
        statuses = tuple(self._task_status(task, now_ms) for task in sorted(tasks, key=lambda task: task.task_id))
        passed_ms = max(now_ms - self._last_beat_ms, 1)
        restored = reader.total_restored - self._last_restored
        self._last_restored = reader.total_restored
        self.metrics.restore_remaining = reader.remaining()
        for task in tasks:
            task.look(sum(reader.restored(task).values()))
            if task.rocksdb_rates is not None:
                task.rocksdb_rates.look(task.state_manager.stores.values(), now_ms)
        return Status(
            self.states.state.name,
            statuses,
            self.records_processed,
            sum(lag or 0 for status in statuses for lag in status.lags.values()),
            restored * 1000 / passed_ms,
            self.metrics.snapshot(now_ms),
            (*self._own_waits(), *self.clients.look(now_ms)),
        )

    def _task_status(self, task: Task, now_ms: int) -> TaskStatus:
        reader = self.changelog_reader
        remaining, total = reader.progress(task)
        kind = "active" if isinstance(task, StreamTask) else "standby"
        status = TaskStatus(
            str(task.task_id),
            kind,
            task.state.name,
            remaining,
            total,
            reader.rate(task),
            checkpoint=self.checkpoints.status(task.task_id),
        )
        if not isinstance(task, StreamTask):
            return status
        lags = {partition: self._lag(task, partition) for partition in sorted(task.input_partitions)}
        return replace(
            status,
            lags=lags,
            buffered=task.num_buffered(),
            waiting=task.records_waiting,
            end_offsets={partition: self.consumer.end(partition) for partition in lags},
            sinks=tuple(_sinks(task, now_ms)),
        )

    def _lag(self, task: StreamTask, partition: TopicPartition) -> int | None:
        """Return the number of unprocessed records of a partition, None if it is unknown."""
        consumer, buffered = self.consumer, task.num_buffered(partition)
        lag = consumer.lag(partition)
        if lag == 1 and consumer.end(partition) == consumer.position(partition):
            lag = 0  # the consumer reports at least 1 until it has reached the end
        return lag if lag is None and not buffered else (lag or 0) + buffered


def _sinks(task: StreamTask, now_ms: int) -> Iterator[SinkStatus]:
    """Yield the sinks outside of Kafka of a task, while it runs."""
    for function in () if task.run is None else task.run.functions:
        if function.is_sink:
            values = function.values(now_ms)
            yield SinkStatus(
                function.name,
                int(values["records-waiting"]),
                values["row-rate"],
                values["call-latency-avg"],
                int(values["retry-total"]),
            )


def dead_letters(tags: dict[str, str], producer: StreamsProducer) -> Iterator[MetricGroup]:
    """Yield the dead letters for records refused by the brokers; without a task, because reports name none."""
    for (topic, exception), count in producer.collector.dead_letters.items():
        letter = {"processor-node-id": PRODUCER_NODE, "exception": exception, "topic": topic}
        yield MetricGroup(DEAD_LETTER_GROUP, {**tags, **letter}, {"dead-letters-total": float(count)})


@dataclass(eq=False)
class Measurement:
    """Measures a stream thread."""

    thread_id: InitVar[str]
    time: LoopTime
    task_manager: TaskManager
    consumer: PartitionConsumer
    producer: StreamsProducer
    changelog_reader: StoreChangelogReader
    clients: ClientHealth
    metrics: ThreadMetrics
    custom_metrics: CustomMetrics
    process_id: str
    states: StateMachine[StreamThreadState]

    def __post_init__(self, thread_id: str) -> None:
        self._tags = {"thread-id": thread_id}

    def groups(self) -> tuple[MetricGroup, ...]:
        """Return the metrics of the thread, of each task with its sources, partitions and stores, and users' own."""
        now_ms, tags, tasks = self.time.now_ms, self._tags, self.task_manager.all_tasks().values()
        return (
            MetricGroup(THREAD_GROUP, tags, self.metrics.snapshot(now_ms)),
            MetricGroup(THREAD_GROUP, {**tags, "process-id": self.process_id}, {"thread-state": self._state()}),
            MetricGroup(UPDATER_GROUP, tags, self._restoring(tasks)),
            MetricGroup(TRANSACTION_GROUP, tags, {"aborted-total": float(self.producer.transactions_aborted)}),
            *dead_letters(tags, self.producer),
            *self.clients.groups(now_ms),
            *self.custom_metrics.groups(),
            *(group for task in tasks for group in self._of_task(task, now_ms)),
        )

    def _state(self) -> float:
        """Return the thread's state as a number (KIP-1091)."""
        return float(list(StreamThreadState).index(self.states.state))

    def of_clients(self) -> Iterator[MetricGroup]:
        """Return the metrics of the thread's Kafka clients."""
        return self.clients.groups(self.time.now_ms)

    def _restoring(self, tasks: Collection[Task]) -> dict[str, float]:
        return {
            "active-restoring-tasks": float(sum(t.kind == "task" and t.state is TaskState.RESTORING for t in tasks)),
            "standby-updating-tasks": float(sum(t.kind != "task" and t.state is TaskState.RUNNING for t in tasks)),
            "restore-records-rate": sum(self.changelog_reader.rate(task) for task in tasks),
        }

    def _of_task(self, task: Task, now_ms: int) -> Iterator[MetricGroup]:
        tags = {**self._tags, "task-id": str(task.task_id)}
        stores = list(task.state_manager.stores.values())
        remaining, _ = self.changelog_reader.progress(task)
        gauges = {
            "restore-remaining-records-total": float(remaining),
            "cache-size-bytes-total": sum(map(cache_bytes, stores)),
        }
        if isinstance(task, StreamTask):
            gauges["active-buffer-count"] = float(task.num_buffered())
            yield from self._lags(task)
            if task.run is not None:
                yield from task.run.samples.groups(tags, now_ms)
                for function in task.run.functions:
                    yield function.group(tags, now_ms)
        yield from task.metrics.groups(tags, isinstance(task, StreamTask), gauges, now_ms)
        checkpoints = task.environment.checkpoints
        if checkpoints.enabled and (figures := checkpoints.values(task.task_id)):
            yield MetricGroup(CHECKPOINT_GROUP, tags, figures)
        restored = self.changelog_reader.restored(task)
        for store in stores:
            values = {**store_metrics(store), **rocksdb_metrics(store)}
            if store.name in restored:
                values["restore-total"] = float(restored[store.name])
            if task.rocksdb_rates is not None:
                values |= task.rocksdb_rates.values(store.name, now_ms)
            yield MetricGroup(STORE_GROUP, {**tags, f"{scope(store)}-state-id": store.name}, values)

    def _lags(self, task: StreamTask) -> Iterator[MetricGroup]:
        client = {"client-id": f"{self._tags['thread-id']}-consumer"}
        for partition in sorted(task.input_partitions):
            lag = self.consumer.lag(partition)
            if lag is not None:
                tags = {**client, "topic": partition.topic, "partition": str(partition.partition)}
                yield MetricGroup(FETCH_GROUP, tags, {"records-lag": float(lag)})
