"""From values to bytes and back, without topics: what the built-in serdes are made of. None never arrives here.

A serializer writes what its deserializer reads back as an equal value, or raises. Where that takes a look at each
value, the kernel has the serializer compiled (codecs.pyx).
"""

from __future__ import annotations

import codecs
import math
import operator
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

from penstock.kernel import codecs as compiled

from ..errors import SerializationError

#: See Serde.private.
Private = Callable[
    [Callable[[Any], bytes | None], Callable[[Any], Any]],
    tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], bytes | None]],
]

#: See Serde.rewrite.
Rewrite = Callable[[bytes], bytes | None]

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    """Read what is no UTF-8 as U+FFFD, as Java's String does: Kafka's StringDeserializer fails for no bytes."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    surrogate = _SURROGATE.match(error.object, error.start)  # Python replaces each of its bytes
    return "\ufffd", error.end if surrogate is None else surrogate.end()


codecs.register_error("penstock.java", _replace_as_java)


def decode_string(data: bytes) -> str:
    """Return UTF-8 as text."""
    return str(data, "utf-8", "penstock.java")


def rewriter(
    encode: Callable[[Any], bytes | None], decode: Callable[[bytes], Any], is_written: Callable[[bytes], bool] | None
) -> Rewrite:
    """Return Serde.rewrite."""
    if compiled is not None:
        made: Rewrite = compiled.Rewriter(encode, decode, is_written)
        return made

    def rewrite(data: bytes) -> bytes | None:
        if is_written is not None and is_written(data):
            return data
        value = decode(data)
        return None if value is None else encode(value)

    return rewrite


def sized_written(size: int | None) -> Callable[[bytes], bool]:
    """Return Serde.is_written where all bytes of a size are; None: of any size."""
    return lambda data: size is None or len(data) == size


def windowed_written(inside: Callable[[bytes], bool], times_size: int) -> Callable[[bytes], bool]:
    """Return Serde.is_written of windowed keys: inside is that of the keys in them, their times are behind them."""
    return lambda data: len(data) > times_size and inside(data[:-times_size])


#: Serde.is_written of texts: not all texts, but most. Of UUIDs: only the kernel knows them.
ascii_written: Callable[[bytes], bool] = bytes.isascii
uuid_written: Callable[[bytes], bool] | None = None

if compiled is not None:
    ascii_written, uuid_written = compiled.ascii_written(), compiled.uuid_written()
    sized_written, windowed_written = compiled.sized_written, compiled.windowed_written


def check_bytes(value: Any) -> bytes:
    """Return bytes as they are, and a buffer's as bytes; raises SerializationError for anything else."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        if data == value:  # a memoryview of anything but bytes is not
            return data
    raise _refused("bytes", "bytes", value)


#: (encode, decode) -> (hold, read, bytes_of), see Serde.private: of a dict that JSON gives back as it is, a copy stands
#: for its bytes. The kernel copies in less time than JSON takes; Python would not.
private_dicts: Private | None = None if compiled is None else compiled.private_dicts


def encode_uuid(value: Any) -> bytes:
    """Return a UUID as text; raises SerializationError for anything else."""
    if not isinstance(value, UUID):
        raise _refused("uuid", "a UUID", value)
    return str(value).encode()


def decode_uuid(data: bytes) -> UUID:
    """Return the UUID of a text; raises ValueError for a text that is none."""
    return UUID(data.decode())


if compiled is not None:
    encode_uuid = compiled.uuid_encoder(encode_uuid)
    decode_uuid = compiled.uuid_decoder(decode_uuid)


def encode_boolean(value: Any) -> bytes:
    """Return one byte, 1 or 0; raises SerializationError for anything but True and False."""
    if value is True or value is False:
        return b"\x01" if value else b"\x00"
    raise _refused("boolean", "True or False", value)


def decode_boolean(data: bytes) -> bool:
    """Return True for the byte 1, False for 0; raises SerializationError for anything else, as Kafka does."""
    if data not in (b"\x00", b"\x01"):
        raise SerializationError(f"Serdes.boolean() expects one byte, 0 or 1, not {data[:20]!r}")
    return data == b"\x01"


def refuse_void(value: Any) -> bytes:
    """Raise SerializationError: Serdes.void() has null only."""
    raise _refused("void", "None", value)


def integer_encoder(name: str, pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return pack for whole numbers: also NumPy's and other types with ``__index__``, but no bool."""

    def convert(value: Any) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise _refused(name, "an int", value)
        return operator.index(value)

    return typed(int, pack, convert)


def float_encoder(name: str, pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return pack for numbers: also whole ones and other types, if a float can be equal to them, but no bool."""

    def convert(value: Any) -> float:
        if isinstance(value, float):
            return value
        if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
            raise _refused(name, "a float", value)
        number = float(value)
        if number != value and not math.isnan(number):
            raise _refused(name, "a float, or a number that a float can be equal to", value)
        return number

    return typed(float, pack, convert)


def typed(kind: type, serialize: Callable[[Any], bytes], convert: Callable[[Any], Any]) -> Callable[[Any], bytes]:
    """Return serialize for values of exactly a type; others are what convert makes of them."""
    if compiled is not None:
        made: Callable[[Any], bytes] = compiled.typed(kind, serialize, convert)
        return made

    def serialize_typed(value: Any) -> bytes:
        return serialize(value if type(value) is kind else convert(value))

    return serialize_typed


def checked_json(
    dumps: Callable[[Any], bytes], look_again: Callable[[Any, bytes | None, Exception | None], bytes]
) -> Callable[[Any], bytes]:
    """Return dumps with a second look at values that it may have changed, or that it refused.

    orjson's bytes lie in a block of 4 KB, whatever they are; what is returned takes no more memory than it needs.
    dumps writes NaN as null, so JSON without a null needs no look. look_again(value, data, error): returns JSON, or
    raises; data is what dumps wrote, or None with the error that it raised.
    """
    if compiled is not None:
        made: Callable[[Any], bytes] = compiled.checked_json(dumps, look_again)
        return made

    def serialize(value: Any) -> bytes:
        try:
            data = dumps(value)
        except TypeError as error:
            return look_again(value, None, error)
        return look_again(value, data, None) if b"null" in data else bytes(memoryview(data))

    return serialize


def _refused(name: str, expected: str, value: Any) -> SerializationError:
    return SerializationError(f"Serdes.{name}() expects {expected}, not a value of type {type(value).__name__}")
