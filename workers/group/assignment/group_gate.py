"""Keeps a member out of a group with another topology, where it would get or assign the wrong tasks.

Also keeps it out of a group of programs that are not Kafka Streams applications.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.topology.errors import TaskAssignmentError
from penstock.topology.records import TaskId

from .subscription_info import Partitions, SubscriptionInfo
from .topics_info import TopicsInfo

#: What the operator can do.
ADVICE = (
    "Two applications have the same application.id, or members run different versions of a program: give each one its "
    "own id, and stop all members before a changed topology starts. `penstock plan` shows what differs."
)


class OtherTopologyError(TaskAssignmentError):
    """The group runs another topology than this member."""


def unfit(tasks: Mapping[TaskId, Partitions], topics: Mapping[int, TopicsInfo]) -> str | None:
    """Return why tasks belong to another topology, None if they do not.

    Their records would be processed by the wrong processors, or by none. topics: those of this topology; empty while
    unknown.
    """
    for task, partitions in sorted(tasks.items()) if topics else ():
        info = topics.get(task.subtopology)
        own = info.source_topics if info is not None else frozenset()
        given = {partition.topic for partition in partitions}
        may_be_newer = info is not None and info.has_patterns and bool(given & own)
        if given - own and not may_be_newer:
            return (
                f"task {task} reads {', '.join(sorted(given))} there; in the topology of this program sub-topology "
                f"{task.subtopology} reads {', '.join(sorted(own)) or 'nothing'}."
            )
    return None


def refuse_other_topology(
    group_id: str, running: Collection[Mapping[TaskId, Partitions]], topics: Mapping[int, TopicsInfo]
) -> None:
    """Raise OtherTopologyError if members of the group run tasks of another topology. running: by member."""
    for tasks in running:
        if reason := unfit(tasks, topics):
            raise OtherTopologyError(f"Group {group_id} runs another topology: {reason} {ADVICE}")


def refuse_consumers(group_id: str, members: Collection[str]) -> None:
    """Raise OtherTopologyError for a consumer group (KIP-848) with members; members: their client ids.

    The broker would accept this member, and move partitions to it that belong to no task.
    """
    if members:
        raise OtherTopologyError(
            f"Group {group_id} is a consumer group of programs that are not Kafka Streams applications: "
            f"{', '.join(sorted(set(members)))}. Stop them, or choose another application.id."
        )


def refuse_to_lead(
    infos: Mapping[str, SubscriptionInfo], owned: Mapping[str, Partitions], topics: Mapping[int, TopicsInfo]
) -> None:
    """Raise OtherTopologyError if a member runs tasks that this topology lacks: this leader would revoke them.

    owned: the partitions of each member's active tasks; topics: those of this topology.
    """
    read = {topic for info in topics.values() for topic in info.source_topics}
    for member, info in infos.items():
        unknown = sorted(task for task in info.active_tasks if task.subtopology not in topics)
        foreign = sorted({partition.topic for partition in owned[member]})
        if unknown or (foreign and not read.intersection(foreign)):
            what = f"runs tasks {', '.join(map(str, unknown))}" if unknown else f"reads {', '.join(foreign)}"
            raise OtherTopologyError(
                f"Member {member} {what}; the topology of this member, which leads the group, does not. {ADVICE}"
            )
