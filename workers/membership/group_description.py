"""What a coordinator tells of a group: its members, and what they or the broker say of the topology.

Classic groups answer DescribeGroups, with the bytes that each member joined with; streams groups answer
StreamsGroupDescribe, with the topics of the topology that the broker was told (KIP-1071). Consumer groups (KIP-848), of
programs that are no Kafka Streams application, answer ConsumerGroupDescribe.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.clients.errors import BrokerError, ErrorCode
from penstock.clients.protocol.messages import CONSUMER_GROUP_DESCRIBE, DESCRIBE_GROUPS
from penstock.clients.protocol.schema import Request
from penstock.topology.errors import StreamsError
from penstock.topology.records import TaskId
from penstock.topology.topology_facts import Facts, unpack_facts

from ..assignment.assignment_info import AssignmentInfo
from ..assignment.subscription_info import Partitions, SubscriptionInfo
from . import requests, streams_messages
from .offsets import GroupOffsets

#: States of a group without members; DEAD: there is no such group.
WITHOUT_MEMBERS = ("EMPTY", "DEAD")


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """One member. facts: the topology that it runs, None if it does not tell: in a streams group, or one on Java.

    tasks: its active and standby tasks with what they read, which a streams group does not tell; none while the group
    rebalances. instance_id: its group.instance.id, None if it is dynamic.
    """

    client_id: str
    host: str
    facts: Facts | None = None
    tasks: Mapping[TaskId, Partitions] = field(default_factory=dict)
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. state: in capitals, as Kafka names it. protocol: "classic", "streams", "consumer", "" if there is none.

    topics: of a streams group, the topics of each sub-topology as topology_facts.internal_names gives them; None of a
    classic one.
    """

    state: str
    protocol: str = ""
    members: tuple[GroupMemberDescription, ...] = ()
    topics: Mapping[str, Mapping[str, list[str]]] | None = None

    @property
    def has_members(self) -> bool:
        """Whether anybody is in it."""
        return self.state not in WITHOUT_MEMBERS

    @property
    def reads(self) -> Mapping[str, list[str]]:
        """What the members' tasks read, by sub-topology."""
        found: dict[str, set[str]] = defaultdict(set)
        for member in self.members:
            for task, partitions in member.tasks.items():
                found[str(task.subtopology)].update(partition.topic for partition in partitions)
        return {number: sorted(topics) for number, topics in sorted(found.items())}


async def describe_group(group_id: str, offsets: GroupOffsets, check: Callable[[int], None]) -> GroupDescription:
    """Ask the coordinator, again and again as ``offsets`` does; check: raises what an error code means.

    Raises UnreachableError or BrokerError, the last one when the time is up.
    """
    kinds: tuple[tuple[Callable[[], Request], Callable[..., GroupDescription | None]], ...] = (
        (lambda: DESCRIBE_GROUPS(groups=[group_id]), _classic_group),
        (lambda: streams_messages.describe(group_id), _streams_group),
        (lambda: CONSUMER_GROUP_DESCRIBE(group_ids=[group_id]), _consumer_group),
    )
    for request, read in kinds:
        try:
            found = await offsets.until_deadline(request, partial(_existing, check, read))
        except BrokerError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            continue  # brokers without groups of this kind have none
        if found is not None:
            return found
    return GroupDescription("DEAD")


def _existing(
    check: Callable[[int], None], read: Callable[..., GroupDescription | None], response: Any
) -> GroupDescription | None:
    """Return the group of a response, None if there is no such group of this kind."""
    group = response.groups[0]
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check(group.error_code)
    return read(response)


def _classic_group(response: Any) -> GroupDescription | None:
    group = response.groups[0]
    state = group.group_state.upper()
    return None if state == "DEAD" else GroupDescription(state, "classic", tuple(map(_classic_member, group.members)))


def _streams_group(response: Any) -> GroupDescription:
    group = response.groups[0]
    described = streams_messages.described_members(response)[1]
    members = tuple(
        GroupMemberDescription(
            member.client_id,
            member.client_host,
            tasks=dict.fromkeys(found.tasks.active | found.tasks.replicas, frozenset()),
            instance_id=found.instance_id,
        )
        for member, found in zip(group.members, described, strict=True)
    )
    return GroupDescription(group.group_state.upper(), "streams", members, _topics(group.topology))


def _consumer_group(response: Any) -> GroupDescription:
    group = response.groups[0]
    members = (GroupMemberDescription(m.client_id, m.client_host, instance_id=m.instance_id) for m in group.members)
    return GroupDescription(group.group_state.upper(), "consumer", tuple(members))


def _classic_member(member: Any) -> GroupMemberDescription:
    facts, tasks = _facts(member.member_metadata), _tasks(member.member_assignment)
    return GroupMemberDescription(member.client_id, member.client_host, facts, tasks, member.group_instance_id)


def _facts(envelope: bytes) -> Facts | None:
    try:
        subscription = requests.decode_subscription(envelope, "a member of the group")
        return unpack_facts(SubscriptionInfo.decode(subscription.user_data, "a member of the group").facts)
    except (StreamsError, ValueError):  # another program's, or of a member that is just joining
        return None


def _tasks(envelope: bytes) -> Mapping[TaskId, Partitions]:
    try:
        assigned = requests.decode_assignment(0, envelope)
        info = AssignmentInfo.decode(assigned.user_data, assigned.active)
    except StreamsError:  # another program's, or of a member that is just joining
        return {}
    return {**info.standby, **info.active}


def _topics(topology: Any) -> Mapping[str, Mapping[str, list[str]]] | None:
    if topology is None:
        return None
    return {
        part.subtopology_id: {
            "sources": sorted(part.source_topics),
            "changelogs": sorted(
                topic.name for topic in part.state_changelog_topics if topic.name not in part.source_topics
            ),
            "repartitions": sorted(topic.name for topic in part.repartition_source_topics),
        }
        for part in topology.subtopologies or ()
    }
