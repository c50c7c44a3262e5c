"""Sinks outside of Kafka: the interface between a task and what writes its rows.

A sink keeps the offsets of a task's input beside the rows, and writes both in one transaction. So the transaction says
what has been written: after a crash the task continues at the stored offset, and a task that is not the owner any more
cannot write. Kafka Streams has no such sinks; Kafka Connect calls them sink connectors with exactly-once support.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import BrokerUnavailableError, StreamsError
from ..records import Headers, TopicPartition
from ..serdes.serdes import Serde


class SinkUnavailableError(BrokerUnavailableError):
    """The sink cannot write now, or it is unknown whether it has written. The task tries again for task.timeout.ms."""


class SinkFencedError(StreamsError):
    """Another writer has replaced this one: its task runs in another place."""


class RefusedRowError(StreamsError):
    """A row that the sink will never accept; the message gives the reason, with the SQLSTATE if there is one."""


class RefusedRowsError(StreamsError):
    """Nothing of a batch was written, because of these rows; refused: the reason of each by its index in the batch."""

    def __init__(self, refused: Mapping[int, RefusedRowError]) -> None:
        super().__init__(f"{len(refused)} rows were refused, first: {next(iter(refused.values()))}")
        self.refused = dict(refused)


class SinkRecord(NamedTuple):
    """A record to write; timestamp: in ms."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers


class SinkOffset(NamedTuple):
    """The next offset to read of a partition. topic_id: of the topic that had it, as hex digits, "" if unknown."""

    offset: int
    topic_id: str


class StoredSinkOffset(NamedTuple):
    """A stored offset, with the name of the sink's node."""

    sink: str
    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The task that writes. name: of the sink's node. Serdes are None if the topology does not know them."""

    application_id: str
    name: str
    key_serde: Serde | None = None
    value_serde: Serde | None = None


class SinkWriter(ABC):
    """An open sink of one task. All methods are called by one thread.

    All may raise SinkUnavailableError; the next call must connect again if that is needed.
    """

    @abstractmethod
    def fence(self, topic_ids: Mapping[TopicPartition, str]) -> Mapping[TopicPartition, SinkOffset]:
        """Become the only writer of these partitions, and return their stored offsets, without those that have none.

        When it returns, no transaction of a former writer can be committed any more. topic_ids: the ids of the
        partitions' topics as hex digits, "" if unknown; the next writes store them.
        """

    @abstractmethod
    def write(self, records: Sequence[SinkRecord], offsets: Mapping[TopicPartition, int]) -> None:
        """Write records, in their order, and the next offsets of their partitions: all of it or nothing.

        Raises SinkFencedError if another writer has replaced this one, RefusedRowsError if some rows cannot be written.
        After SinkUnavailableError it is unknown whether they were written: offsets() has the answer.
        """

    @abstractmethod
    def offsets(self) -> Mapping[TopicPartition, int]:
        """Return the stored offsets, once it is certain that no earlier write can change them.

        Raises SinkFencedError if another writer has replaced this one.
        """

    @abstractmethod
    def close(self) -> None:
        """Close connections; never raises for a connection that is lost. Nothing is written."""


class Sink(ABC):
    """The place that records are written to: settings without connections, part of a topology, so it must be picklable.

    ``str()`` describes it in a few words without secrets, e.g. for ``penstock describe``.
    """

    @abstractmethod
    def open(self, context: SinkContext) -> SinkWriter:
        """Return a writer; create what it writes to, or check it.

        Raises SinkUnavailableError if another attempt may succeed, StreamsError if it cannot be written to.
        """

    @abstractmethod
    def stored(self, application_id: str) -> Sequence[StoredSinkOffset]:
        """Return the stored offsets of an application; raises SinkUnavailableError."""

    @abstractmethod
    def forget(self, application_id: str) -> None:
        """Delete the stored offsets of an application, but no rows; raises SinkUnavailableError."""
