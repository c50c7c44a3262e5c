"""What a coordinator tells of a group: its members, and what they or the broker say of the topology.

Classic groups answer DescribeGroups, with the bytes that each member joined with; streams groups answer
StreamsGroupDescribe, with the topics of the topology that the broker was told (KIP-1071).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.clients.errors import BrokerError, ErrorCode
from penstock.clients.protocol.compact import CompactReader
from penstock.clients.protocol.messages import CONSUMER_SUBSCRIPTION, DESCRIBE_GROUPS
from penstock.topology.topology_facts import Facts, unpack_facts

from ..assignment.subscription_info import SubscriptionInfo
from ..assignment.wire import MalformedInfoError
from . import streams_messages
from .offsets import GroupOffsets

#: States of a group without members; DEAD: there is no such group.
WITHOUT_MEMBERS = ("EMPTY", "DEAD")


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """One member. facts: the topology that it runs, None if it does not tell: in a streams group, or an old one."""

    client_id: str
    host: str
    facts: Facts | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. state: in capitals, as Kafka names it. protocol: "classic" or "streams", "" if there is no such group.

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


async def describe_group(group_id: str, offsets: GroupOffsets, check: Callable[[int], None]) -> GroupDescription:
    """Ask the coordinator, again and again as ``offsets`` does; check: raises what an error code means.

    Raises UnreachableError or BrokerError, the last one when the time is up.
    """
    found = await offsets.until_deadline(lambda: DESCRIBE_GROUPS(groups=[group_id]), partial(_classic_group, check))
    if found is not None:
        return found
    try:
        return await offsets.until_deadline(lambda: streams_messages.describe(group_id), partial(_streams_group, check))
    except BrokerError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return GroupDescription("DEAD")  # brokers without streams groups have none


def _classic_group(check: Callable[[int], None], response: Any) -> GroupDescription | None:
    """Return the group of a DescribeGroups response, None if there is no such group of the classic protocol."""
    group = response.groups[0]
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check(group.error_code)
    state = group.group_state.upper()
    return None if state == "DEAD" else GroupDescription(state, "classic", tuple(map(_classic_member, group.members)))


def _streams_group(check: Callable[[int], None], response: Any) -> GroupDescription:
    group = response.groups[0]
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return GroupDescription("DEAD")
    check(group.error_code)
    members = tuple(GroupMemberDescription(member.client_id, member.client_host) for member in group.members)
    return GroupDescription(group.group_state.upper(), "streams", members, _topics(group.topology))


def _classic_member(member: Any) -> GroupMemberDescription:
    return GroupMemberDescription(member.client_id, member.client_host, _facts(member.member_metadata))


def _facts(envelope: bytes) -> Facts | None:
    try:
        data = CONSUMER_SUBSCRIPTION.decode(CompactReader(envelope), 0, False).user_data
        return unpack_facts(SubscriptionInfo.decode(bytes(data or b""), "a member of the group").facts)
    except (MalformedInfoError, ValueError):  # another program's, or of a member that is just joining
        return None


def _topics(topology: Any) -> Mapping[str, Mapping[str, list[str]]] | None:
    if topology is None:
        return None
    return {
        part.subtopology_id: {
            "sources": sorted(part.source_topics),
            "changelogs": sorted(topic.name for topic in part.state_changelog_topics),
            "repartitions": sorted(topic.name for topic in part.repartition_source_topics),
        }
        for part in topology.subtopologies or ()
    }
