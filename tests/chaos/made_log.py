"""A broker's log, built by a test to plant a single fault."""

from __future__ import annotations

import json
import struct
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from tests.chaos.checkers.atomicity import Places
from tests.chaos.checkers.dropped_markers import DroppedMarkers
from tests.chaos.checkers.log_reader import Log, Partition
from tests.chaos.checkers.record_batches import Batch, Marker, Record
from tests.chaos.checkers.transactions import OFFSETS_TOPIC, Decision, History

FEEDER, WORKER, OTHER_WORKER = 1, 2, 3
PLACES = Places("app", "in", "out", "tallies", "tally-log", "again", "groups", "group-log", groups=2)
OFFSETS: Partition = (OFFSETS_TOPIC, 0)


def partition(topic: str) -> Partition:
    """Return the only partition of a topic."""
    return topic, 0


def text(value: str) -> bytes:
    """Return a length-prefixed text."""
    return struct.pack(">h", len(value)) + value.encode()


class MadeLog:
    """Partitions and decisions. starts: start offsets of partitions whose records were deleted.

    bumps: each transaction has its own epoch, as in KIP-890. Each action takes a millisecond.
    """

    def __init__(self, bumps: bool = False) -> None:
        self._bumps = bumps
        self._epochs: Counter[int] = Counter()
        self.batches: defaultdict[Partition, list[Batch]] = defaultdict(list)
        self.decisions: list[Decision] = []
        self.starts: dict[Partition, int] = {}
        self.dropped: list[DroppedMarkers] = []
        self._now = 0

    def end(self, place: Partition) -> int:
        """Return the end offset of a partition."""
        batches = self.batches[place]
        return batches[-1].last + 1 if batches else 0

    def tick(self) -> int:
        """Return the next millisecond."""
        self._now += 1
        return self._now

    def append(self, producer: int, place: Partition, *records: tuple[str, Any], transactional: bool = True) -> None:
        """Write keys and values."""
        first = self.end(place)
        made = tuple(
            Record(first + number, key.encode(), json.dumps(value).encode())
            for number, (key, value) in enumerate(records)
        )
        last, epoch = first + len(made) - 1, self._epochs[producer]
        self.batches[place].append(Batch(first, last, producer, epoch, transactional, made, None, self.tick()))

    def commit_offset(self, producer: int, topic: str, offset: int, group: str = PLACES.group) -> None:
        """Write a committed offset."""
        first = self.end(OFFSETS)
        key = struct.pack(">h", 1) + text(group) + text(topic) + struct.pack(">i", 0)
        record = Record(first, key, struct.pack(">hq", 3, offset))
        epoch = self._epochs[producer]
        self.batches[OFFSETS].append(Batch(first, first, producer, epoch, True, (record,), None, self.tick()))

    def mark(self, producer: int, place: Partition, commit: bool = True, coordinator_epoch: int = 0) -> None:
        """Write a marker."""
        at = self.end(place)
        marker = Marker(commit, coordinator_epoch)
        self.batches[place].append(Batch(at, at, producer, self._epochs[producer], True, (), marker, self.tick()))

    def decide(
        self,
        producer: int,
        places: Sequence[Partition],
        commit: bool = True,
        marked: bool = True,
        dropped: Sequence[Partition] = (),
    ) -> None:
        """Decide a transaction. marked: write its markers; dropped: markers that a broker does not write, with a log
        line.
        """
        name = f"producer-{producer}"
        self.decisions.append(Decision(producer, commit, frozenset(places), name, self.tick()))
        self._epochs[producer] += self._bumps
        for place in places if marked else ():
            if place not in dropped:
                self.mark(producer, place, commit)
        if dropped:
            self.dropped.append(DroppedMarkers(self.tick(), "broker-1", name, frozenset(dropped), "made"))

    def logs(self) -> dict[Partition, Log]:
        """Return the partitions."""
        return {
            place: Log(self.starts.get(place, 0), self.end(place), tuple(batches))
            for place, batches in self.batches.items()
        }

    def history(self) -> History:
        """Return the history of these logs."""
        return History.of(self.decisions, self.logs(), self.dropped)


def number(key: str, n: int, **more: Any) -> tuple[str, Any]:
    """Return a numbered record."""
    return key, {"key": key, "n": n, **more}


def tally(key: str, n: int) -> tuple[str, Any]:
    """Return the tally of a key after number n."""
    return key, {"records": n, "sum": n * (n + 1) // 2, "last": n, "breaks": 0}


def group_tally(group: str, **last: int) -> tuple[str, Any]:
    """Return a group's tally after these numbers."""
    total = sum(n * (n + 1) // 2 for n in last.values())
    return group, {"records": sum(last.values()), "sum": total, "last": last, "breaks": 0}
