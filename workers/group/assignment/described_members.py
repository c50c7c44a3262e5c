"""What the members of a described group run: their topology, their tasks, and what these read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from penstock.clients.group.group_description import GroupDescription, GroupMemberDescription
from penstock.topology.errors import StreamsError
from penstock.topology.graph.topology_facts import Facts, unpack_facts
from penstock.topology.records import TaskId

from .assignment_info import AssignmentInfo
from .subscription_info import Partitions, SubscriptionInfo


def facts_told(member: GroupMemberDescription) -> Facts | None:
    """Return the topology that a member runs, None if it does not tell: in a streams group, or one on Java."""
    if member.subscription is None:
        return None
    try:
        return unpack_facts(SubscriptionInfo.decode(member.subscription.user_data, "a member of the group").facts)
    except (StreamsError, ValueError):  # another program's, or of a member that is just joining
        return None


def tasks_given(member: GroupMemberDescription) -> Mapping[TaskId, Partitions]:
    """Return a member's active and standby tasks with what they read, which a streams group does not tell.

    None while the group rebalances.
    """
    if member.assignment is None:
        return dict.fromkeys(member.tasks.active | member.tasks.replicas, frozenset())
    try:
        info = AssignmentInfo.decode(member.assignment.user_data, member.assignment.active)
    except StreamsError:  # another program's, or of a member that is just joining
        return {}
    return {**info.standby, **info.active}


def topics_read(group: GroupDescription) -> Mapping[str, list[str]]:
    """Return what the members' tasks read, by sub-topology."""
    found: dict[str, set[str]] = defaultdict(set)
    for member in group.members:
        for task, partitions in tasks_given(member).items():
            found[str(task.subtopology)].update(partition.topic for partition in partitions)
    return {number: sorted(topics) for number, topics in sorted(found.items())}
