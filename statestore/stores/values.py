"""Conversion of a store's values to bytes, and their change-logging (Kafka Streams: ChangeLogging*Store)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from penstock.kernel.codecs import TimestampedDecoder, nullable
from penstock.kernel.processors import ValueLogger
from penstock.kernel.sinks import Changelog
from penstock.topology.context.store_interfaces import NodeRows, StoreBuilder, StoreKind
from penstock.topology.context.task_context import TaskContext
from penstock.topology.context.task_output import ChangeOutput
from penstock.topology.context.trace_context import trace_context
from penstock.topology.errors import StateStoreTypeError
from penstock.topology.records import (
    AggregationWithHeaders,
    Message,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    VersionedRecord,
)
from penstock.topology.serdes.serdes import direct, same, takes_none

from .headers_format import HeadersFormat
from .state_store import LONG, LONG_MAX, LONG_MIN, StateStore, StoreSerdes, plain_value, timestamped_value

#: encode(value) -> row bytes; decode(row bytes) -> value. None stays None.
W = TypeVar("W")
Encode = Callable[[Any], bytes | None]
Decode = Callable[[bytes | None], Any]
#: log_value(changelog key, value) -> row bytes: encodes a value and logs it.
LogValue = Callable[[bytes, Any], bytes | None]

#: Stores whose values are ValueAndTimestamp.
TIMESTAMPED = frozenset(
    (StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW, StoreKind.FOREIGN_KEY_SUBSCRIPTION)
)
#: The timestamp of a row that has none (Kafka: ConsumerRecord.NO_TIMESTAMP).
NO_TIMESTAMP = -1
_new = tuple.__new__


class Values:
    """The value functions of one store.

    A store, cached or not, holds *held* values: the bytes of a value, or the object that the serde reads back from them
    if it is immutable and its bytes are known to be writable (Serde.exact), or a private copy (Serde.private). So a
    read returns the same as after a restart, regardless of the cache, and of what the caller does with an object after
    a put or get.

    Plain values are the serialized value; timestamped ones (value, timestamp) are 8 bytes of timestamp and the value,
    or the value alone with ``plain_values``, and are held as a tuple (held value, timestamp). For values with headers
    see headers_format.py. None stays None:

    hold(value) -> held: raises what the serde raises for a value that it cannot write; read(held) -> value, the
    caller's own; from_row(row bytes) -> held; to_row(held) -> row bytes; log_held(changelog key, held) -> row bytes:
    also logs it; row_of(changelog record) -> row bytes. encode, decode and log_value do the same without a held value
    in between. hold_plain, read_plain, bytes_of: hold, read and to_row for the value alone, without its timestamp.
    exact: whether held values are objects.
    evictions: what logs plain values if the store evicts rows. keeps_contexts: see RowContexts.
    """

    __slots__ = (
        "bytes_of",
        "decode",
        "encode",
        "exact",
        "from_row",
        "hold",
        "hold_plain",
        "log_held",
        "log_value",
        "logs_timestamped",
        "logs_value",
        "logs_value_and_timestamp",
        "read",
        "read_plain",
        "row_of",
        "to_row",
        "with_timestamp",
    )

    def __init__(
        self,
        builder: StoreBuilder,
        task: TaskContext,
        serdes: StoreSerdes,
        evictions: ChangeOutput | None = None,
        keeps_contexts: bool = False,
    ) -> None:
        timestamped = builder.kind in TIMESTAMPED
        headers = HeadersFormat(timestamped) if builder.keeps_headers else None
        #: Whether row bytes start with a timestamp, which is the record's timestamp in the changelog.
        self.with_timestamp = timestamped and not builder.plain_values and headers is None
        self.exact = serdes.exact_value is not None
        encode, decode = serdes.encode_value, serdes.decode_value
        self.hold_plain: Callable[[Any], object] = (
            encode if serdes.exact_value is None else nullable(serdes.exact_value)
        )
        self.read_plain: Callable[[Any], object] = same if self.exact else decode
        self.bytes_of: Callable[[Any], bytes | None] = encode if self.exact else same
        if serdes.private_value is not None:
            self.hold_plain, self.read_plain, self.bytes_of = serdes.private_value(
                direct(encode) or encode, direct(decode) or decode
            )
        held_plain = decode if self.exact else same
        self.encode: Encode = encode
        self.row_of, self.decode = row_reader(builder, decode)
        self.hold, self.read = self.hold_plain, self.read_plain
        self.from_row: Callable[[bytes | None], object] = held_plain
        self.to_row: Callable[[Any], bytes | None] = self.bytes_of
        if headers is not None:
            self.encode = headers.encoder(encode)
            self.hold, self.read = headers.holder(self.hold_plain), headers.reader(self.read_plain)
            self.from_row, self.to_row = headers.decoder(held_plain, held=True), headers.encoder(self.bytes_of)
        elif timestamped:
            plain = builder.plain_values
            self.encode = _timestamped_encoder(encode, plain)
            self.hold, self.read = _timestamped_holder(self.hold_plain), _timestamped_reader(self.read_plain)
            self.from_row = _timestamped_held(held_plain, plain)
            self.to_row = _timestamped_encoder(self.bytes_of, plain)
        #: Whether a row is 8 bytes of timestamp and the value, and its changelog record the value; without headers.
        self.logs_timestamped = self.with_timestamp and builder.logging and not keeps_contexts
        self.logs_value_and_timestamp = self.logs_timestamped and not headers_logged(builder)[0]
        #: Whether a row and its changelog record are the value, without headers, with the record's timestamp.
        self.logs_value = not timestamped and builder.logging and evictions is None and not headers_logged(builder)[1]
        if not builder.logging:
            self.log_value: LogValue = _silent(self.encode)
            self.log_held: LogValue = _silent(self.to_row)
        else:
            if headers is not None:
                log: Callable[[Encode], LogValue] = partial(headers.logger, builder.name, task)
            elif timestamped:
                log = partial(_log_timestamped, builder, task, keeps_contexts)
            else:
                log = partial(_log_plain, builder, task, evictions or task.output)
            self.log_value, self.log_held = log(encode), log(self.bytes_of)


def converted(builder: StoreBuilder, convert: Callable[..., W], *given: object) -> W:
    """Return convert(*given), whose last argument is a value that a user puts into a store.

    Raises StateStoreTypeError instead of its error if the value is one of other stores; see refused.
    """
    try:
        return convert(*given)
    except Exception as error:
        refused(builder, given[-1], error)
        raise


def refused(builder: StoreBuilder, value: object, error: Exception) -> None:
    """Raise StateStoreTypeError if a value that a store could not write is of the type of other stores' values."""
    fits, what, how = _kept_values(builder, value)
    if not fits:
        raise StateStoreTypeError(
            f"The store {builder.name} keeps {what}: put {how}, not {type(value).__name__}"
        ) from error


def _kept_values(builder: StoreBuilder, value: object) -> tuple[bool, str, str]:
    """Return whether a value may be one of a store's, what the store keeps, and what to put."""
    size = len(value) if isinstance(value, tuple) else 0
    timestamped = builder.kind in TIMESTAMPED
    if builder.keeps_headers and timestamped:
        return size == 3, "values with timestamps and headers", "ValueTimestampHeaders(value, timestamp, headers)"
    if builder.keeps_headers:
        return size == 2, "aggregates with headers", "AggregationWithHeaders(aggregate, headers)"
    if timestamped:
        fits = isinstance(value, tuple) and size == 2 and isinstance(value[1], int)
        return fits, "values with timestamps, without headers", "ValueAndTimestamp(value, timestamp)"
    of_others = isinstance(value, ValueAndTimestamp | ValueTimestampHeaders | AggregationWithHeaders | VersionedRecord)
    return not of_others, "plain values", "the value alone"


def row_reader(builder: StoreBuilder, decode: Decode) -> tuple[Callable[[Message], bytes | None], Decode]:
    """Return the functions from a changelog record to row bytes, and from row bytes to the value of a row.

    decode: from bytes to the plain value.
    """
    timestamped = builder.kind in TIMESTAMPED
    if builder.keeps_headers:
        headers = HeadersFormat(timestamped)
        return headers.row_of, headers.decoder(decode)
    if not timestamped:
        return plain_value, decode
    row_of = plain_value if builder.plain_values else timestamped_value
    return row_of, timestamped_decoder(decode, builder.plain_values)


def rows_for_nodes(store: StateStore, logs_each: bool) -> NodeRows | None:
    """Return the rows of a store for the kernel's nodes; None if an update of them needs more than a log and a put.

    logs_each: whether each update is logged as its value alone.
    """
    serdes, buffer = store.serdes, store.rows.buffer
    if buffer is None or not logs_each:
        return None
    if takes_none(serdes.encode_value) or takes_none(serdes.decode_value):  # their handling of None is unknown
        return None
    return NodeRows(
        key_serde=serdes.key_serde,
        value_serde=serdes.value_serde,
        encode_key=serdes.direct_key,
        encode_value=direct(serdes.encode_value),
        decode_value=direct(serdes.decode_value),
        exact_value=serdes.exact_value,
        exact_value_type=serdes.exact_value_type,
        log_headers=headers_logged(store.builder),
        buffer=buffer,
    )


def _timestamped_encoder(encode_value: Encode, plain_values: bool) -> Encode:
    """Return the encoder of (value, timestamp) (Kafka Streams: ValueAndTimestampSerializer)."""
    pack = LONG.pack

    def encode(value: Any) -> bytes | None:
        if value is None:
            return None
        plain, timestamp = value
        data = encode_value(plain)
        return data if data is None or plain_values else pack(timestamp) + data

    return encode


def timestamped_decoder(decode_value: Decode, plain_values: bool = False) -> Decode:
    """Return the decoder of rows (8 bytes of timestamp, value) to ValueAndTimestamp; plain_values: of values only."""

    def decode_plain(data: bytes | None) -> object:
        return None if data is None else _new(ValueAndTimestamp, (decode_value(data), NO_TIMESTAMP))

    return decode_plain if plain_values else TimestampedDecoder(direct(decode_value), ValueAndTimestamp)


def _timestamped_holder(hold_plain: Callable[[Any], Any]) -> Callable[[Any], object]:
    pack, unpack = LONG.pack, LONG.unpack

    def hold(value: Any) -> object:
        if value is None:
            return None
        plain, timestamp = value
        if type(timestamp) is not int or not LONG_MIN <= timestamp <= LONG_MAX:
            (timestamp,) = unpack(pack(timestamp))  # raises for an invalid timestamp
        held = hold_plain(plain)
        return None if held is None else (held, timestamp)

    return hold


def _timestamped_reader(read_plain: Callable[[Any], Any]) -> Callable[[Any], object]:
    def read(held: Any) -> Any:
        return None if held is None else _new(ValueAndTimestamp, (read_plain(held[0]), held[1]))

    return read


def _timestamped_held(held_plain: Callable[[Any], object], plain_values: bool) -> Callable[[bytes | None], object]:
    unpack = LONG.unpack_from

    def held(row: bytes | None) -> object:
        return None if row is None else (held_plain(row[8:]), unpack(row)[0])

    def held_plain_value(row: bytes | None) -> object:
        return None if row is None else (held_plain(row), NO_TIMESTAMP)

    return held_plain_value if plain_values else held


def headers_logged(builder: StoreBuilder) -> tuple[bool, bool]:
    """Return whether the changelog gets the headers of the record being processed, with values and with tombstones.

    With headers_format (KIP-1271) only tombstones have them: values have their own, which operators leave empty. The
    stores of stream-stream and foreign-key joins have the record's headers in any format.
    """
    always = builder.log_headers or builder.kind is StoreKind.FOREIGN_KEY_SUBSCRIPTION
    return always, always or builder.headers_format


def _silent(encode: Encode) -> LogValue:
    """Return log_value of a store without a changelog."""
    return lambda key, value: None if value is None else encode(value)


def _log_plain(builder: StoreBuilder, task: TaskContext, output: ChangeOutput, encode: Encode) -> LogValue:
    """Return log_value for plain values: the changelog record has the timestamp of the record being processed."""
    name = builder.name
    values_with_headers, tombstones_with_headers = headers_logged(builder)

    def log_value_with_headers(key: bytes, value: object) -> bytes | None:
        data = None if value is None else encode(value)
        headers = task.headers if data is None or values_with_headers else None
        output.log_change(name, key, data, task.timestamp, headers)
        return data

    made: LogValue = log_value_with_headers
    if not tombstones_with_headers:
        made = ValueLogger(Changelog(output, name), task, direct(encode))
    return made


def _log_timestamped(builder: StoreBuilder, task: TaskContext, keeps_contexts: bool, encode: Encode) -> LogValue:
    """Return log_value for (value, timestamp): the changelog record has the plain value and the value's timestamp.

    A tombstone has the timestamp of the record being processed. keeps_contexts: a value has its trace context.
    """
    log_change, name = task.output.log_change, builder.name
    pack, plain_values = LONG.pack, builder.plain_values
    values_with_headers, tombstones_with_headers = headers_logged(builder)

    def log_value(key: bytes, value: Any) -> bytes | None:
        if value is not None:
            plain, timestamp = value
            data = encode(plain)
            if data is not None:
                if not isinstance(timestamp, int):
                    raise TypeError(f"a timestamp is a number of milliseconds, not {timestamp!r}")
                row = data if plain_values else pack(timestamp) + data
                headers = task.headers if values_with_headers else None
                log_change(name, key, data, timestamp, trace_context(task.headers) if keeps_contexts else headers)
                return row
        log_change(name, key, None, task.timestamp, task.headers if tombstones_with_headers else None)
        return None

    made: LogValue = log_value
    if not (plain_values or keeps_contexts or tombstones_with_headers):
        made = ValueLogger(Changelog(task.output, name), task, direct(encode), log_value)
    return made
