"""A member of a streams group (KIP-1071, Kafka 4.2): the broker assigns the tasks and makes the internal topics."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from penstock.topology.records import TaskId

from ..clock import Clock
from ..network_settings import NetworkSettings
from .group_protocol import ProtocolParts
from .protocol_member import ProtocolMember
from .requests import GroupMemberConfig
from .streams_protocol import StreamsProtocol, ThreadBytes
from .streams_values import StreamsTopology, TaskOffsets


class StreamsGroupMember(ProtocolMember):
    """Implements GroupMembership with the streams protocol, for ``group.protocol=streams``.

    To the stream thread it is as a classic group: thread translates its bytes to and from a streams group's.
    Session timeout, heartbeat interval and number of standby tasks are not set here but on the broker, for the group
    (streams.session.timeout.ms, streams.heartbeat.interval.ms, streams.num.standby.replicas).

    network: how to reach the brokers; rack_id: client.rack.
    """

    def __init__(
        self,
        config: GroupMemberConfig,
        network: NetworkSettings,
        topology: StreamsTopology,
        thread: ThreadBytes,
        clock: Clock,
        rack_id: str | None = None,
    ) -> None:
        def make_protocol(parts: ProtocolParts) -> StreamsProtocol:
            self._streams = StreamsProtocol(parts, topology, thread, str(uuid4()), rack_id)
            return self._streams

        super().__init__(config, network, clock, make_protocol)

    def report_task_offsets(self, offsets: Mapping[TaskId, int], end_offsets: Mapping[TaskId, int]) -> None:
        """Report the positions of standby and warm-up tasks: sums over their changelogs, and over the changelogs' ends.

        The coordinator hears of it at its own interval, and as soon as a warm-up task has caught up. Never blocks.
        """
        self._connection.submit(self._streams.take_task_offsets, TaskOffsets(dict(offsets), dict(end_offsets)))
