"""Follows the logs of brokers, and keeps lines that show bugs of brokers: a restart renames a log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.chaos.checkers.dropped_markers import DroppedMarkers, milliseconds
from tests.chaos.cluster import Node

#: Kafka 4.4 logs this when the group's coordinator has loaded twice at once, because its partition lost its leader and
#: got it back meanwhile: on a busy machine, or with a short session. For a moment it has no data of the group, and
#: answers that there are no committed offsets.
OUT_OF_SYNC = re.compile(r"(?P<time>\S+[ T]\d\d:\d\d:\d\d,\d{3}) .*is out of sync with the underlying log")


@dataclass(frozen=True)
class ForgottenOffsets:
    """A group's coordinator has forgotten committed offsets. at: ms since the epoch. line: the log line."""

    at: int
    broker: str
    line: str


class BrokerLogs:
    """kept: the file that receives the lines about bugs, each with the broker's name in front."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept
        self._logs: dict[str, _FollowedLog] = {}
        self.dropped: list[DroppedMarkers] = []
        self.forgotten: list[ForgottenOffsets] = []

    def follow(self, brokers: Iterable[Node]) -> None:
        """Follow the logs of brokers from their beginning."""
        self._logs |= {broker.name: _FollowedLog(broker.log_file) for broker in brokers}

    def look(self) -> list[str]:
        """Read new lines; return the messages for the run's output."""
        said = []
        for broker, log in self._logs.items():
            for line in log.new_lines():
                if markers := DroppedMarkers.parse(line, broker):
                    self.dropped.append(markers)
                    places = ", ".join(f"{topic}-{number}" for topic, number in sorted(markers.partitions))
                    said.append(f"{broker} has dropped markers of {markers.transactional_id} in {places}")
                elif found := OUT_OF_SYNC.match(line):
                    self.forgotten.append(ForgottenOffsets(milliseconds(found["time"]), broker, line.rstrip()))
                    said.append(f"{broker} has forgotten committed offsets")
                else:
                    continue
                with self._kept.open("a") as kept:
                    kept.write(f"{broker}: {line}")
        return said

    def close(self) -> None:
        """Close the files."""
        for log in self._logs.values():
            log.close()


class _FollowedLog:
    """A log file that is sometimes replaced by a new file of the same name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._rest = ""

    def new_lines(self) -> Iterator[str]:
        """Yield the complete lines, those of the old file first."""
        if self._file is not None:
            yield from self._lines(self._file)
            if not self._is_replaced(self._file):
                return
            yield from self._lines(self._file)  # written before it was replaced
            self.close()
        if self._path.exists():
            self._file = self._path.open(errors="replace")
            yield from self._lines(self._file)

    def _lines(self, file: IO[str]) -> Iterator[str]:
        for line in file:
            self._rest += line
            if self._rest.endswith("\n"):
                yield self._rest
                self._rest = ""

    def _is_replaced(self, file: IO[str]) -> bool:
        return not self._path.exists() or self._path.stat().st_ino != os.fstat(file.fileno()).st_ino

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, ""
