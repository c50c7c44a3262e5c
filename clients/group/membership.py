"""What a stream thread sees of its group: the interface, its events and its errors.

group_member.py implements it with the classic protocol (JoinGroup/SyncGroup) and with that of streams groups
(KIP-1071).

A thread's use of it, all from one thread, nothing of it blocks unless it says so:

    member.join(subscription)
    every loop: for event in member.poll(): …
        Rebalance   -> finish the batch, commit, then join() with fresh user data. Still a member.
        Assigned    -> take over the assignment.
        Lost        -> close all tasks dirty, without a commit, then join() owning no task.
        Fatal       -> close all tasks dirty and die of the error.
    member.commit(offsets) …
    member.close(leave=True)

The group sees a join with unchanged user data as no change at all, so user data holds a field that differs each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from ..protocol.offset_commits import GroupMetadata, OffsetAndMetadata


@dataclass(frozen=True, slots=True)
class Rebalance:
    """The group rebalances: finish the batch, commit, then join again."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """This member's part. active: partitions of its active tasks, as group tools show them."""

    generation: int
    user_data: bytes
    active: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Lost:
    """Not a member any more: the tasks may belong to others by now. Close them dirty, without a commit, then join."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """This member can never work again; raise the error."""

    error: StreamsError


Event = Rebalance | Assigned | Lost | Fatal


class MemberSubscription(NamedTuple):
    """What one member joins with.

    topics: everything the application reads, else the broker expires offsets of the others. owned: partitions of its
    active tasks; rack: client.rack, empty without one. instance_id: its group.instance.id as the leader sees it,
    None if it is dynamic.
    """

    user_data: bytes
    topics: frozenset[str] = frozenset()
    owned: frozenset[TopicPartition] = frozenset()
    rack: str = ""
    instance_id: str | None = None


class MemberAssignment(NamedTuple):
    """What the leader sends to one member. active: partitions of its active tasks, for group tools."""

    active: Collection[TopicPartition]
    user_data: bytes


#: The leader's decision: member id -> subscription to member id -> assignment. It may ask the brokers, and take long.
Assign = Callable[[Mapping[str, MemberSubscription]], Mapping[str, MemberAssignment]]


class RetriableCommitError(StreamsError):
    """Nothing was committed, but the tasks are still this member's: commit again later, after a running rebalance.

    Kafka's consumer raises RebalanceInProgressException or TimeoutException here.
    """


class CommitTimeoutError(RetriableCommitError):
    """The brokers did not take the commit in time; with the other retriable errors they have answered."""


class FencedInstanceIdError(StreamsError):
    """Another process has joined with this ``group.instance.id`` (FencedInstanceIdException)."""


#: Uses the time until a future is done.
Meanwhile = Callable[[Future[None]], None]


class GroupMembership(Protocol):
    """One member of a group. Only the thread that made it may call it."""

    def poll(self) -> list[Event]:
        """Return what happened since the last call, oldest first; never blocks.

        Also the sign of life that ``max.poll.interval.ms`` measures: later than that, the member leaves its group.
        """

    @property
    def join_pending(self) -> bool:
        """True from ``join`` until ``poll`` has returned its Assigned, Lost or Fatal; a second join has to wait."""

    @property
    def in_doubt(self) -> bool:
        """Whether the process was suspended for so long that others may own the tasks, until the group has answered.

        Till then nothing may be written; see standstill.py.
        """

    def join(self, subscription: MemberSubscription, reason: str = "") -> None:
        """Join the group, or make it rebalance; returns at once, an Assigned event follows.

        reason: for the broker's log (KIP-800). Raises StreamsError while join_pending.
        """

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Meanwhile | None = None) -> None:
        """Commit and wait for it.

        meanwhile: called with the future that is waited for, may use the time until it is done.
        Raises RetriableCommitError (try again), TaskMigratedError (not a member any more; a Lost event follows),
        FencedInstanceIdError, or StreamsError for what the broker refuses for good.
        """

    def commit_async(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Future[None]:
        """Commit without waiting; the future ends as ``commit`` would."""

    def wait_for_commit(self, asked: Future[None], meanwhile: Meanwhile | None = None) -> None:
        """Wait for what commit_async has returned; arguments and errors are those of ``commit``."""

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset of each partition, None where there is none.

        Waits for it, but only for a moment: then it raises BrokerUnavailableError, and the next call with the same
        partitions gets the answer that has come meanwhile. Offsets of open transactions are not answered before these
        end (KIP-447). Raises StreamsError for what the broker refuses.
        """

    def group_metadata(self) -> GroupMetadata:
        """Return what a transaction's offsets need to fence a zombie (KIP-447).

        Raises TaskMigratedError when this is not a member: without a generation the broker would fence nothing.
        """

    def close(self, leave: bool) -> None:
        """End the membership and all connections. Nothing may be called after it.

        leave: tell the group, so that others take over at once. A static member that will be replaced under the same
        ``group.instance.id`` does not leave; its tasks wait for it until the session times out.
        """
