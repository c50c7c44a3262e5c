"""The messages of a foreign-key join and their bytes (KIP-213, KIP-775).

The inner serdes get Kafka Streams' pseudo-topics as topics, with the application's id, as its internal topics have
(KAFKA-9925). Only serdes of a schema registry use them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn, cast

from typing_extensions import override

from penstock.kernel.codecs import (
    combined_key,
    response_decoder,
    response_encoder,
    subscription_decoder,
    subscription_encoder,
)
from penstock.kernel.conversions import Guarded

from ..errors import SerializationError
from ..serdes.codecs import refusal
from ..serdes.serdes import (
    FromBytes,
    Serde,
    SerdeLike,
    ToBytes,
    as_serde,
    deserializer_for,
    direct,
    nullable,
    serializer_for,
)

_LENGTH = struct.Struct(">i")


class CombinedKey(NamedTuple):
    """Foreign key and primary key of a subscription."""

    foreign_key: Any
    primary_key: Any


class Instruction(IntEnum):
    """The request of a subscription to the right side (Kafka Streams: SubscriptionWrapper.Instruction)."""

    DELETE_KEY_NO_PROPAGATE = 0
    DELETE_KEY_AND_PROPAGATE = 1
    PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE = 2
    PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE = 3


#: By number: Instruction(number) takes as long as reading the rest of a subscription.
_INSTRUCTIONS = tuple(Instruction)


class SubscriptionWrapper(NamedTuple):
    """A subscription, sent from the task of the left row to that of the right row.

    hash: hash of the left value, None for a deleted row; primary_partition: partition for the response, None in version
    0.
    """

    hash: bytes | None
    instruction: Instruction
    primary_key: Any
    primary_partition: int | None
    version: int = 1


class Serialized(NamedTuple):
    """The bytes of a foreign value, in its place."""

    data: bytes


class SubscriptionResponseWrapper(NamedTuple):
    """The response. primary_partition is not serialized: the sink's partitioner uses it."""

    original_value_hash: bytes | None
    foreign_value: Any
    primary_partition: int | None
    version: int = 0


class PrimaryPartitioner:
    """A partitioner (topic, key, value, partition count) of responses (KIP-775).

    They go to the partition that their subscription came from.
    """

    #: The position of the partition in a response.
    POSITION = SubscriptionResponseWrapper._fields.index("primary_partition")

    def __call__(self, topic: str, key: object, value: SubscriptionResponseWrapper, partition_count: int) -> int | None:
        """Return the partition; None if members of an older version subscribed, which sent none."""
        return value.primary_partition


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
        self._foreign_to_bytes, _ = _functions(self.foreign_key_serde, foreign_key_topic, "foreign key")
        primary_to_bytes, primary_from_bytes = _functions(self.primary_key_serde, primary_key_topic, "primary key")
        self.primary_from_bytes = _direct(primary_from_bytes)
        #: Returns the bytes of a foreign key and a primary key.
        self.to_bytes: Callable[[Any, Any], bytes] = combined_key(
            _direct(self._foreign_to_bytes), _direct(primary_to_bytes)
        )

    def __reduce__(self) -> tuple[object, ...]:
        return CombinedKeySchema, (
            self.foreign_key_topic,
            self.foreign_key_serde,
            self.primary_key_topic,
            self.primary_key_serde,
        )

    def with_default(self, default: Serde | None) -> CombinedKeySchema:
        """Return a schema that uses default in place of missing serdes."""
        return CombinedKeySchema(
            self.foreign_key_topic,
            _or_default(self.foreign_key_serde, default),
            self.primary_key_topic,
            _or_default(self.primary_key_serde, default),
        )

    def prefix_bytes(self, foreign_key: object) -> bytes:
        """Return the common prefix of the bytes of all combined keys with this foreign key."""
        data = self._foreign_to_bytes(foreign_key) or b""
        return _LENGTH.pack(len(data)) + data


class SubscriptionWrapperSerde(Serde[SubscriptionWrapper]):
    """Format: version (bit 0x80: no hash), instruction, hash, primary key, from version 1 the 4-byte partition.

    application_id: None until the serde is used in an application (in_application).
    """

    default_part = "key"

    def __init__(
        self, primary_key_topic: str, primary_key_serde: SerdeLike | None, application_id: str | None = None
    ) -> None:
        self.primary_key_topic = primary_key_topic
        self.primary_key_serde = as_serde(primary_key_serde)
        self.application_id = application_id
        topic = primary_key_topic if application_id is None else f"{application_id}-{primary_key_topic}"
        key_to_bytes, key_from_bytes = _functions(self.primary_key_serde, topic, "primary key")
        encode = subscription_encoder(_direct(key_to_bytes))
        decode = subscription_decoder(_direct(key_from_bytes), _INSTRUCTIONS, SubscriptionWrapper)
        self.serializer = nullable(Guarded(encode, refusal(repr(self), "write")))
        self.deserializer = nullable(Guarded(decode, refusal(repr(self), "read")))

    def __reduce__(self) -> tuple[object, ...]:
        return SubscriptionWrapperSerde, (self.primary_key_topic, self.primary_key_serde, self.application_id)

    @override
    def with_default(self, default: Serde | None) -> SubscriptionWrapperSerde:
        serde = _or_default(self.primary_key_serde, default)
        return SubscriptionWrapperSerde(self.primary_key_topic, serde, self.application_id)

    @override
    def in_application(self, application_id: str) -> SubscriptionWrapperSerde:
        return SubscriptionWrapperSerde(self.primary_key_topic, self.primary_key_serde, application_id)

    @override
    def open_part(self) -> str | None:
        return "primary key" if self.primary_key_serde is None else self.primary_key_serde.open_part()

    @override
    def serialize(self, topic: str, value: SubscriptionWrapper | None) -> bytes | None:
        return cast("ToBytes", self.serializer)(value)

    @override
    def deserialize(self, topic: str, data: bytes | None) -> SubscriptionWrapper | None:
        found: SubscriptionWrapper | None = cast("FromBytes", self.deserializer)(data)
        return found


class SubscriptionResponseWrapperSerde(Serde[SubscriptionResponseWrapper]):
    """Format: version (bit 0x80: no hash), hash, foreign value."""

    def __init__(self, foreign_value_serde: SerdeLike | None) -> None:
        self.foreign_value_serde = serde = as_serde(foreign_value_serde)
        if serde is not None and serde.serializer is not None and serde.deserializer is not None:
            self.serializer, self.deserializer = self._writer(serde.serializer), self._reader(serde.deserializer)

    def _writer(self, to_bytes: ToBytes) -> ToBytes:
        write = response_encoder(_direct(to_bytes), Serialized)
        return nullable(Guarded(write, refusal(repr(self), "write")))

    def _reader(self, from_bytes: FromBytes) -> FromBytes:
        read = response_decoder(_direct(from_bytes), SubscriptionResponseWrapper)
        return nullable(Guarded(read, refusal(repr(self), "read")))

    def __reduce__(self) -> tuple[object, ...]:
        return SubscriptionResponseWrapperSerde, (self.foreign_value_serde,)

    @override
    def with_default(self, default: Serde | None) -> SubscriptionResponseWrapperSerde:
        return SubscriptionResponseWrapperSerde(_or_default(self.foreign_value_serde, default))

    @override
    def open_part(self) -> str | None:
        return "value of the right table" if self.foreign_value_serde is None else self.foreign_value_serde.open_part()

    @override
    def topic_serializer(self, topic: str) -> ToBytes:
        return self.serializer or self._writer(_functions(self.foreign_value_serde, topic, "foreign value")[0])

    @override
    def topic_deserializer(self, topic: str) -> FromBytes:
        return self.deserializer or self._reader(_functions(self.foreign_value_serde, topic, "foreign value")[1])

    @override
    def serialize(self, topic: str, value: SubscriptionResponseWrapper | None) -> bytes | None:
        return self.topic_serializer(topic)(value)

    @override
    def deserialize(self, topic: str, data: bytes | None) -> SubscriptionResponseWrapper | None:
        found: SubscriptionResponseWrapper | None = self.topic_deserializer(topic)(data)
        return found


def _or_default(serde: Serde | None, default: Serde | None) -> Serde | None:
    return default if serde is None else serde.with_default(default)


def _direct(function: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return what a serializer or deserializer does with an object that is not None, without a call in between."""
    return direct(function) or function


def _functions(serde: Serde | None, topic: str, part: str) -> tuple[ToBytes, FromBytes]:
    """Return the functions that serialize and deserialize a part; without a serde they raise SerializationError."""
    if serde is not None:
        return serializer_for(serde, topic), deserializer_for(serde, topic)

    def refuse(_value: object) -> NoReturn:
        raise _no_serde(part)

    return refuse, refuse


def _no_serde(part: str) -> SerializationError:
    return SerializationError(f"A foreign-key join has no serde for the {part}: pass it where the tables are declared")
