"""When a streams group member reports the positions of its tasks' state to the broker (KIP-1071).

The broker compares members by it: standby tasks go where most of the state is, a warm-up task becomes active when it
has caught up. Kafka: StreamsGroupHeartbeatRequestManager.HeartbeatState.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.topology.records import TaskId

from .streams_values import TaskOffsets


class NextOffsets(NamedTuple):
    """What a heartbeat says: None for unchanged."""

    offsets: Mapping[TaskId, int] | None
    end_offsets: Mapping[TaskId, int] | None


_UNCHANGED = NextOffsets(None, None)


class TaskOffsetReports:
    """The sums as the stream thread last gave them, and those that the coordinator has received."""

    def __init__(self) -> None:
        self._sums = TaskOffsets({}, {})
        self._sent: Mapping[TaskId, int] | None = None
        self._sent_ends: Mapping[TaskId, int] | None = None
        self._sent_ms = 0
        self._interval_ms = 0
        self._acceptable_lag = -1

    def configure(self, interval_ms: int, acceptable_recovery_lag: int) -> None:
        """Take the broker's settings."""
        self._interval_ms = interval_ms
        self._acceptable_lag = acceptable_recovery_lag

    def update(self, sums: TaskOffsets) -> None:
        """Take sums of offsets and end offsets."""
        self._sums = sums

    def update_sums(self, sums: Mapping[TaskId, int]) -> None:
        """Take offset sums alone."""
        self._sums = TaskOffsets(sums, self._sums.end_offsets)

    def resend(self) -> None:
        """Forget what was sent: it may not have arrived."""
        self._sent = self._sent_ends = None
        self._sent_ms = -self._interval_ms

    def next(self, now_ms: int, news: bool, warmups: Collection[TaskId]) -> NextOffsets:
        """Return what the next heartbeat says. news: the member's tasks change, which is when offsets count."""
        if not (news or now_ms - self._sent_ms >= self._interval_ms or self._caught_up(warmups)):
            return _UNCHANGED
        offsets, ends = self._sums.offsets, self._sums.end_offsets
        changes = NextOffsets(offsets if offsets != self._sent else None, ends if ends != self._sent_ends else None)
        if changes != _UNCHANGED:
            self._sent, self._sent_ends, self._sent_ms = offsets, ends, now_ms
        return changes

    def _caught_up(self, warmups: Collection[TaskId]) -> bool:
        offsets, ends = self._sums.offsets, self._sums.end_offsets
        return any(
            task in offsets and task in ends and ends[task] - offsets[task] <= self._acceptable_lag for task in warmups
        )
