"""Reads a group's committed offsets and members, for callers other than the group's members.

librdkafka 2.16 cannot be used: AdminClient.list_consumer_group_offsets dereferences a null pointer if the coordinator
is loading or has moved, and Consumer.committed reads past the end of the metadata.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import InitVar, dataclass, replace
from typing import TypeVar

from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TopicPartition

from ..clock import Clock, SystemClock
from ..cluster.cluster import Cluster
from ..errors import BrokerError, RetriableError
from ..log_context import PrefixedLogger
from ..network_settings import NetworkSettings
from ..protocol.offset_commits import OffsetAndMetadata
from .group_coordinator import GroupCoordinator
from .group_description import GroupDescription, describe_group
from .offsets import GroupOffsets
from .requests import GroupMemberConfig

T = TypeVar("T")


@dataclass(eq=False)
class GroupOffsetsReader:
    """Sends requests to a group's coordinator over its own connection, which is opened on first use.

    network: connection settings. timeout_ms: of one call, including retries. Not thread-safe.
    """

    group_id: str
    network: NetworkSettings
    timeout_ms: int = 10_000
    clock: InitVar[Clock | None] = None

    def __post_init__(self, clock: Clock | None) -> None:
        self._clock = clock or SystemClock()
        self._opened: tuple[Cluster, GroupOffsets, GroupCoordinator] | None = None

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offset of each partition, None if there is none; blocks.

        Waits for the end of transactions with pending offsets. Raises BrokerUnavailableError after the timeout,
        StreamsError if the broker rejects the request.
        """
        if not partitions:
            return {}
        connection, offsets, _ = self._open()
        return self._result(connection.submit(offsets.fetch, list(partitions)), "The committed offsets")

    def describe(self) -> GroupDescription:
        """Return the group's state, members and their tasks; raises as ``committed`` does."""
        connection, offsets, coordinator = self._open()
        return self._result(connection.submit(describe_group, self.group_id, offsets, coordinator.check), "The members")

    def _result(self, asked: Future[T], what: str) -> T:
        try:
            return asked.result(2 * self.timeout_ms / 1000)
        except (RetriableError, FutureTimeoutError) as error:
            raise BrokerUnavailableError(
                f"{what} of group {self.group_id} could not be read within {self.timeout_ms} ms: "
                f"{error!r}. Check the brokers."
            ) from error
        except BrokerError as error:
            raise StreamsError(f"{what} of group {self.group_id} were refused: {error!r}.") from error

    def _open(self) -> tuple[Cluster, GroupOffsets, GroupCoordinator]:
        if self._opened is None or self._opened[0].failure is not None:
            config = GroupMemberConfig(
                self.group_id,
                api_timeout_ms=self.timeout_ms,
                unavailable_timeout_ms=self.timeout_ms,
            )
            network = replace(self.network, request_timeout_ms=self.timeout_ms)
            connection = Cluster(network)
            log = PrefixedLogger(__name__, f"offsets-reader [{self.group_id}] ")
            coordinator = GroupCoordinator(config, network, connection, self._clock, log)
            self._opened = connection, GroupOffsets(config, coordinator, self._clock), coordinator
        return self._opened

    def close(self) -> None:
        """Close the connection, if one was opened; a second call does nothing."""
        if self._opened is not None:
            self._opened[0].close()
        self._opened = None

    def __enter__(self) -> GroupOffsetsReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
