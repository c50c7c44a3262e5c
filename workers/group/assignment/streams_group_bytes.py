"""Converts a streams group's values (KIP-1071) from and to the bytes of subscriptions and assignments."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.clients.group.streams_values import NO_LAG, HostPartitions, Report, TasksAssigned
from penstock.topology.records import TaskId

from .assignment_info import AssignmentInfo
from .subscription_info import (
    LATEST_OFFSET,
    LATEST_SUPPORTED_VERSION,
    UNKNOWN_OFFSET_SUM,
    AssignorError,
    Partitions,
    SubscriptionInfo,
)


class StreamsGroupBytes:
    """Implements clients.group.streams_protocol.ThreadBytes with SubscriptionInfo and AssignmentInfo."""

    def report(self, user_data: bytes) -> Report:
        """Return the contents of the thread's subscription."""
        info = SubscriptionInfo.decode(user_data, "this member")
        known = {
            task: NO_LAG if offset == LATEST_OFFSET else offset
            for task, offset in info.offset_sums.items()
            if offset != UNKNOWN_OFFSET_SUM
        }
        return Report(
            info.process_id,
            info.active_tasks,
            info.standby_tasks,
            known,
            info.user_endpoint,
            info.client_tags,
            info.error is AssignorError.SHUTDOWN_REQUESTED,
        )

    def assignment(
        self,
        assigned: TasksAssigned,
        active: Mapping[TaskId, Partitions],
        standby: Mapping[TaskId, Partitions],
        hosts: HostPartitions,
    ) -> bytes:
        """Return the assignment as the leader of a classic group would send it."""
        return AssignmentInfo(
            LATEST_SUPPORTED_VERSION,
            LATEST_SUPPORTED_VERSION,
            AssignorError.SHUTDOWN_REQUESTED if assigned.shutdown_application else AssignorError.NONE,
            active,
            standby,
            hosts.active,
            hosts.standby,
            next_rebalance_ms=0 if assigned.taken else None,
        ).encode()
