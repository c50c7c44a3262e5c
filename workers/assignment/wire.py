"""The building blocks of the subscription and assignment bytes: compact, and safe to read from anybody.

Numbers are unsigned LEB128 varints, signed ones zigzag before that; texts (UTF-8) and bytes stand behind their length;
a list is its length and its items. The group's metadata is one record of the broker's (1 MB by default) and holds the
bytes of all members, so topics are written once and referred to by number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar
from uuid import UUID

from penstock.topology.errors import TaskAssignmentError
from penstock.topology.records import TaskId, TopicPartition

T = TypeVar("T")

_VARINT_BYTES_MAX = 10  # 64 bits
_TASK_NUMBER_MAX = 2**31 - 1


class MalformedInfoError(TaskAssignmentError):
    """Bytes of a group member that are not what it should have sent."""


class Writer:
    """Appends values to bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def to_bytes(self) -> bytes:
        """Return what was written."""
        return bytes(self._bytes)

    def raw(self, data: bytes) -> None:
        """Append bytes without their length."""
        self._bytes += data

    def number(self, value: int) -> None:
        """Append a number from 0."""
        while value > 0x7F:
            self._bytes.append(value & 0x7F | 0x80)
            value >>= 7
        self._bytes.append(value)

    def signed(self, value: int) -> None:
        """Append a number of up to 64 bits."""
        self.number(value << 1 if value >= 0 else ((-value) << 1) - 1)

    def text(self, value: str) -> None:
        """Append a text."""
        self.data(value.encode())

    def data(self, value: bytes) -> None:
        """Append bytes behind their length."""
        self.number(len(value))
        self._bytes += value

    def items(self, values: Collection[T], write: Callable[[T], None]) -> None:
        """Append a list."""
        self.number(len(values))
        for value in values:
            write(value)

    def tasks(self, tasks: Iterable[TaskId]) -> None:
        """Append task ids, by sub-topology."""
        by_subtopology: dict[int, list[int]] = defaultdict(list)
        for subtopology, partition in sorted(tasks):
            by_subtopology[subtopology].append(partition)
        self.items(list(by_subtopology.items()), self._subtopology)

    def _subtopology(self, item: tuple[int, list[int]]) -> None:
        self.number(item[0])
        self.items(item[1], self.number)

    def partitions(self, partitions: Iterable[TopicPartition], topics: Mapping[str, int]) -> None:
        """Append partitions, by topic; topics has each topic's number."""
        by_topic: dict[int, list[int]] = defaultdict(list)
        for topic, partition in sorted(partitions):
            by_topic[topics[topic]].append(partition)
        self.items(list(by_topic.items()), self._subtopology)


class Reader:
    """Reads values from bytes; raises MalformedInfoError for whatever is not there. what: names them in the error."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    def fail(self, why: str) -> MalformedInfoError:
        """Return the error to raise."""
        return MalformedInfoError(f"Malformed {self._what} of {len(self._data)} bytes: {why} at byte {self._at}.")

    def end(self) -> None:
        """Check that nothing is left."""
        if self._at != len(self._data):
            raise self.fail("more than was expected")

    def raw(self, length: int) -> bytes:
        """Return the next bytes."""
        if length > len(self._data) - self._at:
            raise self.fail(f"{length} bytes are missing")
        self._at += length
        return self._data[self._at - length : self._at]

    def number(self) -> int:
        """Return a number from 0."""
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise self.fail("an endless number")

    def small(self) -> int:
        """Return a number from 0 to 2**31 - 1: a partition, a count, a version."""
        value = self.number()
        if value > _TASK_NUMBER_MAX:
            raise self.fail(f"{value} is too large")
        return value

    def signed(self) -> int:
        """Return a number of up to 64 bits."""
        value = self.number()
        return -((value + 1) >> 1) if value & 1 else value >> 1

    def text(self) -> str:
        """Return a text."""
        try:
            return self.data().decode()
        except UnicodeDecodeError as error:
            raise self.fail("a text that is not UTF-8") from error

    def data(self) -> bytes:
        """Return bytes that stand behind their length."""
        return self.raw(self.number())

    def uuid(self) -> UUID:
        """Return a UUID."""
        return UUID(bytes=self.raw(16))

    def items(self, read: Callable[[], T]) -> list[T]:
        """Return a list; each item takes a byte at least, so that a wrong length cannot fill the memory."""
        length = self.number()
        if length > len(self._data) - self._at:
            raise self.fail(f"a list of {length} items")
        return [read() for _ in range(length)]

    def tasks(self) -> frozenset[TaskId]:
        """Return task ids."""
        return frozenset(TaskId(*pair) for pair in self._pairs())

    def partitions(self, topics: list[str]) -> frozenset[TopicPartition]:
        """Return partitions of the numbered topics."""
        pairs = self._pairs()
        if any(number >= len(topics) for number, _ in pairs):
            raise self.fail("a topic without a name")
        return frozenset(TopicPartition(topics[number], partition) for number, partition in pairs)

    def _pairs(self) -> list[tuple[int, int]]:
        groups = self.items(lambda: (self.small(), self.items(self.small)))
        return [(first, second) for first, seconds in groups for second in seconds]
