"""The progress of a group at any time, from its commits, the only progress visible from outside."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping

from penstock.topology.records import TopicPartition

#: With more partitions than this, each has few commits, and their sum has no steps.
PARTITIONS_MAX = 16


class Curve:
    """A quantity observed at some times (seconds), with linear interpolation in between."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.values: list[float] = []

    def add(self, moment: float, value: float) -> None:
        """Add a later observation."""
        self.moments.append(moment)
        self.values.append(value)

    def at(self, moment: float) -> float:
        """Return the value at a moment; outside of the observed time, the first or the last one."""
        after = bisect_left(self.moments, moment)
        if after == 0:
            return self.values[0]
        if after == len(self.moments):
            return self.values[-1]
        (begin, end), (low, high) = self.moments[after - 1 : after + 1], self.values[after - 1 : after + 1]
        return low + (high - low) * (moment - begin) / (end - begin)


class Progress:
    """The number of records that a group has processed.

    Partitions are committed about every second, those of each thread at another time. So their sum stalls and jumps,
    and on a fast machine, which finishes within a few commits, the rate between two sums can be anything. Here the
    records between two commits of a partition count as processed evenly.

    apart: False for systems so slow that they process one partition after the other: then the sum counts.
    """

    def __init__(self, partitions: Collection[TopicPartition], apart: bool = True) -> None:
        apart = apart and len(partitions) <= PARTITIONS_MAX
        self._part_of = {partition: partition.partition if apart else 0 for partition in partitions}
        self._commits = {part: Curve() for part in self._part_of.values()}
        self.committed = 0

    def note(self, moment: float, offsets: Mapping[TopicPartition, int]) -> None:
        """Record the current committed offsets."""
        found: Counter[int] = Counter()
        for partition, offset in offsets.items():
            found[self._part_of[partition]] += offset
        for part, commits in self._commits.items():
            if found[part] > (commits.values[-1] if commits.values else 0):
                commits.add(moment, found[part])
        self.committed = found.total()

    def at(self, moment: float) -> float:
        """Return the number of processed records at a time, counted from each partition's first commit."""
        return sum(commits.at(moment) for commits in self._commits.values())

    def span(self, records: int) -> tuple[float, float] | None:
        """Return the start and end of the time in which all partitions were processed, with at least this many records;
        or None.

        A partition counts from its first commit to its last but one: the last may follow long after its last record.
        """
        curves = self._commits.values()
        if any(len(commits.moments) < 2 for commits in curves):
            return None
        begin = max(self._reached(records), *(commits.moments[0] for commits in curves))
        end = min(commits.moments[-2] for commits in curves)
        return (begin, end) if begin < end else None

    def _reached(self, records: int) -> float:
        """Return when this many records were processed."""
        moments = sorted({moment for commits in self._commits.values() for moment in commits.moments})
        whole = Curve()  # inverted: times by records
        for moment in moments:
            whole.add(self.at(moment), moment)
        return whole.at(records)
