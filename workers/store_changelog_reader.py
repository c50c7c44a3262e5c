"""Reads changelogs into stores: until they are up to date for active tasks, for ever for standby tasks.

Kafka Streams: StoreChangelogReader. One restore consumer for all tasks of the thread; each call reads for a bounded
time, so that the tasks that run already keep running.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum

from penstock.topology.errors import TaskCorruptedError
from penstock.topology.records import Message, TaskId, TopicPartition

from .clock import Clock
from .log_context import PrefixedLogger
from .membership.membership import OffsetAndMetadata
from .partition_consumer import InvalidOffsetError, PartitionConsumer
from .processor_state_manager import ProcessorStateManager
from .state_machine import StateMachine, Transitions
from .state_restore_listener import StateRestoreListener
from .task import Task

#: How often progress is logged, in ms (Kafka: RESTORE_LOG_INTERVAL_MS).
RESTORE_LOG_INTERVAL_MS = 10_000
#: Records taken from the restore consumer at once: a large batch makes one large write.
RESTORE_BATCH_RECORDS = 10_000

#: Reads the group's committed offsets: GroupMembership.committed.
Committed = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, OffsetAndMetadata | None]]


class ChangelogState(Enum):
    """How far a changelog is.

    ::

        REGISTERED -> RESTORING -> COMPLETED
    """

    REGISTERED = "REGISTERED"
    RESTORING = "RESTORING"
    COMPLETED = "COMPLETED"


CHANGELOG_TRANSITIONS: Transitions[ChangelogState] = {
    ChangelogState.REGISTERED: (ChangelogState.RESTORING,),
    ChangelogState.RESTORING: (ChangelogState.COMPLETED,),
    ChangelogState.COMPLETED: (),
}


class ChangelogMetadata:
    """One changelog being read. limit: offset up to which it may be applied, None: to wherever it ends."""

    def __init__(self, task: Task, partition: TopicPartition, log: PrefixedLogger) -> None:
        self.task_id: TaskId = task.task_id
        self.active = task.kind == "task"
        self.manager: ProcessorStateManager = task.state_manager
        self.partition = partition
        self.store = task.state_manager.changelogs[partition]
        self.is_source = partition in task.state_manager.source_changelogs
        self.states = StateMachine(ChangelogState.REGISTERED, CHANGELOG_TRANSITIONS, log, level=5)
        self.limit: int | None = None
        self.start = 0
        self.position = 0
        self.total_restored = 0

    @property
    def remaining(self) -> int:
        """Offsets still to be read; 0 for standby tasks, which have no end."""
        return max((self.limit or 0) - self.position, 0) if self.active else 0

    @property
    def total(self) -> int:
        """Offsets to be read altogether."""
        return max((self.limit or 0) - self.start, 0) if self.active else 0


class StoreChangelogReader:
    """The restore consumer and what it reads. listener: told of restores of active tasks."""

    def __init__(
        self,
        consumer: PartitionConsumer,
        committed: Committed,
        listener: StateRestoreListener,
        clock: Clock,
        commit_interval_ms: int,
        log: PrefixedLogger,
    ) -> None:
        self.total_restored = 0
        self._consumer = consumer
        self._committed = committed
        self._listener = listener
        self._clock = clock
        self._limit_interval_ms = commit_interval_ms
        self._log = log
        self._changelogs: dict[TopicPartition, ChangelogMetadata] = {}
        self._last_log_ms = clock.monotonic_ms()
        self._last_log_restored = 0
        self._last_limits_ms = clock.monotonic_ms()

    def register(self, task: Task) -> None:
        """Read the changelogs of a task whose stores are open, from where the stores are."""
        for partition in task.changelog_partitions:
            self._changelogs[partition] = ChangelogMetadata(task, partition, self._log)

    def unregister(self, task: Task) -> None:
        """Read the changelogs of a task no longer; call it before its stores are closed."""
        mine = [p for p, changelog in self._changelogs.items() if changelog.manager is task.state_manager]
        for partition in mine:
            changelog = self._changelogs.pop(partition)
            if changelog.active and changelog.states.state is ChangelogState.RESTORING:
                self._listener.on_restore_suspended(partition, changelog.store, changelog.total_restored)
        self._consumer.unassign(mine)

    def completed(self) -> set[TopicPartition]:
        """Return the changelogs of active tasks that have been read to their end."""
        return {p for p, c in self._changelogs.items() if c.states.state is ChangelogState.COMPLETED}

    def restoring_active(self) -> bool:
        """Return whether a changelog of an active task is still being read."""
        return any(c.active and c.states.state is not ChangelogState.COMPLETED for c in self._changelogs.values())

    def progress(self, task: Task) -> tuple[int, int]:
        """Return how many offsets of a task remain to be restored, and how many there were."""
        mine = [c for c in self._changelogs.values() if c.manager is task.state_manager]
        return sum(c.remaining for c in mine), sum(c.total for c in mine)

    def restore(self, wait_seconds: float, budget_ms: int) -> int:
        """Read and apply records for about budget_ms, waiting up to wait_seconds for the first. Returns how many.

        Raises TaskCorruptedError if a store's offset is not in its changelog, BrokerUnavailableError, or
        ProcessorStateError if a store fails.
        """
        self._initialize_changelogs()
        if not self._consumer.assignment():
            return 0
        self._prefer_active()
        deadline_ms = self._clock.monotonic_ms() + budget_ms
        restored = 0
        while True:
            batch = self._restore_batch(0 if restored else wait_seconds)
            restored += batch
            if not batch or self._clock.monotonic_ms() >= deadline_ms:
                break
        self.total_restored += restored
        self._update_limits()
        self._log_progress()
        return restored

    def _restore_batch(self, wait_seconds: float) -> int:
        try:
            records = self._consumer.poll(RESTORE_BATCH_RECORDS, wait_seconds)
        except InvalidOffsetError as error:
            raise self._corrupted(error.partitions, str(error)) from error
        restored = sum(self._apply(self._changelogs[p], messages) for p, messages in records.items())
        for changelog in self._restoring():
            self._complete_if_at_end(changelog)
        return restored

    def _apply(self, changelog: ChangelogMetadata, messages: Sequence[Message]) -> int:
        limit = changelog.limit
        if limit is not None and messages[-1].offset() >= limit:
            messages = [message for message in messages if message.offset() < limit]
        if messages:
            changelog.position = messages[-1].offset() + 1
            changelog.manager.restore(changelog.partition, messages, changelog.position)
            changelog.total_restored += len(messages)
            if changelog.active:
                self._listener.on_batch_restored(
                    changelog.partition, changelog.store, changelog.position, len(messages)
                )
        return len(messages)

    def _complete_if_at_end(self, changelog: ChangelogMetadata) -> None:
        read_to = self._consumer.position(changelog.partition)
        if changelog.limit is None or read_to is None or read_to < changelog.limit:
            return
        if changelog.active:
            self._complete(changelog)
        elif changelog.partition not in self._consumer.paused():
            self._hold_at_limit(changelog, changelog.limit)

    def _complete(self, changelog: ChangelogMetadata) -> None:
        if changelog.position < (changelog.limit or 0):  # what was left are markers of transactions
            changelog.position = changelog.limit or 0
            changelog.manager.restore(changelog.partition, (), changelog.position)
        self._consumer.unassign([changelog.partition])
        changelog.states.transition_to(ChangelogState.COMPLETED)
        self._log.info(
            "Finished restoring changelog %s to store %s with a total number of %s records",
            changelog.partition,
            changelog.store,
            changelog.total_restored,
        )
        self._listener.on_restore_end(changelog.partition, changelog.store, changelog.total_restored)

    # -- starting

    def _initialize_changelogs(self) -> None:
        registered = [c for c in self._changelogs.values() if c.states.state is ChangelogState.REGISTERED]
        if not registered:
            return
        sources = [c.partition for c in registered if c.is_source]
        committed = self._committed(sources) if sources else {}
        for changelog in registered:
            at = committed.get(changelog.partition)
            self._initialize(changelog, 0 if at is None else at.offset)

    def _initialize(self, changelog: ChangelogMetadata, committed: int) -> None:
        """Find out where a changelog starts and ends; committed counts for source topics only."""
        partition = changelog.partition
        low, high = self._consumer.watermarks(partition)
        stored = changelog.manager.changelog_offsets()[partition]
        if stored is not None and not low <= stored <= high:
            raise self._corrupted(
                [partition], f"its store is at offset {stored}, but the changelog holds offsets {low} to {high}"
            )
        end = min(high, committed) if changelog.is_source else high
        changelog.limit = end if changelog.active or changelog.is_source else None
        changelog.start = changelog.position = low if stored is None else stored
        changelog.states.transition_to(ChangelogState.RESTORING)
        if changelog.active:
            self._listener.on_restore_start(partition, changelog.store, changelog.start, end)
            if changelog.start >= end:
                self._complete(changelog)
                return
        self._consumer.assign({partition: changelog.start})

    def _corrupted(self, partitions: Collection[TopicPartition], reason: str) -> TaskCorruptedError:
        tasks = {self._changelogs[p].task_id for p in partitions if p in self._changelogs}
        names = ", ".join(map(str, sorted(partitions)))
        return TaskCorruptedError(f"The state of changelog {names} cannot be used: {reason}", tasks)

    # -- standby tasks

    def _prefer_active(self) -> None:
        """While active tasks restore, standby tasks wait: somebody waits for the active ones."""
        standby = [c.partition for c in self._changelogs.values() if not c.active and c.limit is None]
        if self.restoring_active():
            self._consumer.pause(standby)
        else:
            self._consumer.resume(standby)

    def _hold_at_limit(self, changelog: ChangelogMetadata, limit: int) -> None:
        """Go back to a limit that was overrun, and wait there until it moves."""
        self._consumer.seek({changelog.partition: limit})
        self._consumer.pause([changelog.partition])

    def _update_limits(self) -> None:
        """Let standby tasks of source topics follow what the active task has committed."""
        now_ms = self._clock.monotonic_ms()
        limited = [c for c in self._restoring() if not c.active and c.is_source]
        if not limited or now_ms - self._last_limits_ms < self._limit_interval_ms:
            return
        self._last_limits_ms = now_ms
        committed = self._committed([c.partition for c in limited])
        for changelog in limited:
            at = committed[changelog.partition]
            if at is not None and at.offset > (changelog.limit or 0):
                changelog.limit = at.offset
                self._consumer.resume([changelog.partition])

    # -- looking on

    def _restoring(self) -> list[ChangelogMetadata]:
        return [c for c in self._changelogs.values() if c.states.state is ChangelogState.RESTORING]

    def _log_progress(self) -> None:
        now_ms = self._clock.monotonic_ms()
        passed_ms = now_ms - self._last_log_ms
        if passed_ms < RESTORE_LOG_INTERVAL_MS:
            return
        rate = (self.total_restored - self._last_log_restored) * 1000 / passed_ms
        self._last_log_ms, self._last_log_restored = now_ms, self.total_restored
        active = [c for c in self._restoring() if c.active]
        if active:
            details = " ".join(
                f"{{{c.partition}: position={c.position}, end={c.limit}, totalRestored={c.total_restored}}}"
                for c in sorted(active, key=lambda c: c.partition)
            )
            self._log.info("Restoration in progress for %s partitions, %.0f records/s. %s", len(active), rate, details)

    def clear(self) -> None:
        """Forget all changelogs."""
        self._consumer.unassign(list(self._changelogs))
        self._changelogs.clear()

    def close(self) -> None:
        """Close the restore consumer."""
        self._changelogs.clear()
        self._consumer.close()
