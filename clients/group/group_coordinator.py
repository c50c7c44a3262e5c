"""Requests to a group's coordinator: where it is, how long it has not answered, and what an answer means."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.topology.errors import BrokerUnavailableError

from ..clock import Clock
from ..cluster.cluster import Address, Cluster
from ..cluster.coordinators import CoordinatorKind
from ..errors import (
    BrokerError,
    ErrorCode,
    Kind,
    RetriableBrokerError,
    UnreachableError,
    raise_for_code,
)
from ..log_context import PrefixedLogger
from ..network_settings import NetworkSettings
from ..protocol.schema import Api, Request
from .requests import GroupMemberConfig

#: Between two warnings about a coordinator that cannot be reached.
WARNING_INTERVAL_MS = 5_000

#: The purposes of the two connections.
_MEMBERSHIP, _OFFSETS = "membership", "offsets"

T = TypeVar("T")


@dataclass(eq=False)
class GroupCoordinator:
    """The coordinator of one group, over two connections; all methods run on the IO thread.

    The broker answers a connection in order. So JoinGroup, SyncGroup and Heartbeat have one to themselves
    (``membership``), and a commit or a LeaveGroup, which must not wait until a rebalance ends, takes ``offsets``.
    """

    config: GroupMemberConfig
    network: NetworkSettings
    connection: Cluster
    clock: Clock
    log: PrefixedLogger

    def __post_init__(self) -> None:
        self._address: Address | None = None
        self._unreachable_since: int | None = None
        self._warned_at = 0
        #: Whether the connection broke, or the coordinator moved, since its last answer without an error.
        self._lost_touch = False
        #: Until when it may still have to find its way back, as a broker does that was killed.
        self._recovering_until_ms = 0

    async def membership(self, request: Request, timeout_ms: float) -> Any:
        """Send over the first connection, return the response; raises UnreachableError or BrokerUnavailableError."""
        return await self._use(lambda address: self.connection.send(address, request, timeout_ms, _MEMBERSHIP))

    async def version(self, api: Api) -> int:
        """Return in which version the first connection sends requests; raises as ``membership`` does."""
        return await self._use(lambda address: self.connection.version(address, api, _MEMBERSHIP))

    async def offsets(self, request: Request, timeout_ms: float | None = None) -> Any:
        """Send over the second connection; raises as ``membership`` does."""
        timeout_ms = timeout_ms or self.network.request_timeout_ms
        return await self._use(lambda address: self.connection.send(address, request, timeout_ms, _OFFSETS))

    async def _use(self, use: Callable[[Address], Coroutine[Any, Any, T]]) -> T:
        try:
            if self._address is None:
                self._address = await self._find()
            return await use(self._address)
        except UnreachableError as error:
            self._lost(str(error))
            raise

    async def _find(self) -> Address:
        try:
            return await self.connection.find_coordinator(CoordinatorKind.GROUP, self.config.group_id)
        except RetriableBrokerError as error:  # the offsets topic is just being made
            raise UnreachableError(f"no coordinator yet ({error.code.name})") from error

    def check(self, code: int, message: str | None = None) -> None:
        """Take note of an answer's error code, 0 being none; raises BrokerError for any other."""
        now = self.clock.monotonic_ms()
        if not code and self._lost_touch:
            self._lost_touch = False
            self._recovering_until_ms = now + self.config.session_timeout_ms
        elif code == ErrorCode.FENCED_INSTANCE_ID and (self._lost_touch or now < self._recovering_until_ms):
            # A broker that crashes in the middle of a rebalance forgets which member id it gave to a static member
            # last, and holds an earlier one of this slot for the right one; it may say so only after it has answered
            # for a moment. If it was another process after all, that one is fenced by the new join, and told so.
            self.log.warning(
                "The group's coordinator, unreachable a moment ago, knows another member of group.instance.id=%s; "
                "joining again.",
                self.config.instance_id,
            )
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        found = ErrorCode(code)
        # It has moved, or is about to: a coordinator that cannot write says that the time is up.
        if found.kind is Kind.MOVED or found is ErrorCode.REQUEST_TIMED_OUT:
            self._lost(found.name)
        elif self._unreachable_since is not None:
            self.log.info("Group coordinator reached again")
            self._unreachable_since = None
        raise_for_code(code, message)

    def _lost(self, reason: str) -> None:
        self._address = None
        self._lost_touch = True
        now = self.clock.monotonic_ms()
        if self._unreachable_since is None:
            self._unreachable_since = self._warned_at = now
            self.log.info("Group coordinator is unavailable: %s; looking for it again", reason)
        unreachable_ms = now - self._unreachable_since
        if unreachable_ms >= self.config.unavailable_timeout_ms:
            raise BrokerUnavailableError(
                f"The coordinator of group {self.config.group_id} could not be reached for {unreachable_ms} ms: "
                f"{reason}. Check bootstrap.servers, the network and the brokers."
            )
        if now - self._warned_at >= WARNING_INTERVAL_MS:
            self._warned_at = now
            self.log.warning(
                "Group coordinator not reached for %.0f s: %s. Trying on until %d s",
                unreachable_ms / 1000,
                reason,
                self.config.unavailable_timeout_ms // 1000,
            )

    async def pause(self) -> None:
        """Wait for ``retry.backoff.ms``."""
        await self.connection.sleep(self.network.retry_backoff_ms / 1000)
