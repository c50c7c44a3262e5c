"""A stream thread's view of its group: what it gives, and the events and errors that it gets.

How a thread uses a GroupMember (group_member.py):

    member.join(joining)
    every loop: for event in member.poll(): …
        Rebalance   -> finish the batch, commit, then join() with fresh user data. Still a member.
        Assigned    -> take over the assignment.
        Lost        -> close all tasks dirty, without a commit, then join() owning no task.
        Fatal       -> close all tasks dirty and die of the error.
    member.commit(offsets) …
    member.close(leave=True)

The group ignores a join with unchanged user data, so user data contains a field that differs each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from .streams_values import Report, TasksGiven


@dataclass(frozen=True, slots=True)
class Rebalance:
    """The group is rebalancing: finish the batch, commit, then join again."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """This member's assignment. active: partitions of its active tasks, as group tools show them.

    user_data: what the leader of a classic group has encoded; tasks: in its place, what the broker has assigned.
    """

    generation: int
    user_data: bytes
    active: frozenset[TopicPartition]
    tasks: TasksGiven | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """No longer a member: other members may own the tasks. Close them dirty, without a commit, then join."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """This member has failed permanently; raise the error."""

    error: StreamsError


Event = Rebalance | Assigned | Lost | Fatal


class MemberSubscription(NamedTuple):
    """The subscription of one member.

    topics: all topics that the application reads; the broker expires committed offsets of any others. owned: partitions
    of its active tasks; rack: client.rack, empty if unset. instance_id: its group.instance.id as the leader sees it,
    None if it is dynamic.
    """

    user_data: bytes
    topics: frozenset[str] = frozenset()
    owned: frozenset[TopicPartition] = frozenset()
    rack: str = ""
    instance_id: str | None = None


class Joining(NamedTuple):
    """What a stream thread joins with: the streams protocol needs its report, the classic protocol its subscription."""

    report: Report
    subscription: Callable[[], MemberSubscription]


class HostMember(NamedTuple):
    """A member of a host. instance_id: None if it is dynamic; process_id: that of its application's process."""

    member_id: str
    instance_id: str | None
    process_id: str


class MemberAssignment(NamedTuple):
    """The leader's assignment for one member. active: partitions of its active tasks, for group tools."""

    active: Collection[TopicPartition]
    user_data: bytes


#: The leader's assignor: from subscriptions to assignments, by member id. It may query the brokers, and may be slow.
Assign = Callable[[Mapping[str, MemberSubscription]], Mapping[str, MemberAssignment]]
#: Returns the application.server in a member's user data, "" if there is none, and the id of the member's process.
HostOf = Callable[[bytes], tuple[str, str]]


class RetriableCommitError(StreamsError):
    """Nothing was committed, but this member still owns the tasks: commit again later, after a running rebalance.

    Kafka's consumer raises RebalanceInProgressException or TimeoutException here.
    """


class CommitTimeoutError(RetriableCommitError):
    """The brokers did not accept the commit in time; other retriable errors are responses of a broker."""


class FencedInstanceIdError(StreamsError):
    """Another process has joined with this ``group.instance.id`` (FencedInstanceIdException)."""


#: Called to do other work until a future is done.
Meanwhile = Callable[[Future[None]], None]
