"""Offsets before which a consumer stops reading, for a time: see docs/decisions/13-cutover.md."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping

from penstock.clients.reading.reader import Records
from penstock.topology.records import Message, TopicPartition


class ReadLimits:
    """The limits of partitions, and the records behind them that were fetched before the reader was paused."""

    def __init__(self) -> None:
        self._limits: Mapping[TopicPartition, int] = {}
        self._kept: dict[TopicPartition, list[Message]] = {}

    @property
    def stopped(self) -> Collection[TopicPartition]:
        """The partitions with kept records: the reader is paused there."""
        return self._kept.keys()

    def set(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace all limits; a partition that is beyond its limit already stops at its position."""
        self._limits = dict(offsets)

    def take(self, paused: Collection[TopicPartition]) -> Records:
        """Remove and return the kept records of partitions that may continue, without the paused ones."""
        free = [p for p, run in self._kept.items() if p not in paused and not self._stops(p, run[0].offset())]
        return {partition: self._kept.pop(partition) for partition in free}

    def _stops(self, partition: TopicPartition, offset: int) -> bool:
        limit = self._limits.get(partition)
        return limit is not None and offset >= limit

    def cut(self, records: Records, positions: dict[TopicPartition, int]) -> list[TopicPartition]:
        """Keep the records behind the limits, and move positions there: nothing is before a limit that was passed.

        Returns the partitions that have reached their limits.
        """
        if not self._limits:
            return []
        reached = [p for p, run in records.items() if self._stops(p, run[-1].offset())]
        for partition in reached:
            limit, run = self._limits[partition], records.pop(partition)
            first = bisect_left(run, limit, key=lambda message: message.offset())
            self._kept[partition] = run[first:]
            positions[partition] = max(limit, positions[partition])
            if first:
                records[partition] = run[:first]
        return reached

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the kept records of partitions that are no longer read; their limits remain."""
        for partition in partitions:
            self._kept.pop(partition, None)

    def bounded(self, partition: TopicPartition, position: int, end: int) -> int:
        """Return the end of a partition that was read up to its position, or the limit if it comes first."""
        limit = self._limits.get(partition)
        return end if limit is None else min(end, max(limit, position))

    def is_reached(self, partition: TopicPartition, position: int) -> bool:
        """Whether nothing is left to read before the limit; False without one."""
        return self._stops(partition, position)
