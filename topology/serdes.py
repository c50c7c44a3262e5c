"""Serdes: how keys and values become bytes. Bytes equal those of Kafka's own serdes.

A user's serde is any object with ``serialize(topic, value) -> bytes | None`` and ``deserialize(topic, data) -> value``.
Inside Penstock it is wrapped, so that every serde has the attributes of Serde.
"""

from __future__ import annotations

import codecs
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from types import FunctionType
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast, overload
from uuid import UUID

import orjson

from penstock.kernel import messages as compiled

from .errors import ConfigError, SerializationError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: A plain function of one argument; None stands for null and gives None.
ToBytes = Callable[[Any], bytes | None]
FromBytes = Callable[[bytes | None], Any]


class SerdeLike(Protocol):
    """What a user's serde needs."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Return the bytes of a key or value of this topic; None stays None."""

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        """Return the key or value; None stays None."""


class Serde(ABC, Generic[T]):
    """A serializer and a deserializer of one type, with what the hot path wants to know about them.

    serializer, deserializer: the same as functions of one argument, which take and give None for null; None if the
        bytes depend on the topic's name (schema registry). serializer_for() and deserializer_for() always give one.
    exact: an object (not None) -> what its bytes are read as, which nobody can change, so that it may stand for them in
        a record cache; raises what serialize raises. None: only the bytes themselves may be kept.
    exact_type: objects of this very type are what exact returns for them, if they can be written at all; None: ask.
    cacheable_keys: also, equal objects have equal bytes and are hashable: what exact returns may be a key of a cache.
    default_part: "key" or "value" where with_default() wants that default, whatever this serde is used for.
    """

    serializer: ToBytes | None = None
    deserializer: FromBytes | None = None
    exact: Callable[[Any], Any] | None = None
    exact_type: type | None = None
    cacheable_keys: bool = False
    default_part: str | None = None

    @abstractmethod
    def serialize(self, topic: str, value: T | None) -> bytes | None:
        """Return the bytes of a key or value of this topic; None stays None."""

    @abstractmethod
    def deserialize(self, topic: str, data: bytes | None) -> T | None:
        """Return the key or value; None stays None."""

    def with_default(self, default: Serde[Any] | None) -> Serde[T]:
        """Return this serde; one that wraps another takes default for what was left open."""
        return self

    def open_part(self) -> str | None:
        """Return what is still left open, in words; None if the serde can be used."""
        return None


class PlainSerde(Serde[T]):
    """A serde whose bytes do not depend on the topic."""

    def __init__(
        self,
        name: str,
        serializer: ToBytes,
        deserializer: FromBytes,
        *,
        exact: Callable[[Any], Any] | None = None,
        exact_type: type | None = None,
        cacheable_keys: bool = False,
    ) -> None:
        self.name = name
        self.serializer: ToBytes = serializer
        self.deserializer: FromBytes = deserializer
        self.exact = exact
        self.exact_type = exact_type
        self.cacheable_keys = cacheable_keys

    def serialize(self, topic: str, value: T | None) -> bytes | None:
        """See Serde.serialize."""
        return self.serializer(value)

    def deserialize(self, topic: str, data: bytes | None) -> T | None:
        """See Serde.deserialize."""
        return cast("T | None", self.deserializer(data))

    def __reduce__(self) -> Any:
        # A topology that travels to another process takes the name along, not the functions.
        return (Serdes.of, (self.name,)) if Serdes._BY_NAME.get(self.name) is self else super().__reduce__()

    def __repr__(self) -> str:
        return f"Serdes.{self.name}()"


class UserSerde(Serde[T]):
    """A user's serde, or one of a schema registry: nothing is known about its values."""

    def __init__(self, serde: SerdeLike) -> None:
        self.serde = serde
        self.serialize = serde.serialize  # type: ignore[method-assign]
        self.deserialize = serde.deserialize  # type: ignore[method-assign]

    def serialize(self, topic: str, value: T | None) -> bytes | None:
        """See Serde.serialize."""
        return self.serde.serialize(topic, value)

    def deserialize(self, topic: str, data: bytes | None) -> T | None:
        """See Serde.deserialize."""
        return cast("T | None", self.serde.deserialize(topic, data))

    def __repr__(self) -> str:
        return repr(self.serde)


def as_serde(serde: SerdeLike | None) -> Serde[Any] | None:
    """Return a user's serde as a Serde, None as None; raises TypeError for what is no serde."""
    if serde is None or isinstance(serde, Serde):
        return serde
    if isinstance(serde, type):
        raise TypeError(f"expected a serde, got the class {serde.__name__}; did you mean {serde.__name__}()?")
    if not callable(getattr(serde, "serialize", None)) or not callable(getattr(serde, "deserialize", None)):
        raise TypeError(f"a serde needs serialize(topic, value) and deserialize(topic, data), got {serde!r}")
    return UserSerde(serde)


def serializer_for(serde: Serde[Any], topic: str) -> ToBytes:
    """Return the fastest function value -> bytes for a topic."""
    return serde.serializer or partial(serde.serialize, topic)


def deserializer_for(serde: Serde[Any], topic: str) -> FromBytes:
    """Return the fastest function bytes -> value for a topic."""
    return serde.deserializer or partial(serde.deserialize, topic)


def resolve_serde(serde: SerdeLike | None, config: Mapping[str, Any], is_key: bool, where: str) -> Serde[Any]:
    """Return the serde to use at run time: the declared one, or ``default.key.serde`` or ``default.value.serde``.

    where names the operator or topic in the ConfigError that is raised if there is neither.
    """
    found = or_default(as_serde(serde), config, is_key)
    if found is None:
        part = "key" if is_key else "value"
        raise ConfigError(
            f"No {part} serde for {where}: pass {part}_serde= to that operator, or set default.{part}.serde"
        )
    open_part = found.open_part()
    if open_part is not None:
        raise ConfigError(f"No serde for the {open_part} in {where}: name it where the data come from or set a default")
    return found


def or_default(serde: Serde[Any] | None, config: Mapping[str, Any] | None, is_key: bool) -> Serde[Any] | None:
    """Return a serde with what was left open in it taken from the configuration; None if there is no default either."""
    part = (serde and serde.default_part) or ("key" if is_key else "value")
    default = None if config is None else config.get(f"default.{part}.serde")
    fallback = None if default is None else Serdes.of(default)
    return fallback if serde is None else serde.with_default(fallback)


class Inline(NamedTuple):
    """An expression that does what a function of one argument does, for the loops of fusion.py.

    template: with {} for the argument, which is a variable, and the names of other objects; takes_none: whether it may
    be None, for which the result is None.
    """

    template: str
    names: Mapping[str, Any]
    takes_none: bool = False

    def of(self, argument: str) -> Inline:
        """Return the same of an expression, with {} or {0} for the variable in it."""
        return self._replace(template=self.template.replace("{}", argument))

    @property
    def compiled(self) -> Callable[[Any], Any] | None:
        """The function that this calls, if it does nothing else and that is compiled: the kernel may call it then."""
        called = [function for name, function in self.names.items() if self.template == f"{{{name}}}({{}})"]
        return called[0] if called and not self.takes_none and not isinstance(called[0], FunctionType) else None


#: Leaves its argument as it is.
ITSELF = Inline("{}", {}, takes_none=True)
#: The expressions of the functions below, which all give None for None.
_INLINE: dict[Callable[..., Any], Inline] = {}


def inline(function: Callable[..., Any]) -> Inline:
    """Return an expression that does what a serializer or deserializer does: at worst a call of it."""
    return _INLINE.get(function) or Inline("{call}({})", {"call": function}, takes_none=True)


def set_inline(function: Callable[..., Any], code: Inline) -> None:
    """Let inline() return an expression for a function."""
    _INLINE[function] = code


def _encode_string(value: str | None) -> bytes | None:
    return None if value is None else str.encode(value)


_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    """Read what is no UTF-8 as U+FFFD, as Java's String does: Kafka's StringDeserializer fails for no bytes."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    surrogate = _SURROGATE.match(error.object, error.start)  # Python replaces each of its bytes
    return "\ufffd", error.end if surrogate is None else surrogate.end()


codecs.register_error("penstock.java", _replace_as_java)


def _decode_string(data: bytes | None) -> str | None:
    return None if data is None else str(data, "utf-8", "penstock.java")


def _check_bytes(value: bytes | None) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise SerializationError(f"Serdes.bytes() got {type(value).__name__}, not bytes")


def same(value: Any) -> Any:
    """Return the value."""
    return value


def _encode_json(value: Any) -> bytes | None:
    return None if value is None else orjson.dumps(value)


def _decode_json(data: bytes | None) -> Any:
    return None if data is None else orjson.loads(data)


def _packed(name: str, packer: struct.Struct) -> PlainSerde[Any]:
    """Return the serde of a number."""
    pack, unpack = packer.pack, packer.unpack

    def serialize(value: Any) -> bytes | None:
        return None if value is None else pack(value)

    def deserialize(data: bytes | None) -> Any:
        return None if data is None else unpack(data)[0]

    _INLINE[serialize] = Inline("{pack}({})", {"pack": pack})
    _INLINE[deserialize] = Inline("{unpack}({})[0]", {"unpack": unpack})
    return PlainSerde(name, serialize, deserialize)


def _number(name: str, layout: str, kind: type, cacheable_keys: bool = True) -> PlainSerde[Any]:
    """Return the serde of a number that is read as it was written: a 64-bit float, or an integer that fits."""
    packer = struct.Struct(layout)
    pack, unpack = packer.pack, packer.unpack
    high: Any = 2 ** (8 * packer.size - 1) - 1 if kind is int else inf
    low = -high - 1

    def exact(value: Any) -> Any:
        if type(value) is kind and low <= value <= high:
            return value
        return unpack(pack(value))[0]

    serde = _packed(name, packer)
    serde.exact, serde.exact_type, serde.cacheable_keys = exact, kind, cacheable_keys
    return serde


def _exact_string(value: Any) -> str | None:
    # A text that is not ASCII may have half of a surrogate pair in it, which cannot be written.
    return value if type(value) is str and value.isascii() else _decode_string(_encode_string(value))


def _exact_bytes(value: Any) -> bytes | None:
    return value if type(value) is bytes else _check_bytes(value)


def _exact_uuid(value: Any) -> UUID | None:
    return value if type(value) is UUID else _uuid_from_bytes(_uuid_to_bytes(value))


def _uuid_to_bytes(value: UUID | None) -> bytes | None:
    return None if value is None else str(value).encode()


def _uuid_from_bytes(data: bytes | None) -> UUID | None:
    return None if data is None else UUID(data.decode())


_INLINE |= {
    _encode_string: Inline("{encode}({})", {"encode": str.encode}),
    _decode_string: Inline('{decode}({}, "utf-8", "penstock.java")', {"decode": bytes.decode})
    if compiled is None
    else Inline("{decode}({})", {"decode": compiled.decode_text}),
    same: ITSELF,
    _encode_json: Inline("{dumps}({})", {"dumps": orjson.dumps}),
    _decode_json: Inline("{loads}({})", {"loads": orjson.loads}),
}
_STRING: PlainSerde[str] = PlainSerde(
    "string", _encode_string, _decode_string, exact=_exact_string, exact_type=str, cacheable_keys=True
)
_BYTES: PlainSerde[bytes] = PlainSerde(
    "bytes", _check_bytes, same, exact=_exact_bytes, exact_type=bytes, cacheable_keys=True
)
_JSON: PlainSerde[Any] = PlainSerde("json", _encode_json, _decode_json)
_UUID: PlainSerde[UUID] = PlainSerde(
    "uuid", _uuid_to_bytes, _uuid_from_bytes, exact=_exact_uuid, exact_type=UUID, cacheable_keys=True
)
_INT16: PlainSerde[int] = _number("int16", ">h", int)
_INT32: PlainSerde[int] = _number("int32", ">i", int)
_INT64: PlainSerde[int] = _number("int64", ">q", int)
# A float of 32 bits is seldom what was written: only its bytes are kept.
_FLOAT32: PlainSerde[float] = _packed("float32", struct.Struct(">f"))
# Not as keys in a cache: 0.0 and -0.0 are equal and have different bytes, NaN is not equal to itself.
_FLOAT64: PlainSerde[float] = _number("float64", ">d", float, cacheable_keys=False)


class Serdes:
    """The built-in serdes. Java's names work too: integer() is int32(), long() int64(), double() float64()."""

    _BY_NAME: ClassVar[dict[str, Serde[Any]]] = {
        "string": _STRING,
        "bytes": _BYTES,
        "bytearray": _BYTES,
        "json": _JSON,
        "uuid": _UUID,
        "int16": _INT16,
        "short": _INT16,
        "int32": _INT32,
        "integer": _INT32,
        "int64": _INT64,
        "long": _INT64,
        "float32": _FLOAT32,
        "float": _FLOAT32,
        "float64": _FLOAT64,
        "double": _FLOAT64,
    }

    @staticmethod
    def of(serde: SerdeLike | str) -> Serde[Any]:
        """Return a serde by its name ("string", "int64", "long", "json" …), or a user's serde as a Serde.

        Java's names as they stand in configurations (``org.apache.kafka.common.serialization.Serdes$LongSerde``) work
        too. Raises ConfigError for an unknown name.
        """
        if not isinstance(serde, str):
            return cast("Serde[Any]", as_serde(serde))
        name = serde.rpartition(".")[2].rpartition("$")[2].removesuffix("Serde").lower()
        if name not in Serdes._BY_NAME:
            raise ConfigError(f'There is no serde "{serde}"; known are {", ".join(sorted(Serdes._BY_NAME))}')
        return Serdes._BY_NAME[name]

    @staticmethod
    def string() -> Serde[str]:
        """UTF-8 text."""
        return _STRING

    @staticmethod
    def bytes() -> Serde[bytes]:
        """Bytes as they are."""
        return _BYTES

    @overload
    @staticmethod
    def json() -> Serde[Any]: ...

    @overload
    @staticmethod
    def json(kind: type[T]) -> Serde[T]: ...

    @staticmethod
    def json(kind: Any = None) -> Serde[Any]:
        """JSON (orjson). Tuples, dates and dataclasses can be written, and come back as what JSON has.

        kind: a type that values are read as, and checked against (msgspec): a ``msgspec.Struct``, a dataclass, a
        NamedTuple, a TypedDict; see typed_json_serde. Raises ConfigError for a type that cannot be read.
        """
        if kind is None:
            return _JSON
        from .typed_json_serde import typed_json_serde

        return typed_json_serde(kind)

    @staticmethod
    def uuid() -> Serde[UUID]:
        """UUIDs as text."""
        return _UUID

    @staticmethod
    def int16() -> Serde[int]:
        """2 bytes, big-endian, signed."""
        return _INT16

    @staticmethod
    def int32() -> Serde[int]:
        """4 bytes, big-endian, signed: Java's Integer."""
        return _INT32

    @staticmethod
    def int64() -> Serde[int]:
        """8 bytes, big-endian, signed: Java's Long."""
        return _INT64

    @staticmethod
    def float32() -> Serde[float]:
        """4 bytes, IEEE 754: Java's Float."""
        return _FLOAT32

    @staticmethod
    def float64() -> Serde[float]:
        """8 bytes, IEEE 754: Java's Double."""
        return _FLOAT64

    short = int16
    integer = int32
    long = int64
    double = float64

    @staticmethod
    def time_windowed(inner: SerdeLike | None = None, window_size: Any = None) -> Serde[Any]:
        """Windowed keys of time windows; window_size (timedelta or ms) gives read keys their end."""
        from .windowed_serdes import TimeWindowedSerde

        return TimeWindowedSerde(inner, window_size)

    @staticmethod
    def session_windowed(inner: SerdeLike | None = None) -> Serde[Any]:
        """Windowed keys of session windows."""
        from .windowed_serdes import SessionWindowedSerde

        return SessionWindowedSerde(inner)

    @staticmethod
    def avro(schema: str | None, registry: Any, *, is_key: bool = False, **options: Any) -> Serde[Any]:
        """Avro with a schema registry; see schema_registry_serdes. Needs penstock[schema-registry]."""
        from .schema_registry_serdes import avro_serde

        return avro_serde(schema, registry, is_key=is_key, **options)

    @staticmethod
    def protobuf(message_type: Any, registry: Any, *, is_key: bool = False, **options: Any) -> Serde[Any]:
        """Protobuf with a schema registry; see schema_registry_serdes. Needs penstock[schema-registry]."""
        from .schema_registry_serdes import protobuf_serde

        return protobuf_serde(message_type, registry, is_key=is_key, **options)

    @staticmethod
    def json_schema(schema: str | None, registry: Any, *, is_key: bool = False, **options: Any) -> Serde[Any]:
        """JSON with a schema registry; see schema_registry_serdes. Needs penstock[schema-registry]."""
        from .schema_registry_serdes import json_schema_serde

        return json_schema_serde(schema, registry, is_key=is_key, **options)
