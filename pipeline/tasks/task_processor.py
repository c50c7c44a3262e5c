"""Spark's entry points to a task: with packed records of a micro-batch and its state, or stateless in mapInArrow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import methodcaller
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from typing_extensions import override

from penstock.topology.errors import PenstockError
from penstock.topology.records import Message

from .kafka_sink import KafkaSink, Sinks
from .python_worker import in_python_worker
from .record_batches import MapInArrow, by_partition, messages, pack, sent_batches, unpack
from .spark_state import SparkState
from .spark_task import SparkTask, TaskPlan

OUTPUT_DDL = "records binary"


def wall_clock_ms() -> int:
    """Return the wall clock in ms since the epoch."""
    return time.time_ns() // 1_000_000


class LazySink:
    """The sink of the tasks in one task of Spark, opened when something is sent: a transaction takes a while."""

    def __init__(self, sinks: Sinks) -> None:
        self._sinks = sinks
        self._opened: KafkaSink | None = None
        self._failure: PenstockError | None = None

    def send(self, topic: str, *record: Any) -> None:
        """See KafkaSink.send. That the sink cannot be opened is not the error of a record either."""
        if self._opened is None and self._failure is None:
            try:
                self._opened = self._sinks.of_tasks()
            except PenstockError as error:
                self._failure = error
        if self._opened is not None:
            self._opened.send(topic, *record)

    def finish(self) -> None:
        """Wait until the brokers have everything. Raises as Sinks.of_tasks and Sinks.finish."""
        if self._failure is not None:
            raise self._failure
        if self._opened is not None:
            self._sinks.finish(self._opened)
            self._opened = None


class TaskProcessor(StatefulProcessor):
    """Runs the tasks of a sub-topology; the grouping key: see record_batches.pack_by_task.

    sinks: where the tasks write what they send, None if they return it. All tasks in one task of Spark share a sink,
    which is complete before Spark keeps their state. buckets: how many tasks share a partition. has_alarm: wake tasks
    by a timer when a wall-clock punctuation is due, even without records. mixed: the source may return a partition's
    records out of order. at_batch_time: the wall clock of the tasks shows when the micro-batch was planned, so that one
    that is repeated does the same.
    """

    _handle: StatefulProcessorHandle  # both since init()
    _state: SparkState

    def __init__(
        self,
        plan: TaskPlan,
        sinks: Sinks | None,
        buckets: int = 1,
        has_alarm: bool = False,
        mixed: bool = False,
        at_batch_time: bool = False,
    ) -> None:
        self._plan = plan
        self._buckets = buckets
        self._has_alarm = has_alarm
        self._mixed = mixed
        self._at_batch_time = at_batch_time
        self._sink = None if sinks is None else LazySink(sinks)

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = SparkState(handle)

    def handleInitialState(self, key: object, initialState: Any, timerValues: object) -> None:  # noqa: N802, N803 - Spark's
        """Load one blob of a handover; initialState: a row of changelog_reader.SEED_DDL."""
        self._state.write(initialState.store, initialState.number, bytes(initialState.data))
        self._state.finish()

    def handleInputRows(self, key: Any, rows: Any, timerValues: object) -> Iterator[Row]:  # noqa: N802, N803 - Spark's
        """Process one micro-batch of one task; rows: see record_batches.PACKED_DDL."""
        return self._run(key[0], _unpacked(rows, self._mixed), timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: object, expiredTimerInfo: object) -> Iterator[Row]:  # noqa: N802, N803
        """Run a task's wall-clock punctuations, the only reason for a timer."""
        return self._run(key[0], {}, timerValues)

    @in_python_worker()
    def _run(self, number: int, batches: Mapping[str, list[Message]], timer_values: Any) -> Iterator[Row]:
        clock_ms = timer_values.getCurrentProcessingTimeInMs if self._at_batch_time else wall_clock_ms
        task = SparkTask(self._plan, number // self._buckets, self._state, clock_ms, self._sink)
        try:
            task.process(batches)
            task.commit()
            self._state.finish()
            if self._has_alarm:
                self._set_alarm(task.next_wall_clock_punctuation_ms())
            # No generator: Spark's state is that of this task only while it waits for this call to return.
            return iter([Row(records=pack(batch)) for batch in sent_batches(task.take_sent())])
        finally:
            task.close()

    def _set_alarm(self, due_ms: int | None) -> None:
        """Set one timer at due_ms, or none. Spark itself removes an expired timer."""
        timers = set(self._handle.listTimers())
        for other in timers - {due_ms}:
            self._handle.deleteTimer(other)
        if due_ms is not None and due_ms not in timers:
            self._handle.registerTimer(due_ms)

    @override
    def close(self) -> None:
        """Wait until the brokers have what the tasks have sent; Spark has called all of them. See LazySink.finish."""
        if self._sink is not None:
            self._sink.finish()


def _unpacked(rows: Iterable[Any], mixed: bool) -> dict[str, list[Message]]:
    """Return the records by topic, in the order of offsets, regardless of the shuffle's order.

    mixed: they were not in that order before the shuffle either.
    """
    found: dict[str, list[Message]] = {}
    for row in sorted(rows, key=lambda row: (row.topic, row.first_offset)):
        records = found.setdefault(row.topic, [])
        for batch in unpack(bytes(row.records)):
            records.extend(messages(batch))
    if mixed:
        for records in found.values():
            records.sort(key=methodcaller("offset"))
    return found


def run_stateless(plan: TaskPlan) -> MapInArrow:
    """Return a function for mapInArrow that runs a stateless sub-topology over records, and yields the sent records."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in _processed(plan, batches, lambda topic, partition: None):
            yield from sent_batches(task.take_sent())

    return run


def run_stateless_to_kafka(plan: TaskPlan, sinks: Sinks) -> MapInArrow:
    """Return a function for mapInArrow that runs a stateless sub-topology, writes the sent records, and yields nothing.

    It writes where it processes: the path through Spark to a sink costs more than everything else.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened: list[KafkaSink] = []

        def open_for(topic: str, partition: int) -> KafkaSink:
            opened.append(sinks.of_partition(topic, partition))
            return opened[-1]

        try:
            for _ in _processed(plan, batches, open_for):
                pass
            while opened:
                sinks.finish(opened.pop())
        finally:
            for sink in opened:
                sink.close()
        yield from ()

    return run


def _processed(
    plan: TaskPlan,
    batches: Iterable[pa.RecordBatch],
    open_for: Callable[[str, int], KafkaSink | None],
) -> Iterator[SparkTask]:
    """Process records in tasks without state, one for each partition; yield a task whenever it may have sent some.

    open_for: returns the task's sink; see SparkTask.
    """
    tasks: dict[tuple[str, int], SparkTask] = {}
    try:
        for batch in batches:
            for topic, partition, part in by_partition(batch):
                task = tasks.get((topic, partition))
                if task is None:
                    sink = open_for(topic, partition)
                    task = tasks[topic, partition] = SparkTask(plan, partition, None, wall_clock_ms, sink)
                task.process({topic: messages(part)})
                yield task
    finally:
        for task in tasks.values():
            task.close()
