"""A task of TopologyTestDriver: real operators and stores, with lists instead of a broker."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.statestore.store_factory import build_store
from penstock.topology.common.java_collections import PriorityQueue
from penstock.topology.context.idle_time import IdleTime
from penstock.topology.context.punctuation_queue import PunctuationQueue, first_due_ms
from penstock.topology.context.task_context import Cancellable, TaskContext
from penstock.topology.errors import StreamsError, UnknownStateStoreError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.processor_api import Punctuation
from penstock.topology.records import Headers, Message, RawRecord, SentRecord, TaskId, TopicPartition
from penstock.topology.run.compiled import CompiledSource, CompiledTopology, StampedRecord, compile_topology
from penstock.topology.run.event_loop import TurnedCalls
from penstock.workers.metrics.custom_metrics import CustomMetrics
from penstock.workers.metrics.sensors import Sensor
from penstock.workers.tasks.task_sinks import TaskSinks

#: Without partitions=, the driver runs all sub-topologies in one task, whose topics have one partition.
TASK_ID = TaskId(0, 0)


class Clock:
    """The driver's wall clock, in milliseconds."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms


@dataclass
class IdlePart:
    """A sub-topology with an idle timeout, in a task of all. names: of its nodes. stream_time_ms: -1 before records."""

    names: frozenset[str]
    idle: IdleTime
    stream_time_ms: int = -1


class DriverOutput:
    """Keeps a task's records in memory.

    changelogs: topic by store. partition: the task's, of its changelogs. produced: the records that take() has not
    returned yet. changelog_ends: the number of records of each store's changelog.
    """

    def __init__(self, changelogs: Mapping[str, str], partition: int | None = None) -> None:
        self._changelogs = changelogs
        self._partition = partition
        self.produced: list[SentRecord] = []
        self.changelog_ends: Counter[str] = Counter()

    def send(self, topic: str, *rest: Any) -> None:
        """See TaskOutput.send."""
        self.produced.append(SentRecord(topic, *rest))

    def log_change(
        self, store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers = None
    ) -> None:
        """See TaskOutput.log_change."""
        self.changelog_ends[store_name] += 1
        self.send(self._changelogs[store_name], key, value, timestamp, headers, self._partition)

    def take(self) -> list[SentRecord]:
        """Return the records since the last call."""
        produced, self.produced = self.produced, []
        return produced


class DriverTask(TaskContext):
    """A task whose records stay in memory.

    partition_counts(topic): the number of its partitions. dropped: number of dropped records by (node, reason). queues:
    the records that wait. others: the tasks of the same sub-topology.
    """

    output: DriverOutput

    def __init__(
        self,
        topology: ProcessorTopology,
        config: Mapping[str, Any],
        clock: Clock,
        directory: Path,
        cache: ThreadCache | None,
        global_stores: Mapping[str, Any] | None = None,
        task_id: TaskId = TASK_ID,
        partition_counts: Callable[[str], int] = lambda topic: 1,
    ) -> None:
        prefix = config["application.id"]
        changelogs = {store: f"{prefix}-{topic}" for store, topic in topology.changelog_topics.items()}
        super().__init__(task_id, config, DriverOutput(changelogs, task_id.partition))
        self.topology = topology
        self.dropped: Counter[tuple[str, str]] = Counter()
        sensor = partial(Sensor, config["metrics.sample.window.ms"], config["metrics.num.samples"])
        self._streams_metrics = CustomMetrics({"thread-id": "TopologyTestDriver"}, sensor, lambda: clock.now_ms)
        self.async_calls = TurnedCalls(VirtualTimeLoop)
        self._directory = directory
        self._clock = clock
        self._punctuations = {kind: PunctuationQueue() for kind in Punctuation}
        self._global_stores = global_stores or {}
        self._partition_counts = partition_counts
        self.queues = RecordQueues()
        self.others: Sequence[DriverTask] = ()
        self.stores: dict[str, Any] = {}
        for name, builder in topology.stores.items():
            self.stores[name] = build_store(builder, self, directory, cache)
        self.restore()
        self._sinks = TaskSinks(topology, self)
        self._sinks.start_over([TopicPartition(topic, task_id.partition) for topic in self._full_source_topics()])
        self.compiled: CompiledTopology = compile_topology(topology, self)
        own = topology.idle_timeout
        parts = topology.idle_parts if own is None else [(frozenset(topology.nodes), own)]
        self._idle_parts = [
            IdlePart(names, IdleTime(timeout, clock.now_ms, self._time_of_others)) for names, timeout in parts
        ]
        self.compiled.init()

    def _full_source_topics(self) -> Iterator[str]:
        internal = self.topology.repartition_topics
        return (self.internal_topic(t) if t in internal else t for t in self.topology.source_topics)

    def _time_of_others(self) -> int | None:
        """Return the highest stream time of the other tasks of the sub-topology, None if there is none."""
        return max((part.stream_time_ms for task in self.others for part in task._idle_parts), default=None)

    def restore(self) -> None:
        """Hook to fill the open stores before the topology is compiled; a driver's stores start empty."""

    @property
    @override
    def state_dir(self) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory

    @property
    @override
    def streams_metrics(self) -> CustomMetrics:
        return self._streams_metrics

    @override
    def wall_clock_ms(self) -> int:
        return self._clock.now_ms

    @override
    def store(self, name: str) -> Any:
        for stores in (self.stores, self._global_stores):
            if name in stores:
                return stores[name].exposed
        raise UnknownStateStoreError(f"There is no state store {name} in this topology")

    @override
    def partition_count(self, topic: str) -> int:
        return self._partition_counts(topic)

    @override
    def schedule(
        self, interval_ms: int, punctuation: Punctuation, callback: Callable[[int], None], start_ms: int | None = None
    ) -> Cancellable:
        """Schedule it; see punctuation_queue.first_due_ms."""
        now_ms = self.stream_time_ms if punctuation is Punctuation.STREAM_TIME else self._clock.now_ms
        due_ms = first_due_ms(punctuation, interval_ms, now_ms, start_ms)
        return self._punctuations[punctuation].schedule(due_ms, interval_ms, callback)

    @override
    def record_dropped(self, node: str, reason: str) -> None:
        self.dropped[node, reason] += 1

    def enqueue(self, source: CompiledSource, record: SentRecord) -> None:
        """Let a record of one of the task's partitions wait for its turn."""
        self.queues.add(source, as_message(record, self.queues.next_offset(source)))

    def process(self, source: CompiledSource, record: StampedRecord) -> None:
        """Process one record, complete its calls of async functions, punctuate stream time, and commit."""
        if source.extracts_timestamps:
            source.process_stamped((record,))
        else:
            source.process_batch((record.message,))  # the loop that stream threads run
        self.processed(source, record.timestamp)

    def processed(self, source: CompiledSource, timestamp: int) -> None:
        """Complete what follows from a record of this time (ms): async calls, stream-time punctuations, the commit."""
        for part in self._idle_parts:
            if source.name in part.names:
                part.idle.record_came(self._clock.now_ms)
                part.stream_time_ms = max(part.stream_time_ms, timestamp)
        self.compiled.waiting.drain_calls()
        self._punctuate_stream_time()
        self.commit()

    def complete_batches(self) -> None:
        """Process the batches that wait for more records, punctuate stream time, and commit."""
        self.compiled.waiting.drain_all()
        self._punctuate_stream_time()
        self.commit()

    @property
    def batched_records(self) -> int:
        """The number of records that wait for a full batch."""
        return sum(len(each.held()) for each in self.compiled.waiting.operators if not each.drains_at_commit)

    def _punctuate_stream_time(self) -> None:
        stream_time_ms = self.compiled.waiting.passed_on_ms()
        if stream_time_ms is None:
            stream_time_ms = self.stream_time_ms
        if stream_time_ms >= 0:
            self.timers.fire(Punctuation.STREAM_TIME, stream_time_ms)
            self._punctuations[Punctuation.STREAM_TIME].maybe_punctuate(stream_time_ms)

    def punctuate_wall_clock(self) -> None:
        """Run the punctuations that are due by wall clock, and commit. Stream time may advance without records."""
        for part in self._idle_parts:
            time_ms = part.idle.advanced(part.stream_time_ms, self._clock.now_ms)
            if time_ms > part.stream_time_ms:
                part.stream_time_ms = time_ms
                self.compiled.advance_time(time_ms, part.names)
                self._punctuate_stream_time()
        self.timers.fire(Punctuation.WALL_CLOCK_TIME, self._clock.now_ms)
        self._punctuations[Punctuation.WALL_CLOCK_TIME].maybe_punctuate(self._clock.now_ms)
        self.commit()

    def commit(self) -> None:
        """Flush the caches downstream, then commit the stores.

        Kafka Streams' driver flushes twice, before the offsets and for the checkpoint; the second flush forwards
        changes that flushing a later store has put into an earlier one. Waits for async functions. Records that wait
        for a full batch are left to complete_batches().
        """
        self.compiled.flush(self.stores, batches=False)
        for name, store in self.stores.items():
            store.commit(self.output.changelog_ends[name])
        self.compiled.waiting.committed({})
        self.compiled.waiting.drain_calls()

    def take_produced(self) -> list[SentRecord]:
        """Return the records sent since the last call."""
        return self.output.take()

    def close(self) -> None:
        """Commit, and close processors and stores."""
        try:
            self.commit()
            while self.batched_records:
                self.complete_batches()
            self.compiled.close()
            if unwritten := len(self.compiled.waiting):
                raise StreamsError(f"{unwritten} records could not be written to a sink: see the log")
        finally:
            self.async_calls.close()
            self._sinks.close()
            for store in self.stores.values():
                store.close()


def as_message(record: SentRecord, offset: int) -> RawRecord:
    """Return a written record as it is read at an offset; without a partition, of partition 0."""
    timestamp = -1 if record.timestamp is None else record.timestamp
    headers = list(record.headers) if record.headers else None
    return RawRecord(record.topic, record.partition or 0, offset, timestamp, record.key, record.value, headers)


class _RecordQueue:
    """The queued records of one input topic; the first one is deserialized (Kafka Streams: RecordQueue)."""

    __slots__ = ("head", "next_offset", "source", "waiting")

    def __init__(self, source: CompiledSource) -> None:
        self.source = source
        self.next_offset = 0
        self.head: StampedRecord | None = None
        self.waiting: list[Message] = []

    def advance(self) -> None:
        """If there is no head, set it to the next record that can be deserialized."""
        while self.head is None and self.waiting:
            self.head = self.source.stamp(self.waiting.pop(0))


class RecordQueues:
    """The queues of all input topics, next record by lowest timestamp (Kafka Streams: PartitionGroup).

    Among equal timestamps the order is that of Java's PriorityQueue, because tests rely on it.
    """

    def __init__(self) -> None:
        self._queues: dict[str, _RecordQueue] = {}
        self._by_time = PriorityQueue(_time)

    def next_offset(self, source: CompiledSource) -> int:
        """Return the offset for the next record of a topic."""
        queue = self._queues.setdefault(source.topic, _RecordQueue(source))
        queue.next_offset += 1
        return queue.next_offset - 1

    def add(self, source: CompiledSource, message: Message) -> None:
        """Add a record to its topic's queue."""
        queue = self._queues[source.topic]
        was_empty = queue.head is None
        queue.waiting.append(message)
        queue.advance()
        if was_empty and queue.head is not None:
            self._by_time.add(queue)

    def drain(self) -> Iterator[tuple[CompiledSource, StampedRecord]]:
        """Yield the queued records in order, including those added meanwhile."""
        while self._by_time:
            queue = self._by_time.poll()
            record = queue.head
            queue.head = None
            queue.advance()
            if queue.head is not None:
                self._by_time.add(queue)
            if record is not None:
                yield queue.source, record

    def clear(self) -> None:
        """Drop the queued records."""
        self._by_time.clear()
        for queue in self._queues.values():
            queue.head = None
            queue.waiting.clear()


def _time(queue: _RecordQueue) -> int:
    assert queue.head is not None
    return queue.head.timestamp


class _JumpingSelector(selectors.DefaultSelector):
    """Does not block if only a deadline is pending. own: the number of the loop's own sockets registered with it."""

    skipped = 0.0
    busy = 0
    own = 0

    @override
    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout > 0 and not self.busy and len(self.get_map()) <= self.own:
            self.skipped += timeout
            timeout = 0
        return super().select(timeout)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The driver's event loop, run by the driver itself, with a virtual clock.

    A call that only sleeps takes no real time: when nothing else is left to do, the clock jumps to the next deadline.
    While a call waits for a socket or another thread, the clock runs in real time.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.own = len(self._jumping.get_map())

    @override
    def time(self) -> float:
        return time.monotonic() + self._jumping.skipped

    @override
    def run_in_executor(self, executor: Any, func: Callable[..., object], *args: Any) -> Any:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self._jumping.busy += 1

        def done(_: object) -> None:
            self._jumping.busy -= 1

        future.add_done_callback(done)
        return future
