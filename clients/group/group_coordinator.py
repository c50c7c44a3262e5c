"""Requests to a group's coordinator: discovery, unavailability, and error codes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TypeVar

from penstock.topology.errors import BrokerUnavailableError

from ..clock import Clock
from ..cluster.cluster import Address, Cluster
from ..cluster.coordinators import CoordinatorKind
from ..errors import (
    BrokerError,
    ErrorCode,
    Kind,
    RetriableBrokerError,
    RetriableError,
    UnreachableError,
    raise_for_code,
)
from ..log_context import PrefixedLogger
from ..network_settings import NetworkSettings
from ..protocol.schema import Request, SchemaApi
from ..retry_log import RetryLog
from .requests import GroupMemberConfig

#: The purposes of the connections.
_MEMBERSHIP, _OFFSETS, _DESCRIPTION = "membership", "offsets", "description"

T = TypeVar("T")


@dataclass(eq=False)
class GroupCoordinator:
    """The coordinator of one group, over a few connections; all methods run on the IO thread.

    A broker answers the requests of a connection in order. So JoinGroup, SyncGroup and Heartbeat use a separate one
    (``membership``); commits and LeaveGroup, which must not wait for the end of a rebalance, use ``offsets``. The
    description of the topology uses ``description``.
    """

    config: GroupMemberConfig
    network: NetworkSettings
    connection: Cluster
    clock: Clock
    log: PrefixedLogger

    def __post_init__(self) -> None:
        self._address: Address | None = None
        self._unreachable_since: int | None = None
        #: Everything that the member repeats.
        self.retries = RetryLog(self.log)
        #: Whether the connection broke or the coordinator moved since the last response without an error.
        self._lost_touch = False
        #: Until when the coordinator may still be recovering, such as a broker after a crash.
        self._recovering_until_ms = 0

    async def membership(self, request: Request, timeout_ms: float) -> SimpleNamespace:
        """Send over the first connection, return the response; raises UnreachableError or BrokerUnavailableError."""
        return await self._use(lambda address: self.connection.send(address, request, timeout_ms, _MEMBERSHIP))

    async def version(self, api: SchemaApi) -> int:
        """Return the request version of the first connection; raises as ``membership`` does."""
        return await self._use(lambda address: self.connection.version(address, api, _MEMBERSHIP))

    async def offsets(self, request: Request, timeout_ms: float | None = None) -> SimpleNamespace:
        """Send over the second connection; raises as ``membership`` does."""
        timeout_ms = timeout_ms or self.network.request_timeout_ms
        return await self._use(lambda address: self.connection.send(address, request, timeout_ms, _OFFSETS))

    async def description(self, request: Request, timeout_ms: float) -> SimpleNamespace:
        """Send over a third connection, because the broker's plugin may be slow; raises as ``membership`` does."""
        return await self._use(lambda address: self.connection.send(address, request, timeout_ms, _DESCRIPTION))

    async def _use(self, use: Callable[[Address], Coroutine[object, object, T]]) -> T:
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
        except RetriableBrokerError as error:  # the offsets topic is being created
            raise UnreachableError(f"no coordinator available ({error.code.name})") from error

    def check(self, code: int, message: str | None = None) -> None:
        """Handle a response's error code; raises BrokerError unless it is 0."""
        now = self.clock.monotonic_ms()
        if not code and self._lost_touch:
            self._lost_touch = False
            self._recovering_until_ms = now + self.config.session_timeout_ms
        elif code == ErrorCode.FENCED_INSTANCE_ID and (self._lost_touch or now < self._recovering_until_ms):
            # A broker that crashes during a rebalance loses the latest member id of a static member, and considers an
            # earlier one of this slot the current one. It may report this only after some successful responses. If
            # another process really had replaced this one, the new join fences it, and that process gets the error.
            self.log.warning(
                "The group's coordinator was unreachable and now has another member id for group.instance.id=%s; "
                "joining again.",
                self.config.instance_id,
            )
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        found = ErrorCode(code)
        # It has moved, or is about to: a coordinator that cannot write answers REQUEST_TIMED_OUT.
        if found.kind is Kind.MOVED or found is ErrorCode.REQUEST_TIMED_OUT:
            self._lost(found.name)
        elif self._unreachable_since is not None:
            self.log.info("Group coordinator is available again")
            self._unreachable_since = None
            self.retries.succeeded(self._lookup, now)
        raise_for_code(code, message)

    def _lost(self, reason: str) -> None:
        self._address = None
        self._lost_touch = True
        now = self.clock.monotonic_ms()
        if self._unreachable_since is None:
            self._unreachable_since = now
            self.log.info("Group coordinator is unavailable: %s; looking it up again", reason)
        unreachable_ms = now - self._unreachable_since
        if unreachable_ms >= self.config.unavailable_timeout_ms:
            raise BrokerUnavailableError(
                f"The coordinator of group {self.config.group_id} could not be reached for {unreachable_ms} ms: "
                f"{reason}. Check bootstrap.servers, the network and the brokers."
            )
        limit = f"at most for {self.config.unavailable_timeout_ms // 1000} s"
        self.retries.failed(self._lookup, f"{reason} ({limit})", now)

    @property
    def _lookup(self) -> str:
        return f"The coordinator of group {self.config.group_id}"

    def failed(self, what: str, error: RetriableError | BrokerError) -> None:
        """Record that a request is repeated; a coordinator that cannot be reached is recorded already."""
        if not isinstance(error, UnreachableError):
            self.retries.failed(what, str(error), self.clock.monotonic_ms())

    def succeeded(self, what: str) -> None:
        """Record that a request was answered."""
        self.retries.succeeded(what, self.clock.monotonic_ms())

    async def pause(self) -> None:
        """Wait for ``retry.backoff.ms``."""
        await self.connection.sleep(self.network.retry_backoff_ms / 1000)
