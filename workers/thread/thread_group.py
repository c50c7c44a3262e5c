"""A stream thread's part in its group: assignor and membership, and the rebalancer over its tasks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from uuid import UUID

from penstock.clients.group.group_member import GroupMember
from penstock.topology.errors import StreamsError
from penstock.topology.graph.topology_facts import facts_of, pack_facts

from ..control.messages import ApplicationShutdownRequested
from ..group.assignment.described_members import tasks_given
from ..group.assignment.group_gate import refuse_consumers, refuse_other_topology
from ..group.assignment.streams_partition_assignor import StreamsPartitionAssignor
from ..group.assignment.streams_settings import tell_broker_settings
from ..group.assignment.streams_topology import streams_topology
from ..group.internal_topic_manager import InternalTopicManager
from ..group.rebalance_listener import RebalanceListener
from ..group.rebalancer import Rebalancer
from ..group.source_topics import BuiltTopologies
from ..group.streams_metadata import HostReporter
from ..group.task_offset_reporter import TaskOffsetReporter
from ..group.topic_names import TopicNames
from ..group.topology_push import described_topology
from .thread_clients import ThreadClients
from .thread_context import ThreadContext
from .thread_tasks import ThreadTasks


def create_assignor(context: ThreadContext, clients: ThreadClients) -> StreamsPartitionAssignor:
    """Return the assignor, which knows no topics yet."""
    return StreamsPartitionAssignor(
        context.config,
        UUID(context.spec.process_id),
        clients.changelog_offsets(),
        context.clock,
        context.logger("streams_partition_assignor"),
        context.config.with_prefix("client.tag."),
        rack=context.config["client.rack"],
        facts=pack_facts(facts_of(context.topology, context.config)),
    )


def create_membership(
    context: ThreadContext, assignor: StreamsPartitionAssignor, topologies: BuiltTopologies, topics: TopicNames
) -> GroupMember:
    """Return a membership that has not joined yet. assignor: used if it leads the group."""
    supplier, client_id = context.supplier, f"{context.name}-member"
    if not context.broker_assigns:
        return supplier.get_group_member(client_id, assignor.assign, context.instance_id)
    tell_broker_settings(context.config, context.log)
    topology = streams_topology(topologies, context.config)
    if context.config["topology.description.push.enabled"]:
        description = described_topology(context.topology.describe(), topics.full)
        topology = replace(topology, description=description)
    return supplier.get_streams_group_member(client_id, topology, context.instance_id)


def create_rebalancer(
    context: ThreadContext,
    clients: ThreadClients,
    topologies: BuiltTopologies,
    topic_manager: InternalTopicManager,
    topics: TopicNames,
    assignor: StreamsPartitionAssignor,
    membership: GroupMember,
    tasks: ThreadTasks,
) -> Rebalancer:
    """Return what takes these tasks through the rebalances of the group."""
    reporter = None
    if context.broker_assigns:
        reporter = TaskOffsetReporter(
            membership.report_task_offsets, tasks.manager, tasks.changelog_reader, context.clock
        )
    listener = RebalanceListener(
        tasks.manager,
        context.states,
        context.clock,
        lambda: context.control.report(ApplicationShutdownRequested()),
        context.log,
        context.metrics,
    )
    return Rebalancer(
        membership,
        assignor,
        topologies,
        topic_manager,
        tasks.manager,
        listener,
        context.clock,
        context.log,
        reporter,
        HostReporter(context.control.report, topologies, topics),
        None if context.broker_assigns else partial(_refuse_other_group, context, clients, topologies),
        context.spans,
    )


def _refuse_other_group(context: ThreadContext, clients: ThreadClients, topologies: BuiltTopologies) -> None:
    """Check the topology of the group's members before joining; without an answer, join.

    This host's own members do not count: they are remains of an earlier run, until their session ends.
    """
    try:
        group = clients.offsets_reader.describe()
    except StreamsError as error:
        context.log.info("The group's topology could not be read before joining: %s", error)
        return
    if group.protocol == "consumer":
        refuse_consumers(context.application_id, [member.client_id for member in group.members])
    own = (context.instance_id or "").rpartition("-")[0]
    others = [tasks_given(m) for m in group.members if not own or (m.instance_id or "").rpartition("-")[0] != own]
    refuse_other_topology(context.application_id, others, topologies.infos)


def member_labels(context: ThreadContext, membership: GroupMember) -> dict[str, str]:
    """Return what describes this thread's member in pushed metrics (Kafka: ClientTelemetryProvider)."""
    labels = {
        "group_id": context.application_id,
        "group_instance_id": context.instance_id,
        "group_member_id": membership.member_id,
    }
    return {name: value for name, value in labels.items() if value}
