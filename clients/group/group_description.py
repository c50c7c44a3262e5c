"""A group's description by its coordinator.

Classic groups are described by DescribeGroups, with the bytes that each member joined with; streams groups by
StreamsGroupDescribe, with the topology's topics as known to the broker (KIP-1071). Consumer groups (KIP-848), of
programs other than Kafka Streams applications, are described by ConsumerGroupDescribe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TypeVar

from penstock.topology.errors import StreamsError

from ..errors import BrokerError, ErrorCode
from ..protocol.messages import CONSUMER_GROUP_DESCRIBE, DESCRIBE_GROUPS
from ..protocol.schema import Request
from . import requests, streams_messages
from .membership import Assigned, MemberSubscription
from .offsets import GroupOffsets
from .streams_values import Tasks

T = TypeVar("T")

NO_TASKS = Tasks()

#: States of a group without members; DEAD: the group does not exist.
WITHOUT_MEMBERS = ("EMPTY", "DEAD")


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """One member. instance_id: its group.instance.id, None if it is dynamic.

    subscription, assignment: of a member of a classic group, None if they cannot be decoded, e.g. while it joins.
    tasks: of a member of a streams group.
    """

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    subscription: MemberSubscription | None = None
    assignment: Assigned | None = None
    tasks: Tasks = NO_TASKS


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. state: Kafka's name in capitals. protocol: "classic", "streams", "consumer", or "" without a group.

    topics: of a streams group: each sub-topology's "sources", "changelogs" and "repartitions"; else None.
    assignor: of a streams group: the name of the one that the broker uses (KIP-1357); None before Kafka 4.4.
    """

    state: str
    protocol: str = ""
    members: tuple[GroupMemberDescription, ...] = ()
    topics: Mapping[str, Mapping[str, list[str]]] | None = None
    assignor: str | None = None

    @property
    def has_members(self) -> bool:
        """Whether the group has members."""
        return self.state not in WITHOUT_MEMBERS


async def describe_group(group_id: str, offsets: GroupOffsets, check: Callable[[int], None]) -> GroupDescription:
    """Request the description, with retries as ``offsets`` does; check: raises the exception of an error code.

    Raises the last UnreachableError or retriable BrokerError after the timeout, other BrokerErrors immediately.
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
            continue  # the broker does not support groups of this kind
        if found is not None:
            return found
    return GroupDescription("DEAD")


def _existing(
    check: Callable[[int], None], read: Callable[..., GroupDescription | None], response: SimpleNamespace
) -> GroupDescription | None:
    """Return the group of a response, None if there is no such group of this kind."""
    group = response.groups[0]
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check(group.error_code)
    return read(response)


def _classic_group(response: SimpleNamespace) -> GroupDescription | None:
    group = response.groups[0]
    state = group.group_state.upper()
    return None if state == "DEAD" else GroupDescription(state, "classic", tuple(map(_classic_member, group.members)))


def _streams_group(response: SimpleNamespace) -> GroupDescription:
    group = response.groups[0]
    described = streams_messages.described_members(group)
    members = tuple(
        GroupMemberDescription(
            found.member_id, member.client_id, member.client_host, found.instance_id, tasks=found.tasks
        )
        for member, found in zip(group.members, described, strict=True)
    )
    return GroupDescription(group.group_state.upper(), "streams", members, _topics(group.topology), group.assignor_name)


def _consumer_group(response: SimpleNamespace) -> GroupDescription:
    group = response.groups[0]
    members = (GroupMemberDescription(m.member_id, m.client_id, m.client_host, m.instance_id) for m in group.members)
    return GroupDescription(group.group_state.upper(), "consumer", tuple(members))


def _classic_member(member: SimpleNamespace) -> GroupMemberDescription:
    return GroupMemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.group_instance_id,
        _read(lambda: requests.decode_subscription(member.member_metadata, "a member of the group")),
        _read(lambda: requests.decode_assignment(0, member.member_assignment)),
    )


def _read(decode: Callable[[], T]) -> T | None:
    try:
        return decode()
    except StreamsError:  # from another program, or from a member that is joining
        return None


def _topics(topology: SimpleNamespace) -> Mapping[str, Mapping[str, list[str]]] | None:
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
