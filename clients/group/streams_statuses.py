"""What the coordinator says of a streams group as a whole, and when that is the end (KIP-1071).

Kafka: StreamThread.handleStreamsRebalanceData, StreamsGroupHeartbeatRequestManager.maybeLogStatuses.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.topology.errors import MissingSourceTopicError, StreamsError

from ..log_context import PrefixedLogger
from .streams_values import NOT_READY, Status

#: These pass by themselves, in the ordinary course of a start or a rebalance.
_PASSING = frozenset({Status.ASSIGNMENT_DELAYED, Status.MISSING_INTERNAL_TOPICS})
#: Missing source topics are an error when they are still missing after this many heartbeat intervals; but not sooner
#: than this many ms, since a broker learns of a topic that was just made with a delay.
MISSING_TOPICS_HEARTBEATS = 2
MISSING_TOPICS_GRACE_MS = 3_000


class GroupStatuses:
    """ready: the broker can assign tasks. shutdown_application: a member wants the whole application to end."""

    def __init__(self, group_id: str, log: PrefixedLogger) -> None:
        self.ready = True
        self.shutdown_application = False
        self._group_id = group_id
        self._log = log
        self._last: Mapping[int, str] = {}
        self._missing_since_ms: int | None = None

    def update(self, statuses: Mapping[int, str], now_ms: int, heartbeat_interval_ms: int) -> StreamsError | None:
        """Take the statuses of an answer; returns the error by which the member must end, or None."""
        self._log_changes(statuses)
        self.ready = NOT_READY.isdisjoint(statuses)
        self.shutdown_application = Status.SHUTDOWN_APPLICATION in statuses
        if Status.INCORRECTLY_PARTITIONED_TOPICS in statuses:
            return StreamsError(
                f"The topics of group {self._group_id} do not fit together: "
                f"{statuses[Status.INCORRECTLY_PARTITIONED_TOPICS]} Joined topics need the same number of partitions: "
                "recreate one of them, or call repartition() on one of the streams before the join. An internal topic "
                "of an earlier topology has to be deleted."
            )
        timeout_ms = max(MISSING_TOPICS_HEARTBEATS * heartbeat_interval_ms, MISSING_TOPICS_GRACE_MS)
        return self._missing_source_topics(statuses, now_ms, timeout_ms)

    def _missing_source_topics(
        self, statuses: Mapping[int, str], now_ms: int, timeout_ms: int
    ) -> MissingSourceTopicError | None:
        if Status.MISSING_SOURCE_TOPICS not in statuses:
            self._missing_since_ms = None
            return None
        if self._missing_since_ms is None:
            self._missing_since_ms = now_ms
        missing_ms = now_ms - self._missing_since_ms
        if missing_ms < timeout_ms:
            return None
        return MissingSourceTopicError(
            f"{statuses[Status.MISSING_SOURCE_TOPICS]} Group {self._group_id} has waited {missing_ms} ms for them. "
            "Create the source topics before the application starts."
        )

    def _log_changes(self, statuses: Mapping[int, str]) -> None:
        for code, detail in statuses.items():
            if self._last.get(code) != detail:
                level = logging.INFO if code in _PASSING else logging.WARNING
                self._log.log(level, "The group is in status %s: %s", _name(code), detail)
        self._last = statuses


def _name(code: int) -> str:
    return Status(code).name if code in Status._value2member_map_ else str(code)
