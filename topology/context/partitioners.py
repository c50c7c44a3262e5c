"""Partitioners by key (Kafka: BuiltInPartitioner, WindowedStreamPartitioner), and the user's (StreamPartitioner)."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Generic, TypeAlias

from typing_extensions import override

from ..common.arguments import check_function
from ..errors import TopologyError
from ..records import Headers, Windowed
from ..serdes.windowed_serdes import WindowedSerde
from ..type_variables import K, V

_WORD = struct.Struct("<I")
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 hash of bytes, as an unsigned 32-bit number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for (k,) in _WORD.iter_unpack(data[:whole]):
        k = k * _MULTIPLIER & _MASK
        k ^= k >> 24
        h = (h * _MULTIPLIER & _MASK) ^ (k * _MULTIPLIER & _MASK)
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    h ^= h >> 13
    h = h * _MULTIPLIER & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's default partitioner chooses for a key."""
    return _positive_hash(key) % partition_count


@lru_cache(maxsize=65_536)  # keys repeat; about 10 MB at 100 bytes per key
def _positive_hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


#: What a partitioner returns: a partition; several, each of which gets the record, or none, and the record is dropped
#: (KIP-837); None: that of Kafka's default partitioner.
Chosen: TypeAlias = int | Collection[int] | None


class StreamPartitioner(ABC, Generic[K, V]):
    """Chooses partitions by a record's headers, too (Kafka Streams: StreamPartitioner, KIP-1321).

    Without headers a function (topic, key, value, partition count) does the same.
    """

    @abstractmethod
    def partitions(self, topic: str, key: K, value: V, headers: Headers, partition_count: int) -> Chosen:
        """Return the partition of a record, several, none to drop it, or None for Kafka's default.

        topic: its full name. headers: as of a Record, None without any. partition_count: partitions are 0 to one less.
        """


Partitioner: TypeAlias = Callable[[str, Any, Any, int], Chosen] | StreamPartitioner


def check_partitioner(given: object, what: str) -> None:
    """Raise TopologyError unless an argument is a partitioner or None. what: its name and operator, for the message."""
    if isinstance(given, type) and issubclass(given, StreamPartitioner):
        raise TopologyError(f"{what} must be an object, got the class: {given.__name__}()")
    check_function(given.partitions if isinstance(given, StreamPartitioner) else given, what, optional=True)


def choose_one(
    partitioner: Partitioner, topic: str, key: object, value: object, headers: Headers, partition_count: int
) -> int | None:
    """Return what a partitioner chooses where a record has one place; raises ValueError for several and for none."""
    if isinstance(partitioner, StreamPartitioner):
        chosen = partitioner.partitions(topic, key, value, headers, partition_count)
    else:
        chosen = partitioner(topic, key, value, partition_count)
    if not isinstance(chosen, Collection):
        return chosen
    if len(chosen) != 1:
        raise ValueError(
            f"The partitioner must return one partition of {topic} for the key {key!r}, not {chosen!r}: the record "
            "is looked for in one place"
        )
    return next(iter(chosen))


class OnePartition(StreamPartitioner):
    """A partitioner of a foreign-key join: it sees keys and headers, and chooses one partition, as in Kafka Streams."""

    def __init__(self, partitioner: Partitioner) -> None:
        self.partitioner = partitioner

    @override
    def partitions(self, topic: str, key: object, value: object, headers: Headers, partition_count: int) -> int | None:
        """Return the partition, None for Kafka's default; raises ValueError for several and for none."""
        return choose_one(self.partitioner, topic, key, None, headers, partition_count)


class WindowedStreamPartitioner:
    """A partitioner (topic, windowed key, value, partition count) by the key inside (Kafka's class)."""

    def __init__(self, serde: WindowedSerde) -> None:
        self.serde = serde

    def __call__(self, topic: str, windowed: Windowed, value: object, partition_count: int) -> int:
        """Return the partition of a windowed key."""
        return partition_for_key(self.serde.serialize_base_key(topic, windowed.key) or b"", partition_count)
