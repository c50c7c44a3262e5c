"""A snapshot of all metrics of a stream thread, under Kafka Streams' names and tags (StreamsMetricsImpl).

Collected only on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass

from penstock.statestore.view.store_metrics import cache_bytes, rocksdb_metrics, scope, store_metrics

from ..metrics.custom_metrics import CustomMetrics
from ..metrics.loop_time import LoopTime
from ..metrics.sensors import MetricGroup, ThreadMetrics
from ..metrics.task_metrics import DEAD_LETTER_GROUP
from ..restore.store_changelog_reader import StoreChangelogReader
from ..tasks.partition_consumer import PartitionConsumer
from ..tasks.production_errors import PRODUCER_NODE
from ..tasks.stream_task import StreamTask
from ..tasks.streams_producer import StreamsProducer
from ..tasks.task import Task
from ..tasks.task_manager import TaskManager
from ..tasks.task_state import TaskState

THREAD_GROUP = "stream-thread-metrics"
UPDATER_GROUP = "stream-state-updater-metrics"
#: Penstock's own.
TRANSACTION_GROUP = "penstock-transaction-metrics"
STORE_GROUP = "stream-state-metrics"
#: Of the main consumer; Kafka's Java consumer has it.
FETCH_GROUP = "consumer-fetch-manager-metrics"


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
    metrics: ThreadMetrics
    custom_metrics: CustomMetrics

    def __post_init__(self, thread_id: str) -> None:
        self._tags = {"thread-id": thread_id}

    def groups(self) -> tuple[MetricGroup, ...]:
        """Return the metrics of the thread, of each task with its sources, partitions and stores, and users' own."""
        now_ms, tags, tasks = self.time.now_ms, self._tags, self.task_manager.all_tasks()
        return (
            MetricGroup(THREAD_GROUP, tags, self.metrics.snapshot(now_ms)),
            MetricGroup(UPDATER_GROUP, tags, self._restoring(tasks)),
            MetricGroup(TRANSACTION_GROUP, tags, {"aborted-total": float(self.producer.transactions_aborted)}),
            *dead_letters(tags, self.producer),
            *self.custom_metrics.groups(),
            *(group for task in tasks for group in self._of_task(task, now_ms)),
        )

    def _restoring(self, tasks: list[Task]) -> dict[str, float]:
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
            if task.samples is not None:
                yield from task.samples.groups(tags, now_ms)
            for function in task.functions:
                yield function.group(tags, now_ms)
        yield from task.metrics.groups(tags, isinstance(task, StreamTask), gauges, now_ms)
        restored = self.changelog_reader.restored(task)
        for store in stores:
            values = {**store_metrics(store), **rocksdb_metrics(store)}
            if store.name in restored:
                values["restore-total"] = float(restored[store.name])
            yield MetricGroup(STORE_GROUP, {**tags, f"{scope(store)}-state-id": store.name}, values)

    def _lags(self, task: StreamTask) -> Iterator[MetricGroup]:
        client = {"client-id": f"{self._tags['thread-id']}-consumer"}
        for partition in sorted(task.input_partitions):
            lag = self.consumer.lag(partition)
            if lag is not None:
                tags = {**client, "topic": partition.topic, "partition": str(partition.partition)}
                yield MetricGroup(FETCH_GROUP, tags, {"records-lag": float(lag)})
