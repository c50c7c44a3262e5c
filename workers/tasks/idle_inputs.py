"""Whether the inputs of a task are idle: the broker has no records that it has not read. See context/idle_time.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Protocol

from penstock.clients.cluster.admin import Admin
from penstock.clients.cluster.offsets import LATEST
from penstock.clients.errors import BrokerError, RetriableError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.context.idle_time import IdleTime, IdleTimeout
from penstock.topology.records import TopicPartition

#: Time limit for a request to the brokers, in ms; without a response stream time stays.
TIMEOUT_MS = 10_000
Asked = Mapping[TopicPartition, "Future[int]"]


class TopicTimes(Protocol):
    """Asks the brokers without blocking. A future raises RetriableError or BrokerError."""

    def ends(self, partitions: Collection[TopicPartition]) -> Asked:
        """Request the end offsets that readers can reach."""

    def newest_elsewhere(self, partitions: Collection[TopicPartition]) -> Asked:
        """Request the highest timestamps (ms, -1 for none) of the other partitions of the same topics."""


class AdminTopicTimes:
    """TopicTimes by an Admin. partition_count(topic): by its full name. committed_only: see Admin.offsets."""

    def __init__(self, admin: Admin, partition_count: Callable[[str], int], committed_only: bool) -> None:
        self._admin = admin
        self._partition_count = partition_count
        self._committed_only = committed_only

    def ends(self, partitions: Collection[TopicPartition]) -> Asked:
        """Request the end offsets that readers can reach."""
        return self._admin.offsets(dict.fromkeys(partitions, LATEST), TIMEOUT_MS, self._committed_only)

    def newest_elsewhere(self, partitions: Collection[TopicPartition]) -> Asked:
        """Request the highest timestamps (ms, -1 for none) of the other partitions of the same topics."""
        topics = {partition.topic for partition in partitions}
        all_of_them = [TopicPartition(topic, n) for topic in topics for n in range(self._partition_count(topic))]
        others = [partition for partition in all_of_them if partition not in partitions]
        return self._admin.newest_timestamps(others, TIMEOUT_MS, self._committed_only)


class IdleInputs:
    """The inputs of one task. Times in ms of the wall clock."""

    def __init__(self, timeout: IdleTimeout, times: TopicTimes, now_ms: int, log: PrefixedLogger) -> None:
        self._idle = IdleTime(timeout, now_ms, lambda: self._newest_ms)
        self._asks_elsewhere = timeout.follows == "others"
        self._times = times
        self._log = log
        self._newest_ms: int | None = None
        self._ends: Asked = {}
        self._elsewhere: Asked = {}

    def is_due(self, now_ms: int) -> bool:
        """Return whether advanced() may return another time."""
        return now_ms >= self._idle.next_ms

    def record_came(self, now_ms: int) -> None:
        """Note that the task has records to process."""
        self._idle.record_came(now_ms)
        self._ends = {}

    def advanced(self, positions: Mapping[TopicPartition, int], stream_time_ms: int, now_ms: int) -> int:
        """Return the stream time to advance to, which may be the same.

        positions: the next offsets to read. The first call after the timeout asks for the ends, a later one uses them.
        """
        if not self.is_due(now_ms):
            return stream_time_ms
        if not self._ends:
            self._ends = self._times.ends(positions)
            self._elsewhere = self._times.newest_elsewhere(positions) if self._asks_elsewhere else {}
            return stream_time_ms
        ends, elsewhere = self._ends, self._elsewhere
        if not all(future.done() for future in (*ends.values(), *elsewhere.values())):
            return stream_time_ms
        self._ends = {}
        try:
            unread = any(future.result() > positions[partition] for partition, future in ends.items())
            times = [future.result() for future in elsewhere.values()]
        except (RetriableError, BrokerError) as error:
            self._log.debug("Whether %s are idle is not known: %s", sorted(positions), error)
            return stream_time_ms
        if unread:
            self._idle.record_came(now_ms)
            return stream_time_ms
        self._newest_ms = max(times, default=None)
        return self._idle.advanced(stream_time_ms, now_ms)
