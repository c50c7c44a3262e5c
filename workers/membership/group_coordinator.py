"""Requests to a group's coordinator: where it is, how long it has not answered, and what an answer means."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import kafka.errors as kafka_errors

from penstock.clients.clock import Clock
from penstock.clients.kafka_connections import KafkaConnections, UnreachableError, raise_for_code
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import BrokerUnavailableError

from .requests import GroupMemberConfig

#: Between two warnings about a coordinator that cannot be reached.
WARNING_INTERVAL_MS = 5_000

#: The coordinator has moved or is about to: ask again where it is.
MOVED = (
    kafka_errors.CoordinatorNotAvailableError,
    kafka_errors.NotCoordinatorError,
    kafka_errors.RequestTimedOutError,
)
#: The same request may succeed after a pause.
RETRIABLE = (
    *MOVED,
    UnreachableError,
    kafka_errors.CoordinatorLoadInProgressError,
    kafka_errors.UnknownTopicOrPartitionError,
    kafka_errors.UnstableOffsetCommitError,
)

T = TypeVar("T")


class GroupCoordinator:
    """The coordinator of one group, over two connections; all methods run on the IO thread.

    The broker answers a connection in order. So JoinGroup, SyncGroup and Heartbeat have one for themselves
    (``membership``), and a commit or a LeaveGroup, which must not wait until a rebalance ends, takes ``offsets``.
    """

    def __init__(
        self, config: GroupMemberConfig, connection: KafkaConnections, clock: Clock, log: PrefixedLogger
    ) -> None:
        self._config = config
        self._connection = connection
        self._clock = clock
        self._log = log
        self._connections: tuple[str, str] | None = None
        self._unreachable_since: int | None = None
        self._warned_at = 0
        #: Whether the connection broke, or the coordinator moved, since its last answer without an error.
        self._lost_touch = False
        #: Until when it may still have to find its way back, as a broker does that was killed.
        self._recovering_until_ms = 0

    async def membership(self, request: Any, timeout_ms: float) -> Any:
        """Send over the first connection, return the response; raises UnreachableError or BrokerUnavailableError."""
        return await self._use(0, lambda name: self._connection.send(name, request, timeout_ms))

    async def version(self, request: Any) -> int:
        """Return in which version the first connection sends requests of a class; raises as ``membership`` does."""
        return await self._use(0, lambda name: self._connection.version(name, request))

    async def offsets(self, request: Any, timeout_ms: float | None = None) -> Any:
        """Send over the second connection; raises as ``membership`` does."""
        timeout_ms = timeout_ms or self._config.request_timeout_ms
        return await self._use(1, lambda name: self._connection.send(name, request, timeout_ms))

    async def _use(self, which: int, use: Callable[[str], Coroutine[Any, Any, T]]) -> T:
        try:
            if self._connections is None:
                self._connections = await self._find()
            return await use(self._connections[which])
        except UnreachableError as error:
            self._lost(str(error))
            raise

    async def _find(self) -> tuple[str, str]:
        try:
            return await self._connection.find_coordinator(self._config.group_id)
        except (*MOVED, kafka_errors.CoordinatorLoadInProgressError) as error:  # the offsets topic is just being made
            raise UnreachableError(f"no coordinator yet ({type(error).__name__})") from error

    def check(self, code: int) -> None:
        """Take note of an answer's error code, 0 being none; raises kafka-python's exception for any other."""
        error = kafka_errors.for_code(code)
        now = self._clock.monotonic_ms()
        if not code and self._lost_touch:
            self._lost_touch = False
            self._recovering_until_ms = now + self._config.session_timeout_ms
        elif error is kafka_errors.FencedInstanceIdError and (self._lost_touch or now < self._recovering_until_ms):
            # A broker that crashes in the middle of a rebalance forgets which member id it gave to a static member
            # last, and holds an earlier one of this slot for the right one; it may say so only after it has answered
            # for a moment. If it was another process after all, that one is fenced by the new join, and told so.
            self._log.warning(
                "The group's coordinator, unreachable a moment ago, knows another member of group.instance.id=%s; "
                "joining anew.",
                self._config.instance_id,
            )
            raise kafka_errors.UnknownMemberIdError
        if error in MOVED:
            self._lost(error.__name__)
        elif self._unreachable_since is not None:
            self._log.info("Group coordinator reached again")
            self._unreachable_since = None
        raise_for_code(code)

    def _lost(self, reason: str) -> None:
        self._connections = None
        self._lost_touch = True
        now = self._clock.monotonic_ms()
        if self._unreachable_since is None:
            self._unreachable_since = self._warned_at = now
            self._log.info("Group coordinator is unavailable: %s; looking for it again", reason)
        unreachable_ms = now - self._unreachable_since
        if unreachable_ms >= self._config.unavailable_timeout_ms:
            raise BrokerUnavailableError(
                f"The coordinator of group {self._config.group_id} could not be reached for {unreachable_ms} ms: "
                f"{reason}. Check bootstrap.servers, the network and the brokers."
            )
        if now - self._warned_at >= WARNING_INTERVAL_MS:
            self._warned_at = now
            self._log.warning(
                "Group coordinator not reached for %.0f s: %s. Trying on until %d s",
                unreachable_ms / 1000,
                reason,
                self._config.unavailable_timeout_ms // 1000,
            )

    async def pause(self) -> None:
        """Wait for ``retry.backoff.ms``."""
        await self._connection.sleep(self._config.retry_backoff_ms / 1000)
