"""Assembles a stream thread from its parts (Kafka Streams: StreamThread.create)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from penstock.clients.clock import Clock, SystemClock
from penstock.clients.group.group_member import GroupMember
from penstock.statestore.store_factory import OpenRows
from penstock.topology.graph.topology import Topology
from penstock.topology.query.isolation_level import DEFAULT_ISOLATION, IsolationLevel

from ..control.messages import ThreadControl, ThreadSpec
from ..group.internal_topic_manager import InternalTopicManager
from ..group.rebalancer import Rebalancer
from ..group.source_topics import BuiltTopologies
from ..group.topic_names import TopicNames
from ..metrics.client_health import ClientHealth
from ..queries.store_reads import StoreReader
from ..restore.listeners import StandbyUpdateListener, StateRestoreListener
from ..stalls.open_transactions import STANDSTILL_MS, OpenTransactionWatch
from ..stalls.stall_response import StallResponse
from .client_supplier import KafkaClientSupplier, configured_supplier
from .commit_hold import CommitHold
from .event_loop import EventLoopThread, MakeAsyncCalls
from .input_limit import InputLimit
from .thread_clients import ThreadClients
from .thread_commands import Answers
from .thread_context import ThreadContext
from .thread_group import create_assignor, create_membership, create_rebalancer, member_labels
from .thread_status import Measurement, StatusReporter
from .thread_tasks import TaskResources, ThreadTasks, create_tasks
from .thread_telemetry import ThreadTelemetry


@dataclass(frozen=True, eq=False)
class StreamThreadParts:
    """The parts of a stream thread; see create_parts. close_last: closes the remaining clients, by name in the log."""

    context: ThreadContext
    tasks: ThreadTasks
    group: Rebalancer
    open_transactions: OpenTransactionWatch
    status: StatusReporter
    answers: Answers
    telemetry: ThreadTelemetry
    stalls: StallResponse
    hold: CommitHold
    input_limit: InputLimit
    close_last: Mapping[str, Callable[[], None]]


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
    resources = TaskResources(
        state_restore_listener or StateRestoreListener(),
        standby_update_listener or StandbyUpdateListener(),
        open_rows,
        background or ThreadPoolExecutor(1, "background"),
        make_async_calls,
    )
    context = ThreadContext(topology, spec, control, supplier, clock, sleep)
    clients = ThreadClients(context)
    log = context.logger("internal_topic_manager")
    topic_manager = InternalTopicManager(clients.admin, spec.config, clock, log, sleep)
    topologies = BuiltTopologies(topology.internal_builder, spec.config, topic_manager.topic_counts, clock, log)
    topics = TopicNames(context.application_id, topologies)
    assignor = create_assignor(context, clients)
    membership = create_membership(context, assignor, topologies, topics)
    tasks = create_tasks(context, clients, topologies, topics, membership, resources, lambda: topic_manager.ids)
    health = _client_health(context, clients, membership, tasks)
    answers = _answers(context, topologies, topics, tasks, health)
    return StreamThreadParts(
        context,
        tasks,
        create_rebalancer(context, clients, topologies, topic_manager, topics, assignor, membership, tasks),
        _open_transactions(context, clients, tasks),
        StatusReporter(
            context.config,
            context.time,
            context.states,
            control,
            tasks.manager,
            tasks.consumer,
            tasks.changelog_reader,
            health,
            context.metrics,
            tasks.async_calls,
            tasks.checkpoints,
            context.log,
        ),
        answers,
        ThreadTelemetry(
            supplier.telemetries,
            f"{context.name}-consumer",
            partial(member_labels, context, membership),
            answers.measurement.groups,
            answers.measurement.of_clients,
            clock,
            control.report,
        ),
        StallResponse(clients.stall_watchdog(tasks.consumer), tasks.manager, context.metrics, control, context.log),
        CommitHold(tasks.manager, membership, topologies, clock, context.log),
        InputLimit(tasks.consumer, clock, context.log),
        {
            "offsets reader": clients.offsets_reader.close,
            "checkpoints": tasks.checkpoints.close,
            "admin client": clients.admin.close,
            "state directory": tasks.state_directory.close,
            "background": resources.background.shutdown,
        },
    )


def _open_transactions(context: ThreadContext, clients: ThreadClients, tasks: ThreadTasks) -> OpenTransactionWatch:
    return OpenTransactionWatch(
        clients.admin,
        tasks.consumer,
        context.clock,
        context.committed_only,
        context.logger("open_transactions"),
        max(STANDSTILL_MS, 2 * context.config["commit.interval.ms"]),  # other threads' transactions may last that long
    )


def _client_health(
    context: ThreadContext, clients: ThreadClients, membership: GroupMember, tasks: ThreadTasks
) -> ClientHealth:
    return ClientHealth(
        context.name,
        {"consumer": tasks.consumer.health, "restore-consumer": tasks.restore_consumer.health},
        tasks.producer.health,
        (membership.waits, clients.admin.waits),
        context.metrics,
    )


def _answers(
    context: ThreadContext, topologies: BuiltTopologies, topics: TopicNames, tasks: ThreadTasks, health: ClientHealth
) -> Answers:
    isolation, count = IsolationLevel(context.config[DEFAULT_ISOLATION]), tasks.producer.partition_count
    reader = tasks.changelog_reader
    return Answers(
        StoreReader(topologies, topics, tasks.manager, tasks.global_state, reader, count, isolation),
        Measurement(
            context.name,
            context.time,
            tasks.manager,
            tasks.consumer,
            tasks.producer,
            reader,
            health,
            context.metrics,
            context.custom_metrics,
            context.spec.process_id,
            context.states,
        ),
        context.topology,
        topologies,
        topics,
    )
