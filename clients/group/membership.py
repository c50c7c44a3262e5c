"""A stream thread's view of its group: the interface, its events and its errors.

group_member.py implements it with the classic protocol (JoinGroup/SyncGroup) and with the streams group protocol
(KIP-1071).

How a thread uses it (single-threaded; no call blocks unless documented):

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
from typing import NamedTuple, Protocol

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from ..protocol.offset_commits import GroupMetadata, OffsetAndMetadata
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


class GroupMembership(Protocol):
    """One member of a group. Only the thread that created it may call it."""

    def poll(self) -> list[Event]:
        """Return the events since the last call, oldest first; never blocks.

        Also the liveness signal for ``max.poll.interval.ms``: if it is exceeded, the member leaves its group.
        """

    def waits(self) -> tuple[str, ...]:
        """Return what is being retried for long, as texts."""
        return ()

    @property
    def join_pending(self) -> bool:
        """True from ``join`` until ``poll`` has returned Assigned, Lost or Fatal; no second join is allowed before."""

    @property
    def in_doubt(self) -> bool:
        """Whether other members may own the tasks: the process was suspended, or the coordinator silent, for a session.

        Nothing may be written while it is True; see standstill.py.
        """

    def join(self, joining: Joining, reason: str = "") -> None:
        """Join the group, or make it rebalance; returns immediately, an Assigned event follows.

        reason: for the broker's log (KIP-800). Raises StreamsError while join_pending.
        """

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Meanwhile | None = None) -> None:
        """Commit and wait for the result.

        meanwhile: called with the awaited future; may do other work until it is done.
        Raises RetriableCommitError (retry), TaskMigratedError (no longer a member; a Lost event follows),
        FencedInstanceIdError, or StreamsError if the broker rejects it permanently.
        """

    def commit_async(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Future[None]:
        """Commit without waiting; the future has the result or error of ``commit``."""

    def wait_for_commit(self, asked: Future[None], meanwhile: Meanwhile | None = None) -> None:
        """Wait for a future of commit_async; arguments and errors are those of ``commit``."""

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset of each partition, None if there is none.

        Blocks for a short time only, then raises BrokerUnavailableError; the next call with the same partitions returns
        the response if it has arrived meanwhile. Pending transactional offsets delay it until their transaction ends
        (KIP-447). Raises StreamsError if the broker rejects the request.
        """

    @property
    def member_id(self) -> str:
        """The member's id in the group, "" while it has none."""

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata by which a transaction's offset commit fences zombies (KIP-447).

        Raises TaskMigratedError if this is not a member: without a generation the broker would not fence.
        """

    def release_host(self, endpoint: str) -> None:
        """Make the members of a lost host leave, so that their tasks move before its session times out; never blocks.

        endpoint: its application.server.
        """

    def close(self, leave: bool) -> None:
        """End the membership and close all connections. No other call is allowed afterwards.

        leave: leave the group, so that other members take over immediately. A static member that will be replaced under
        the same ``group.instance.id`` does not leave; its tasks stay assigned to it until the session times out.
        """
