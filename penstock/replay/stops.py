"""Where a replay stops: before one record, or before one that the task processes earlier."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from .replica import Replica

#: A record: its partition and offset.
Place = tuple[TopicPartition, int]
#: How often progress is reported, in seconds.
REPORT_SECONDS = 2.0


@dataclass
class ReplayProgress:
    """Counts records, and says every REPORT_SECONDS how many. seconds(): a monotonic clock."""

    say: Callable[[str], None]
    seconds: Callable[[], float] = time.monotonic
    records: int = 0
    _began: float = field(init=False)
    _said: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._said = self.seconds()

    def count(self) -> None:
        """Count a record."""
        self.records += 1
        now = self.seconds()
        if now - self._said >= REPORT_SECONDS:
            self._said = now
            self.say(self.text())

    def text(self) -> str:
        """Return what was replayed so far."""
        return f"Replayed {self.records:,} records in {self.seconds() - self._began:.1f} s"


def run_until(replica: Replica, stop: Place, progress: ReplayProgress) -> None:
    """Process the records before a record, which is the replica's head then.

    Raises StreamsError if the task does not process such a record.
    """
    while (head := replica.head()) != stop:
        if head is None or _has_passed(head, stop):
            raise _no_record(stop)
        replica.process_next()
        progress.count()


def earlier_stop(replica: Replica, stop: Place, back: int) -> Place | None:
    """Return the record that is processed ``back`` records before another; None if the replica has fewer.

    replica: one that does not process. Raises StreamsError as run_until does.
    """
    earlier: deque[Place] = deque(maxlen=back)
    while (head := replica.head()) != stop:
        if head is None or _has_passed(head, stop):
            raise _no_record(stop)
        earlier.append(head)
        replica.process_next()
    return earlier[0] if len(earlier) == back else None


def _has_passed(head: Place, stop: Place) -> bool:
    return head[0] == stop[0] and head[1] > stop[1]


def _no_record(stop: Place) -> StreamsError:
    partition, offset = stop
    return StreamsError(
        f"The task processes no record at offset {offset} of {partition}: it is the marker of a transaction, was "
        "aborted or removed by compaction, or was dropped when it was deserialized. `penstock topic consume` shows the "
        "records."
    )
