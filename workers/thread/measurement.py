"""All metrics of a stream thread at one moment, under Kafka Streams' names and tags (StreamsMetricsImpl).

Gathered on request only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.statestore.view.store_metrics import cache_bytes, rocksdb_metrics, scope, store_metrics

from ..metrics.sensors import MetricGroup
from ..metrics.task_metrics import DEAD_LETTER_GROUP
from ..tasks.production_errors import PRODUCER_NODE
from ..tasks.stream_task import StreamTask
from ..tasks.streams_producer import StreamsProducer
from ..tasks.task import Task
from ..tasks.task_state import TaskState

if TYPE_CHECKING:
    from .stream_thread_parts import StreamThreadParts

THREAD_GROUP = "stream-thread-metrics"
UPDATER_GROUP = "stream-state-updater-metrics"
#: Penstock's own.
TRANSACTION_GROUP = "penstock-transaction-metrics"
STORE_GROUP = "stream-state-metrics"
#: Of the main consumer; Kafka's Java consumer has it.
FETCH_GROUP = "consumer-fetch-manager-metrics"


def measure(thread_id: str, parts: StreamThreadParts) -> tuple[MetricGroup, ...]:
    """Return the metrics of the thread, of each task with its sources, input partitions and stores, and users' own."""
    now_ms = parts.time.now_ms
    manager = parts.task_manager
    tasks: list[Task] = [*manager.active.all_tasks().values(), *manager.standby.all_tasks().values()]
    tags = {"thread-id": thread_id}
    return (
        MetricGroup(THREAD_GROUP, tags, parts.metrics.snapshot(now_ms)),
        MetricGroup(UPDATER_GROUP, tags, _restoring(tasks, parts)),
        MetricGroup(TRANSACTION_GROUP, tags, {"aborted-total": float(parts.producer.transactions_aborted)}),
        *dead_letters(tags, parts.producer),
        *parts.custom_metrics.groups(),
        *(group for task in tasks for group in _of_task(task, tags, parts, now_ms)),
    )


def dead_letters(tags: dict[str, str], producer: StreamsProducer) -> Iterator[MetricGroup]:
    """Yield what was written about records that the brokers refused: the report comes late, and names no task."""
    for (topic, exception), count in producer.collector.dead_letters.items():
        letter = {"processor-node-id": PRODUCER_NODE, "exception": exception, "topic": topic}
        yield MetricGroup(DEAD_LETTER_GROUP, {**tags, **letter}, {"dead-letters-total": float(count)})


def _restoring(tasks: list[Task], parts: StreamThreadParts) -> dict[str, float]:
    return {
        "active-restoring-tasks": float(sum(t.kind == "task" and t.state is TaskState.RESTORING for t in tasks)),
        "standby-updating-tasks": float(sum(t.kind != "task" and t.state is TaskState.RUNNING for t in tasks)),
        "restore-records-rate": sum(parts.changelog_reader.rate(task) for task in tasks),
    }


def _of_task(task: Task, thread: dict[str, str], parts: StreamThreadParts, now_ms: int) -> Iterator[MetricGroup]:
    tags = {**thread, "task-id": str(task.task_id)}
    stores = list(task.state_manager.stores.values())
    remaining, _ = parts.changelog_reader.progress(task)
    gauges = {
        "restore-remaining-records-total": float(remaining),
        "cache-size-bytes-total": sum(map(cache_bytes, stores)),
    }
    if isinstance(task, StreamTask):
        gauges["active-buffer-count"] = float(task.num_buffered())
        yield from _lags(task, thread, parts)
        if task.samples is not None:
            yield from task.samples.groups(tags, now_ms)
        for function in task.functions:
            yield function.group(tags, now_ms)
    yield from task.metrics.groups(tags, isinstance(task, StreamTask), gauges, now_ms)
    restored = parts.changelog_reader.restored(task)
    for store in stores:
        values = {**store_metrics(store), **rocksdb_metrics(store)}
        if store.name in restored:
            values["restore-total"] = float(restored[store.name])
        yield MetricGroup(STORE_GROUP, {**tags, f"{scope(store)}-state-id": store.name}, values)


def _lags(task: StreamTask, thread: dict[str, str], parts: StreamThreadParts) -> Iterator[MetricGroup]:
    client = {"client-id": f"{thread['thread-id']}-consumer"}
    for partition in sorted(task.input_partitions):
        lag = parts.consumer.lag(partition)
        if lag is not None:
            tags = {**client, "topic": partition.topic, "partition": str(partition.partition)}
            yield MetricGroup(FETCH_GROUP, tags, {"records-lag": float(lag)})
