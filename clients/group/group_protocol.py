"""The common base of both group protocols: committing and reading offsets, and failing.

classic_protocol.py and streams_protocol.py implement it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.topology.errors import BrokerUnavailableError, StreamsError, TaskMigratedError
from penstock.topology.records import TopicPartition

from ..clock import Clock
from ..cluster.cluster import Cluster
from ..errors import BrokerError, ErrorCode, Kind, RetriableError
from ..log_context import PrefixedLogger
from ..protocol.offset_commits import OffsetAndMetadata
from ..protocol.schema import Request
from . import requests
from .group_coordinator import GroupCoordinator
from .membership import CommitTimeoutError, Event, HostMember, Joining, RetriableCommitError
from .offsets import GroupOffsets
from .requests import GroupMemberConfig, Identity
from .standstill import Standstill
from .streams_values import TaskOffsets

#: Leaving is optional: after this timeout, in ms, the session timeout takes effect instead.
LEAVE_TIMEOUT_MS = 3_000


def evicts(error: BrokerError) -> bool:
    """Return whether the group has removed this member, which may then rejoin.

    False if another member has its ``group.instance.id``: the two would fence each other in turn.
    """
    return error.kind is Kind.EVICTED and error.code is not ErrorCode.FENCED_INSTANCE_ID


@dataclass(frozen=True, slots=True)
class ProtocolParts:
    """Dependencies of a protocol. emit: called with events; ms_since_poll: the time since the stream thread polled."""

    config: GroupMemberConfig
    connection: Cluster
    coordinator: GroupCoordinator
    offsets: GroupOffsets
    clock: Clock
    emit: Callable[[Event], None]
    ms_since_poll: Callable[[], int]
    standstill: Standstill
    log: PrefixedLogger


class GroupProtocol(ABC):
    """One member; all coroutines run on the IO thread."""

    #: The highest version of OffsetCommit that fits the protocol.
    offset_commit_version: ClassVar[int]
    #: The error of a commit with an outdated generation or epoch, which alone does not end this membership.
    overtaken: ClassVar[ErrorCode]

    def __init__(self, parts: ProtocolParts) -> None:
        self._config = parts.config
        self._connection = parts.connection
        self._coordinator = parts.coordinator
        self._network = parts.coordinator.network
        self._offsets = parts.offsets
        self._clock = parts.clock
        self._emit = parts.emit
        self._ms_since_poll = parts.ms_since_poll
        self._standstill = parts.standstill
        self._log = parts.log

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """The member's current identity; the stream thread may read it."""

    @abstractmethod
    async def join(self, joining: Joining, reason: str, losses_seen: int) -> None:
        """Join, or make the group rebalance; an event follows. losses_seen: Lost events seen by the caller."""

    @abstractmethod
    async def heartbeat_loop(self) -> None:
        """Send heartbeats while a member, and monitor the stream thread's polls; ends with the connection."""

    @abstractmethod
    async def end(self, leave: bool) -> None:
        """Leave the group if necessary; see GroupMember.close."""

    @abstractmethod
    async def take_task_offsets(self, offsets: TaskOffsets) -> None:
        """Take the positions of tasks; see GroupMember.report_task_offsets."""

    async def release_host(self, endpoint: str) -> None:
        """Make the members of a lost host leave, and learn at once which members get their tasks. endpoint:
        application.server.

        Every member that learns of the loss does this. A host that was only unreachable joins again. Static members are
        no exception: the user wants their tasks to move, not to wait for them. Of two hosts with one address, the lost
        one is unknown.
        """
        try:
            members = await self.members_at(endpoint)
            if len({member.process_id for member in members}) > 1:
                self._log.warning(
                    "Several hosts have application.server=%s: the tasks of the lost one wait for its session to time "
                    "out. Give each host its own address",
                    endpoint,
                )
                return
            for member in members:
                if member.member_id != self.identity.member_id:
                    await self.leave(f"its host {endpoint} is lost", member.member_id, member.instance_id)
            await self.hear_now()
        except (StreamsError, BrokerError, RetriableError) as error:
            self._log.warning("The tasks of the lost host %s wait for its session to time out: %r", endpoint, error)

    @abstractmethod
    async def members_at(self, endpoint: str) -> list[HostMember]:
        """Return a host's members; raises the errors of the request."""

    @abstractmethod
    async def hear_now(self) -> None:
        """Send a heartbeat now; its response may begin a rebalance."""

    async def leave_self(self, reason: str, *, comes_back: bool = False) -> None:
        """Leave the group if it knows this member; see ``leave``."""
        if self.identity.member_id:
            await self.leave(reason, self.identity.member_id, self._config.instance_id, comes_back=comes_back)

    async def leave(self, reason: str, member_id: str, instance_id: str | None, *, comes_back: bool = False) -> bool:
        """End this or another membership; failures are only logged, since the session timeout has the same effect.

        comes_back: a static member, whose tasks wait for its successor.
        """
        try:
            response = await self._coordinator.offsets(
                self.leave_request(reason, member_id, instance_id, comes_back), LEAVE_TIMEOUT_MS
            )
            for code in requests.leave_errors(response):
                self._coordinator.check(code)
        except (StreamsError, BrokerError, RetriableError) as error:
            if isinstance(error, BrokerError) and error.code is ErrorCode.UNKNOWN_MEMBER_ID:  # it has left already
                return True
            self._log.warning("Leaving the group failed (%r); its other members wait for the session timeout", error)
            return False
        self._log.info("Member %s left the group: %s", member_id, reason)
        return True

    @abstractmethod
    def leave_request(self, reason: str, member_id: str, instance_id: str | None, comes_back: bool) -> Request:
        """Return the request of ``leave``."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """End the membership permanently and emit Fatal."""

    @abstractmethod
    def translate(self, error: Exception) -> StreamsError:
        """Return an error with advice for the reader."""

    @abstractmethod
    def on_refused_commit(self, identity: Identity, error: BrokerError) -> None:
        """Handle a rejected commit with an outdated identity; identity: the one that the commit was sent with."""

    def too_slow(self) -> str | None:
        """Return an error text if max.poll.interval.ms is exceeded (KIP-62), None if it is not."""
        ms = self._ms_since_poll()
        if ms <= self._config.max_poll_interval_ms:
            return None
        return (
            f"the stream thread has not polled for {ms} ms, longer than max.poll.interval.ms="
            f"{self._config.max_poll_interval_ms}; process fewer records at a time or raise it"
        )

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit; raises as GroupMember.commit."""
        self.require_member()
        identity = self.identity
        try:
            await self._offsets.commit(identity, offsets, self.offset_commit_version)
        except RetriableError as error:
            why = f"not accepted within {self._config.api_timeout_ms} ms ({error})"
            raise self.retriable(why, CommitTimeoutError) from error
        except BrokerError as error:
            if evicts(error) or error.code is self.overtaken:
                self.on_refused_commit(identity, error)
                self.require_member()
                raise self.retriable("the group is rebalancing") from error
            if error.code is ErrorCode.FENCED_INSTANCE_ID:
                self.fail(error)
            raise self.translate(error) from error

    def require_member(self) -> None:
        """Raise TaskMigratedError unless this is a member.

        Without a generation the broker would accept the commit as one from outside of the group protocol.
        """
        if self.identity.generation < 0:
            raise TaskMigratedError(f"Not a member of group {self._config.group_id}; other members may own its tasks.")

    def retriable(self, why: str, kind: type[RetriableCommitError] = RetriableCommitError) -> RetriableCommitError:
        """Return the error of a commit that may be retried."""
        return kind(f"Offsets of group {self._config.group_id} were not committed: {why}. Commit again later.")

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return committed offsets; see GroupMember.committed."""
        try:
            return await self._offsets.fetch(partitions)
        except RetriableError as error:
            raise BrokerUnavailableError(
                f"The committed offsets of group {self._config.group_id} could not be read within "
                f"{self._config.api_timeout_ms} ms (default.api.timeout.ms): {error}. Check the brokers."
            ) from error
        except BrokerError as error:
            raise self.translate(error) from error
