"""The topologies and tasks of a described group's members, and the topics of these tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from penstock.clients.group.group_description import GroupDescription, GroupMemberDescription
from penstock.topology.errors import StreamsError
from penstock.topology.graph.topology_facts import Facts, unpack_facts
from penstock.topology.records import TaskId

from .assignment_info import AssignmentInfo
from .subscription_info import Partitions, SubscriptionInfo


def facts_of_member(member: GroupMemberDescription) -> Facts | None:
    """Return the topology of a member, None if it is not in its metadata: in a streams group, or on Java."""
    if member.subscription is None:
        return None
    try:
        return unpack_facts(SubscriptionInfo.decode(member.subscription.user_data, "a member of the group").facts)
    except (StreamsError, ValueError):  # of another program, or of a member that is joining
        return None


def tasks_given(member: GroupMemberDescription) -> Mapping[TaskId, Partitions]:
    """Return a member's active and standby tasks with their partitions; a streams group does not have them.

    None while the group rebalances.
    """
    if member.assignment is None:
        return dict.fromkeys(member.tasks.active | member.tasks.replicas, frozenset())
    try:
        info = AssignmentInfo.decode(member.assignment.user_data, member.assignment.active)
    except StreamsError:  # of another program, or of a member that is joining
        return {}
    return {**info.standby, **info.active}


def topics_read(group: GroupDescription) -> Mapping[str, list[str]]:
    """Return the topics that the members' tasks read, by sub-topology."""
    found: dict[str, set[str]] = defaultdict(set)
    for member in group.members:
        for task, partitions in tasks_given(member).items():
            found[str(task.subtopology)].update(partition.topic for partition in partitions)
    return {number: sorted(topics) for number, topics in sorted(found.items())}
