"""Conversions of values to bytes and back, of which the built-in serdes are made. They never get None.

A serializer writes bytes that its deserializer reads back as an equal value, or raises. What runs for each value is
compiled (kernel/codecs.pyx).
"""

from __future__ import annotations

import codecs
import math
import operator
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn
from uuid import UUID

from penstock.kernel.codecs import number_encoder, uuid_decoder, uuid_encoder

from ..errors import SerializationError, StreamsError

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


#: Raises the SerializationError for a value that a serde could not convert: (value, what its function raised).
Refuse = Callable[[Any, Exception], NoReturn]


def refusal(name: str, verb: str) -> Refuse:
    """Return the Refuse of a serde's function. name: of the serde, as in code; verb: "read" or "write"."""

    def refuse(value: object, error: Exception) -> NoReturn:
        if isinstance(error, StreamsError | MemoryError):  # they describe the error, or are not caused by the value
            raise error
        what = f"{len(value)} bytes" if isinstance(value, bytes) else f"a value of type {type(value).__name__}"
        raise SerializationError(f"{name} cannot {verb} {what}: {_reason(error)}") from error

    return refuse


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def refusing(verb: str) -> Callable[[Any], Any]:
    """Return a decorator for serialize or deserialize of a serde: it raises SerializationError, as Guarded does."""

    def decorate(method: Callable[[Any, str, Any], object]) -> Callable[[Any, str, Any], object]:
        @wraps(method)
        def call(self: object, topic: str, value: object) -> object:
            try:
                return method(self, topic, value)
            except Exception as error:  # noqa: BLE001 - raised as the cause
                refusal(repr(self), verb)(value, error)

        return call

    return decorate


def check_bytes(value: object) -> bytes:
    """Return bytes unchanged and a buffer as bytes; raises SerializationError for anything else."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        if data == value:  # false for a memoryview of anything but bytes
            return data
    raise _refused("bytes", "bytes", value)


def _encode_odd_uuid(value: object) -> bytes:
    """Return a UUID as text; raises SerializationError for anything else."""
    if not isinstance(value, UUID):
        raise _refused("uuid", "a UUID", value)
    return str(value).encode()


def _decode_odd_uuid(data: bytes) -> UUID:
    """Return the UUID of a text; raises ValueError for any other text."""
    return UUID(data.decode())


encode_uuid: Callable[[Any], bytes] = uuid_encoder(_encode_odd_uuid)
decode_uuid: Callable[[bytes], UUID] = uuid_decoder(_decode_odd_uuid)


def encode_boolean(value: object) -> bytes:
    """Return one byte, 1 or 0; raises SerializationError for anything but True and False."""
    if value is True or value is False:
        return b"\x01" if value else b"\x00"
    raise _refused("boolean", "True or False", value)


def decode_boolean(data: bytes) -> bool:
    """Return True for the byte 1, False for 0; raises SerializationError for anything else, as Kafka does."""
    if data not in (b"\x00", b"\x01"):
        raise SerializationError(f"Serdes.boolean() expects one byte, 0 or 1, not {data[:20]!r}")
    return data == b"\x01"


def refuse_void(value: object) -> bytes:
    """Raise SerializationError: Serdes.void() accepts only None."""
    raise _refused("void", "None", value)


def integer_encoder(name: str, layout: str, pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return what writes integers, including NumPy's and other types with ``__index__``, but not bool.

    layout, pack: see number_encoder, also in float_encoder.
    """

    def convert(value: object) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise _refused(name, "an int", value)
        return operator.index(value)

    made: Callable[[Any], bytes] = number_encoder(layout, pack, convert)
    return made


def float_encoder(name: str, layout: str, pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return what writes floats and for other numbers that a float can be equal to, but not bool."""

    def convert(value: Any) -> float:
        if isinstance(value, float):
            return value
        if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
            raise _refused(name, "a float", value)
        number = float(value)
        if number != value and not math.isnan(number):
            raise _refused(name, "a float, or a number that a float can be equal to", value)
        return number

    made: Callable[[Any], bytes] = number_encoder(layout, pack, convert)
    return made


def _refused(name: str, expected: str, value: object) -> SerializationError:
    return SerializationError(f"Serdes.{name}() expects {expected}, not a value of type {type(value).__name__}")
