"""The input and output topics of TopologyTestDriver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, cast

from penstock.topology.common.durations import Duration, to_millis
from penstock.topology.context.timestamp_extractors import as_timestamp
from penstock.topology.errors import PenstockError
from penstock.topology.records import Headers, HeadersLike, Record, SentRecord, as_headers
from penstock.topology.serdes.serdes import Serde
from penstock.topology.type_variables import K, V

#: pipe(record)
Pipe = Callable[[SentRecord], None]

_MISSING: object = object()


class NoSuchElementError(PenstockError, LookupError):
    """There is no record to read."""


class TestRecord(Record[K, V]):
    """A record with its partition (Kafka Streams: TestRecord, KIP-1238).

    partition: of a record that is piped, None to choose it by the key. Records are equal if key, value, timestamp and
    headers are, as other Records.
    """

    __test__ = False  # not a test class for pytest

    partition: int | None

    def __new__(
        cls, key: K, value: V, timestamp: int, headers: HeadersLike = None, partition: int | None = None
    ) -> TestRecord[K, V]:
        """Return a record; raises TypeError for invalid headers."""
        made = cast("TestRecord[K, V]", super().__new__(cls, key, value, timestamp, headers))
        made.partition = partition
        return made

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, partition={self.partition})"


class TestInputTopic:
    """Pipes records into one source topic (Kafka Streams: TestInputTopic).

    Records without their own timestamp get the topic's, which auto_advance advances after each of them.
    """

    __test__ = False  # not a test class for pytest

    def __init__(
        self,
        pipe: Pipe,
        piping_list: Callable[[], AbstractContextManager[None]],
        topic: str,
        key_serde: Serde,
        value_serde: Serde,
        start_timestamp: int,
        auto_advance_ms: int,
    ) -> None:
        self.topic = topic
        self._pipe = pipe
        self._piping_list = piping_list
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._time = start_timestamp
        self._auto_advance_ms = auto_advance_ms

    def advance_time(self, advance: Duration) -> None:
        """Advance the timestamp of following records (timedelta or ms)."""
        millis = to_millis(advance, "advance")
        if millis < 0:
            raise ValueError(f"Time cannot go back, got {millis} ms")
        self._time += millis

    def pipe_input(
        self,
        *record: object,
        key: object = _MISSING,
        value: object = _MISSING,
        timestamp: int | datetime | None = None,
        headers: HeadersLike = None,
        partition: int | None = None,
    ) -> None:
        """Pipe one record and process everything that follows from it.

        pipe_input(value), pipe_input(key, value), pipe_input(key, value, timestamp), pipe_input(Record(…)), or by
        keywords. timestamp: milliseconds since the epoch or an aware datetime. headers: (name, bytes or text) pairs, or
        a dict of them. partition: by default that of the key, and of records without key the next one in turn.
        Raises the topology's exceptions, of which a StreamsError names a failing operator; ValueError for a partition
        that the topic does not have.
        """
        if len(record) == 1 and isinstance(record[0], Record):
            key, value = record[0].key, record[0].value
            timestamp = record[0].timestamp if timestamp is None else timestamp
            headers = record[0].headers if headers is None else headers
            partition = getattr(record[0], "partition", None) if partition is None else partition
        else:
            key, value, timestamp = _arguments(record, key, value, timestamp)
        time = self._next_time() if timestamp is None else _millis(timestamp)
        self._send(key, value, time, as_headers(headers), partition)

    def pipe_value_list(
        self, values: Iterable[object], start_timestamp: int | datetime | None = None, advance: Duration = 0
    ) -> None:
        """Pipe values without keys, the first at start_timestamp, each following one an advance later."""
        self.pipe_key_value_list(((None, value) for value in values), start_timestamp, advance)

    def pipe_key_value_list(
        self,
        key_values: Iterable[tuple[object, object]] | Mapping[Any, object],
        start_timestamp: int | datetime | None = None,
        advance: Duration = 0,
    ) -> None:
        """Pipe (key, value) pairs, the first at start_timestamp (ms), each following one an advance later.

        Without start_timestamp each gets the topic's time.
        """
        pairs = key_values.items() if isinstance(key_values, Mapping) else key_values
        time = None if start_timestamp is None else _millis(start_timestamp)
        with self._piping_list():
            for pair in pairs:
                if not isinstance(pair, tuple | list) or len(pair) != 2:
                    raise TypeError(f"pipe_key_value_list takes (key, value) pairs, not {pair!r}")
                key, value = pair
                self._send(key, value, self._next_time() if time is None else time)
                if time is not None:
                    time += to_millis(advance, "advance")

    def pipe_record_list(self, records: Iterable[Record]) -> None:
        """Pipe records with their own timestamps, headers and, as TestRecords, partitions."""
        with self._piping_list():
            for record in records:
                self.pipe_input(record)

    def _next_time(self) -> int:
        time = self._time
        self._time += self._auto_advance_ms
        return time

    def _send(
        self, key: object, value: object, timestamp: int, headers: Headers = None, partition: int | None = None
    ) -> None:
        key_bytes = self._key_serde.serialize(self.topic, key)
        value_bytes = self._value_serde.serialize(self.topic, value)
        self._pipe(SentRecord(self.topic, key_bytes, value_bytes, timestamp, headers, partition))

    def __repr__(self) -> str:
        return f"TestInputTopic({self.topic!r})"


def _arguments(record: tuple[object, ...], key: object, value: object, timestamp: object) -> tuple[Any, Any, Any]:
    """Return key, value and timestamp of pipe_input's positional and keyword arguments."""
    if len(record) == 1 and key is _MISSING and value is _MISSING:
        return None, record[0], timestamp
    names = ("key", "value", "timestamp")
    given = {"key": key, "value": value, "timestamp": timestamp}
    if len(record) > len(names):
        raise TypeError(f"pipe_input takes a value, or key, value and timestamp, got {len(record)} arguments")
    for name, argument in zip(names, record, strict=False):
        if given[name] is not (None if name == "timestamp" else _MISSING):
            raise TypeError(f"pipe_input got {name} twice")
        given[name] = argument
    if given["value"] is _MISSING:
        raise TypeError("pipe_input needs a value; None is a tombstone")
    return None if given["key"] is _MISSING else given["key"], given["value"], given["timestamp"]


def _millis(timestamp: int | datetime) -> int:
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise ValueError(f"A timestamp needs a time zone, got {timestamp!r}")
        return (timestamp - datetime.fromtimestamp(0, timestamp.tzinfo)) // timedelta(milliseconds=1)
    return as_timestamp(timestamp)


@dataclass(eq=False)
class TestOutputTopic(Generic[K, V]):
    """Reads the records written to one topic, oldest first, each once (Kafka Streams: TestOutputTopic)."""

    __test__ = False  # not a test class for pytest

    outputs: Mapping[str, deque[SentRecord]]
    topic: str
    key_serde: Serde[K]
    value_serde: Serde[V]

    def read_record(self) -> TestRecord[K, V]:
        """Return the next record, with its partition; raises NoSuchElementError if there is none."""
        if self.topic not in self.outputs:
            raise NoSuchElementError(f"Uninitialized topic: {self.topic} (nothing was written to it yet)")
        if self.is_empty():
            raise NoSuchElementError(f"Empty topic: {self.topic}")
        record = self.outputs[self.topic].popleft()
        key: Any = self.key_serde.deserialize(self.topic, record.key)
        value: Any = self.value_serde.deserialize(self.topic, record.value)
        timestamp = -1 if record.timestamp is None else record.timestamp
        return TestRecord(key, value, timestamp, record.headers, record.partition or 0)

    def read_value(self) -> V:
        """Return the value of the next record; raises NoSuchElementError if there is none."""
        return self.read_record().value

    def read_key_value(self) -> tuple[K, V]:
        """Return (key, value) of the next record; raises NoSuchElementError if there is none."""
        record = self.read_record()
        return record.key, record.value

    def read_records_to_list(self) -> list[TestRecord[K, V]]:
        """Return all records."""
        return [self.read_record() for _ in range(self.queue_size())]

    def read_key_values_to_list(self) -> list[tuple[K, V]]:
        """Return (key, value) of all records."""
        return [(record.key, record.value) for record in self.read_records_to_list()]

    def read_values_to_list(self) -> list[V]:
        """Return the values of all records."""
        return [record.value for record in self.read_records_to_list()]

    def read_key_values_to_map(self) -> dict[K, V]:
        """Return the last value of each key; raises ValueError for a record without key."""
        pairs = self.read_key_values_to_list()
        if any(key is None for key, _ in pairs):
            raise ValueError("Null keys not allowed with read_key_values_to_map()")
        return dict(pairs)

    def is_empty(self) -> bool:
        """Return whether there is nothing to read."""
        return self.queue_size() == 0

    def queue_size(self) -> int:
        """Return the number of unread records."""
        return len(self.outputs.get(self.topic, ()))

    def __repr__(self) -> str:
        return f"TestOutputTopic({self.topic!r}, {self.queue_size()} records)"
