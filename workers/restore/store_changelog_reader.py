"""Reads changelogs into stores: until they are up to date for active tasks, indefinitely for standby tasks.

Kafka Streams: StoreChangelogReader, DefaultStateUpdater. One restore consumer serves all tasks of the thread. Each call
reads for a bounded time, so running tasks continue. Active tasks come before standby tasks, and active tasks with the
least left come first, so that as many as possible run as early as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from penstock.clients.clock import Clock
from penstock.clients.errors import BrokerError, RetriableError
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.clients.reading.reader import Records
from penstock.topology.errors import BrokerUnavailableError, TaskCorruptedError
from penstock.topology.records import Message, TaskId, TopicPartition

from ..control.messages import LagInfo
from ..stalls.stall_response import RestoreStallResponse
from ..tasks.changelog_bounds import Bounds, ChangelogBounds
from ..tasks.partition_consumer import InvalidOffsetError, PartitionConsumer
from ..tasks.task import Task
from ..tasks.task_timeouts import TaskTimeouts
from .changelog import Changelog, ChangelogState
from .listeners import StandbyUpdateListener, StateRestoreListener, SuspendReason
from .restore_progress import RestoreProgress

#: Changelogs of active tasks are read at a time up to this number, so that one fetch keeps several brokers busy, and up
#: to this number of records, so that small ones need not wait for a request each.
RESTORED_AT_ONCE = 4
RECORDS_AT_ONCE = 20_000

#: Reads the group's committed offsets: GroupMember.committed.
Offsets = Mapping[TopicPartition, OffsetAndMetadata | None]
Committed = Callable[[Collection[TopicPartition]], Offsets]
#: The operation, in messages.
READING_COMMITTED = "reading the committed offsets of a source topic that serves as changelog"
_S = ChangelogState


@dataclass(eq=False)
class StoreChangelogReader:
    """Restores the stores of a thread's tasks from their changelogs.

    restore_listener: for active tasks; standby_listener: for standby tasks. limit_interval_ms: how often the committed
    offsets are requested for standby tasks of source topics (``commit.interval.ms``).
    """

    consumer: PartitionConsumer
    committed: Committed
    bounds: ChangelogBounds
    restore_listener: StateRestoreListener
    standby_listener: StandbyUpdateListener
    clock: Clock
    limit_interval_ms: int
    timeouts: TaskTimeouts
    stalls: RestoreStallResponse
    log: PrefixedLogger

    def __post_init__(self) -> None:
        #: Total records applied to active and to standby tasks.
        self.total_restored = 0
        self.total_updated = 0
        self._changelogs: dict[TopicPartition, Changelog] = {}
        self._progress = RestoreProgress(self.clock, self.log)
        self._last_limits_ms = self.clock.monotonic_ms()

    def register(self, task: Task) -> None:
        """Start to read the changelogs of a task from the offsets of its stores, which are open."""
        self.bounds.forget(task.state_manager.changelogs)
        for partition in task.state_manager.changelogs:
            self._changelogs[partition] = Changelog(task, partition, self.log)

    def unregister(self, task: Task, promoted: bool = False) -> None:
        """Stop reading a task's changelogs; call it before its stores are closed or (promoted) recycled."""
        mine = self._changelogs_of(task)
        for changelog in mine:
            del self._changelogs[changelog.partition]
            if changelog.state is _S.RESTORING:
                self._tell_suspended(changelog, SuspendReason.PROMOTED if promoted else SuspendReason.MIGRATED)
        self._progress.forget(task.task_id)
        self.consumer.unassign([changelog.partition for changelog in mine])

    def _tell_suspended(self, changelog: Changelog, reason: SuspendReason) -> None:
        partition, store = changelog.partition, changelog.store
        if changelog.active:
            self.restore_listener.on_restore_suspended(partition, store, changelog.total_restored)
        else:
            self.standby_listener.on_update_suspended(
                partition, store, changelog.position, self.consumer.end(partition), reason
            )

    def completed(self) -> set[TopicPartition]:
        """Return the changelogs of active tasks that have been read to their end."""
        return {p for p, c in self._changelogs.items() if c.state is _S.COMPLETED}

    def restoring_active(self) -> bool:
        """Return whether a changelog of an active task is still being read."""
        return any(c.active and c.state is not _S.COMPLETED for c in self._changelogs.values())

    def progress(self, task: Task) -> tuple[int, int]:
        """Return how many offsets of a task are left to restore, and the total."""
        mine = self._changelogs_of(task)
        return sum(c.remaining for c in mine), sum(c.total for c in mine)

    def lag(self, task: Task) -> int | None:
        """Return how many offsets a standby task's stores are behind their changelogs; None while unknown."""
        mine = self._changelogs_of(task)
        ends = [self.consumer.end(changelog.partition) for changelog in mine]
        known = [max(end - c.position, 0) for end, c in zip(ends, mine, strict=True) if end is not None]
        return sum(known) if len(known) == len(mine) else None

    def positions(self, task: Task) -> dict[str, LagInfo]:
        """Return the position of each of a task's stores in its changelog, without those whose bounds are unknown."""
        offsets, found = task.state_manager.changelog_offsets(), {}
        for changelog in self._changelogs_of(task):
            end = self.consumer.end(changelog.partition) if changelog.follows else changelog.limit
            if changelog.state is _S.COMPLETED:
                at = max(offsets[changelog.partition] or 0, changelog.position)
                found[changelog.store] = LagInfo(at, at)
            elif changelog.state is not _S.REGISTERED:
                at = max(self.consumer.position(changelog.partition) or 0, changelog.position)  # behind markers, too
                found[changelog.store] = LagInfo(at, at if end is None else end)
        return found

    def restored(self, task: Task) -> dict[str, int]:
        """Return the number of changelog records applied to each store of a task since it was opened."""
        return {c.store: c.total_restored for c in self._changelogs_of(task)}

    def rate(self, task: Task) -> float:
        """Return a task's restore rate in records per second."""
        return self._progress.rate(task.task_id)

    def remaining(self) -> int:
        """Return how many offsets are left to restore over all active tasks."""
        return sum(changelog.remaining for changelog in self._changelogs.values())

    def _changelogs_of(self, task: Task) -> list[Changelog]:
        return [c for c in self._changelogs.values() if c.manager is task.state_manager]

    # -- reading

    def restore(self, wait_seconds: float, budget_ms: int, batch_records: int) -> int:
        """Read and apply records for about budget_ms; block up to wait_seconds for the first. Returns how many.

        batch_records: maximum number of records per poll of the restore consumer.

        Raises TaskCorruptedError if a store's offset is not in its changelog, BrokerUnavailableError if no broker
        answers for task.timeout.ms, or ProcessorStateError if a store fails.
        """
        self.initialize_changelogs()
        self._choose()
        if not self.consumer.assignment() and self.bounds.wait(wait_seconds):
            return 0
        deadline_ms = self.clock.monotonic_ms() + budget_ms
        restored = 0
        while self._changelogs:
            batch = self._restore_batch(0 if restored else wait_seconds, batch_records)
            restored += batch
            self._choose()
            if not batch or self.clock.monotonic_ms() >= deadline_ms:
                break
        self._update_limits()
        self.stalls.check(self.clock.monotonic_ms())
        self._progress.log(self._changelogs.values())
        return restored

    def _restore_batch(self, wait_seconds: float, batch_records: int) -> int:
        try:
            records = self.consumer.poll(batch_records, wait_seconds)
        except InvalidOffsetError as error:
            raise self._corrupted(error.partitions, str(error)) from error
        applied = self._apply_all(records)
        for changelog in self._in_state(_S.RESTORING):
            self._complete_if_at_end(changelog)
        for changelog in self._in_state(_S.PROBING):
            self._end_probe(changelog)
        return applied

    def _apply_all(self, records: Records) -> int:
        """Apply records, and return how many.

        If those of one changelog cannot be applied, the tasks of the others continue: what was not applied is read
        again, because the consumer's position is already behind it.
        """
        applied, left = 0, dict(records)
        try:
            for partition, messages in records.items():
                applied += self._apply(self._changelogs[partition], messages)
                del left[partition]
        finally:
            self.consumer.seek({partition: self._changelogs[partition].position for partition in left})
        return applied

    def _apply(self, changelog: Changelog, messages: Sequence[Message]) -> int:
        if changelog.state is _S.PROBING:
            self._look_behind(changelog, messages)
            return 0
        limit = changelog.limit
        if limit is not None and messages[-1].offset() >= limit:
            messages = [message for message in messages if message.offset() < limit]
        if messages:
            position = messages[-1].offset() + 1
            changelog.manager.restore(changelog.partition, messages, position)
            changelog.position = position
            changelog.total_restored += len(messages)
            self._progress.record(changelog.task_id, len(messages))
            self._tell_batch(changelog, len(messages))
        return len(messages)

    def _tell_batch(self, changelog: Changelog, count: int) -> None:
        partition, store, position = changelog.partition, changelog.store, changelog.position
        if changelog.active:
            self.total_restored += count
            self.restore_listener.on_batch_restored(partition, store, position, count)
        else:
            self.total_updated += count
            end = self.consumer.end(partition)
            self.standby_listener.on_batch_loaded(partition, store, changelog.task_id, position, count, end)

    def _complete_if_at_end(self, changelog: Changelog) -> None:
        read_to = self.consumer.position(changelog.partition)
        if changelog.limit is None or read_to is None or read_to < changelog.limit:
            return
        if changelog.active:
            self._complete(changelog)
        elif changelog.partition not in self.consumer.paused():
            self._hold_at_limit(changelog, changelog.limit)

    def _complete(self, changelog: Changelog) -> None:
        if changelog.position < (changelog.limit or 0):  # the rest were transaction markers
            changelog.position = changelog.limit or 0
            changelog.manager.restore(changelog.partition, (), changelog.position)
        changelog.manager.persist_soon()
        self.consumer.unassign([changelog.partition])
        changelog.states.transition_to(_S.COMPLETED)
        self.log.info(
            "Finished restoring changelog %s to store %s with a total number of %s records",
            changelog.partition,
            changelog.store,
            changelog.total_restored,
        )
        self.restore_listener.on_restore_end(changelog.partition, changelog.store, changelog.total_restored)

    # -- starting

    def initialize_changelogs(self) -> None:
        """Learn where new changelogs begin and end, without blocking: progress() then counts what is left of them."""
        registered = self._in_state(_S.REGISTERED)
        if not registered:
            return
        bounds = self.bounds.poll([changelog.partition for changelog in registered])
        sources = [p for p in bounds if self._changelogs[p].is_source]
        committed = self._committed_now(sources)
        if committed is None:  # they are requested again
            committed = {}
            bounds = {partition: found for partition, found in bounds.items() if partition not in sources}
        for partition, found in bounds.items():
            at = committed.get(partition)
            self._initialize(self._changelogs[partition], found, 0 if at is None else at.offset)

    def _initialize(self, changelog: Changelog, bounds: Bounds, committed: int) -> None:
        """Set the bounds of a changelog; committed is used for source topics only."""
        partition = changelog.partition
        stored = changelog.manager.changelog_offsets()[partition]
        if stored is not None and not bounds.first <= stored <= bounds.end:
            reason = f"its store is at offset {stored}, but the changelog holds offsets {bounds.first} to {bounds.end}"
            raise self._corrupted([partition], reason)
        changelog.begin(bounds, stored, committed)
        if changelog.state is _S.PROBING:
            self.consumer.assign({partition: changelog.probed_from})
        else:
            self._tell_start(changelog)

    def _look_behind(self, changelog: Changelog, messages: Sequence[Message]) -> None:
        """Look up where the rows begin that have not expired by the newest records."""
        alive_from = changelog.manager.stores[changelog.store].alive_from(messages)
        self.consumer.unassign([changelog.partition])
        if alive_from > 0:
            changelog.first_alive = self.bounds.first_at(changelog.partition, alive_from)
        else:
            self._begin_at(changelog, 0)

    def _end_probe(self, changelog: Changelog) -> None:
        """Let the restore begin if the offset has been found, or cannot be."""
        partition, first_alive, offset = changelog.partition, changelog.first_alive, 0
        if first_alive is None:
            if (self.consumer.position(partition) or 0) < changelog.end:
                return
            if changelog.probe_more():  # there were only transaction markers and aborted records
                self.consumer.seek({partition: changelog.probed_from})
                return
            self.consumer.unassign([partition])
        elif not first_alive.done():
            return
        else:
            try:
                offset = first_alive.result()
            except (RetriableError, BrokerError) as error:
                self.log.warning("Restoring all of %s, expired rows too: %s", partition, error)
        self._begin_at(changelog, offset)

    def _begin_at(self, changelog: Changelog, offset: int) -> None:
        changelog.skip_to(offset)
        self._tell_start(changelog)

    def _tell_start(self, changelog: Changelog) -> None:
        partition = changelog.partition
        if changelog.active:
            self.restore_listener.on_restore_start(
                partition, changelog.store, changelog.start, changelog.start + changelog.total
            )
            if not changelog.remaining:
                self._complete(changelog)

    def _choose(self) -> None:
        """Start to read the active tasks with the least left; standby tasks wait until no active task is restoring."""
        waiting = self._in_state(_S.WAITING)
        if waiting:
            self._start_active([changelog for changelog in waiting if changelog.active])
            self._start([changelog for changelog in waiting if not changelog.active])
        following = [c.partition for c in self._in_state(_S.RESTORING) if c.follows]
        if self.restoring_active():
            self.consumer.pause(following)
        else:
            self.consumer.resume(following)

    def _start_active(self, waiting: list[Changelog]) -> None:
        by_task: dict[TaskId, list[Changelog]] = {}
        for changelog in waiting:
            by_task.setdefault(changelog.task_id, []).append(changelog)
        being_read = [changelog.remaining for changelog in self._in_state(_S.RESTORING) if changelog.active]
        number, records = len(being_read), sum(being_read)
        for _, mine in sorted(by_task.items(), key=lambda item: (sum(c.remaining for c in item[1]), item[0])):
            if number >= RESTORED_AT_ONCE and records >= RECORDS_AT_ONCE:
                return
            self._start(mine)
            number += len(mine)
            records += sum(changelog.remaining for changelog in mine)

    def _start(self, changelogs: Collection[Changelog]) -> None:
        self.consumer.assign({changelog.partition: changelog.position for changelog in changelogs})
        for changelog in changelogs:
            changelog.states.transition_to(_S.RESTORING)
            if not changelog.active:
                self.standby_listener.on_update_start(changelog.partition, changelog.store, changelog.start)

    def _corrupted(self, partitions: Collection[TopicPartition], reason: str) -> TaskCorruptedError:
        tasks = {self._changelogs[p].task_id for p in partitions if p in self._changelogs}
        names = ", ".join(map(str, sorted(partitions)))
        return TaskCorruptedError(f"The state of changelog {names} cannot be used: {reason}", tasks)

    # -- standby tasks of source topics

    def _hold_at_limit(self, changelog: Changelog, limit: int) -> None:
        """Seek back to a limit that was passed, and pause until the limit moves."""
        self.consumer.seek({changelog.partition: limit})
        self.consumer.pause([changelog.partition])

    def _update_limits(self) -> None:
        """Move the limits of standby tasks of source topics to the offsets committed by the active task."""
        now_ms = self.clock.monotonic_ms()
        limited = [c for c in self._in_state(_S.RESTORING) if not c.active and c.is_source]
        if not limited or now_ms - self._last_limits_ms < self.limit_interval_ms:
            return
        self._last_limits_ms = now_ms
        committed = self._committed_now([c.partition for c in limited]) or {}
        for changelog in limited:
            at = committed.get(changelog.partition)
            if at is not None and at.offset > (changelog.limit or 0):
                changelog.limit = at.offset
                self.consumer.resume([changelog.partition])

    def _committed_now(self, partitions: list[TopicPartition]) -> Offsets | None:
        """Return the committed offsets, None if the brokers do not answer now.

        Raises TaskTimeoutError when they have not for task.timeout.ms.
        """
        task_ids = [self._changelogs[partition].task_id for partition in partitions]
        try:
            found = self.committed(partitions) if partitions else {}
        except BrokerUnavailableError as error:
            self.timeouts.failed(task_ids, READING_COMMITTED, error)
            return None
        self.timeouts.succeeded(task_ids, READING_COMMITTED)
        return found

    def _in_state(self, state: ChangelogState) -> list[Changelog]:
        return [changelog for changelog in self._changelogs.values() if changelog.state is state]

    # -- shutdown

    def clear(self) -> None:
        """Forget all changelogs."""
        self.consumer.unassign(list(self._changelogs))
        self._changelogs.clear()

    def close(self) -> None:
        """Close the restore consumer."""
        self._changelogs.clear()
        self.consumer.close()
