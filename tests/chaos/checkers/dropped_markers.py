"""Log lines of brokers that drop transaction markers, see tests/chaos/dropped_markers.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from tests.chaos.checkers.log_reader import Partition

#: The time is local, in ISO 8601; the brackets enclose a set in Scala's or Java's format.
LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d,\d{3}) .*Couldn't find leader endpoint for partitions "
    r"\w*[(\[](?P<partitions>.*)[)\]] while trying to send transaction markers for (?P<id>.*), these partitions are "
)


@dataclass(frozen=True)
class DroppedMarkers:
    """Partitions in which a transaction may lack its marker; a coordinator replaced just then would write it.

    at: when the broker dropped them, in ms since the epoch. broker: its name. line: the log line.
    """

    at: int
    broker: str
    transactional_id: str
    partitions: frozenset[Partition]
    line: str

    @classmethod
    def parse(cls, line: str, broker: str) -> DroppedMarkers | None:
        """Parse a line of a broker's log; return None for any other line."""
        found = LINE.match(line)
        if found is None:
            return None
        partitions = frozenset(_partitions(found["partitions"]))
        return cls(milliseconds(found["time"]), broker, found["id"], partitions, line.rstrip())


def milliseconds(time: str) -> int:
    """Return a local time of a broker's log in ms since the epoch."""
    return round(datetime.fromisoformat(time.replace(",", ".")).timestamp() * 1000)


def _partitions(names: str) -> Iterator[Partition]:
    for name in names.split(", "):
        topic, _, number = name.rpartition("-")
        yield topic, int(number)
