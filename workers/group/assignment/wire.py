"""The building blocks of Kafka Streams' subscription and assignment bytes; safe to read from any sender.

Numbers are big-endian and signed. Strings are prefixed with a two-byte length, bytes and lists with a four-byte one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from penstock.topology.errors import TaskAssignmentError
from penstock.topology.records import TaskId, TopicPartition

T = TypeVar("T")

#: The first version with the name of a named topology in each task id. Kafka Streams never made them public.
NAMED_TOPOLOGY_VERSION = 10


class MalformedInfoError(TaskAssignmentError):
    """A group member has sent malformed bytes."""


class Writer:
    """Appends values to bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def to_bytes(self) -> bytes:
        """Return the bytes."""
        return bytes(self._bytes)

    def raw(self, data: bytes) -> None:
        """Append bytes without their length."""
        self._bytes += data

    def int8(self, value: int) -> None:
        """Append a number of one byte."""
        self.raw(struct.pack(">b", value))

    def int32(self, value: int) -> None:
        """Append a number of four bytes."""
        self.raw(struct.pack(">i", value))

    def int64(self, value: int) -> None:
        """Append a number of eight bytes."""
        self.raw(struct.pack(">q", value))

    def text(self, value: str) -> None:
        """Append a string; raises MalformedInfoError for one of more than 32,767 bytes."""
        data = value.encode()
        if len(data) > 0x7FFF:
            raise MalformedInfoError(f"A text of {len(data)} bytes is too long to be sent: {value[:40]}…")
        self.raw(struct.pack(">h", len(data)) + data)

    def data(self, value: bytes) -> None:
        """Append bytes with their length."""
        self.int32(len(value))
        self.raw(value)

    def items(self, values: Collection[T], write: Callable[[T], None]) -> None:
        """Append a list."""
        self.int32(len(values))
        for value in values:
            write(value)

    def task(self, task: TaskId) -> None:
        """Append a task id without a named topology."""
        self.int32(task.subtopology)
        self.int32(task.partition)

    def tasks(self, tasks: Iterable[TaskId]) -> None:
        """Append a list of task ids, in their order."""
        self.items(sorted(tasks), self.task)

    def partition(self, partition: TopicPartition) -> None:
        """Append a partition with its topic's name."""
        self.text(partition.topic)
        self.int32(partition.partition)


class Reader:
    """Reads values from bytes; raises MalformedInfoError if they are incomplete. what: describes them in the error."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    def fail(self, why: str) -> MalformedInfoError:
        """Return the error to raise."""
        return MalformedInfoError(f"Malformed {self._what} of {len(self._data)} bytes: {why} at byte {self._at}.")

    @property
    def remaining(self) -> int:
        """Return how many bytes are left."""
        return len(self._data) - self._at

    def raw(self, length: int) -> bytes:
        """Return the next bytes."""
        if not 0 <= length <= self.remaining:
            raise self.fail(f"{length} bytes are missing")
        self._at += length
        return self._data[self._at - length : self._at]

    def int8(self) -> int:
        """Return a number of one byte."""
        return int.from_bytes(self.raw(1), signed=True)

    def int32(self) -> int:
        """Return a number of four bytes."""
        return int.from_bytes(self.raw(4), signed=True)

    def int64(self) -> int:
        """Return a number of eight bytes."""
        return int.from_bytes(self.raw(8), signed=True)

    def count(self) -> int:
        """Return a number from 0: a length, a task's number."""
        value = self.int32()
        if value < 0:
            raise self.fail(f"the number {value}")
        return value

    def text(self) -> str:
        """Return a string."""
        return self._decoded(self.raw(int.from_bytes(self.raw(2))))

    def bytes_text(self) -> str:
        """Return a text that is sent as bytes, "" for null."""
        return self._decoded(self.data())

    def _decoded(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.fail("a text that is not UTF-8") from error

    def data(self) -> bytes:
        """Return bytes with a length prefix, empty for null."""
        return self.raw(max(self.int32(), 0))

    def items(self, read: Callable[[], T]) -> list[T]:
        """Return a list. Each item takes at least one byte, so a wrong length cannot fill the memory."""
        length = self.count()
        if length > self.remaining:
            raise self.fail(f"a list of {length} items")
        return [read() for _ in range(length)]

    def task(self) -> TaskId:
        """Return a task id without a named topology."""
        return TaskId(self.count(), self.count())

    def tasks(self) -> frozenset[TaskId]:
        """Return task ids."""
        return frozenset(self.items(self.task))

    def partition(self) -> TopicPartition:
        """Return a partition that is sent with its topic's name."""
        return TopicPartition(self.text(), self.count())

    def no_named_topology(self, length: int) -> None:
        """Refuse a task of a named topology. length: of the name, negative for null."""
        if length > 0:
            raise self.fail("a task of a named topology, which Penstock does not support")
