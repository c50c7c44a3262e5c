"""Mutants of task ownership, and of the way a task's state reaches its owner."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from penstock.clients.group.standstill import Standstill
from penstock.clients.reading.reader import Records
from penstock.statestore.cache.caching_store import CachingStore
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.statestore.stores.state_store import StateStore
from penstock.topology.records import TopicPartition
from penstock.workers.group.assignment.group_assignment import GroupSubscriptions
from penstock.workers.group.assignment.subscription_info import UNKNOWN_OFFSET_SUM
from penstock.workers.restore.changelog import Changelog
from penstock.workers.restore.store_changelog_reader import StoreChangelogReader
from penstock.workers.tasks import changelog_bounds
from penstock.workers.tasks.assigned_streams_tasks import AssignedStreamsTasks
from penstock.workers.tasks.changelog_bounds import Bounds, ChangelogBounds
from penstock.workers.tasks.partition_consumer import PartitionConsumer
from penstock.workers.tasks.stream_task import StreamTask
from penstock.workers.tasks.streams_producer import StreamsProducer
from penstock.workers.tasks.task_manager import TaskManager
from penstock.workers.tasks.task_state import TaskState
from tests.simulation.clients import SimulatedAdmin
from tests.simulation.mutants.mutant import Mutant


def nothing(_: Any) -> Any:
    return lambda *_args, **_options: None


def promoted_without_catching_up(original: Any) -> Any:
    """A task that finds state on this machine runs at once."""

    def update_restored(registry: AssignedStreamsTasks, restored: Any) -> None:
        found = {
            partition
            for task in registry.restoring.values()
            for partition, offset in task.state_manager.changelog_offsets().items()
            if offset is not None
        }
        original(registry, {*restored, *found})

    return update_restored


def zombie_commits(_: Any) -> Any:
    """Tasks that other processes own by now continue."""

    def handle_lost_all(manager: TaskManager) -> None:
        manager.producer.collector.forget_errors()

    return handle_lost_all


def transaction_outlives_its_tasks(_: Any) -> Any:
    def handle_lost_all(manager: TaskManager) -> None:
        manager.producer.collector.forget_errors()
        manager.active.close(clean=False)
        manager.assigned_active_tasks = {}

    return handle_lost_all


def one_record_early(original: Any) -> Any:
    def begin(changelog: Changelog, bounds: Bounds, stored: int | None, committed: int) -> None:
        original(changelog, bounds, stored, committed)
        if changelog.active and changelog.limit:
            changelog.limit = max(changelog.limit - 1, changelog.start)

    return begin


def to_the_last_stable_offset(original: Any) -> Any:
    """A transaction without all its markers is not restored. Penstock once did this."""

    def poll(bounds: ChangelogBounds, wanted: Any) -> dict[TopicPartition, Bounds]:
        assert isinstance(bounds._admin, SimulatedAdmin)
        logs: Any = bounds._admin.broker.logs
        return {
            partition: Bounds(found.first, min(found.end, logs[partition].readable_end(committed_only=True)))
            for partition, found in original(bounds, wanted).items()
        }

    return poll


def records_left_behind(_: Any) -> Any:
    """Damage in one store loses the records of other stores that were in the same batch. Penstock once did this."""

    def apply_all(reader: StoreChangelogReader, records: Records) -> int:
        return sum(reader._apply(reader._changelogs[partition], messages) for partition, messages in records.items())

    return apply_all


def unanswered_end_is_an_end(_: Any) -> Any:
    """A missing response counts as the end of the changelog. Penstock once did this, with librdkafka."""

    def offset(asked: Future[int]) -> int:
        return asked.result() if asked.exception() is None else -1

    return lambda first, end: Bounds(offset(first), offset(end))


def all_global_tables_noted(_: Any) -> Any:
    """An in-memory global table is not read again, as if it had survived its process. Penstock once did this."""
    return property(lambda _store: True)


def cache_dropped_at_revoke(original: Any) -> Any:
    def suspend_tasks_and_state(manager: TaskManager, active: Any, standby: Any) -> None:
        for task_id in active:
            for store in manager.active.all_tasks()[task_id].state_manager.stores.values():
                if isinstance(store, CachingStore):
                    store._cache.clear()
        original(manager, active, standby)

    return suspend_tasks_and_state


def resumes_where_it_was(original: Any) -> Any:
    """A returning partition is read from this process's former position."""

    def unassign(consumer: PartitionConsumer, partitions: Any) -> None:
        was = {p: at for p in partitions if (at := consumer.position(p)) is not None}
        original(consumer, partitions)
        assign = consumer.assign

        def assign_further(offsets: Any) -> None:
            assign({p: max(offset, was.get(p, offset)) for p, offset in offsets.items()})

        consumer.assign = assign_further  # type: ignore[method-assign]

    return unassign


def pause_outlives_its_assignment(original: Any) -> Any:
    """librdkafka keeps a partition paused after it is unassigned."""

    def unassign(consumer: PartitionConsumer, partitions: Any) -> None:
        reader: Any = consumer._reader
        paused = reader.paused.intersection(partitions)
        original(consumer, partitions)
        reader.pause(paused)

    return unassign


def tasks_that_are_not_open_yet_untold(original: Any) -> Any:
    """The leader does not learn the offsets of a task that a process received a moment ago.

    It moves the task to the process that reports higher offsets, where the same happens, endlessly: a process that gets
    one task while another leaves joins again at once, before the first is open. Penstock once did this.
    """

    def task_offset_sums(manager: TaskManager) -> Any:
        tasks = manager.all_tasks()
        created = {task_id for task_id, task in tasks.items() if task.state is TaskState.CREATED}
        return original(manager) | dict.fromkeys(created, UNKNOWN_OFFSET_SUM)

    return task_offset_sums


def never_in_doubt(_: Any) -> Any:
    """A process that stalled writes its records before it learns that its tasks have other owners.

    Penstock once did this.
    """
    return property(lambda _standstill: False)


def abort_forgets_to_abort(_: Any) -> Any:
    def abort_transaction(producer: StreamsProducer) -> None:
        producer.collector.forget_errors()

    return abort_transaction


def suspended_without_commit(_: Any) -> Any:
    def commit_before_suspending(manager: TaskManager, active: Any) -> None:
        for task_id in active:
            task = manager.active.running.get(task_id)
            if task is not None:
                task.commit_stores({})

    return commit_before_suspending


def one_record_too_late(_: Any) -> Any:
    """A task starts one record too late."""

    def read_from(task: StreamTask, committed: Any) -> None:
        start, consumer = task._clients.start_offset, task._clients.consumer
        consumer.assign({p: start(p) if at is None else at.offset + 1 for p, at in sorted(committed.items())})
        task._committed = {p: offset for p in committed if (offset := consumer.position(p)) is not None}

    return read_from


def owners_on_java_overlooked(original: Any) -> Any:
    """A leader of Penstock assigns a task that a member on Java still owns to another member at once."""

    def decode(*arguments: Any) -> GroupSubscriptions:
        found: GroupSubscriptions = original.__func__(*arguments)
        members = {
            member: subscription if found.infos[member].is_penstock else subscription._replace(owned=frozenset())
            for member, subscription in found.members.items()
        }
        return replace(found, members=members)

    return classmethod(decode)


#: Detected by a crowd whose tasks move only to members that have restored them: it needs several tasks on each.
UNTOLD = Mutant(
    "state of new tasks is not told of", TaskManager, "task_offset_sums", tasks_that_are_not_open_yet_untold, 3
)
OWNERSHIP_MUTANTS = (
    Mutant("lock not released", StateDirectory, "unlock", nothing, 0),
    Mutant("damaged state not wiped", StateDirectory, "wipe", nothing, 1),
    Mutant(
        "standby promoted without catching up",
        AssignedStreamsTasks,
        "update_restored",
        promoted_without_catching_up,
        90,
    ),
    Mutant("zombie commits", TaskManager, "handle_lost_all", zombie_commits, 1),
    Mutant("transaction outlives its tasks", TaskManager, "handle_lost_all", transaction_outlives_its_tasks, 63),
    Mutant("abort that aborts nothing", StreamsProducer, "abort_transaction", abort_forgets_to_abort, 63),
    Mutant("restore ends one record early", Changelog, "begin", one_record_early, 15),
    Mutant("restore ends at the last stable offset", ChangelogBounds, "poll", to_the_last_stable_offset, 624),
    Mutant("records left behind", StoreChangelogReader, "_apply_all", records_left_behind, 951, plain=False),
    Mutant("end from before a task moved away", ChangelogBounds, "forget", nothing, 2280, plain=False),
    Mutant("unanswered end taken for the end", changelog_bounds, "_bounds", unanswered_end_is_an_end, 15),
    Mutant("global table in memory not read anew", StateStore, "persistent", all_global_tables_noted, 5181),
    Mutant("cached entries dropped at revoke", TaskManager, "suspend_tasks_and_state", cache_dropped_at_revoke, 5),
    Mutant("suspended without a commit", TaskManager, "_commit_before_suspending", suspended_without_commit, 3),
    Mutant("reads on where it was before", PartitionConsumer, "unassign", resumes_where_it_was, 1),
    Mutant("pause outlives its assignment", PartitionConsumer, "unassign", pause_outlives_its_assignment, 5897),
    Mutant(
        "writes before it hears that it is out",
        Standstill,
        "in_doubt",
        never_in_doubt,
        4351,
        ("flush producer", "commit store", "consume", "send some"),
    ),
    Mutant("task begins one record too late", StreamTask, "_read_from", one_record_too_late, 8),
    Mutant("owners on Java overlooked", GroupSubscriptions, "decode", owners_on_java_overlooked, 381, plain=False),
)
