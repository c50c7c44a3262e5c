"""Conversions of values to bytes and back, of which the built-in serdes are made. They never get None.

A serializer writes bytes that its deserializer reads back as an equal value, or raises. If it has to check each value
for that, the kernel has a compiled version of it (codecs.pyx).
"""

from __future__ import annotations

import codecs
import math
import operator
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

from penstock.kernel import codecs as kernel_codecs

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
    """Replace invalid UTF-8 by U+FFFD, as Java's String does: Kafka's StringDeserializer never fails."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    surrogate = _SURROGATE.match(error.object, error.start)  # Python would replace each of its bytes
    return "\ufffd", error.end if surrogate is None else surrogate.end()


codecs.register_error("penstock.java", _replace_as_java)


def decode_string(data: bytes) -> str:
    """Return UTF-8 as text."""
    return str(data, "utf-8", "penstock.java")


def rewriter(
    encode: Callable[[Any], bytes | None], decode: Callable[[bytes], Any], is_written: Callable[[bytes], bool] | None
) -> Rewrite:
    """Return Serde.rewrite."""
    if kernel_codecs is not None:
        made: Rewrite = kernel_codecs.Rewriter(encode, decode, is_written)
        return made

    def rewrite(data: bytes) -> bytes | None:
        if is_written is not None and is_written(data):
            return data
        value = decode(data)
        return None if value is None else encode(value)

    return rewrite


def sized_written(size: int | None) -> Callable[[bytes], bool]:
    """Return Serde.is_written of a serde that rewrites all bytes of a size unchanged; None: of any size."""
    return lambda data: size is None or len(data) == size


def windowed_written(inside: Callable[[bytes], bool], times_size: int) -> Callable[[bytes], bool]:
    """Return Serde.is_written of windowed keys. inside: that of the inner keys, which the window's times follow."""
    return lambda data: len(data) > times_size and inside(data[:-times_size])


#: Serde.is_written of text, which recognizes ASCII only, and of UUIDs, which only the kernel recognizes.
ascii_written: Callable[[bytes], bool] = bytes.isascii
uuid_written: Callable[[bytes], bool] | None = None

if kernel_codecs is not None:
    ascii_written, uuid_written = kernel_codecs.ascii_written(), kernel_codecs.uuid_written()
    sized_written, windowed_written = kernel_codecs.sized_written, kernel_codecs.windowed_written


def check_bytes(value: Any) -> bytes:
    """Return bytes unchanged and a buffer as bytes; raises SerializationError for anything else."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        if data == value:  # false for a memoryview of anything but bytes
            return data
    raise _refused("bytes", "bytes", value)


#: (encode, decode) -> (hold, read, bytes_of), see Serde.private. A dict that JSON reads back unchanged is held as a
#: copy. The kernel copies faster than JSON is read; Python would not.
private_dicts: Private | None = None if kernel_codecs is None else kernel_codecs.private_dicts


def encode_uuid(value: Any) -> bytes:
    """Return a UUID as text; raises SerializationError for anything else."""
    if not isinstance(value, UUID):
        raise _refused("uuid", "a UUID", value)
    return str(value).encode()


def decode_uuid(data: bytes) -> UUID:
    """Return the UUID of a text; raises ValueError for any other text."""
    return UUID(data.decode())


if kernel_codecs is not None:
    encode_uuid = kernel_codecs.uuid_encoder(encode_uuid)
    decode_uuid = kernel_codecs.uuid_decoder(decode_uuid)


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
    """Raise SerializationError: Serdes.void() accepts only None."""
    raise _refused("void", "None", value)


def integer_encoder(name: str, pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return pack for integers, including NumPy's and other types with ``__index__``, but not bool."""

    def convert(value: Any) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise _refused(name, "an int", value)
        return operator.index(value)

    return typed(int, pack, convert)


def float_encoder(name: str, pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return pack for floats and for other numbers that a float can be equal to, but not bool."""

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
    """Return serialize for values of exactly this type; convert is applied to others first."""
    if kernel_codecs is not None:
        made: Callable[[Any], bytes] = kernel_codecs.typed(kind, serialize, convert)
        return made

    def serialize_typed(value: Any) -> bytes:
        return serialize(value if type(value) is kind else convert(value))

    return serialize_typed


def checked_json(
    dumps: Callable[[Any], bytes], look_again: Callable[[Any, bytes | None, Exception | None], bytes]
) -> Callable[[Any], bytes]:
    """Return dumps with a second look at values that it may have changed, or that it refused.

    dumps writes NaN as null, so JSON without a null needs no second look. look_again(value, data, error) returns JSON
    or raises; data is what dumps wrote, or None with the error that it raised. orjson's bytes occupy a block of 4 KB
    even if they are few; the returned bytes occupy only what they need.
    """
    if kernel_codecs is not None:
        made: Callable[[Any], bytes] = kernel_codecs.checked_json(dumps, look_again)
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
