"""One commit of a thread's tasks. This is the only place that defines the order of its steps.

The steps: flush the stores (caches forward their changes, changelogs and outputs are produced); wait until every record
is acknowledged; write the tombstones that stores hold (see Removals), and wait again; request the end offsets of the
changelogs, if it is time; commit the consumed offsets, through the group or, with exactly-once (v2), in the records'
transaction; write the stores to disk with the end offsets. After a crash before the offsets are committed, the work is
repeated (with exactly-once it was never visible), and the stores are unchanged. After a crash behind that point, the
stores are older than their changelogs and catch up from them.

At-least-once need not block until the group has accepted the offsets, unless it stores the ends of changelogs: see
AtLeastOnceCommit.start.

With exactly-once, too, records are acknowledged first. Otherwise a process that is suspended between sending its
offsets and its records could commit records that the new owner of its tasks has not restored: one on Java restores
before it reads the offsets. One of Penstock waits for that transaction first, see StreamTask.initialize_state_stores.

Why a changelog's *end offset* may be stored with the data. The task is the changelog partition's only writer, and all
its records are acknowledged. So every record before the end is in the store, or older than the records that it was
restored from. Once the group has accepted the consumed offsets, it is certain that the task was still the only writer
when the end was requested. Therefore the end is requested before, and stored after. A process that was suspended for
too long stores nothing. Without offsets to commit it would not notice, so then only data is stored, without the end. A
former owner that died may have had records in flight, which arrive after the end that the new owner restored to. The
new owner reprocesses their input, because its offsets were not committed, and writes the same keys again after them. So
skipping them is correct with at-least-once; with exactly-once they belong to a transaction that the broker aborts.
Kafka Streams' checkpoint, the last own offset, skips them in the same way. An end that was requested too early is
harmless: restoring puts the same values again.

Ends are requested when Kafka Streams writes its checkpoints: before stores are closed, and otherwise every few seconds,
because the request takes as long as the rest of a commit. In between, and while no leader answers, the rows are ahead
of the stored offset; restoring from that offset puts the same values again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from typing_extensions import override

from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Meanwhile
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.topology.errors import BrokerUnavailableError
from penstock.topology.records import TopicPartition

from ..metrics.spans import Attributes
from .stream_task import StreamTask
from .streams_producer import StreamsProducer

#: Returns the end offset of each partition, after the records of open transactions.
EndOffsets = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]]


@dataclass(eq=False)
class Commit(ABC):
    """One commit: add tasks, then finish."""

    producer: StreamsProducer
    membership: GroupMember
    end_offsets: EndOffsets
    log: PrefixedLogger
    meanwhile: Meanwhile | None
    enforce_checkpoint: bool
    began: int = 0  # see Spans

    def __post_init__(self) -> None:
        self.tasks: list[StreamTask] = []
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}

    @property
    def attributes(self) -> Attributes:
        """The attributes of its span."""
        return {
            "kafka.streams.commit.tasks": ", ".join(str(task.task_id) for task in self.tasks),
            "kafka.streams.commit.offsets": len(self.offsets),
        }

    def add(self, task: StreamTask) -> None:
        """Flush a task's stores and add its offsets, if it has anything to commit."""
        if task.commit_needed or task.checkpoint_needed(self.enforce_checkpoint):
            self.include(task)

    def include(self, task: StreamTask) -> None:
        """Flush a task's stores and add its offsets."""
        self.offsets |= task.prepare_commit()
        self.tasks.append(task)

    def start(self) -> bool:
        """Carry out the commit.

        False: only the group's response is missing, which finish() waits for. Raises as finish() does.
        """
        self.finish()
        return True

    @property
    def is_answered(self) -> bool:
        """Whether finish() would not block, after start() has returned False."""
        return True

    def finish(self) -> int:
        """Carry out the commit, or the part that start() has left. Returns how many tasks were committed.

        Raises TaskMigratedError if the group has continued without this member, RetriableCommitError if a retry may
        succeed, StreamsError for a record that could not be written.
        """
        if self.tasks:
            self.make_permanent()
        return self._note_committed()

    def _note_committed(self) -> int:
        for task in self.tasks:
            task.post_commit(self.offsets)
        return len(self.tasks)

    @abstractmethod
    def make_permanent(self) -> None:
        """Write records, stores and offsets in the right order."""

    def acknowledge(self) -> None:
        """Wait until every record is acknowledged, then write the tombstones that stores hold, and wait again."""
        self.producer.flush()
        if sum([task.state_manager.log_removals() for task in self.tasks]):
            self.producer.flush()

    def changelog_ends(self) -> Mapping[TopicPartition, int]:
        """Wait until every record is acknowledged, then return the ends of the tasks' changelogs, {} if they are not
        due.

        If the ends are due for one task, they are requested for all, in one request. Also returns {} if no broker
        answers: the offsets do not depend on the ends, and the next owner would process uncommitted work again.
        """
        self.acknowledge()
        if not self.wants_ends:
            return {}
        written = {partition for task in self.tasks for partition in task.state_manager.written_changelogs}
        try:
            return self.end_offsets(written)
        except BrokerUnavailableError as error:
            self.producer.check_changelogs()  # a deleted topic will not answer later either
            tasks = listed([task.task_id for task in self.tasks])
            self.log.warning("Committing tasks %s without the ends of their changelogs: %s", tasks, error)
            return {}

    @property
    def wants_ends(self) -> bool:
        """Whether the ends of changelogs are due; never without offsets to commit, see above."""
        return bool(self.offsets) and (self.enforce_checkpoint or any(task.checkpoint_due for task in self.tasks))

    def commit_stores(self, ends: Mapping[TopicPartition, int]) -> None:
        """Write the stores of all tasks to disk."""
        for task in self.tasks:
            own = {partition: ends[partition] for partition in task.changelog_partitions & ends.keys()}
            task.commit_stores(own | task.source_changelog_offsets())


class AtLeastOnceCommit(Commit):
    """processing.guarantee=at_least_once."""

    _answer: Future[None] | None = None  # the group's response, once start() has sent the offsets

    def start(self) -> bool:
        """Write records and stores, send the offsets, and return: tasks continue before the group has answered.

        No changelog offsets are stored then. So the stores are written first, while they hold only acknowledged
        updates: after a crash they contain the same rows as after a restore. A commit that requests ends is carried out
        as a whole.
        """
        if not self.offsets or self.wants_ends:
            return super().start()
        self.acknowledge()
        for task in self.tasks:
            task.commit_stores(task.committed_source_changelog_offsets())
        self._answer = self.membership.commit_async(self.offsets)
        return False

    @property
    def is_answered(self) -> bool:
        """Whether the group has answered."""
        return self._answer is None or self._answer.done()

    @override
    def finish(self) -> int:
        if self._answer is None:
            return super().finish()
        self.membership.wait_for_commit(self._answer, self.meanwhile)
        return self._note_committed()

    @override
    def make_permanent(self) -> None:
        ends = self.changelog_ends()
        if self.offsets:
            self.membership.commit(self.offsets, self.meanwhile)
        self.commit_stores(ends)


class ExactlyOnceCommit(Commit):
    """processing.guarantee=exactly_once_v2. The tasks must include all that have processed anything."""

    @override
    def make_permanent(self) -> None:
        ends = self.changelog_ends()
        self.producer.commit_transaction(self.offsets, self.membership.group_metadata())
        self.commit_stores(ends)
