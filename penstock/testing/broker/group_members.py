"""The group coordinator's interface to a group's members, for all protocols.

Kafka: Group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import ClassVar, NamedTuple


class Claim(NamedTuple):
    """The identity of a client that commits or fetches offsets. epoch: the generation, or the member epoch (KIP-848).

    version: that of OffsetCommit. transactional: for TxnOffsetCommit, which all groups accept in all versions.
    """

    member_id: str
    instance_id: str | None
    epoch: int
    version: int
    transactional: bool = False


class GroupMembers(ABC):
    """The members of one group."""

    #: The name of the type in ListGroups.
    group_type: ClassVar[str]
    protocol_type: str

    @property
    @abstractmethod
    def state_name(self) -> str:
        """The group's state, with the name of ListGroups and the describing APIs."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """True if there are no members; then the group may be deleted, or change its protocol."""

    @abstractmethod
    def check_commit(self, claim: Claim, partitions: Collection[tuple[str, int]]) -> None:
        """Raise ApiError unless offsets of these partitions, by topic and number, may be committed."""

    @abstractmethod
    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise ApiError unless committed offsets may be read."""

    @abstractmethod
    def restart_sessions(self) -> None:
        """Restart all sessions, like a coordinator that takes over the group."""

    @abstractmethod
    def expire(self) -> None:
        """Apply expired timeouts."""

    @abstractmethod
    def deadlines(self) -> Iterator[float]:
        """Yield the times at which expire() is due."""
