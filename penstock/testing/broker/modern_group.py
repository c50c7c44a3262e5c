"""The common part of groups with member epochs: consumer groups (KIP-848) and streams groups (KIP-1071).

Kafka: ModernGroup, and the parts of GroupMetadataManager that exist once for each of the two.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Generic, TypeVar

from typing_extensions import override

from .errors import ApiError, ErrorCode
from .group_members import Claim, GroupMembers

if TYPE_CHECKING:
    from .cluster import Cluster

#: Member epochs in heartbeats with a special meaning: to join, to leave, and to leave temporarily as a static member.
JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
#: The epoch of a new group, in which no member has an assignment.
_FIRST_EPOCH = 2
#: From this version on, OffsetCommit has member epochs.
_MEMBER_EPOCH_VERSION = 9


class MemberState(Enum):
    """A member's progress to its target assignment."""

    STABLE = "stable"
    UNREVOKED = "it has to give something back"
    UNRELEASED = "it waits for something of others"


@dataclass(eq=False)
class ModernMember:
    """heard_ms: the time of its last heartbeat. revoke_until: when it is removed unless it has released its revoked
    assignment.
    """

    id: str
    instance_id: str | None
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    heard_ms: int = 0
    revoke_until: int | None = None

    def hear(self, body: SimpleNamespace, client_id: str, client_host: str) -> None:
        """Apply the fields that heartbeats of both protocols have, null for unchanged."""
        self.client_id, self.client_host = client_id, client_host
        if body.rack_id is not None:
            self.rack_id = body.rack_id
        if body.rebalance_timeout_ms != -1:
            self.rebalance_timeout_ms = body.rebalance_timeout_ms

    def move(self, state: MemberState, epoch: int) -> None:
        """Take the next step towards the target assignment."""
        self.state, self.previous_epoch, self.epoch = state, self.epoch, epoch
        self.revoke_until = None


M = TypeVar("M", bound=ModernMember)
T = TypeVar("T")


@dataclass(eq=False)
class ModernGroup(GroupMembers, Generic[M, T]):
    """A state machine with timeouts, which expire() applies. T: the type of a target assignment."""

    group_id: str
    cluster: Cluster
    epoch: int = 0
    #: The epoch for which the target was computed.
    target_epoch: int = 0
    target: dict[str, T] = field(default_factory=dict)
    members: dict[str, M] = field(default_factory=dict)

    @property
    @override
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        settled = all(
            member.state is MemberState.STABLE and member.epoch == self.target_epoch for member in self.members.values()
        )
        return "Stable" if settled else "Reconciling"

    @property
    @override
    def is_empty(self) -> bool:
        return not self.members

    def setting(self, key: str) -> int:
        """Return a setting: the group's own, otherwise that of the brokers."""
        own = self.cluster.group_configs.get(self.group_id, {})
        return int(own.get(f"{self.group_type}.{key}", self.cluster.config[f"group.{self.group_type}.{key}"]))

    def member(self, member_id: str) -> M:
        """Return a member; raises ApiError."""
        found = self.members.get(member_id)
        if found is None:
            said = f"Member {member_id} is not a member of group {self.group_id}."
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, said)
        return found

    # -- joining, heartbeats and leaving

    def bump(self) -> None:
        """Begin an epoch."""
        self.epoch = max(self.epoch + 1, _FIRST_EPOCH)

    def joining(self, member_id: str, instance_id: str | None, new: Callable[[str, str | None], M]) -> M:
        """Return the joining member: a new one, unless it rejoins or replaces a static one. Raises ApiError."""
        before = self.members.get(member_id) if instance_id is None else self._static(instance_id)
        if before is None:
            member = self.members[member_id] = new(member_id, instance_id)
            return member
        if instance_id is None:
            return before
        if before.epoch != LEAVE_STATIC_EPOCH:
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {before.id} member.",
            )
        del self.members[before.id]
        if before.id in self.target:
            self.target[member_id] = self.target.pop(before.id)
        before.id, before.epoch, before.previous_epoch = member_id, 0, 0
        self.members[member_id] = before
        return before

    def known(self, body: SimpleNamespace, has_only_its_own: Callable[[M], bool]) -> M:
        """Return the member of a heartbeat; raises ApiError.

        has_only_its_own: whether it reports only what it may have. If so, the previous epoch means that it has not
        received the last response.
        """
        if body.instance_id is None:
            member = self.member(body.member_id)
        else:
            member = self._instance(body.instance_id, body.member_id)
        if body.member_epoch == member.epoch:
            return member
        if body.member_epoch == member.previous_epoch < member.epoch and has_only_its_own(member):
            return member
        compared = "greater" if body.member_epoch > member.epoch else "smaller"
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The {self.group_type} group member has a {compared} member epoch ({body.member_epoch}) than the one "
            f"known by the group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )

    def _static(self, instance_id: str) -> M | None:
        return next((one for one in self.members.values() if one.instance_id == instance_id), None)

    def _instance(self, instance_id: str, member_id: str) -> M:
        found = self._static(instance_id)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if found.id != member_id:
            raise ApiError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {found.id}.",
            )
        return found

    def leave(self, body: SimpleNamespace) -> None:
        """Remove a member; a static one may leave temporarily. Raises ApiError."""
        if body.instance_id is None:
            self.remove(self.member(body.member_id))
            return
        member = self._instance(body.instance_id, body.member_id)
        if body.member_epoch == LEAVE_STATIC_EPOCH:
            member.epoch, member.revoke_until = LEAVE_STATIC_EPOCH, None
            self.left_for_a_while(member)
        else:
            self.remove(member)

    @abstractmethod
    def left_for_a_while(self, member: M) -> None:
        """Clear the revoked assignment of a static member that left temporarily: it has none now."""

    def remove(self, member: M) -> None:
        """Remove a member and free its assignment."""
        del self.members[member.id]
        self.target.pop(member.id, None)
        self.bump()
        if not self.members:
            self.target_epoch = self.epoch

    # -- offsets

    @override
    def check_commit(self, claim: Claim, partitions: Collection[tuple[str, int]]) -> None:
        if claim.epoch < 0 and not self.members:
            return  # a consumer without a group protocol
        member = self.member(claim.member_id)
        if not claim.transactional and claim.version < _MEMBER_EPOCH_VERSION:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        is_old = claim.epoch < member.epoch
        if claim.epoch > member.epoch or (
            is_old and any(self.assigned_in(member, *partition) > claim.epoch for partition in partitions)
        ):
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

    @abstractmethod
    def assigned_in(self, member: M, topic: str, number: int) -> int:
        """Return the epoch since which a member has a partition, and the current epoch for any other partition.

        A commit with an older epoch is not from the partition's current owner.
        """

    @override
    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        if self.member(member_id or "").epoch != epoch:
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

    # -- timeouts

    @override
    def restart_sessions(self) -> None:
        for member in self.members.values():
            member.heard_ms = self.cluster.now_ms

    @override
    def expire(self) -> None:
        """Remove members whose session or revocation time has ended."""
        now = self.cluster.now_ms
        for member in list(self.members.values()):
            if self._ends(member) <= now:
                self.remove(member)

    @override
    def deadlines(self) -> Iterator[float]:
        return (self._ends(member) for member in self.members.values())

    def _ends(self, member: M) -> int:
        silent = member.heard_ms + self.setting("session.timeout.ms")
        return silent if member.revoke_until is None else min(silent, member.revoke_until)
