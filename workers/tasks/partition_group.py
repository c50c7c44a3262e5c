"""Which of a task's input partitions is read next (Kafka Streams: PartitionGroup, RecordQueue; KIP-353, KIP-695).

The record with the lowest timestamp is next; among equals, that of the partition that has waited longest.
``max.task.idle.ms`` decides whether to wait for partitions without buffered records.

Records are processed in runs: consecutive records of one partition until another partition is next.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

from penstock.clients.log_context import PrefixedLogger
from penstock.kernel.messages import run_from
from penstock.topology.records import Message, TopicPartition

from .topic_partition_metadata import UNKNOWN

#: ``max.task.idle.ms`` value: never wait, not even for records that are known to be on the broker.
MAX_TASK_IDLE_MS_DISABLED = -1

#: Returns how many records of a partition are still on the broker, None if that is not known yet.
LagProvider = Callable[[TopicPartition], int | None]
#: Processes consecutive records: messages, or what Source.stamped returned.
ProcessRun = Callable[[list[Any]], None]
#: Returns a function that processes the records of a partition and records spans, too; the last argument: whether they
#: are stamped.
Traced = Callable[[TopicPartition, ProcessRun, bool], ProcessRun]

_MAX_TIMESTAMP = (1 << 63) - 1


class Source(Protocol):
    """The part of a source that a queue uses; compiled_source.CompiledSource implements it."""

    extracts_timestamps: bool
    partition_time_ms: int

    @property
    def process_batch(self) -> Callable[[Iterable[Message]], None]:
        """Process messages as they are."""

    @property
    def stamped(self) -> Callable[[Iterable[Message]], Iterable[Any]]:
        """Deserialize messages and extract their timestamps, without the records that are dropped."""

    @property
    def process_stamped(self) -> Callable[[Iterable[Any]], None]:
        """Process what stamp returned, of several messages."""


class RecordQueue:
    """The buffered records of one partition, in the order in which they were read.

    alone: the task has no other partition, so timestamps need not be compared before processing. traced: see Traced.
    """

    __slots__ = (
        "_alone",
        "_next",
        "_process",
        "_records",
        "_source",
        "_stamped",
        "_time",
        "added",
        "partition",
    )

    def __init__(self, partition: TopicPartition, source: Source, alone: bool, traced: Traced | None) -> None:
        self.partition = partition
        self._source = source
        self._alone = alone
        self._stamped = source.extracts_timestamps and not alone
        process: ProcessRun = source.process_stamped if self._stamped else source.process_batch
        self._process = process if traced is None else traced(partition, process, self._stamped)
        self._records: list[Any] = []  # messages; StampedRecords if _stamped
        self._next = 0
        self._time = UNKNOWN
        #: Number of records buffered so far; those no longer in the queue were processed.
        self.added = 0

    def __len__(self) -> int:
        return len(self._records) - self._next

    def add(self, messages: Sequence[Message]) -> None:
        """Append records, except those that the source drops while it stamps them."""
        records: Sequence[object] = messages
        if self._stamped:
            records = list(self._source.stamped(messages))
        self._records = [*self._records[self._next :], *records]
        self._next = 0
        self.added += len(records)

    @property
    def head_offset(self) -> int | None:
        """Offset of the next record, None if there is none."""
        if not len(self):
            return None
        head = self._records[self._next]
        offset: int = head.message.offset() if self._stamped else head.offset()
        return offset

    @property
    def head_time(self) -> int:
        """Timestamp (ms) of the next record; there must be one."""
        head = self._records[self._next]
        time_ms: int = head.timestamp if self._stamped else head.timestamp()[1]
        return time_ms

    @property
    def partition_time(self) -> int:
        """Highest timestamp (ms) of processed records, UNKNOWN before the first; not tracked if alone."""
        return self._time

    def set_partition_time(self, time_ms: int) -> None:
        """Continue from the committed partition time."""
        self._time = self._source.partition_time_ms = time_ms

    def process(self, limit: int, before: int) -> int:
        """Process the next record, and the following ones older than ``before`` (ms), up to limit.

        Returns how many. Exceptions of the source propagate to the caller; afterwards the task discards its buffer.
        """
        start = self._next
        end = min(start + limit, len(self._records))
        if not self._alone:
            end, newest = run_from(self._records, start, end, before, self._stamped)
            self._time = max(self._time, newest)
        self._next = end
        self._process(self._records[start:end])
        return end - start

    def clear(self) -> None:
        """Forget all records."""
        self._records = []
        self._next = 0


class Processed(NamedTuple):
    """How many records of which partition were processed."""

    partition: TopicPartition
    records: int


class PartitionGroup:
    """The record queues of one task.

    sources: by topic. lag: see LagProvider. enforced(): called each time records are processed although an empty
    partition could still receive older ones. traced: see Traced; None if no spans are recorded.
    """

    def __init__(
        self,
        partitions: Collection[TopicPartition],
        sources: Mapping[str, Source],
        lag: LagProvider,
        enforced: Callable[[], None],
        max_task_idle_ms: int,
        log: PrefixedLogger,
        traced: Traced | None = None,
    ) -> None:
        alone = len(partitions) == 1
        self._queues = {p: RecordQueue(p, sources[p.topic], alone, traced) for p in sorted(partitions)}
        self._lag = lag
        self._enforced = enforced
        self._max_task_idle_ms = max_task_idle_ms
        self._log = log
        self._non_empty: list[tuple[int, int, RecordQueue]] = []  # heap by (head timestamp, order)
        self._order = count()
        self._idle_deadlines: dict[TopicPartition, int] = {}

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """All partitions of the group."""
        return self._queues.keys()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is buffered, and it makes no difference for how long that has been so."""
        return not self._non_empty and (len(self._queues) == 1 or self._max_task_idle_ms <= 0)

    def num_buffered(self, partition: TopicPartition | None = None) -> int:
        """Return how many records wait, in one partition or in all."""
        return sum(map(len, self._queues.values())) if partition is None else len(self._queues[partition])

    def head_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record of a partition, None if nothing of it is buffered."""
        return self._queues[partition].head_offset

    def head(self) -> tuple[TopicPartition, int] | None:
        """Return the partition and the timestamp (ms) of the record that comes next, None if nothing is buffered."""
        if not self._non_empty:
            return None
        queue = self._non_empty[0][2]
        return queue.partition, queue.head_time

    def processed(self, partition: TopicPartition) -> int:
        """Return how many records of a partition have left its queue."""
        queue = self._queues[partition]
        return queue.added - len(queue)

    def partition_time(self, partition: TopicPartition) -> int:
        """Return the highest timestamp (ms) processed of a partition, UNKNOWN before the first.

        Not followed for the only partition of a task: there it is the task's stream time.
        """
        return self._queues[partition].partition_time

    def set_partition_time(self, partition: TopicPartition, time_ms: int) -> None:
        """Continue from the committed partition time."""
        self._queues[partition].set_partition_time(time_ms)

    def add_raw_records(self, partition: TopicPartition, messages: Sequence[Message]) -> None:
        """Buffer records of one partition."""
        queue = self._queues[partition]
        was_empty = not len(queue)
        queue.add(messages)
        if was_empty and len(queue):
            self._push(queue)

    def ready_to_process(self, now_ms: int) -> bool:
        """Return whether the next record may be processed now (monotonic time in ms)."""
        if len(self._non_empty) == len(self._queues):
            self._idle_deadlines.clear()
            return True
        if self._max_task_idle_ms == MAX_TASK_IDLE_MS_DISABLED:
            return bool(self._non_empty)
        empty = [partition for partition, queue in self._queues.items() if not len(queue)]
        for partition in self._queues.keys() - set(empty):
            self._idle_deadlines.pop(partition, None)
        waived = [self._may_go_without(partition, now_ms) for partition in empty]  # a list, so that all deadlines start
        if not all(waived) or not self._non_empty:
            return False
        self._enforced()
        self._log.trace("Continuing to process although partitions %s are empty on the broker", empty)
        return True

    def _may_go_without(self, partition: TopicPartition, now_ms: int) -> bool:
        lag = self._lag(partition)
        if lag is None or lag > 0:  # not known yet, or records have not arrived yet
            self._idle_deadlines.pop(partition, None)
            self._log.trace("Lag for %s is %s, but no data is buffered locally. Waiting to buffer some", partition, lag)
            return False
        return now_ms >= self._idle_deadlines.setdefault(partition, now_ms + self._max_task_idle_ms)

    def process_next(self, limit: int) -> Processed | None:
        """Process the next records, all of one partition, at most limit; None if nothing is buffered."""
        if not self._non_empty:
            return None
        queue = heapq.heappop(self._non_empty)[2]
        other = self._non_empty[0][0] if self._non_empty else _MAX_TIMESTAMP
        processed = queue.process(limit, other)
        if len(queue):
            self._push(queue)
        return Processed(queue.partition, processed)

    def clear(self) -> None:
        """Discard all records: a suspended task reads them again from the committed offsets."""
        for queue in self._queues.values():
            queue.clear()
        self._non_empty.clear()
        self._idle_deadlines.clear()

    def _push(self, queue: RecordQueue) -> None:
        heapq.heappush(self._non_empty, (queue.head_time, next(self._order), queue))
