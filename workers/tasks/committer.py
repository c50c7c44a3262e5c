"""How the work of a thread's tasks becomes permanent; the one place where the order of the steps is written down.

Flush the stores (caches send on, changelogs and outputs are produced) -> every record acknowledged -> where do the
changelogs end, if it is time to ask? -> consumed offsets, through the group or, with exactly-once (v2), in the records'
transaction -> stores to disk with those ends. A crash before the offsets are committed repeats work (exactly-once: it
was never seen) and leaves the stores as they were; a crash after it leaves them behind their changelogs, from which
they catch up.

At-least-once need not block while the group takes the offsets, unless it waits for the ends of changelogs: see
AtLeastOnceCommit.start.

Records are acknowledged first also with exactly-once: else a process that sleeps between its offsets and its records
could commit records that the new owner of its tasks, which has restored them, has not seen.

Why a changelog's *end offset* may be stored with the data. The task is the changelog partition's only writer and all
its records are acknowledged, so everything up to the end is in the store, or older than what it was restored from. That
it was still the only writer when the end was requested is known once the group has taken the offsets: so the end is
asked for before and stored after. A process that slept too long stores nothing; without offsets to commit it would not
find out, so no end is stored then, only data. A former owner that died may still have had records in flight, which
arrive behind the end that the new owner restored to. The new owner has reprocessed, or will, the very input that they
came from, because no offset of it was committed; it writes the keys again behind them. So they are skipped rightly
under at-least-once. With exactly-once they belong to a transaction that the broker aborts. Kafka Streams' checkpoint,
the last own offset, skips them in the same way. And an end read too early is harmless: restoring puts the same values
again.

The ends are requested as Kafka Streams writes its checkpoints: when stores are about to be closed, and else every few
seconds, because the question takes as long as the rest of a commit. In between, and as long as no leader answers, the
rows are ahead of the offset that lies beside them: what is restored from there puts the same values again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from typing_extensions import override

from penstock.clients.group.membership import CommitTimeoutError, GroupMembership, Meanwhile
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.topology.errors import BrokerUnavailableError
from penstock.topology.records import TopicPartition

from ..metrics.spans import Attributes, Spans
from .stream_task import StreamTask
from .streams_producer import StreamsProducer
from .task_timeouts import TaskTimeouts

#: Returns the end offset of each partition, behind records of open transactions too.
EndOffsets = Callable[[Collection[TopicPartition]], dict[TopicPartition, int]]


@dataclass(eq=False)
class Commit(ABC):
    """One commit in the making: add tasks, then finish."""

    producer: StreamsProducer
    membership: GroupMembership
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
        """What a span says of it."""
        return {
            "kafka.streams.commit.tasks": ", ".join(str(task.task_id) for task in self.tasks),
            "kafka.streams.commit.offsets": len(self.offsets),
        }

    def add(self, task: StreamTask) -> None:
        """Flush a task's stores and take its offsets in, if it has anything to commit."""
        if task.commit_needed or task.checkpoint_needed(self.enforce_checkpoint):
            self.offsets |= task.prepare_commit()
            self.tasks.append(task)

    def start(self) -> bool:
        """Carry it out; False: but for the group's answer, which finish() waits for. Raises what finish() does."""
        self.finish()
        return True

    @property
    def is_answered(self) -> bool:
        """Whether finish() has nothing to wait for, after start() has returned False."""
        return True

    def finish(self) -> int:
        """Carry it out, or what start() has left of it. Returns how many tasks were committed.

        Raises TaskMigratedError if the group has continued without this member, RetriableCommitError if it can be tried
        again, StreamsError for a record that could not be written.
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

    def changelog_ends(self) -> dict[TopicPartition, int]:
        """Wait until every record is acknowledged; return where the tasks' changelogs end then, {} if it is not time.

        If it is for one task, it is for all: that is one request. {} also if no broker answers: the offsets do not need
        the ends, and what leaves uncommitted is processed again by the next owner.
        """
        self.producer.flush()
        if not self.wants_ends:
            return {}
        written = {partition for task in self.tasks for partition in task.state_manager.written_changelogs}
        try:
            return self.end_offsets(written)
        except BrokerUnavailableError as error:
            self.producer.check_changelogs()  # a topic that is not there will not answer later either
            tasks = listed([task.task_id for task in self.tasks])
            self.log.warning("Committing tasks %s without the ends of their changelogs: %s", tasks, error)
            return {}

    @property
    def wants_ends(self) -> bool:
        """Whether it is time to ask where changelogs end; without offsets it never is, see above."""
        return bool(self.offsets) and (self.enforce_checkpoint or any(task.checkpoint_due for task in self.tasks))

    def commit_stores(self, ends: Mapping[TopicPartition, int]) -> None:
        """Write the stores of all tasks to disk."""
        for task in self.tasks:
            own = {partition: ends[partition] for partition in task.changelog_partitions & ends.keys()}
            task.commit_stores(own | task.source_changelog_offsets())


class AtLeastOnceCommit(Commit):
    """processing.guarantee=at_least_once."""

    _answer: Future[None] | None = None  # the group's, once start() has sent the offsets

    def start(self) -> bool:
        """Write records and stores, send the offsets, and return, so that tasks continue until the group has answered.

        The stores have no offsets of changelogs to wait for then. So they come first, while they hold nothing but what
        is acknowledged: a crash leaves in them what a restore would put there. A commit that asks for ends is carried
        out whole.
        """
        if not self.offsets or self.wants_ends:
            return super().start()
        self.producer.flush()
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
    """processing.guarantee=exactly_once_v2; the tasks must be all that have processed anything."""

    @override
    def make_permanent(self) -> None:
        ends = self.changelog_ends()
        self.producer.commit_transaction(self.offsets, self.membership.group_metadata())
        self.commit_stores(ends)


class Committer:
    """Makes commits for one thread, one after the other. meanwhile: what to do while the group takes the offsets.

    timeouts: has TaskTimeoutError raised once the brokers have not taken a commit for task.timeout.ms.
    """

    def __init__(
        self,
        producer: StreamsProducer,
        membership: GroupMembership,
        end_offsets: EndOffsets,
        timeouts: TaskTimeouts,
        log: PrefixedLogger,
        meanwhile: Meanwhile | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._arguments = (producer, membership, end_offsets, log, meanwhile)
        self._timeouts = timeouts
        self._spans = spans or Spans()
        #: Whether a commit has to take in all tasks, because they share a transaction.
        self.all_together = producer.transactional
        self._under_way: Commit | None = None

    def begin(self, enforce_checkpoint: bool = False) -> Commit:
        """Return a new commit, when the one under way is over; raises what Commit.finish() does if that one failed.

        enforce_checkpoint: the tasks' stores are about to be closed.
        """
        self.wait()
        commit = ExactlyOnceCommit if self.all_together else AtLeastOnceCommit
        return commit(*self._arguments, enforce_checkpoint, self._spans.began())

    def finish(self, commit: Commit) -> int:
        """Carry a commit out. Returns how many tasks were committed, raises what Commit.finish() does."""
        with self._timed(commit), self._traced(commit):
            return commit.finish()

    def start(self, commit: Commit) -> int:
        """As finish(), but without the group's answer if it can do without: wait() has the rest then."""
        with self._timed(commit), self._traced(commit):
            if not commit.start():
                self._under_way = commit
        return len(commit.tasks)

    @property
    def is_under_way(self) -> bool:
        """Whether a commit waits for the group's answer."""
        return self._under_way is not None

    @property
    def is_answered(self) -> bool:
        """Whether the group has answered the commit under way."""
        return self._under_way is not None and self._under_way.is_answered

    def wait(self) -> int:
        """Carry out the rest of the commit under way, if there is one. Otherwise as finish()."""
        commit, self._under_way = self._under_way, None
        return 0 if commit is None else self.finish(commit)

    def forget(self) -> None:
        """Ignore how the commit under way ends: its tasks are closed. They restart from its outcome."""
        self._under_way = None

    @contextmanager
    def _traced(self, commit: Commit) -> Iterator[None]:
        """Make a span of a commit that is over, from its first flush to the group's answer."""
        try:
            yield
        except Exception as error:
            self._spans.record("commit", commit.began, commit.attributes, error)
            raise
        if commit.tasks and commit is not self._under_way:
            self._spans.record("commit", commit.began, commit.attributes)

    @contextmanager
    def _timed(self, commit: Commit) -> Iterator[None]:
        task_ids = [task.task_id for task in commit.tasks]
        try:
            yield
        except (CommitTimeoutError, BrokerUnavailableError) as error:
            self._timeouts.failed(task_ids, "committing", error)
            raise
        if commit.is_answered:
            self._timeouts.succeeded(task_ids)
