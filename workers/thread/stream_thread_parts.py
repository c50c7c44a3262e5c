"""Assembles a stream thread from its parts (Kafka Streams: StreamThread.create)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from penstock.clients.clock import Clock, SystemClock
from penstock.clients.cluster.admin import answered
from penstock.clients.cluster.offsets import LATEST
from penstock.clients.group.group_member import StreamsGroupMember
from penstock.clients.group.membership import GroupMembership
from penstock.clients.librdkafka import as_reader, as_writer
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import limit_ms
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.statestore.store_factory import OpenRows
from penstock.topology.config.config_keys import EXACTLY_ONCE_V2
from penstock.topology.context.exception_handlers import asks_for_sources
from penstock.topology.errors import StreamsError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.graph.topology import Topology
from penstock.topology.graph.topology_facts import facts_of, pack_facts
from penstock.topology.query.isolation_level import DEFAULT_ISOLATION, IsolationLevel
from penstock.topology.records import TaskId, TopicPartition

from ..control.messages import ApplicationShutdownRequested, ThreadControl, ThreadSpec
from ..control.stream_thread_state import stream_thread_states
from ..group.assignment.changelog_offsets import AdminChangelogOffsets
from ..group.assignment.described_members import tasks_given
from ..group.assignment.group_gate import refuse_consumers, refuse_other_topology
from ..group.assignment.streams_partition_assignor import StreamsPartitionAssignor
from ..group.assignment.streams_settings import tell_broker_settings
from ..group.assignment.streams_topology import streams_topology
from ..group.internal_topic_manager import InternalTopicManager
from ..group.rebalance_listener import RebalanceListener
from ..group.rebalancer import Rebalancer
from ..group.source_topics import BuiltTopologies, SourceTopics
from ..group.streams_metadata import HostReporter
from ..group.task_offset_reporter import TaskOffsetReporter
from ..group.topic_names import TopicNames
from ..group.topology_push import described_topology
from ..metrics.client_health import ClientHealth
from ..metrics.custom_metrics import CustomMetrics
from ..metrics.loop_time import LoopTime
from ..metrics.sensors import ThreadMetrics
from ..metrics.spans import OpenTelemetrySpans, Spans
from ..queries.store_reads import StoreReader
from ..restore.listeners import StandbyUpdateListener, StateRestoreListener
from ..restore.restore_spans import RestoreSpans
from ..restore.store_changelog_reader import StoreChangelogReader
from ..stalls.open_transactions import STANDSTILL_MS, OpenTransactionWatch
from ..stalls.stall_response import RestoreStallResponse, StallResponse
from ..stalls.stall_watchdog import END_OFFSETS_TIMEOUT_MS, StallWatchdog
from ..tasks.asked_together import AskedTogether
from ..tasks.assigned_streams_tasks import AssignedStreamsTasks
from ..tasks.assigned_tasks import AssignedTasks
from ..tasks.changelog_bounds import ChangelogBounds
from ..tasks.committer import Committer
from ..tasks.global_state import GlobalState, GlobalTask, NoGlobalState
from ..tasks.idle_inputs import AdminTopicTimes
from ..tasks.offset_reset import InvalidPositions, OffsetReset
from ..tasks.partition_consumer import PartitionConsumer
from ..tasks.partition_offsets import PartitionOffsets
from ..tasks.record_collector import production_error_handler
from ..tasks.record_purge import RecordPurge
from ..tasks.sink_topics import SinkTopics
from ..tasks.stream_task import TaskClients
from ..tasks.streams_producer import StreamsProducer
from ..tasks.task import TaskEnvironment
from ..tasks.task_commits import TaskCommits
from ..tasks.task_creator import StandbyTaskCreator, TaskCreator
from ..tasks.task_manager import TaskManager
from ..tasks.task_timeouts import TaskTimeouts
from .client_supplier import KafkaClientSupplier, configured_supplier, static_instance_id
from .event_loop import EventLoopThread, MakeAsyncCalls
from .thread_commands import Answers
from .thread_status import Measurement, StatusReporter
from .thread_telemetry import ThreadTelemetry

#: Time limit for the group leader's requests of offsets, in ms.
OFFSETS_TIMEOUT_MS = 10_000
#: Time limit for a commit's request of end offsets, in ms; the loop then retries, until task.timeout.ms.
COMMIT_OFFSETS_TIMEOUT_MS = 5_000
#: Time limit for a request to list topics, in ms.
METADATA_TIMEOUT_MS = 60_000


def create_parts(
    topology: Topology,
    spec: ThreadSpec,
    control: ThreadControl,
    *,
    supplier: KafkaClientSupplier | None = None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
    state_restore_listener: StateRestoreListener | None = None,
    standby_update_listener: StandbyUpdateListener | None = None,
    open_rows: OpenRows | None = None,
    background: Executor | None = None,
    make_async_calls: MakeAsyncCalls = EventLoopThread,
) -> StreamThreadParts:
    """Create the clients and everything that uses them. supplier: creates the clients.

    sleep: waits (s) until new topics can be used. The stream thread itself calls the listeners. background: the
    executor for the stores' background work, by default another thread; the simulation runs it synchronously.
    make_async_calls(name, on_ended): creates the object that runs async functions.

    Raises ConfigError for settings that a client refuses, MissingSourceTopicError if a pattern matches no topic, and
    StreamsError if the state directory cannot be used.
    """
    clock = clock or SystemClock()
    supplier = supplier or configured_supplier(spec.config, clock)
    listeners = (state_restore_listener or StateRestoreListener(), standby_update_listener or StandbyUpdateListener())
    beside = background or ThreadPoolExecutor(1, "background"), make_async_calls
    return StreamThreadParts(topology, spec, control, supplier, clock, sleep, *listeners, open_rows, *beside)


@dataclass(eq=False)
class StreamThreadParts:
    """The parts of a stream thread, in the order of their dependencies; see create_parts.

    close_clients: functions that close the other clients, by name in the log.
    """

    topology: Topology
    spec: ThreadSpec
    control: ThreadControl
    supplier: KafkaClientSupplier
    clock: Clock
    sleep: Callable[[float], None]
    restore_listener: StateRestoreListener
    standby_listener: StandbyUpdateListener
    open_rows: OpenRows | None
    background: Executor
    make_async_calls: MakeAsyncCalls

    def __post_init__(self) -> None:
        self.config = self.spec.config
        self.application_id: str = self.spec.config["application.id"]
        self.name = f"{self.spec.client_id}-StreamThread-{self.spec.slot}"
        self.spans = Spans()
        if self.config["penstock.tracing"]:
            self.spans = OpenTelemetrySpans({"kafka.streams.thread": self.name})
            self.restore_listener = RestoreSpans(self.spans, self.restore_listener)
        self.log_prefix = f"stream-thread [{self.name}] "
        self.log = PrefixedLogger("penstock.workers.stream_thread", self.log_prefix)
        self.time = LoopTime(self.clock)
        self.metrics = ThreadMetrics(
            self.config["metrics.sample.window.ms"],
            self.config["metrics.num.samples"],
            self.config["penstock.metrics.sampling.percent"],
        )
        self.custom_metrics = CustomMetrics({"thread-id": self.name}, self.metrics.sensor, lambda: self.time.now_ms)
        self.states = stream_thread_states(self.log)
        self.instance_id = static_instance_id(self.config, self.spec.process_id, self.spec.slot)
        self.committed_only = self.config["isolation.level"] == "read_committed"
        self.admin = self.supplier.get_admin(f"{self.name}-admin")
        self.offsets = PartitionOffsets(self.admin, self.committed_only)
        builder = self.topology.internal_builder
        self.topologies = BuiltTopologies(builder, self.config, self._topic_counts)
        self.global_topology: ProcessorTopology | None = builder.build_global_topology(self.config)
        self.topics = TopicNames(self.application_id, self.topologies)
        self.state_directory = StateDirectory(
            self.config["state.dir"],
            self.application_id,
            self.clock.wall_clock_ms,
            self.config["allow.os.group.write.access"],
        )
        self.global_state = self._global_state()
        self.producer = self._producer()
        self.log.info("Creating restore consumer client")
        restore_consumer = self._partition_consumer(self.supplier.get_restore_consumer, "restore-consumer")
        self.assignor = self._assignor()
        self.membership = self._membership()
        self.timeouts = TaskTimeouts(self.config["task.timeout.ms"], self.clock, self._log("task_timeouts"))
        self.changelog_reader = self._changelog_reader(restore_consumer)
        self.log.info("Creating consumer client")
        self.consumer = self._partition_consumer(self.supplier.get_consumer, "consumer")
        self.offset_reset = OffsetReset(
            self.topologies,
            self.topics,
            self.config["auto.offset.reset"],
            self.offsets.offsets_at,
            self.clock.wall_clock_ms,
            self.log,
        )
        loop_name = f"{self.spec.client_id}-EventLoop-{self.spec.slot}"
        self.async_calls = self.make_async_calls(loop_name, self.consumer.wake)
        self.task_manager = self._task_manager()
        self.invalid_positions = InvalidPositions(
            self.consumer, self.offset_reset, self.timeouts, self._task_of, self.log
        )
        self.group = self._group()
        self.open_transactions = OpenTransactionWatch(
            self.admin,
            self.consumer,
            self.clock,
            self.committed_only,
            self._log("open_transactions"),
            max(STANDSTILL_MS, 2 * self.config["commit.interval.ms"]),  # other threads' transactions may last that long
        )
        self.client_health = ClientHealth(
            self.name,
            {"consumer": self.consumer.health, "restore-consumer": restore_consumer.health},
            self.producer.health,
            (self.membership.waits, self.admin.waits),
            self.metrics,
        )
        self.status = StatusReporter(
            self.config,
            self.time,
            self.states,
            self.control,
            self.task_manager,
            self.consumer,
            self.changelog_reader,
            self.client_health,
            self.metrics,
            self.async_calls,
            self.log,
        )
        self.answers = self._answers()
        self.telemetry = ThreadTelemetry(
            self.supplier.telemetries,
            f"{self.name}-consumer",
            self._member_labels,
            self.answers.measurement.groups,
            self.answers.measurement.of_clients,
            self.clock,
            self.control.report,
        )
        self.stalls = StallResponse(
            self._stall_watchdog(self.consumer), self.task_manager, self.metrics, self.control, self.log
        )
        self.close_clients: Mapping[str, Callable[[], None]] = {
            "offsets reader": self.offsets_reader.close,
            "admin client": self.admin.close,
            "state directory": self.state_directory.close,
            "background": self.background.shutdown,
        }

    def _member_labels(self) -> dict[str, str]:
        """Return what describes this thread's member in pushed metrics (Kafka: ClientTelemetryProvider)."""
        labels = {
            "group_id": self.application_id,
            "group_instance_id": self.instance_id,
            "group_member_id": self.membership.member_id,
        }
        return {name: value for name, value in labels.items() if value}

    def _topic_counts(self, patience_ms: int | None = None) -> dict[str, int]:
        """Return the partition counts of all topics of the cluster. patience_ms: time limit."""
        timeout_ms = METADATA_TIMEOUT_MS if patience_ms is None else patience_ms
        with answered("The topics of the cluster could not be listed"):
            return self.admin.describe(None, timeout_ms).partition_counts

    def _ask_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Future[int]]:
        """Request the end offsets that readers can reach, without blocking."""
        return self.admin.offsets(dict.fromkeys(partitions, LATEST), END_OFFSETS_TIMEOUT_MS, self.committed_only)

    def _committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        return self.membership.committed(partitions)

    def _task_manager(self) -> TaskManager:
        committed = AskedTogether("committed offsets", self._committed, self.log)
        clients = TaskClients(self.consumer, self.producer, committed.of, self.offset_reset.start_offset)
        environment = self._environment()
        ends = self._changelog_offsets(COMMIT_OFFSETS_TIMEOUT_MS).end_offsets
        ahead, log = self.consumer.read_ahead, self._log("committer")
        committer = Committer(self.producer, self.membership, ends, self.timeouts, log, ahead, self.spans)
        active = AssignedStreamsTasks(self._log("assigned_streams_tasks"), self.timeouts)
        log = self._log("task_manager")
        return TaskManager(
            active,
            AssignedTasks("standby task", self._log("assigned_standby_tasks")),
            TaskCreator(self.topologies, environment, self.log, clients),
            StandbyTaskCreator(self.topologies, environment, self.log),
            self.changelog_reader,
            TaskCommits(active, committer, self.membership, log),
            self.consumer,
            self.producer,
            self.state_directory,
            self.offset_reset,
            committed,
            RecordPurge(self.admin, self.log),
            log,
        )

    def _answers(self) -> Answers:
        built, count = self.topologies, self.producer.partition_count
        reader = self.changelog_reader
        isolation = IsolationLevel(self.config[DEFAULT_ISOLATION])
        return Answers(
            StoreReader(built, self.topics, self.task_manager, self.global_state, reader, count, isolation),
            Measurement(
                self.name,
                self.time,
                self.task_manager,
                self.consumer,
                self.producer,
                reader,
                self.client_health,
                self.metrics,
                self.custom_metrics,
                self.spec.process_id,
                self.states,
            ),
            self.topology,
            built,
            self.topics,
        )

    def _task_of(self, partition: TopicPartition) -> TaskId | None:
        task = self.task_manager.active.running_task_for(partition)
        return None if task is None else task.task_id

    def _changelog_reader(self, consumer: PartitionConsumer) -> StoreChangelogReader:
        return StoreChangelogReader(
            consumer,
            self.membership.committed,
            ChangelogBounds(self.admin, self.clock, self.config["task.timeout.ms"], self._log("changelog_bounds")),
            self.restore_listener,
            self.standby_listener,
            self.clock,
            self.config["commit.interval.ms"],
            self.timeouts,
            RestoreStallResponse(self._stall_watchdog(consumer), consumer, self._log("stall_response")),
            self._log("store_changelog_reader"),
        )

    def _stall_watchdog(self, consumer: PartitionConsumer) -> StallWatchdog:
        return StallWatchdog(
            self.config["penstock.partition.stall.timeout.ms"],
            self.config["penstock.partition.stall.reopen.max"],
            self._ask_ends,
            consumer.throttled_ago_ms,
            self.log,
        )

    def _log(self, module: str) -> PrefixedLogger:
        return PrefixedLogger(f"penstock.workers.{module}", self.log_prefix)

    def _partition_consumer(self, make: Callable[[str], Any], purpose: str) -> PartitionConsumer:
        reader = as_reader(make(f"{self.name}-{purpose}"))
        return PartitionConsumer(reader, self._log("partition_consumer"), self.offsets)

    def _producer(self) -> StreamsProducer:
        transactional = self.config["processing.guarantee"] == EXACTLY_ONCE_V2
        transactional_id = f"{self.application_id}-{self.spec.process_id}-{self.spec.slot}" if transactional else None
        return StreamsProducer(
            lambda: as_writer(self.supplier.get_producer(f"{self.name}-producer", transactional_id=transactional_id)),
            self._log("streams_producer"),
            topics=SinkTopics(self.admin, self.clock, self._metadata_max_age_ms("producer.")),
            transactional=transactional,
            handler=production_error_handler(self.config),
            keeps_sources=asks_for_sources(self.config),
            clock=self.clock,
            transaction_timeout_ms=self.config["transaction.timeout.ms"],
            timeout_ms=self.config["task.timeout.ms"],
            in_doubt=lambda: self.membership.in_doubt,
        )

    def _global_state(self) -> GlobalState:
        if self.global_topology is None:
            return NoGlobalState()
        directory = self.state_directory.global_state_dir() / str(self.spec.slot)  # only one process can open a RocksDB
        log = self._log("global_state")
        task = GlobalTask(self.config, self.topics, self.time, self.metrics, self.custom_metrics, directory, log)
        consumer = self._partition_consumer(self.supplier.get_global_consumer, "global-consumer")
        return GlobalState(self.global_topology, task, consumer, self.offsets, directory, log)

    def _environment(self) -> TaskEnvironment:
        # Kafka Streams divides by one more if there is a global thread; here global tables are not cached.
        cache_bytes = self.config["statestore.cache.max.bytes"] // max(self.spec.num_threads, 1)
        return TaskEnvironment(
            self.config,
            self.time,
            self.topics,
            self.state_directory,
            ThreadCache(cache_bytes),
            self.metrics,
            self.changelog_reader,
            self.global_state.store,
            self.log_prefix,
            self.background,
            self.custom_metrics,
            self.async_calls,
            AdminTopicTimes(self.admin, self.producer.partition_count, self.committed_only),
            lambda: self.group.topics.ids,
            self.open_rows,
            self.spans,
        )

    def _changelog_offsets(self, timeout_ms: int) -> AdminChangelogOffsets:
        return AdminChangelogOffsets(self.admin, self.offsets_reader, timeout_ms)

    def _assignor(self) -> StreamsPartitionAssignor:
        # The group waits for the leader's requests, and this member sends no heartbeats: two must fit into a session.
        timeout_ms = min(OFFSETS_TIMEOUT_MS, self.config["session.timeout.ms"] // 4)
        self.offsets_reader = self.supplier.get_offsets_reader(f"{self.name}-offsets", timeout_ms)
        offsets = self._changelog_offsets(timeout_ms)
        return StreamsPartitionAssignor(
            self.config,
            UUID(self.spec.process_id),
            offsets,
            self.clock,
            self._log("streams_partition_assignor"),
            self.config.with_prefix("client.tag."),
            rack=self.config["client.rack"],
            facts=pack_facts(facts_of(self.topology, self.config)),
        )

    def _membership(self) -> GroupMembership:
        client_id = f"{self.name}-member"
        if self.config["group.protocol"] == "streams":
            tell_broker_settings(self.config, self.log)
            topology = streams_topology(self.topologies, self.config)
            if self.config["topology.description.push.enabled"]:
                description = described_topology(self.topology.describe(), self.topics.full)
                topology = replace(topology, description=description)
            return self.supplier.get_streams_group_member(client_id, topology, self.instance_id)
        return self.supplier.get_group_member(client_id, self.assignor.assign, self.instance_id)

    def _metadata_max_age_ms(self, *prefixes: str) -> int:
        """Return metadata.max.age.ms of the client with these prefixes; 0 is no limit, as for the client."""
        return limit_ms(self.config.of_client("metadata.max.age.ms", *prefixes))

    def _source_topics(self) -> SourceTopics:
        log = self._log("internal_topic_manager")
        manager = InternalTopicManager(self.admin, self.config, self.clock, log, self.sleep)
        broker_makes_them = self.config["group.protocol"] == "streams"
        return SourceTopics(
            self.topologies,
            self._topic_counts,
            (lambda infos, patience_ms: self._topic_counts(patience_ms)) if broker_makes_them else manager.make_ready,
            manager.look,
            lambda infos, counts: self.assignor.update_topics(infos, counts, manager.partition_racks),
            self.clock,
            self._metadata_max_age_ms("consumer.", "main.consumer."),
            log,
        )

    def _group(self) -> Rebalancer:
        reporter = None
        if isinstance(self.membership, StreamsGroupMember):
            report = self.membership.report_task_offsets
            reporter = TaskOffsetReporter(report, self.task_manager, self.changelog_reader, self.clock)
        listener = RebalanceListener(
            self.task_manager,
            self.states,
            self.clock,
            lambda: self.control.report(ApplicationShutdownRequested()),
            self.log,
        )
        return Rebalancer(
            self.membership,
            self.assignor,
            self._source_topics(),
            self.task_manager,
            listener,
            self.clock,
            self.log,
            reporter,
            HostReporter(self.control.report, self.topologies, self.topics),
            None if self.config["group.protocol"] == "streams" else self._refuse_other_group,
            self.spans,
        )

    def _refuse_other_group(self) -> None:
        """Check the topology of the group's members before joining; without an answer, join.

        This host's own members do not count: they are remains of an earlier run, until their session ends.
        """
        application_id = self.config["application.id"]
        try:
            group = self.offsets_reader.describe()
        except StreamsError as error:
            self.log.info("The group's topology could not be read before joining: %s", error)
            return
        if group.protocol == "consumer":
            refuse_consumers(application_id, [member.client_id for member in group.members])
        own = (self.instance_id or "").rpartition("-")[0]
        others = [tasks_given(m) for m in group.members if not own or (m.instance_id or "").rpartition("-")[0] != own]
        refuse_other_topology(application_id, others, self.topologies.infos())
