"""The error raised when the time for reading offsets is up; the test plays the coordinator and chooses its response
times.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.clients.errors import ErrorCode, RetriableBrokerError, UnreachableError
from penstock.clients.group.offsets import GroupOffsets
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.network_settings import NetworkSettings
from penstock.topology.records import TopicPartition
from tests.manual_clock import ManualClock

PAUSE_MS = 100
#: The response time. The timeout has room for two responses, and the third is cut off.
ANSWER_MS = 400
CONFIG = GroupMemberConfig("group", api_timeout_ms=1_200)


class PlayedCoordinator:
    """Raises its errors in turn, then responds. Each takes ANSWER_MS; a request with less time than that fails."""

    def __init__(self, clock: ManualClock, *refusals: Exception) -> None:
        self._clock = clock
        self._refusals = list(refusals)
        self.timeouts: list[float] = []
        self.network = NetworkSettings(request_timeout_ms=500, retry_backoff_ms=PAUSE_MS)

    async def offsets(self, request: Any, timeout_ms: float) -> Any:
        self.timeouts.append(timeout_ms)
        self._clock.advance(min(ANSWER_MS, int(timeout_ms)))
        if timeout_ms < ANSWER_MS:
            raise UnreachableError("no answer within 200 ms")
        raise self._refusals.pop(0)

    def failed(self, what: str, error: Exception) -> None:
        """Ignore the report of a repeated request."""

    def succeeded(self, what: str) -> None:
        """Ignore the report of a response."""

    async def pause(self) -> None:
        self._clock.advance(PAUSE_MS)


def read(clock: ManualClock, coordinator: PlayedCoordinator) -> None:
    asyncio.run(GroupOffsets(CONFIG, coordinator, clock).fetch([TopicPartition("t", 0)]))  # type: ignore[arg-type]


def test_a_last_attempt_without_enough_time_keeps_the_brokers_error() -> None:
    clock = ManualClock()
    refusals = [RetriableBrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for _ in range(2)]
    coordinator = PlayedCoordinator(clock, *refusals)
    with pytest.raises(RetriableBrokerError) as raised:
        read(clock, coordinator)
    assert raised.value is refusals[-1]
    assert isinstance(raised.value.__cause__, UnreachableError)
    assert coordinator.timeouts == [500, 500, 200]


def test_a_broker_that_becomes_silent_is_reported_although_it_responded_before() -> None:
    clock = ManualClock()
    silent = UnreachableError("no answer")
    coordinator = PlayedCoordinator(clock, RetriableBrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), silent)
    with pytest.raises(UnreachableError, match="no answer"):
        read(clock, coordinator)
