"""Keys and values of the store of records that have no partner yet in a left or outer stream-stream join."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from typing_extensions import override

from penstock.kernel.window_nodes import join_side_key, join_side_value

from ..errors import SerializationError
from ..serdes.codecs import refusing
from ..serdes.serdes import Serde, SerdeLike, as_serde

_TIMESTAMP_AND_SIDE = struct.Struct(">q?")


class TimestampedKeyAndJoinSide(NamedTuple):
    """Key of the store: ordered by timestamp (ms), then right before left, then key bytes."""

    timestamp: int
    left: bool
    key: Any


class LeftOrRightValue(NamedTuple):
    """Value of the store: the value of a left or a right record."""

    left: bool
    value: Any


class TimestampedKeyAndJoinSideSerde(Serde[TimestampedKeyAndJoinSide]):
    """8-byte timestamp, 1 for the left or 0 for the right side, key (Kafka Streams' class of this name)."""

    def __init__(self, key_serde: SerdeLike | None) -> None:
        self.key_serde = as_serde(key_serde)

    @override
    def with_default(self, default: Serde | None) -> TimestampedKeyAndJoinSideSerde:
        inner = default if self.key_serde is None else self.key_serde.with_default(default)
        return TimestampedKeyAndJoinSideSerde(inner)

    @property
    def inner(self) -> Serde:
        """The serde of the keys inside; raises SerializationError if there is none."""
        return _given(self.key_serde, "key")

    @override
    @refusing("write")
    def serialize(self, topic: str, value: TimestampedKeyAndJoinSide | None) -> bytes | None:
        if value is None:
            return None
        key = self.inner.serialize(topic, value.key)
        return join_side_key(value.timestamp, value.left, key or b"")

    @override
    @refusing("read")
    def deserialize(self, topic: str, data: bytes | None) -> TimestampedKeyAndJoinSide | None:
        if data is None:
            return None
        timestamp, left = _TIMESTAMP_AND_SIDE.unpack_from(data)
        key = self.inner.deserialize(topic, data[_TIMESTAMP_AND_SIDE.size :])
        return TimestampedKeyAndJoinSide(timestamp, left, key)


class LeftOrRightValueSerde(Serde[LeftOrRightValue]):
    """1 for a left or 0 for a right value, value (Kafka Streams' class of this name)."""

    def __init__(self, left_serde: SerdeLike | None, right_serde: SerdeLike | None) -> None:
        self.left_serde = as_serde(left_serde)
        self.right_serde = as_serde(right_serde)

    @override
    def with_default(self, default: Serde | None) -> LeftOrRightValueSerde:
        left = default if self.left_serde is None else self.left_serde.with_default(default)
        right = default if self.right_serde is None else self.right_serde.with_default(default)
        return LeftOrRightValueSerde(left, right)

    @override
    @refusing("write")
    def serialize(self, topic: str, value: LeftOrRightValue | None) -> bytes | None:
        if value is None:
            return None
        return join_side_value(value.left, self.of_side(value.left).serialize(topic, value.value))

    @override
    @refusing("read")
    def deserialize(self, topic: str, data: bytes | None) -> LeftOrRightValue | None:
        if not data:
            return None
        left = data[0] == 1
        return LeftOrRightValue(left, self.of_side(left).deserialize(topic, data[1:]))

    def of_side(self, left: bool) -> Serde:
        """Return the serde of the values of a side; raises SerializationError if there is none."""
        return _given(self.left_serde, "left value") if left else _given(self.right_serde, "right value")


def _given(serde: Serde | None, part: str) -> Serde:
    if serde is None:
        raise SerializationError(f"A stream-stream join has no serde for the {part}")
    return serde
