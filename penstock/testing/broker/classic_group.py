"""The members of a group by the classic protocol: join, sync, heartbeat, leave.

Kafka: ClassicGroup and the classic part of GroupMetadataManager. KIP-345 (static members), KIP-394 (member ids).
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from .call import Response
from .errors import ApiError, ErrorCode
from .group_members import Claim, GroupMembers

if TYPE_CHECKING:
    from .cluster import Cluster


class GroupState(Enum):
    """The names of DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(eq=False)
class Member:
    """protocols: subscriptions by protocol, in the member's order. joins: whether it waits for the next generation.

    generation: its last one, -1 before the first.
    """

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: dict[str, bytes]
    assignment: bytes = b""
    joins: bool = False
    syncs: bool = False
    heard_ms: int = 0
    generation: int = -1
    #: The response to its JoinGroup or SyncGroup, once it is ready.
    joined: Response | None = None
    synced: Response | None = None

    @property
    def session_until_ms(self) -> float:
        """The end of its session; infinite while it waits for a response."""
        return math.inf if self.joins or self.syncs else self.heard_ms + self.session_timeout_ms


@dataclass(eq=False)
class ClassicGroup(GroupMembers):
    """A state machine with timeouts, which expire() applies."""

    group_type: ClassVar[str] = "Classic"

    group_id: str
    cluster: Cluster
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    #: Member ids that were assigned but not used for a join yet, with their expiry times (KIP-394).
    pending: dict[str, float] = field(default_factory=dict)
    _rebalance_until: float | None = None
    #: Until when the first rebalance waits for members (group.initial.rebalance.delay.ms).
    _delay_until: float | None = None
    #: The remaining extension of that wait, and whether a member has joined since.
    _delay_left_ms: int = 0
    _has_grown: bool = False

    @property
    @override
    def state_name(self) -> str:
        return self.state.value

    @property
    @override
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    # -- joining

    def join(self, body: SimpleNamespace, version: int, client_id: str, client_host: str) -> Member:
        """Add a member, or let it rejoin; its ``joined`` follows. Raises ApiError."""
        lowest = int(self.cluster.config["group.min.session.timeout.ms"])
        if not lowest <= body.session_timeout_ms <= int(self.cluster.config["group.max.session.timeout.ms"]):
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        protocols = {one.name: one.metadata for one in body.protocols}
        self._check_protocols(body.protocol_type, protocols)
        known = body.member_id in self.members
        if body.member_id:
            member = self._known(body, protocols, client_id, client_host)
        else:
            member = self._unknown(body, version, protocols, client_id, client_host)
        member.session_timeout_ms, member.rebalance_timeout_ms = body.session_timeout_ms, self._rebalance_timeout(body)
        self._after_join(member, protocols, known)
        return member

    @staticmethod
    def _rebalance_timeout(body: SimpleNamespace) -> int:
        return int(body.rebalance_timeout_ms if body.rebalance_timeout_ms >= 0 else body.session_timeout_ms)

    def _check_protocols(self, protocol_type: str, protocols: Mapping[str, bytes]) -> None:
        if not protocol_type or not protocols:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.members:
            common = set.intersection(*(set(member.protocols) for member in self.members.values()))
            if protocol_type != self.protocol_type or not common & protocols.keys():
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        else:
            self.protocol_type = protocol_type

    def _known(self, body: SimpleNamespace, protocols: dict[str, bytes], client_id: str, client_host: str) -> Member:
        if body.member_id in self.pending:
            del self.pending[body.member_id]
            return self._new(body.member_id, body, protocols, client_id, client_host)
        return self.check(body.member_id, body.group_instance_id)

    def _unknown(
        self, body: SimpleNamespace, version: int, protocols: dict[str, bytes], client_id: str, client_host: str
    ) -> Member:
        instance = body.group_instance_id
        new_id = f"{instance or client_id}-{uuid.UUID(bytes=self.cluster.new_id(), version=4)}"
        before = self._static(instance) if instance is not None else None
        if before is not None:  # a static member that has restarted replaces itself
            self._fence(before)
            member = self._new(new_id, body, protocols, client_id, client_host)
            member.assignment = before.assignment
            if self.leader == before.id:
                self.leader = member.id
            return member
        if instance is None and version >= 4:
            self.pending[new_id] = self.cluster.now_ms + body.session_timeout_ms
            raise MemberIdRequiredError(new_id)
        return self._new(new_id, body, protocols, client_id, client_host)

    def _new(
        self, id_: str, body: SimpleNamespace, protocols: dict[str, bytes], client_id: str, client_host: str
    ) -> Member:
        timeouts = body.session_timeout_ms, self._rebalance_timeout(body)
        member = Member(id_, body.group_instance_id, client_id, client_host, *timeouts, protocols)
        self.members[id_] = member
        self._has_grown = True
        self.leader = self.leader or id_
        return member

    def _static(self, instance_id: str) -> Member | None:
        return next((one for one in self.members.values() if one.instance_id == instance_id), None)

    def _fence(self, member: Member) -> None:
        del self.members[member.id]
        member.joined = member.synced = {"error_code": ErrorCode.FENCED_INSTANCE_ID}

    def _after_join(self, member: Member, protocols: dict[str, bytes], known: bool) -> None:
        member.heard_ms = self.cluster.now_ms
        changed, member.protocols = member.protocols != protocols, protocols
        first_time = member.joined is None and not member.assignment and not member.joins
        if self.state is GroupState.STABLE and known and not changed and member.id != self.leader:
            member.joined = self._joined(member)
            return
        if self.state is GroupState.COMPLETING_REBALANCE and known and not changed and not first_time:
            member.joined = self._joined(member)
            return
        is_back = not known and member.instance_id is not None and member.assignment
        if self.state is GroupState.STABLE and is_back and self._choose() == self.protocol and not changed:
            # It continues with its former assignment (KIP-814).
            member.joined = {**self._joined(member), "skip_assignment": member.id == self.leader}
            return
        member.joined, member.joins = None, True
        self.prepare()

    def prepare(self) -> None:
        """Begin a rebalance, unless one is in progress."""
        now = self.cluster.now_ms
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.members.values():
                if member.syncs:
                    member.syncs, member.synced = False, {"error_code": ErrorCode.REBALANCE_IN_PROGRESS}
        if self.state is not GroupState.PREPARING_REBALANCE:
            longest_ms = self._longest_rebalance_ms()
            if self.state is GroupState.EMPTY:
                delay_ms = self._initial_delay_ms()
                self._delay_until, self._delay_left_ms = now + delay_ms, longest_ms - delay_ms
                self._has_grown = False
            self.state = GroupState.PREPARING_REBALANCE
            self._rebalance_until = now + longest_ms
        self._complete_join()

    def _complete_join(self) -> None:
        """Begin the next generation if all members have joined, or if the time is over."""
        if self.state is not GroupState.PREPARING_REBALANCE or not self._is_due():
            return
        now = self.cluster.now_ms
        for member in list(self.members.values()):
            if not member.joins and member.instance_id is None:
                del self.members[member.id]
        joined = [member for member in self.members.values() if member.joins]
        self._delay_until = None
        if self.members and not joined:  # static members, for which Kafka waits once more
            self._rebalance_until = now + self._longest_rebalance_ms()
            return
        self._rebalance_until = None
        self.generation += 1
        if not self.members:
            self._empty()
            return
        if self.leader not in {member.id for member in joined}:
            self.leader = joined[0].id
        self.protocol = self._choose()
        self.state = GroupState.COMPLETING_REBALANCE
        for member in self.members.values():
            member.heard_ms = now
            if member.joins:
                member.joins, member.synced = False, None
                member.joined = self._joined(member)

    def _is_due(self) -> bool:
        """Return True if a rebalance has waited long enough.

        The first one of a group waits for the initial delay, and once more if members have joined meanwhile.
        """
        now = self.cluster.now_ms
        if self._delay_until is None:
            assert self._rebalance_until is not None
            all_joined = not self.pending and all(member.joins for member in self.members.values())
            return all_joined or now >= self._rebalance_until
        if now >= self._delay_until and self._has_grown and self._delay_left_ms > 0:
            delay_ms = self._initial_delay_ms()
            self._delay_until = now + min(delay_ms, self._delay_left_ms)
            self._delay_left_ms -= delay_ms
            self._has_grown = False
        return now >= self._delay_until

    def _initial_delay_ms(self) -> int:
        return int(self.cluster.config["group.initial.rebalance.delay.ms"])

    def _longest_rebalance_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _empty(self) -> None:
        self.state, self.protocol, self.leader = GroupState.EMPTY, None, None

    def _choose(self) -> str:
        """Return the protocol preferred by most members among those that all members support."""
        common = set.intersection(*(set(member.protocols) for member in self.members.values()))
        votes: dict[str, int] = {}
        for member in self.members.values():
            best = next(name for name in member.protocols if name in common)
            votes[best] = votes.get(best, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _joined(self, member: Member) -> Response:
        is_leader, protocol = member.id == self.leader, self.protocol or ""
        member.generation = self.generation
        return {
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader or "",
            "member_id": member.id,
            "members": [
                {
                    "member_id": one.id,
                    "group_instance_id": one.instance_id,
                    "metadata": one.protocols[protocol],
                }
                for one in self.members.values()
            ]
            if is_leader
            else [],
        }

    # -- syncing

    def sync(self, body: SimpleNamespace) -> Member:
        """Take the leader's assignment, or a member's request for its part; its ``synced`` follows. Raises ApiError."""
        member = self.check(body.member_id, body.group_instance_id)
        if body.generation_id != self.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if body.protocol_type not in (None, self.protocol_type) or body.protocol_name not in (None, self.protocol):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        member.heard_ms = self.cluster.now_ms
        member.synced = None
        if self.state is GroupState.STABLE:
            member.synced = self._synced(member)
            return member
        member.syncs = True
        if member.id == self.leader:
            parts = {one.member_id: one.assignment for one in body.assignments}
            self.state = GroupState.STABLE
            for one in self.members.values():
                one.assignment = parts.get(one.id, b"")
                one.heard_ms = self.cluster.now_ms
                if one.syncs:
                    one.syncs, one.synced = False, self._synced(one)
        return member

    def _synced(self, member: Member) -> Response:
        return {
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    # -- heartbeats and leaving

    def check(self, member_id: str, instance_id: str | None) -> Member:
        """Return a member; raises ApiError if the id is unknown, or if another member has its instance id."""
        if instance_id is not None:
            static = self._static(instance_id)
            if static is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if static.id != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def touch(self, member_id: str) -> None:
        """Restart a member's session."""
        if member := self.members.get(member_id):
            member.heard_ms = self.cluster.now_ms

    def heartbeat(self, body: SimpleNamespace) -> None:
        """Restart a member's session; raises ApiError if it must rejoin."""
        member = self.check(body.member_id, body.group_instance_id)
        if body.generation_id != self.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        member.heard_ms = self.cluster.now_ms
        if self.state is GroupState.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    @override
    def check_commit(self, claim: Claim, partitions: Collection[tuple[str, int]]) -> None:
        if claim.epoch < 0 and not claim.member_id and self.state is GroupState.EMPTY:
            return  # a consumer without a group protocol
        if claim.epoch >= 0 or claim.member_id or claim.instance_id is not None:
            self.check(claim.member_id, claim.instance_id)
            if claim.epoch != self.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            if self.state is GroupState.COMPLETING_REBALANCE:
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
            self.touch(claim.member_id)
        elif self.state is not GroupState.EMPTY:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    @override
    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Do nothing: clients without a generation may read, too."""

    def leave(self, member_id: str, instance_id: str | None) -> None:
        """Remove a member; raises ApiError. A static one may be named by its instance id alone."""
        if instance_id is not None and not member_id:
            static = self._static(instance_id)
            if static is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            member_id = static.id
        if member_id in self.pending:
            del self.pending[member_id]
            self._complete_join()
            return
        self._remove(self.check(member_id, instance_id))

    def _remove(self, member: Member) -> None:
        del self.members[member.id]
        gone = {"error_code": ErrorCode.UNKNOWN_MEMBER_ID}
        if member.joins:
            member.joined = gone
        if member.syncs:
            member.synced = gone
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare()
        else:
            self._complete_join()

    @override
    def restart_sessions(self) -> None:
        for member in self.members.values():
            member.heard_ms = self.cluster.now_ms

    @override
    def expire(self) -> None:
        """Remove members whose session has ended, and continue a rebalance whose time is over."""
        now = self.cluster.now_ms
        for id_ in [id_ for id_, until in self.pending.items() if until <= now]:
            del self.pending[id_]
        for member in list(self.members.values()):
            if member.session_until_ms <= now:
                self._remove(member)
        self._complete_join()

    @override
    def deadlines(self) -> Iterator[float]:
        """Yield the times at which expire() is due."""
        yield from self.pending.values()
        yield from (one.session_until_ms for one in self.members.values())
        if self.state is GroupState.PREPARING_REBALANCE:
            yield from (at for at in (self._rebalance_until, self._delay_until) if at is not None)


class MemberIdRequiredError(ApiError):
    """A new member must join again with the assigned id (KIP-394)."""

    def __init__(self, member_id: str) -> None:
        super().__init__(ErrorCode.MEMBER_ID_REQUIRED)
        self.member_id = member_id
