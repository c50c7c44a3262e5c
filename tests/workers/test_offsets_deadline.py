"""What is raised when the time for offsets is up, by a coordinator that is played: its answers come when they must."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.clients.errors import ErrorCode, RetriableBrokerError, UnreachableError
from penstock.clients.group.offsets import GroupOffsets
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.network_settings import NetworkSettings
from penstock.topology.records import TopicPartition
from tests.workers.memory_kafka import ManualClock

PAUSE_MS = 100
#: How long an answer takes: there is time for two of them, and a third is cut.
ANSWER_MS = 400
CONFIG = GroupMemberConfig("group", api_timeout_ms=1_200)


class PlayedCoordinator:
    """Answers, after ANSWER_MS, as it is told to: by what it raises; and not at all who has less time than that."""

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

    async def pause(self) -> None:
        self._clock.advance(PAUSE_MS)


def read(clock: ManualClock, coordinator: PlayedCoordinator) -> None:
    asyncio.run(GroupOffsets(CONFIG, coordinator, clock).fetch([TopicPartition("t", 0)]))  # type: ignore[arg-type]


def test_a_last_try_without_time_for_an_answer_does_not_hide_what_the_broker_answered() -> None:
    clock = ManualClock()
    refusals = [RetriableBrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for _ in range(2)]
    coordinator = PlayedCoordinator(clock, *refusals)
    with pytest.raises(RetriableBrokerError) as raised:
        read(clock, coordinator)
    assert raised.value is refusals[-1]
    assert isinstance(raised.value.__cause__, UnreachableError)
    assert coordinator.timeouts == [500, 500, 200]


def test_a_broker_that_goes_silent_is_told_though_it_answered_before() -> None:
    clock = ManualClock()
    silent = UnreachableError("no answer")
    coordinator = PlayedCoordinator(clock, RetriableBrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), silent)
    with pytest.raises(UnreachableError, match="no answer"):
        read(clock, coordinator)
