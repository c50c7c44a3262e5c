"""Plain values shared by all packages: records, their coordinates, changes of a table, windowed keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, cast

from typing_extensions import TypeVar

from penstock.kernel.processors import record_maker, with_field

from .type_variables import K_co, V_co

KR = TypeVar("KR")
VR = TypeVar("VR")
_new: Callable[..., Record] = cast("Any", tuple.__new__)

#: Headers of a record: (name, value) pairs in order; None without headers. Never changed in place.
Headers = Sequence[tuple[str, bytes | None]] | None
#: Accepted forms of headers; text is encoded as UTF-8.
HeadersLike = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] | None


def as_headers(given: HeadersLike) -> Headers:
    """Return (name, bytes or None) pairs; raises TypeError for invalid headers.

    given: such pairs, or a dict of them; values may be text. Pairs that need no change are returned as they are.
    """
    if given is None:
        return None
    if type(given) is list and all(map(_is_header, given)):  # the form of consumed records
        return given
    pairs = given.items() if isinstance(given, Mapping) else given
    if isinstance(given, str | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(f"headers are a dict or (name, bytes) pairs, not {given!r}")
    return [_header(pair) for pair in pairs]


def _is_header(pair: object) -> bool:
    if type(pair) is not tuple or len(pair) != 2:
        return False
    name, value = pair
    return type(name) is str and (value is None or type(value) is bytes)


def _header(pair: object) -> tuple[str, bytes | None]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"a header is a pair of its name and its bytes, not {pair!r}")
    name, value = pair
    if not isinstance(name, str):
        raise TypeError(f"the name of a header is text, not {name!r}")
    if isinstance(value, str):
        return name, value.encode()
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        return name, None if value is None else bytes(value)
    raise TypeError(f"the value of header {name} is bytes, text or None, not {value!r}")


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TaskId(NamedTuple):
    """A sub-topology and a partition; written ``<subtopology>_<partition>`` as in Kafka Streams."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read ``0_3``; raises ValueError for anything else."""
        subtopology, partition = text.split("_")
        return cls(int(subtopology), int(partition))


class _RecordFields(NamedTuple, Generic[K_co, V_co]):
    key: K_co
    value: V_co
    timestamp: int
    headers: Headers = None


class Record(_RecordFields[K_co, V_co]):
    """A record as the Processor API sees it (Kafka Streams: ``processor.api.Record``).

    timestamp is in milliseconds since the epoch. headers: any form that as_headers accepts, such as a dict or text
    values. It is a tuple for speed, because one is created for each processed record, and for most forwarded ones.
    """

    __slots__ = ()

    def __new__(cls, key: K_co, value: V_co, timestamp: int, headers: HeadersLike = None) -> Record[K_co, V_co]:
        """Return a record; raises TypeError for invalid headers."""
        return _new(cls, (key, value, timestamp, None if headers is None else as_headers(headers)))

    if TYPE_CHECKING:  # compiled, see below

        def with_key(self, key: KR) -> Record[KR, V_co]:
            """Return a copy with another key."""

        def with_value(self, value: VR) -> Record[K_co, VR]:
            """Return a copy with another value."""

        def with_timestamp(self, timestamp: int) -> Record[K_co, V_co]:
            """Return a copy with another timestamp (ms)."""

    def with_headers(self, headers: HeadersLike) -> Record[K_co, V_co]:
        """Return a copy with other headers."""
        return _new(Record, (self[0], self[1], self[2], as_headers(headers)))


for _place, _field in enumerate(("key", "value", "timestamp")):
    setattr(Record, f"with_{_field}", with_field(Record, _place))
#: Returns a record of key, value, timestamp and headers, as they are; faster than Record.
make_record: Callable[[Any, Any, int, Headers], Record] = record_maker(Record)


class RecordMetadata(NamedTuple):
    """The origin of the input record that is being processed."""

    topic: str
    partition: int
    offset: int


class ProcessorRecordContext(NamedTuple):
    """The origin and time of a record, kept with it in the buffers of suppress and of stream-table joins.

    topic is None, offset and partition are -1 for a record forwarded by a punctuation. timestamp in milliseconds.
    source_raw_key, source_raw_value: the input record's bytes, for dead letters (KIP-1034); changelogs have none.
    """

    timestamp: int
    offset: int
    partition: int
    topic: str | None
    headers: Headers
    source_raw_key: bytes | None = None
    source_raw_value: bytes | None = None


class Message(Protocol):
    """A consumed record: exactly the methods of ``confluent_kafka.Message``, so that these need no conversion."""

    def topic(self) -> str:
        """Return the topic."""

    def partition(self) -> int:
        """Return the partition."""

    def offset(self) -> int:
        """Return the offset."""

    def key(self) -> bytes | None:
        """Return the serialized key."""

    def value(self) -> bytes | None:
        """Return the serialized value."""

    def timestamp(self) -> tuple[int, int]:
        """Return (timestamp type, milliseconds)."""

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers, None if there are none."""


class SentRecord(NamedTuple):
    """A serialized record on its way to a topic: the arguments of TaskOutput.send().

    timestamp: ms, None if the producer sets it. partition: None if the key determines it.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    headers: Headers
    partition: int | None = None


class RawRecord:
    """A Message created without a client: by the test driver, the simulation and Spark."""

    __slots__ = ("_headers", "_key", "_offset", "_partition", "_timestamp", "_topic", "_value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._timestamp = timestamp
        self._key = key
        self._value = value
        self._headers = headers

    def topic(self) -> str:
        """Return the topic."""
        return self._topic

    def partition(self) -> int:
        """Return the partition."""
        return self._partition

    def offset(self) -> int:
        """Return the offset."""
        return self._offset

    def key(self) -> bytes | None:
        """Return the serialized key."""
        return self._key

    def value(self) -> bytes | None:
        """Return the serialized value."""
        return self._value

    def timestamp(self) -> tuple[int, int]:
        """Return (1, milliseconds): 1 is librdkafka's "create time"."""
        return 1, self._timestamp

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers, None if there are none."""
        return self._headers

    def error(self) -> None:
        """Return None, since it is never an error event."""
        return


class Change(NamedTuple):
    """The update of a table's row, as passed between KTable operators (Kafka Streams: ``Change``).

    old is None unless a downstream operator needs old values; is_latest is False for an out-of-order update of a
    versioned table.
    """

    new: Any
    old: Any
    is_latest: bool = True


class ValueAndTimestamp(NamedTuple, Generic[V_co]):
    """A value as timestamped stores keep it; timestamp in milliseconds."""

    value: V_co
    timestamp: int


class _ValueFields(NamedTuple, Generic[V_co]):
    value: V_co
    timestamp: int
    headers: Headers = None


class ValueTimestampHeaders(_ValueFields[V_co]):
    """A value as stores with headers keep it (KIP-1271); timestamp in milliseconds, headers None without any."""

    __slots__ = ()

    def __new__(cls, value: V_co, timestamp: int, headers: HeadersLike = None) -> Self:
        """Return a value; raises TypeError for invalid headers."""
        return tuple.__new__(cls, (value, timestamp, as_headers(headers) or None))


class _AggregationFields(NamedTuple, Generic[V_co]):
    aggregation: V_co
    headers: Headers = None


class AggregationWithHeaders(_AggregationFields[V_co]):
    """An aggregate as session stores with headers keep it (KIP-1271); headers None without any."""

    __slots__ = ()

    def __new__(cls, aggregation: V_co, headers: HeadersLike = None) -> Self:
        """Return an aggregate; raises TypeError for invalid headers."""
        return tuple.__new__(cls, (aggregation, as_headers(headers) or None))


class VersionedRecord(NamedTuple, Generic[V_co]):
    """A version of a value in a versioned store (KIP-889): valid from timestamp (inclusive) to valid_to (exclusive).

    Times in milliseconds; valid_to is None for the newest version.
    """

    value: V_co
    timestamp: int
    valid_to: int | None = None


class Window(NamedTuple):
    """A window in milliseconds: time windows are [start, end), sliding and session windows [start, end]."""

    start: int
    end: int

    def overlap(self, other: Window, *, inclusive: bool = False) -> bool:
        """Return whether two windows have a moment in common. inclusive: their ends belong to them, as in sessions."""
        if inclusive:
            return self.start <= other.end and other.start <= self.end
        return self.start < other.end and other.start < self.end


class Windowed(NamedTuple, Generic[K_co]):
    """A key and the window it was aggregated in (Kafka Streams: ``Windowed``); start and end in milliseconds."""

    key: K_co
    start: int
    end: int

    @property
    def window(self) -> Window:
        """The window alone."""
        return Window(self.start, self.end)

    def __str__(self) -> str:
        return f"[{self.key}@{self.start}/{self.end}]"
