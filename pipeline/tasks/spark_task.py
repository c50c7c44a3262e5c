"""One task in one micro-batch: the local engine's operators and stores over Spark's state.

Between two micro-batches a task is only state: Spark may call the next one in another process. So it loads the rows of
stores, times and schedules of punctuations at the start, and saves them at the end.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import orjson
from typing_extensions import override

from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.idle_time import IdleTime
from penstock.topology.context.punctuation_queue import PunctuationQueue, PunctuationSchedule, first_due_ms
from penstock.topology.context.task_context import Cancellable, TaskContext
from penstock.topology.context.task_output import RecordOutput
from penstock.topology.errors import StreamsError, UnknownStateStoreError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.processor_api import Punctuation, StreamsMetrics
from penstock.topology.records import Message, SentRecord, TaskId
from penstock.topology.run.compiled import CompiledSource, compile_topology
from penstock.topology.run.event_loop import TurnedCalls

from .spark_stores import SparkOutput, SparkStores, TaskState

log = logging.getLogger(__name__)

#: The name for a task's own blob; no store has it.
OWN_STORE, OWN_BLOB = "", 0


@dataclass(frozen=True)
class TaskPlan:
    """The common part of all tasks of a sub-topology; sent to Spark's executors.

    partition_counts: of sink and internal topics, by full name.
    """

    topology: ProcessorTopology
    config: StreamsConfig
    partition_counts: Mapping[str, int]


class SparkTask(TaskContext):
    """Runs on an executor. wall_clock_ms: the clock; state: the task's saved state; sink: see SparkOutput."""

    output: SparkOutput

    def __init__(
        self,
        plan: TaskPlan,
        partition: int,
        state: TaskState | None,
        wall_clock_ms: Callable[[], int],
        sink: RecordOutput | None = None,
    ) -> None:
        super().__init__(TaskId(plan.topology.subtopology, partition), plan.config, SparkOutput(sink))
        self.async_calls = TurnedCalls(asyncio.new_event_loop)
        self._plan = plan
        self._state = state
        self._wall_clock_ms = wall_clock_ms
        self._schedules: dict[Punctuation, list[PunctuationSchedule]] = {kind: [] for kind in Punctuation}
        self._queues = {kind: PunctuationQueue() for kind in Punctuation}
        self._dropped: set[tuple[str, str]] = set()
        self._stores: SparkStores | None = None
        self._wake_up()

    def _wake_up(self) -> None:
        """Open the stores, compile the operators, and load the state of the last micro-batch."""
        plan = self._plan
        left = self._state.read(OWN_STORE, [OWN_BLOB])[0] if self._state is not None else None
        own = orjson.loads(left) if left is not None else {}
        self.stream_time_ms = own.get("stream_time", -1)
        self.processor_metadata = own.get("processor_metadata", {})
        if self._state is not None:
            cache = ThreadCache(self.config["statestore.cache.max.bytes"])
            self._stores = SparkStores(dict(plan.topology.stores), self, self.output.images, self._state, cache)
        self.compiled = compile_topology(plan.topology, self)
        self.compiled.init()
        self._made_by_init = len(self._schedules[Punctuation.WALL_CLOCK_TIME])
        self._idle: IdleTime | None = None
        if plan.topology.idle_timeout is not None:
            self._idle = IdleTime(plan.topology.idle_timeout, self._wall_clock_ms(), lambda: None)
            if own.get("idle"):
                self._idle.recall(own["idle"])
        if own:
            if "memories" in own:  # not after a handover from the local engine, which saves none
                self.compiled.recall(own["memories"])
            for topic, time_ms in own["partition_times"].items():
                self.compiled.sources[topic].partition_time_ms = time_ms
            self._schedule_again(own["due"])

    def _schedule_again(self, due: Mapping[str, Sequence[int | None]]) -> None:
        """Reset the schedules of init() to their saved times; None: canceled since."""
        for kind in Punctuation:
            made, queue, left = self._schedules[kind], self._queues[kind], due[kind.value]
            queue.close()
            for number, schedule in enumerate(made):
                due_ms = left[number] if number < len(left) else schedule.due_ms
                if due_ms is None:
                    schedule.cancel()
                else:
                    queue.reschedule(schedule, due_ms)

    # -- one micro-batch

    def process(self, batches: Mapping[str, Sequence[Message]]) -> None:
        """Process the records of a micro-batch, by topic and each in the order of offsets.

        Raises StreamsError naming operator, topic, partition and offset of the record that failed.
        """
        for topic in batches:
            if topic not in self.compiled.sources:
                raise StreamsError(f"Task {self.task_id} got records of {topic}, which it does not read")
        self.timers.fire(Punctuation.WALL_CLOCK_TIME, self._wall_clock_ms())  # due since the last micro-batch
        if len(batches) > 1:
            self._process_merged(batches)
        else:
            for topic, messages in batches.items():
                self._process_one(self.compiled.sources[topic], messages)
        self.compiled.waiting.drain_all()
        self._advance_if_idle(bool(batches))
        self.timers.fire(Punctuation.STREAM_TIME, self.stream_time_ms)
        self.timers.fire(Punctuation.WALL_CLOCK_TIME, self._wall_clock_ms())
        self._queues[Punctuation.WALL_CLOCK_TIME].maybe_punctuate(self._wall_clock_ms())

    def _advance_if_idle(self, has_records: bool) -> None:
        """Advance stream time without records, if each source has an idle timeout."""
        if self._idle is None:
            return
        now_ms = self._wall_clock_ms()
        if has_records:
            self._idle.record_came(now_ms)
            return
        time_ms = self._idle.advanced(self.stream_time_ms, now_ms)
        if time_ms > self.stream_time_ms:
            self.compiled.advance_time(time_ms)
            self._punctuate_stream_time()

    def _process_one(self, source: CompiledSource, messages: Sequence[Message]) -> None:
        if not self._schedules[Punctuation.STREAM_TIME]:
            source.process_batch(messages)
            return
        for message in messages:
            source.process_batch((message,))
            self._punctuate_stream_time()

    def _process_merged(self, batches: Mapping[str, Sequence[Message]]) -> None:
        """Process several topics' records in timestamp order (Kafka Streams: PartitionGroup)."""
        sources = {topic: self.compiled.sources[topic] for topic in batches}
        waiting = {topic: sources[topic].stamped(messages) for topic, messages in batches.items()}
        order = count()
        heads = []
        for topic, records in waiting.items():
            first = next(records, None)
            if first is not None:
                heads.append((first.timestamp, next(order), topic, first))
        heapq.heapify(heads)
        while heads:
            _, _, topic, record = heads[0]
            sources[topic].process_stamped((record,))
            self._punctuate_stream_time()
            following = next(waiting[topic], None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following.timestamp, next(order), topic, following))

    def _punctuate_stream_time(self) -> None:
        if self.stream_time_ms >= 0 and self._schedules[Punctuation.STREAM_TIME]:
            self.compiled.waiting.drain_all()  # not before the waiting records that it must follow
            self._queues[Punctuation.STREAM_TIME].maybe_punctuate(self.stream_time_ms)

    def next_wall_clock_punctuation_ms(self) -> int | None:
        """Return when the wall clock matters next (ms since the epoch), None if nothing waits for it.

        Of punctuations only those scheduled by init() count; others end with the micro-batch.
        """
        made = self._schedules[Punctuation.WALL_CLOCK_TIME][: self._made_by_init]
        due = [schedule.due_ms for schedule in made if not schedule.cancelled]
        timer = self.timers.next_due(Punctuation.WALL_CLOCK_TIME)
        if timer is not None:
            due.append(timer)
        if self._idle is not None:
            due.append(self._idle.next_ms)
        return min(due, default=None)

    def commit(self) -> None:
        """Flush the caches downstream and save everything in Spark's state."""
        if self._stores is None or self._state is None:
            return
        self.compiled.flush(self._stores.by_name)
        self._stores.commit()
        self._state.write(OWN_STORE, OWN_BLOB, orjson.dumps(self._own()))

    def _own(self) -> dict[str, object]:
        return {
            "stream_time": self.stream_time_ms,
            "idle": None if self._idle is None else self._idle.kept(),
            "processor_metadata": self.processor_metadata,
            "memories": self.compiled.memories(),
            "partition_times": {t: source.partition_time_ms for t, source in self.compiled.sources.items()},
            "due": {
                kind.value: [None if schedule.cancelled else schedule.due_ms for schedule in schedules]
                for kind, schedules in self._schedules.items()
            },
        }

    def close(self) -> None:
        """Close the users' processors and the stores."""
        try:
            self.compiled.close()
        finally:
            self.async_calls.close()
            if self._stores is not None:
                self._stores.close()

    # -- the rest of TaskContext

    @property
    @override
    def state_dir(self) -> Path:
        """Raise: files on an executor's disk do not exist in the next micro-batch."""
        raise StreamsError(
            "A processor has no state_dir on Spark: the next micro-batch may run on another machine. Keep it in a store"
        )

    @property
    @override
    def streams_metrics(self) -> StreamsMetrics:
        """Raise: they would not be visible."""
        raise StreamsError(
            "A processor cannot add metrics on Spark, where tasks live for one micro-batch. Use Spark's own metrics, "
            "or run it with --engine local"
        )

    @override
    def wall_clock_ms(self) -> int:
        return self._wall_clock_ms()

    @override
    def store(self, name: str) -> Any:
        if self._stores is None or name not in self._stores.by_name:
            raise UnknownStateStoreError(f"There is no state store {name} in task {self.task_id}")
        return self._stores.by_name[name]

    def take_sent(self) -> list[SentRecord]:
        """Return the records sent since the last call."""
        return self.output.take_sent()

    @override
    def partition_count(self, topic: str) -> int:
        try:
            return self._plan.partition_counts[topic]
        except KeyError:
            raise StreamsError(
                f"The number of partitions of {topic} is not known: with a partitioner, a topic must exist when the "
                "application starts, and be named instead of being chosen by a function"
            ) from None

    @override
    def schedule(
        self, interval_ms: int, punctuation: Punctuation, callback: Callable[[int], None], start_ms: int | None = None
    ) -> Cancellable:
        """Schedule it; see punctuation_queue.first_due_ms."""
        now_ms = self.stream_time_ms if punctuation is Punctuation.STREAM_TIME else self._wall_clock_ms()
        due_ms = first_due_ms(punctuation, interval_ms, now_ms, start_ms)
        schedule = self._queues[punctuation].schedule(due_ms, interval_ms, callback)
        self._schedules[punctuation].append(schedule)
        return schedule

    @override
    def record_dropped(self, node: str, reason: str) -> None:
        """Log the first record of a micro-batch that is dropped for a reason."""
        if (node, reason) in self._dropped:
            return
        self._dropped.add((node, reason))
        message = self.message
        where = "" if message is None else f", first {message.topic()}-{message.partition()} offset {message.offset()}"
        log.warning("Task %s: skipping records at %s: %s%s", self.task_id, node, reason, where)
