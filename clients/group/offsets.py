"""Commits and reads the group's offsets on the IO thread, with retries until ``default.api.timeout.ms``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import TypeVar

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from ..clock import Clock
from ..errors import ErrorCode, RetriableError, UnreachableError
from ..protocol.offset_commits import OffsetAndMetadata
from ..protocol.schema import Request
from .group_coordinator import GroupCoordinator
from .requests import (
    GroupMemberConfig,
    Identity,
    fetched_offsets,
    offset_commit,
    offset_commit_errors,
    offset_fetch,
)

T = TypeVar("T")


class GroupOffsets:
    """The offsets of one group."""

    def __init__(self, config: GroupMemberConfig, coordinator: GroupCoordinator, clock: Clock) -> None:
        self._config = config
        self._coordinator = coordinator
        self._clock = clock

    async def commit(
        self, identity: Identity, offsets: Mapping[TopicPartition, OffsetAndMetadata], version_max: int
    ) -> None:
        """Commit; version_max: of the request.

        Raises the last UnreachableError or retriable BrokerError after the timeout, other BrokerErrors immediately, or
        StreamsError.
        """

        def check(response: SimpleNamespace) -> None:
            failed = offset_commit_errors(response)
            self._coordinator.check(0 if not failed else _worst(failed))

        await self.until_deadline(lambda: offset_commit(self._config, identity, offsets, version_max), check)

    async def fetch(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets; raises as ``commit`` does."""
        found = await self.until_deadline(lambda: offset_fetch(self._config, partitions), self._fetched)
        missing = set(partitions) - found.keys()
        if missing:
            raise StreamsError(f"The coordinator's response for group {self._config.group_id} lacks {sorted(missing)}.")
        return {partition: found[partition] for partition in partitions}

    def _fetched(self, response: SimpleNamespace) -> dict[TopicPartition, OffsetAndMetadata | None]:
        code, offsets = fetched_offsets(response)
        self._coordinator.check(code)
        return offsets

    async def until_deadline(self, request: Callable[[], Request], result: Callable[[SimpleNamespace], T]) -> T:
        """Send a request until result(response) raises no retriable error; raises as ``commit`` does."""
        network = self._coordinator.network
        deadline = self._clock.monotonic_ms() + self._config.api_timeout_ms
        refusal: Exception | None = None  # of the previous attempt
        while True:
            asked = request()
            timeout_ms = min(network.request_timeout_ms, deadline - self._clock.monotonic_ms())
            try:
                found = result(await self._coordinator.offsets(asked, timeout_ms))
                self._coordinator.succeeded(asked.api.name)
                return found
            except RetriableError as error:  # raised if there is no time for another attempt
                if self._clock.monotonic_ms() + network.retry_backoff_ms >= deadline:
                    was_cut = isinstance(error, UnreachableError) and timeout_ms < network.request_timeout_ms
                    if was_cut and refusal is not None:  # the attempt was too short to meet the same error
                        raise refusal from error
                    raise
                refusal = error
                self._coordinator.failed(asked.api.name, error)
            await self._coordinator.pause()


def _worst(failed: Mapping[TopicPartition, int]) -> int:
    """Return the code to act on: codes that are not retriable take precedence."""
    final = [code for code in failed.values() if not ErrorCode(code).retriable]
    return (final or list(failed.values()))[0]
