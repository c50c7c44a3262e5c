"""A member of a classic group: its leader, one of the members, assigns the tasks."""

from __future__ import annotations

from collections.abc import Callable

from ..clock import Clock
from ..cluster.cluster import Cluster
from ..network_settings import NetworkSettings
from .classic_protocol import ClassicProtocol
from .membership import Assign
from .protocol_member import ProtocolMember
from .requests import GroupMemberConfig


class GroupMember(ProtocolMember):
    """Implements GroupMembership with the classic protocol (JoinGroup and SyncGroup).

    assign: the leader's decision; it runs on a separate thread.
    """

    def __init__(
        self,
        config: GroupMemberConfig,
        network: NetworkSettings,
        assign: Assign,
        clock: Clock,
        connect: Callable[[NetworkSettings], Cluster] = Cluster,
    ) -> None:
        super().__init__(config, network, clock, lambda parts: ClassicProtocol(parts, assign), connect)
