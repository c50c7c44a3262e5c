"""A member of a classic group: its leader, one of the members, assigns the tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.clients.clock import Clock
from penstock.clients.kafka_connections import KafkaConnections

from .classic_protocol import ClassicProtocol
from .membership import Assign
from .protocol_member import ProtocolMember
from .requests import GroupMemberConfig


class GroupMember(ProtocolMember):
    """Implements GroupMembership with the classic protocol (JoinGroup and SyncGroup).

    assign: the leader's decision, the only code of others that the IO thread runs.
    """

    def __init__(
        self,
        config: GroupMemberConfig,
        connection_config: Mapping[str, Any],
        assign: Assign,
        clock: Clock,
        connect: Callable[[Mapping[str, Any]], KafkaConnections] = KafkaConnections,
    ) -> None:
        super().__init__(config, connection_config, clock, lambda parts: ClassicProtocol(parts, assign), connect)
