"""The tasks of a stream thread: their manager, and the consumers, producer and stores that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from penstock.clients.group.membership import GroupMembership
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.statestore.checkpoints.manifest import checksum
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.statestore.store_factory import OpenRows
from penstock.topology.graph.topology_facts import facts_of
from penstock.topology.records import TaskId, TopicPartition

from ..group.source_topics import BuiltTopologies
from ..group.topic_names import TopicNames
from ..restore.listeners import StandbyUpdateListener, StateRestoreListener
from ..restore.restore_spans import RestoreSpans
from ..restore.store_changelog_reader import StoreChangelogReader
from ..stalls.stall_response import RestoreStallResponse
from ..tasks.asked_together import AskedTogether
from ..tasks.assigned_streams_tasks import AssignedStreamsTasks
from ..tasks.assigned_tasks import AssignedTasks
from ..tasks.changelog_bounds import ChangelogBounds
from ..tasks.checkpoints import Checkpoints, CheckpointSettings
from ..tasks.committer import Committer
from ..tasks.global_state import GlobalState, GlobalTask, NoGlobalState
from ..tasks.idle_inputs import AdminTopicTimes
from ..tasks.offset_reset import InvalidPositions, OffsetReset
from ..tasks.record_purge import RecordPurge
from ..tasks.stream_task import TaskClients
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


class ThreadTasks:
    """Creates the tasks' manager with everything below it. topic_ids: returns those of the topics that are read."""

    def __init__(
        self,
        context: ThreadContext,
        clients: ThreadClients,
        topologies: BuiltTopologies,
        topics: TopicNames,
        membership: GroupMembership,
        resources: TaskResources,
        topic_ids: Callable[[], Mapping[str, bytes]],
    ) -> None:
        self._context, self._clients, self._resources = context, clients, resources
        self._topologies, self._topics, self._membership = topologies, topics, membership
        config, supplier = context.config, context.supplier
        self.state_directory = StateDirectory(
            config["state.dir"],
            context.application_id,
            context.clock.wall_clock_ms,
            config["allow.os.group.write.access"],
        )
        self.global_topology = context.topology.internal_builder.build_global_topology(config)
        self.global_state = self._global_state()
        self.producer = clients.producer(lambda: membership.in_doubt)
        context.log.info("Creating restore consumer client")
        self.restore_consumer = clients.partition_consumer(supplier.get_restore_consumer, "restore-consumer")
        self._timeouts = TaskTimeouts(config["task.timeout.ms"], context.clock, context.logger("task_timeouts"))
        self.changelog_reader = self._changelog_reader()
        context.log.info("Creating consumer client")
        self.consumer = clients.partition_consumer(supplier.get_consumer, "consumer")
        self._offset_reset = OffsetReset(
            topologies,
            topics,
            config["auto.offset.reset"],
            clients.offsets.offsets_at,
            context.clock.wall_clock_ms,
            context.log,
        )
        loop_name = f"{context.spec.client_id}-EventLoop-{context.spec.slot}"
        self.async_calls = resources.make_async_calls(loop_name, self.consumer.wake)
        self.checkpoints = self._checkpoints()
        self.manager = self._manager(self._environment(topic_ids))
        self.invalid_positions = InvalidPositions(
            self.consumer, self._offset_reset, self._timeouts, self._task_of, context.log
        )

    def _global_state(self) -> GlobalState:
        if self.global_topology is None:
            return NoGlobalState()
        context = self._context
        # Only one process can open a RocksDB.
        directory = self.state_directory.global_state_dir() / str(context.spec.slot)
        log = context.logger("global_state")
        measured = context.time, context.metrics, context.custom_metrics
        task = GlobalTask(context.config, self._topics, *measured, directory, log)
        consumer = self._clients.partition_consumer(context.supplier.get_global_consumer, "global-consumer")
        return GlobalState(self.global_topology, task, consumer, self._clients.offsets, directory, log)

    def _changelog_reader(self) -> StoreChangelogReader:
        context, consumer, listener = self._context, self.restore_consumer, self._resources.restore_listener
        timeout_ms = context.config["task.timeout.ms"]
        if context.config["penstock.tracing"]:
            listener = RestoreSpans(context.spans, listener)
        watchdog = self._clients.stall_watchdog(consumer)
        return StoreChangelogReader(
            consumer,
            self._membership.committed,
            ChangelogBounds(self._clients.admin, context.clock, timeout_ms, context.logger("changelog_bounds")),
            listener,
            self._resources.standby_listener,
            context.clock,
            context.config["commit.interval.ms"],
            self._timeouts,
            RestoreStallResponse(watchdog, consumer, context.logger("stall_response")),
            context.logger("store_changelog_reader"),
        )

    def _environment(self, topic_ids: Callable[[], Mapping[str, bytes]]) -> TaskEnvironment:
        context = self._context
        # Kafka Streams divides by one more if there is a global thread; here global tables are not cached.
        cache_bytes = context.config["statestore.cache.max.bytes"] // max(context.spec.num_threads, 1)
        return TaskEnvironment(
            context.config,
            context.time,
            self._topics,
            self.state_directory,
            ThreadCache(cache_bytes),
            context.metrics,
            self.changelog_reader,
            self.global_state.store,
            context.log_prefix,
            self._resources.background,
            context.custom_metrics,
            self.async_calls,
            AdminTopicTimes(self._clients.admin, self.producer.partition_count, context.committed_only),
            topic_ids,
            self.checkpoints,
            self._resources.open_rows,
            context.spans,
        )

    def _checkpoints(self) -> Checkpoints:
        context, config = self._context, self._context.config
        uri = config["penstock.checkpoint.uri"]
        facts: Mapping[str, Any] = facts_of(context.topology, config) if uri else {}
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
            self._clients.admin,
            context.clock,
            lambda: self._membership.group_metadata().generation,
            context.logger("checkpoints"),
        )

    def _manager(self, environment: TaskEnvironment) -> TaskManager:
        context, topologies = self._context, self._topologies
        committed = AskedTogether("committed offsets", self._membership.committed, context.log)
        clients = TaskClients(self.consumer, self.producer, committed.of, self._offset_reset.start_offset)
        committer = Committer(
            self.producer,
            self._membership,
            self._clients.changelog_offsets(COMMIT_OFFSETS_TIMEOUT_MS).end_offsets,
            self._timeouts,
            context.logger("committer"),
            self.consumer.read_ahead,
            context.spans,
        )
        active = AssignedStreamsTasks(context.logger("assigned_streams_tasks"), self._timeouts)
        log = context.logger("task_manager")
        return TaskManager(
            active,
            AssignedTasks("standby task", context.logger("assigned_standby_tasks")),
            TaskCreator(topologies, environment, context.log, clients),
            StandbyTaskCreator(topologies, environment, context.log),
            self.changelog_reader,
            TaskCommits(active, committer, self._membership, log),
            self.consumer,
            self.producer,
            self.state_directory,
            self._offset_reset,
            committed,
            RecordPurge(self._clients.admin, context.log),
            log,
        )

    def _task_of(self, partition: TopicPartition) -> TaskId | None:
        task = self.manager.active.running_task_for(partition)
        return None if task is None else task.task_id
