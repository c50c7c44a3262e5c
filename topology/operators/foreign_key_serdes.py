"""The messages of a foreign-key join and their bytes (KIP-213, KIP-775).

The topics given to serdes inside are Kafka Streams' pseudo-topics; only the serdes of a schema registry look at them.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

from typing_extensions import override

from ..errors import SerializationError
from ..serdes.serdes import Serde, SerdeLike, as_serde

_LENGTH = struct.Struct(">i")
_HASH_BYTES = 16
_NO_HASH = 0x80


class CombinedKey(NamedTuple):
    """Foreign key and primary key of a subscription."""

    foreign_key: Any
    primary_key: Any


class Instruction(IntEnum):
    """What the left side asks of the right side (Kafka Streams: SubscriptionWrapper.Instruction)."""

    DELETE_KEY_NO_PROPAGATE = 0
    DELETE_KEY_AND_PROPAGATE = 1
    PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE = 2
    PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE = 3


class SubscriptionWrapper(NamedTuple):
    """A subscription: from the task of the left row to that of the right one.

    hash: of the left value, None for a deleted row; primary_partition: where the answer must go, None in version 0.
    """

    hash: bytes | None
    instruction: Instruction
    primary_key: Any
    primary_partition: int | None
    version: int = 1


class SubscriptionResponseWrapper(NamedTuple):
    """The answer. primary_partition is not sent: the sink's partitioner uses it."""

    original_value_hash: bytes | None
    foreign_value: Any
    primary_partition: int | None
    version: int = 0


class CombinedKeySchema:
    """Bytes of combined keys: 4-byte length of the foreign key, foreign key, primary key (Kafka Streams' class)."""

    def __init__(
        self,
        foreign_key_topic: str,
        foreign_key_serde: SerdeLike | None,
        primary_key_topic: str,
        primary_key_serde: SerdeLike | None,
    ) -> None:
        self.foreign_key_topic = foreign_key_topic
        self.foreign_key_serde = as_serde(foreign_key_serde)
        self.primary_key_topic = primary_key_topic
        self.primary_key_serde = as_serde(primary_key_serde)

    def with_default(self, default: Serde[Any] | None) -> CombinedKeySchema:
        """Return a schema in which default stands for serdes that were not given."""
        return CombinedKeySchema(
            self.foreign_key_topic,
            _or_default(self.foreign_key_serde, default),
            self.primary_key_topic,
            _or_default(self.primary_key_serde, default),
        )

    def to_bytes(self, foreign_key: Any, primary_key: Any) -> bytes:
        """Return the bytes of a combined key."""
        serde = _given(self.primary_key_serde, "primary key")
        return self.prefix_bytes(foreign_key) + (serde.serialize(self.primary_key_topic, primary_key) or b"")

    def prefix_bytes(self, foreign_key: Any) -> bytes:
        """Return what the bytes of all combined keys with this foreign key begin with."""
        data = _given(self.foreign_key_serde, "foreign key").serialize(self.foreign_key_topic, foreign_key) or b""
        return _LENGTH.pack(len(data)) + data

    def from_bytes(self, data: bytes) -> CombinedKey:
        """Return the combined key of these bytes."""
        middle = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        foreign_key = _given(self.foreign_key_serde, "foreign key").deserialize(
            self.foreign_key_topic, data[_LENGTH.size : middle]
        )
        primary_key = _given(self.primary_key_serde, "primary key").deserialize(self.primary_key_topic, data[middle:])
        return CombinedKey(foreign_key, primary_key)


class SubscriptionWrapperSerde(Serde[SubscriptionWrapper]):
    """Version, with 0x80 if there is no hash; instruction; hash; primary key; 4-byte partition from version 1 on."""

    default_part = "key"

    def __init__(self, primary_key_topic: str, primary_key_serde: SerdeLike | None) -> None:
        self.primary_key_topic = primary_key_topic
        self.primary_key_serde = as_serde(primary_key_serde)

    @override
    def with_default(self, default: Serde[Any] | None) -> SubscriptionWrapperSerde:
        return SubscriptionWrapperSerde(self.primary_key_topic, _or_default(self.primary_key_serde, default))

    @override
    def open_part(self) -> str | None:
        return "primary key" if self.primary_key_serde is None else self.primary_key_serde.open_part()

    @override
    def serialize(self, topic: str, value: SubscriptionWrapper | None) -> bytes | None:
        if value is None:
            return None
        key = _given(self.primary_key_serde, "primary key").serialize(self.primary_key_topic, value.primary_key) or b""
        head = bytes((_versioned(value.version, value.hash), value.instruction)) + (value.hash or b"")
        if value.version == 0:
            return head + key
        if value.primary_partition is None:
            raise SerializationError(f"A subscription of version {value.version} needs a primary partition")
        return head + key + _LENGTH.pack(value.primary_partition)

    @override
    def deserialize(self, topic: str, data: bytes | None) -> SubscriptionWrapper | None:
        if data is None:
            return None
        version, found_hash, rest = _unversioned(data, 2)
        partition = None
        if version > 0:
            partition = _LENGTH.unpack(rest[-_LENGTH.size :])[0]
            rest = rest[: -_LENGTH.size]
        key = _given(self.primary_key_serde, "primary key").deserialize(self.primary_key_topic, rest)
        return SubscriptionWrapper(found_hash, Instruction(data[1]), key, partition, version)


class SubscriptionResponseWrapperSerde(Serde[SubscriptionResponseWrapper]):
    """Version, with 0x80 if there is no hash; hash; foreign value."""

    def __init__(self, foreign_value_serde: SerdeLike | None) -> None:
        self.foreign_value_serde = as_serde(foreign_value_serde)

    @override
    def with_default(self, default: Serde[Any] | None) -> SubscriptionResponseWrapperSerde:
        return SubscriptionResponseWrapperSerde(_or_default(self.foreign_value_serde, default))

    @override
    def open_part(self) -> str | None:
        return "value of the right table" if self.foreign_value_serde is None else self.foreign_value_serde.open_part()

    @override
    def serialize(self, topic: str, value: SubscriptionResponseWrapper | None) -> bytes | None:
        if value is None:
            return None
        foreign_value = None
        if value.foreign_value is not None:
            foreign_value = _given(self.foreign_value_serde, "foreign value").serialize(topic, value.foreign_value)
        head = bytes((_versioned(value.version, value.original_value_hash),))
        return head + (value.original_value_hash or b"") + (foreign_value or b"")

    @override
    def deserialize(self, topic: str, data: bytes | None) -> SubscriptionResponseWrapper | None:
        if data is None:
            return None
        version, found_hash, rest = _unversioned(data, 1)
        foreign_value = None
        if rest:
            foreign_value = _given(self.foreign_value_serde, "foreign value").deserialize(topic, rest)
        return SubscriptionResponseWrapper(found_hash, foreign_value, None, version)


def _versioned(version: int, found_hash: bytes | None) -> int:
    return version if found_hash is not None else version | _NO_HASH


def _unversioned(data: bytes, head: int) -> tuple[int, bytes | None, bytes]:
    """Return version, hash and what follows, of bytes with a head of so many bytes."""
    version = data[0] & ~_NO_HASH
    if data[0] & _NO_HASH:
        return version, None, data[head:]
    return version, data[head : head + _HASH_BYTES], data[head + _HASH_BYTES :]


def _or_default(serde: Serde[Any] | None, default: Serde[Any] | None) -> Serde[Any] | None:
    return default if serde is None else serde.with_default(default)


def _given(serde: Serde[Any] | None, part: str) -> Serde[Any]:
    if serde is None:
        raise SerializationError(f"A foreign-key join has no serde for the {part}: name it where the tables are made")
    return serde
