"""The tasks of a stream thread: their manager, and the consumers, producer and stores that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from penstock.clients.group.group_member import GroupMember
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.statestore.checkpoints.manifest import checksum
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.statestore.store_factory import OpenRows
from penstock.topology.context.async_calls import AsyncCalls
from penstock.topology.graph.topology_facts import facts_of
from penstock.topology.records import TaskId, TopicPartition

from ..group.source_topics import BuiltTopologies
from ..group.topic_names import TopicNames
from ..restore.listeners import StandbyUpdateListener, StateRestoreListener
from ..restore.restore_spans import RestoreSpans
from ..restore.store_changelog_reader import StoreChangelogReader
from ..stalls.stall_response import RestoreStallResponse
from ..tasks.asked_together import AskedTogether
from ..tasks.assigned_standby_tasks import AssignedStandbyTasks
from ..tasks.assigned_streams_tasks import AssignedStreamsTasks
from ..tasks.changelog_bounds import ChangelogBounds
from ..tasks.checkpoints import Checkpoints, CheckpointSettings
from ..tasks.committer import AtLeastOnceCommit, ExactlyOnceCommit
from ..tasks.global_state import GlobalState, GlobalTask, NoGlobalState
from ..tasks.idle_inputs import AdminTopicTimes
from ..tasks.offset_reset import InvalidPositions, OffsetReset
from ..tasks.partition_consumer import PartitionConsumer
from ..tasks.record_purge import RecordPurge
from ..tasks.stream_task import TaskClients
from ..tasks.streams_producer import StreamsProducer
from ..tasks.task import TaskEnvironment
from ..tasks.task_commits import TaskCommits
from ..tasks.task_creator import StandbyTaskCreator, TaskCreator
from ..tasks.task_manager import TaskManager
from ..tasks.task_timeouts import TaskTimeouts
from .event_loop import MakeAsyncCalls
from .thread_clients import ThreadClients
from .thread_context import ThreadContext

#: Time limit for a commit's request of end offsets, in ms; the loop then retries, until task.timeout.ms.
COMMIT_OFFSETS_TIMEOUT_MS = 5_000


@dataclass(frozen=True)
class TaskResources:
    """What a stream thread's creator chooses for its tasks; see create_parts."""

    restore_listener: StateRestoreListener
    standby_listener: StandbyUpdateListener
    open_rows: OpenRows | None
    background: Executor
    make_async_calls: MakeAsyncCalls


@dataclass(frozen=True, eq=False)
class ThreadTasks:
    """The tasks' manager, with everything below it; see create_tasks."""

    manager: TaskManager
    consumer: PartitionConsumer
    restore_consumer: PartitionConsumer
    producer: StreamsProducer
    changelog_reader: StoreChangelogReader
    global_state: GlobalState
    state_directory: StateDirectory
    async_calls: AsyncCalls
    checkpoints: Checkpoints
    invalid_positions: InvalidPositions


def create_tasks(
    context: ThreadContext,
    clients: ThreadClients,
    topologies: BuiltTopologies,
    topics: TopicNames,
    membership: GroupMember,
    resources: TaskResources,
    topic_ids: Callable[[], Mapping[str, bytes]],
) -> ThreadTasks:
    """Return the manager of a stream thread's tasks, which has none yet, and what they share.

    topic_ids: returns those of the topics that are read. Raises StreamsError if the state directory cannot be used.
    """
    config, log = context.config, context.log
    state_directory = StateDirectory(
        config["state.dir"],
        context.application_id,
        context.clock.wall_clock_ms,
        config["allow.os.group.write.access"],
    )
    global_state = _global_state(context, clients, topics, state_directory)
    producer = clients.producer(lambda: membership.in_doubt)
    log.info("Creating restore consumer client")
    restore_consumer = clients.partition_consumer(context.supplier.get_restore_consumer, "restore-consumer")
    timeouts = TaskTimeouts(config["task.timeout.ms"], context.clock, context.logger("task_timeouts"))
    changelog_reader = _changelog_reader(context, clients, membership, resources, restore_consumer, timeouts)
    log.info("Creating consumer client")
    consumer = clients.partition_consumer(context.supplier.get_consumer, "consumer")
    clock_ms, reset_policy = context.clock.wall_clock_ms, config["auto.offset.reset"]
    offset_reset = OffsetReset(topologies, topics, reset_policy, clients.offsets.offsets_at, clock_ms, log)
    loop_name = f"{context.spec.client_id}-EventLoop-{context.spec.slot}"
    async_calls = resources.make_async_calls(loop_name, consumer.wake)
    checkpoints = _checkpoints(context, clients, membership)
    environment = TaskEnvironment(
        config,
        context.time,
        topics,
        state_directory,
        # Kafka Streams divides by one more if there is a global thread; here global tables are not cached.
        ThreadCache(config["statestore.cache.max.bytes"] // max(context.spec.num_threads, 1)),
        context.metrics,
        changelog_reader,
        global_state.store,
        context.log_prefix,
        resources.background,
        context.custom_metrics,
        async_calls,
        AdminTopicTimes(clients.admin, producer.partition_count, context.committed_only),
        topic_ids,
        checkpoints,
        resources.open_rows,
        context.spans,
    )
    committed = AskedTogether("committed offsets", membership.committed, log)
    task_clients = TaskClients(consumer, producer, committed.of, offset_reset.start_offset)
    active_log, standby_log = context.logger("assigned_streams_tasks"), context.logger("assigned_standby_tasks")
    active = AssignedStreamsTasks(TaskCreator(topologies, environment, log, task_clients), timeouts, active_log)
    manager = TaskManager(
        active,
        AssignedStandbyTasks(StandbyTaskCreator(topologies, environment, log), timeouts, standby_log),
        changelog_reader,
        _commits(context, clients, membership, active, consumer, producer),
        consumer,
        producer,
        state_directory,
        offset_reset,
        committed,
        RecordPurge(clients.admin, log),
        context.logger("task_manager"),
    )
    return ThreadTasks(
        manager,
        consumer,
        restore_consumer,
        producer,
        changelog_reader,
        global_state,
        state_directory,
        async_calls,
        checkpoints,
        InvalidPositions(consumer, offset_reset, timeouts, partial(_task_of, active), log),
    )


def _task_of(active: AssignedStreamsTasks, partition: TopicPartition) -> TaskId | None:
    task = active.running_task_for(partition)
    return None if task is None else task.task_id


def _global_state(
    context: ThreadContext, clients: ThreadClients, topics: TopicNames, state_directory: StateDirectory
) -> GlobalState:
    topology = context.topology.internal_builder.build_global_topology(context.config)
    if topology is None:
        return NoGlobalState()
    # Only one process can open a RocksDB.
    directory = state_directory.global_state_dir() / str(context.spec.slot)
    log = context.logger("global_state")
    measured = context.time, context.metrics, context.custom_metrics
    task = GlobalTask(context.config, topics, *measured, directory, log)
    consumer = clients.partition_consumer(context.supplier.get_global_consumer, "global-consumer")
    return GlobalState(topology, task, consumer, clients.offsets, directory, log)


def _changelog_reader(
    context: ThreadContext,
    clients: ThreadClients,
    membership: GroupMember,
    resources: TaskResources,
    consumer: PartitionConsumer,
    timeouts: TaskTimeouts,
) -> StoreChangelogReader:
    listener, timeout_ms = resources.restore_listener, context.config["task.timeout.ms"]
    if context.config["penstock.tracing"]:
        listener = RestoreSpans(context.spans, listener)
    watchdog = clients.stall_watchdog(consumer)
    return StoreChangelogReader(
        consumer,
        membership.committed,
        ChangelogBounds(clients.admin, context.clock, timeout_ms, context.logger("changelog_bounds")),
        listener,
        resources.standby_listener,
        context.clock,
        context.config["commit.interval.ms"],
        timeouts,
        RestoreStallResponse(watchdog, consumer, context.logger("stall_response")),
        context.logger("store_changelog_reader"),
    )


def _checkpoints(context: ThreadContext, clients: ThreadClients, membership: GroupMember) -> Checkpoints:
    config = context.config
    uri = config["penstock.checkpoint.uri"]
    facts = facts_of(context.topology, config) if uri else {}
    settings = CheckpointSettings(
        uri,
        config["penstock.checkpoint.interval.ms"],
        config["penstock.checkpoint.keep"],
        context.application_id,
        facts,
        checksum(facts),
        context.committed_only,
    )
    return Checkpoints(
        settings,
        clients.admin,
        context.clock,
        lambda: membership.group_metadata().generation,
        context.logger("checkpoints"),
    )


def _commits(
    context: ThreadContext,
    clients: ThreadClients,
    membership: GroupMember,
    active: AssignedStreamsTasks,
    consumer: PartitionConsumer,
    producer: StreamsProducer,
) -> TaskCommits:
    end_offsets = clients.changelog_offsets(COMMIT_OFFSETS_TIMEOUT_MS).end_offsets
    commit = ExactlyOnceCommit if producer.transactional else AtLeastOnceCommit
    new_commit = partial(commit, producer, membership, end_offsets, context.logger("committer"), consumer.read_ahead)
    log = context.logger("task_manager")
    return TaskCommits(active, membership, producer.transactional, new_commit, context.spans, log)
