"""Partitioners by key (Kafka: BuiltInPartitioner, WindowedStreamPartitioner)."""

from __future__ import annotations

import struct
from functools import lru_cache

from ..records import Windowed
from ..serdes.windowed_serdes import WindowedSerde

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


class WindowedStreamPartitioner:
    """A partitioner (topic, windowed key, value, partition count) by the key inside (Kafka's class)."""

    def __init__(self, serde: WindowedSerde) -> None:
        self.serde = serde

    def __call__(self, topic: str, windowed: Windowed, value: object, partition_count: int) -> int:
        """Return the partition of a windowed key."""
        return partition_for_key(self.serde.serialize_base_key(topic, windowed.key) or b"", partition_count)
