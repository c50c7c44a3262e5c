"""How the values of a store become bytes, and what its changelog hears of them (Kafka Streams: ChangeLogging*Store)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.topology.records import ValueAndTimestamp
from penstock.topology.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.task_context import TaskContext

from .state_store import LONG, StoreSerdes

#: encode(value) -> row bytes; decode(row bytes) -> value. None stays None.
Encode = Callable[[Any], bytes | None]
Decode = Callable[[bytes | None], Any]
#: log_value(changelog key, value) -> row bytes: encodes a value and logs it.
LogValue = Callable[[bytes, Any], bytes | None]

#: Stores whose values are ValueAndTimestamp.
TIMESTAMPED = frozenset(
    (StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW, StoreKind.FOREIGN_KEY_SUBSCRIPTION)
)
#: What a row without a timestamp is read with (Kafka: ConsumerRecord.NO_TIMESTAMP).
NO_TIMESTAMP = -1
_new = tuple.__new__


class Values:
    """The value functions of one store.

    Plain values are the serialized value; timestamped ones (value, timestamp) are 8 bytes of timestamp and the value,
    or the value alone with ``plain_values``. copy makes a private copy; None where values cannot be changed.
    """

    __slots__ = ("as_row", "copy", "decode", "encode", "log_value", "logs_value_and_timestamp", "with_timestamp")

    def __init__(self, builder: StoreBuilder, task: TaskContext, serdes: StoreSerdes) -> None:
        timestamped = builder.kind in TIMESTAMPED
        #: Whether row bytes begin with a timestamp that the changelog has as the record's.
        self.with_timestamp = timestamped and not builder.plain_values
        self.encode: Encode = serdes.encode_value
        self.decode: Decode = serdes.decode_value
        self.copy: Callable[[Any], Any] | None = serdes.copy_value
        #: Makes a ValueAndTimestamp of a cached (value, timestamp), which a fused loop leaves as a plain tuple.
        self.as_row: Callable[[Any], Any] | None = _as_row if timestamped else None
        if timestamped:
            self.encode = _timestamped_encoder(serdes.encode_value, builder.plain_values)
            self.decode = _timestamped_decoder(serdes.decode_value, builder.plain_values)
            self.copy = serdes.copy_value and _timestamped_copier(serdes.copy_value)
        #: Whether a row is 8 bytes of timestamp and the value, and its changelog record the value, without headers.
        self.logs_value_and_timestamp = self.with_timestamp and builder.logging and not headers_logged(builder)[0]
        if not builder.logging:
            self.log_value: LogValue = _silent(self.encode)
        elif timestamped:
            self.log_value = _log_timestamped(builder, task, serdes)
        else:
            self.log_value = _log_plain(builder, task, serdes)


def _timestamped_encoder(encode_value: Encode, plain_values: bool) -> Encode:
    """Return the encoder of (value, timestamp) (Kafka Streams: ValueAndTimestampSerializer)."""
    pack = LONG.pack

    def encode(value: Any) -> bytes | None:
        data = None if value is None else encode_value(value[0])
        return data if data is None or plain_values else pack(value[1]) + data

    return encode


def _timestamped_decoder(decode_value: Decode, plain_values: bool) -> Decode:
    """Return the decoder to ValueAndTimestamp."""
    unpack = LONG.unpack_from

    def decode(data: bytes | None) -> Any:
        return None if data is None else _new(ValueAndTimestamp, (decode_value(data[8:]), unpack(data)[0]))

    def decode_plain(data: bytes | None) -> Any:
        return None if data is None else _new(ValueAndTimestamp, (decode_value(data), NO_TIMESTAMP))

    return decode_plain if plain_values else decode


def _as_row(value: Any) -> Any:
    return value if type(value) is ValueAndTimestamp else _new(ValueAndTimestamp, value)


def _timestamped_copier(copy_value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: _new(ValueAndTimestamp, (copy_value(value[0]), value[1]))


def headers_logged(builder: StoreBuilder) -> tuple[bool, bool]:
    """Return whether the changelog gets the headers of the record being processed, with values and with tombstones.

    With headers_format (KIP-1271) only tombstones have them, since Kafka Streams 4.3's operators put values with empty
    headers. The stores of stream-stream and foreign-key joins have the record's headers in any format.
    """
    always = builder.log_headers or builder.kind is StoreKind.FOREIGN_KEY_SUBSCRIPTION
    return always, always or builder.headers_format


def _silent(encode: Encode) -> LogValue:
    """Return log_value of a store without a changelog."""
    return lambda key, value: None if value is None else encode(value)


def _log_plain(builder: StoreBuilder, task: TaskContext, serdes: StoreSerdes) -> LogValue:
    """Return log_value for plain values: the changelog record has the timestamp of the record being processed."""
    encode, log_change, name = serdes.encode_value, task.log_change, builder.name
    values_with_headers, tombstones_with_headers = headers_logged(builder)

    def log_value(key: bytes, value: Any) -> bytes | None:
        data = None if value is None else encode(value)
        log_change(name, key, data, task.timestamp)
        return data

    def log_value_with_headers(key: bytes, value: Any) -> bytes | None:
        data = None if value is None else encode(value)
        log_change(name, key, data, task.timestamp, task.headers if data is None or values_with_headers else None)
        return data

    return log_value_with_headers if tombstones_with_headers else log_value


def _log_timestamped(builder: StoreBuilder, task: TaskContext, serdes: StoreSerdes) -> LogValue:
    """Return log_value for (value, timestamp): the changelog record has the plain value and the value's timestamp.

    A tombstone has the timestamp of the record being processed.
    """
    encode, log_change, name = serdes.encode_value, task.log_change, builder.name
    pack, plain_values = LONG.pack, builder.plain_values
    values_with_headers, tombstones_with_headers = headers_logged(builder)

    def log_value(key: bytes, value: Any) -> bytes | None:
        if value is not None:
            plain, timestamp = value
            data = encode(plain)
            if data is not None:
                log_change(name, key, data, timestamp, task.headers if values_with_headers else None)
                return data if plain_values else pack(timestamp) + data
        log_change(name, key, None, task.timestamp, task.headers if tombstones_with_headers else None)
        return None

    return log_value
