"""Spark's entry points to a task: with packed records of a micro-batch and its state, or stateless in mapInArrow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import methodcaller
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from typing_extensions import override

from penstock.topology.records import Message
from penstock.workers.thread.garbage_collection import few_collections

from .kafka_sink import open_sink
from .record_batches import MapInArrow, by_partition, messages, pack, sent_batches, unpack
from .spark_task import SparkTask, TaskPlan

#: The only state variable: a task's whole state, in blobs by store and number.
STATE_VARIABLE = "pages"
KEY_SCHEMA = StructType([StructField("store", StringType()), StructField("number", LongType())])
VALUE_SCHEMA = StructType([StructField("data", BinaryType())])
OUTPUT_DDL = "records binary"


def wall_clock_ms() -> int:
    """Return the wall clock in ms since the epoch."""
    return time.time_ns() // 1_000_000


class SparkState:
    """The state of the task that Spark is calling; see spark_stores.TaskState."""

    def __init__(self, pages: Any) -> None:
        self._pages = pages

    def read(self, store: str, number: int) -> bytes | None:
        """Return a blob, None if there is none."""
        found = self._pages.getValue((store, number))
        return None if not found else bytes(found[0])

    def write(self, store: str, number: int, data: bytes) -> None:
        """Keep a blob."""
        self._pages.updateValue((store, number), (data,))

    def remove(self, store: str, number: int) -> None:
        """Remove an existing blob."""
        self._pages.removeKey((store, number))


class TaskProcessor(StatefulProcessor):
    """Runs the tasks of a sub-topology; the grouping key: see record_batches.pack_by_task.

    buckets: how many tasks share a partition. has_alarm: wake tasks by a timer when a wall-clock punctuation is due,
    even without records. mixed: the source may return a partition's records out of order.
    """

    def __init__(self, plan: TaskPlan, buckets: int = 1, has_alarm: bool = False, mixed: bool = False) -> None:
        self._plan = plan
        self._buckets = buckets
        self._has_alarm = has_alarm
        self._mixed = mixed
        self._handle: Any = None
        self._pages: Any = None

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._pages = handle.getMapState(STATE_VARIABLE, KEY_SCHEMA, VALUE_SCHEMA)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803 - Spark's
        """Load one blob of a handover; initialState: a row of changelog_reader.SEED_DDL."""
        self._pages.updateValue((initialState.store, initialState.number), (bytes(initialState.data),))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark's
        """Process one micro-batch of one task; rows: see record_batches.PACKED_DDL."""
        return self._run(key[0], _unpacked(rows, self._mixed))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Run a task's wall-clock punctuations, the only reason for a timer."""
        return self._run(key[0], {})

    @few_collections()
    def _run(self, number: int, batches: Mapping[str, list[Message]]) -> Iterator[Row]:
        task = SparkTask(self._plan, number // self._buckets, SparkState(self._pages), wall_clock_ms)
        try:
            task.process(batches)
            task.commit()
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
        """Tasks close with their micro-batch."""


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
        for task in _processed(plan, batches):
            yield from sent_batches(task.take_sent())

    return run


def run_stateless_to_kafka(plan: TaskPlan, settings: Mapping[str, Any]) -> MapInArrow:
    """Return a function for mapInArrow that runs a stateless sub-topology, writes the sent records, and yields nothing.

    It writes where it processes: the path through Spark to a sink costs more than everything else.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sink = open_sink(settings)
        with few_collections():
            for _ in _processed(plan, batches, sink.send):
                pass
        sink.finish()
        yield from ()

    return run


def _processed(
    plan: TaskPlan, batches: Iterable[pa.RecordBatch], send: Callable[..., None] | None = None
) -> Iterator[SparkTask]:
    """Process records in tasks without state, one for each partition; yield a task whenever it may have sent some."""
    tasks: dict[int, SparkTask] = {}
    try:
        for batch in batches:
            for topic, partition, part in by_partition(batch):
                if partition not in tasks:
                    tasks[partition] = SparkTask(plan, partition, None, wall_clock_ms, send)
                tasks[partition].process({topic: messages(part)})
                yield tasks[partition]
    finally:
        for task in tasks.values():
            task.close()
