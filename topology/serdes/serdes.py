"""Serdes: how keys and values become bytes. Bytes equal those of Kafka's own serdes.

A user's serde is any object with ``serialize(topic, value) -> bytes | None`` and ``deserialize(topic, data) -> value``.
Inside Penstock it is wrapped, so that every serde has the attributes of Serde.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, cast, overload
from uuid import UUID

from typing_extensions import TypeVar, override

from penstock.kernel.codecs import (
    Rewriter,
    Written,
    ascii_written,
    number_decoder,
    private_dicts,
    sized_written,
    typed,
    uuid_written,
)
from penstock.kernel.codecs import nullable as compiled_nullable
from penstock.kernel.conversions import Conversion, Guarded
from penstock.kernel.messages import decode_text

from ..errors import ConfigError
from . import codecs
from .json_codec import json_decoder, json_encoder
from .shape_changes import Shape

T = TypeVar("T", default=Any)

#: A function of one argument. None means null and is returned as None.
ToBytes = Callable[[Any], bytes | None]
FromBytes = Callable[[bytes | None], Any]


class UserSerdeLike(Protocol):
    """The methods of a user's serde."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Return the bytes of a key or value of this topic; None stays None."""

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        """Return the key or value; None stays None."""


#: Accepted wherever a serde is declared: any serde, or the name of a built-in one.
SerdeLike: TypeAlias = UserSerdeLike | str


class Serde(ABC, Generic[T]):
    """A serializer and a deserializer of one type, with the properties that the hot path needs.

    serializer, deserializer: the same as functions of one argument, with None for null; None if the bytes depend on the
        topic's name (schema registry). serializer_for() and deserializer_for() always return a function.
    exact: a function from an object (not None) to the object that its bytes are read as. That is immutable, so a record
        cache may keep it instead of the bytes. Raises what serialize raises. None: a cache must keep the bytes.
    exact_type: the type whose objects exact returns unchanged if they can be written at all. None: there is none.
    rewrite: a function from bytes (not None) to the bytes of the object that they are read as, usually the same bytes;
        None for bytes that are read as None. Raises what reading and writing raise. With it, a record's row is found
        without reading the record's key. None: the key must be read.
    is_written: True only if rewrite returns the same bytes; does not read them. None: not known for any bytes.
    unread: for a serde whose bytes depend on the topic: a function that returns bytes unchanged if a key may stay
        unread, because they can be read and Guarded.translate turns them into those of any topic; otherwise None. None
        in its place: all keys are read.
    private: a function from (encode, decode) to the functions (hold, read, bytes_of) of a record cache. hold(object)
        returns bytes, or a copy for the cache that is faster to copy again than to read from bytes. read(held) returns
        an object for the caller, bytes_of(held) the bytes. All of them map None to None. None: a cache must keep bytes.
    default_part: "key" or "value" if with_default() needs that default, whatever the serde is used for.
    results: a function from an object (not None) of a store to what readers of the store get; only its operator gets
        the object itself. None: readers get it, too.
    """

    serializer: ToBytes | None = None
    deserializer: FromBytes | None = None
    exact: Callable[[Any], object] | None = None
    exact_type: type | None = None
    rewrite: codecs.Rewrite | None = None
    is_written: Written | None = None
    unread: Conversion | None = None
    private: codecs.Private | None = None
    default_part: str | None = None
    results: Callable[[Any], object] | None = None

    @abstractmethod
    def serialize(self, topic: str, value: T | None) -> bytes | None:
        """Return the bytes of a key or value of this topic; None stays None."""

    @abstractmethod
    def deserialize(self, topic: str, data: bytes | None) -> T | None:
        """Return the key or value; None stays None."""

    def topic_serializer(self, topic: str) -> ToBytes:
        """Return serialize for one topic."""
        return partial(self.serialize, topic)

    def topic_deserializer(self, topic: str) -> FromBytes:
        """Return deserialize for one topic."""
        return partial(self.deserialize, topic)

    def with_default(self, default: Serde | None) -> Serde[T]:
        """Return this serde; a serde that wraps another one uses default if that is missing."""
        return self

    def with_elements(self, elements: Serde | None) -> Serde[T]:
        """Return this serde; a serde of lists uses elements as the serde of its elements if that is missing."""
        return self

    def in_application(self, application_id: str) -> Serde[T]:
        """Return this serde; a serde that passes internal topics to another one uses the application's."""
        return self

    def open_part(self) -> str | None:
        """Return a description of the serde that is still missing; None if this serde can be used."""
        return None

    def shape(self) -> Shape | None:
        """Return the fields and types of its values; None if its name implies them. See shape_changes."""
        return None


class PlainSerde(Serde[T]):
    """A serde whose bytes do not depend on the topic. encode and decode never get None.

    Whatever they raise becomes the cause of a SerializationError.
    exact_type: an immutable type whose objects are read back unchanged if they can be written (see Serde.exact); fits:
    whether an object can be written, None if all can. is_written, private: see Serde.
    """

    def __init__(
        self,
        name: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], object],
        *,
        exact_type: type | None = None,
        fits: Callable[[Any], bool] | None = None,
        is_written: Written | None = None,
        private: codecs.Private | None = None,
    ) -> None:
        self.name = name
        encode = Guarded(encode, codecs.refusal(repr(self), "write"))
        decode = Guarded(decode, codecs.refusal(repr(self), "read"))
        self.serializer: ToBytes = nullable(encode)
        self.deserializer: FromBytes = nullable(decode)
        self.exact_type = exact_type
        self.exact = None if exact_type is None else _exact(exact_type, encode, decode, fits)
        self.is_written = is_written
        self.rewrite = Rewriter(encode, decode, is_written)
        self.private = private

    @override
    def serialize(self, topic: str, value: T | None) -> bytes | None:
        return self.serializer(value)

    @override
    def deserialize(self, topic: str, data: bytes | None) -> T | None:
        return cast("T | None", self.deserializer(data))

    def __reduce__(self) -> str | tuple[object, ...]:
        # A topology that is sent to another process contains the name, not the functions.
        return (Serdes.of, (self.name,)) if Serdes._BY_NAME.get(self.name) is self else super().__reduce__()

    def __repr__(self) -> str:
        return f"Serdes.{self.name}()"


class TopicSerde(Serde[T]):
    """A serde whose bytes may depend on the topic's name, or an inner serde's: it makes its functions once a topic."""

    def __init__(self) -> None:
        self._topic_serializers: dict[str, ToBytes] = {}
        self._topic_deserializers: dict[str, FromBytes] = {}

    @abstractmethod
    def make_serializer(self, topic: str) -> ToBytes:
        """Return serialize for one topic."""

    @abstractmethod
    def make_deserializer(self, topic: str) -> FromBytes:
        """Return deserialize for one topic."""

    @override
    def topic_serializer(self, topic: str) -> ToBytes:
        if topic not in self._topic_serializers:
            self._topic_serializers[topic] = self.make_serializer(topic)
        return self._topic_serializers[topic]

    @override
    def topic_deserializer(self, topic: str) -> FromBytes:
        if topic not in self._topic_deserializers:
            self._topic_deserializers[topic] = self.make_deserializer(topic)
        return self._topic_deserializers[topic]

    @override
    def serialize(self, topic: str, value: T | None) -> bytes | None:
        return (self.serializer or self.topic_serializer(topic))(value)

    @override
    def deserialize(self, topic: str, data: bytes | None) -> T | None:
        return cast("T | None", (self.deserializer or self.topic_deserializer(topic))(data))


class UserSerde(Serde[T]):
    """A user's serde: nothing is known about its values."""

    def __init__(self, serde: UserSerdeLike) -> None:
        self.serde = serde

    @override
    def serialize(self, topic: str, value: T | None) -> bytes | None:
        return self.serde.serialize(topic, value)

    @override
    def deserialize(self, topic: str, data: bytes | None) -> T | None:
        return cast("T | None", self.serde.deserialize(topic, data))

    @override
    def topic_serializer(self, topic: str) -> ToBytes:
        return partial(self.serde.serialize, topic)

    @override
    def topic_deserializer(self, topic: str) -> FromBytes:
        return partial(self.serde.deserialize, topic)

    def __repr__(self) -> str:
        return repr(self.serde)


def as_serde(serde: SerdeLike | None) -> Serde | None:
    """Return the Serde for a user's serde or for the name of a built-in one; None for None.

    Raises TypeError for anything that is not a serde, ConfigError for an unknown name.
    """
    if serde is None or isinstance(serde, Serde):
        return serde
    if isinstance(serde, str):
        return _serde_named(serde)
    if isinstance(serde, type):
        raise TypeError(f"expected a serde, got the class {serde.__name__}; did you mean {serde.__name__}()?")
    if not callable(getattr(serde, "serialize", None)) or not callable(getattr(serde, "deserialize", None)):
        raise TypeError(f"a serde needs serialize(topic, value) and deserialize(topic, data), got {serde!r}")
    return UserSerde(serde)


def _serde_named(given: str) -> Serde:
    name = given.rpartition(".")[2].rpartition("$")[2].removesuffix("Serde").lower()
    if name == "list":
        return Serdes.list()
    if name not in Serdes._BY_NAME:
        known = ", ".join(sorted([*Serdes._BY_NAME, "list"]))
        raise ConfigError(f'There is no serde "{given}"; the known serdes are {known}')
    return Serdes._BY_NAME[name]


def serializer_for(serde: Serde, topic: str) -> ToBytes:
    """Return the fastest function value -> bytes for a topic."""
    return serde.serializer or serde.topic_serializer(topic)


def deserializer_for(serde: Serde, topic: str) -> FromBytes:
    """Return the fastest function bytes -> value for a topic."""
    return serde.deserializer or serde.topic_deserializer(topic)


def resolve_serde(serde: SerdeLike | None, config: Mapping[str, Any], is_key: bool, where: str) -> Serde:
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
        raise ConfigError(f"No serde for the {open_part} in {where}: pass it where the data come from or set a default")
    return found


def or_default(serde: Serde | None, config: Mapping[str, Any] | None, is_key: bool) -> Serde | None:
    """Return a serde as the configuration completes it: its missing parts, and the names of the application's topics.

    None if there is no default either.
    """
    part = (serde and serde.default_part) or ("key" if is_key else "value")
    default = _configured(config, f"default.{part}.serde")
    elements = _configured(config, f"default.list.{part}.serde.inner")
    if default is not None:
        default = default.with_elements(elements)
    found = default if serde is None else serde.with_default(default)
    if found is None:
        return None
    application_id = None if config is None else config.get("application.id")
    return (found if application_id is None else found.in_application(application_id)).with_elements(elements)


def _configured(config: Mapping[str, Any] | None, key: str) -> Serde | None:
    return None if config is None else as_serde(config.get(key))


#: Attribute of a function that maps None to None: the one for anything else, which the kernel calls; None if it changes
#: nothing. It is not kept in a dict, which would keep each function forever, with the serde that it belongs to.
_DIRECT = "penstock_direct"


def direct(function: Callable[[Any], object]) -> Callable[[Any], Any] | None:
    """Return what a serializer or deserializer does with anything but None; None if it changes nothing."""
    found: Callable[[Any], object] | None = getattr(function, _DIRECT, function)
    return found


def takes_none(function: Callable[[Any], object]) -> bool:
    """Return whether a serializer or deserializer has to be called for None, too."""
    return not hasattr(function, _DIRECT)


def set_direct(function: Callable[..., object], found: Callable[[Any], object] | None) -> None:
    """Set what direct() returns for a function that maps None to None."""
    setattr(function, _DIRECT, found)


def nullable(function: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return a function that returns None for None, and calls another one for anything else."""
    call: Callable[[Any], object] = compiled_nullable(function)
    set_direct(call, function)
    return call


def same(value: object) -> Any:
    """Return the value."""
    return value


set_direct(same, None)


def _exact(
    kind: type, encode: Callable[[Any], bytes], decode: Callable[[bytes], object], fits: Callable[[Any], bool] | None
) -> Callable[[Any], object]:
    """Return Serde.exact; see PlainSerde."""

    def exact(value: object) -> object:
        return value if type(value) is kind and (fits is None or fits(value)) else decode(encode(value))

    return exact


def _number(name: str, layout: str, **exact: Any) -> PlainSerde:
    """Return the serde of a number; exact: more arguments of PlainSerde."""
    packer = struct.Struct(layout)
    encoder = codecs.float_encoder if layout in (">f", ">d") else codecs.integer_encoder
    # A 32-bit float is converted to 64 bits and back, which changes some NaNs.
    is_written = None if layout == ">f" else sized_written(packer.size)
    encode, decode = encoder(name, layout, packer.pack), number_decoder(layout, packer.unpack)
    return PlainSerde(name, encode, decode, is_written=is_written, **exact)


def _integer(name: str, layout: str) -> PlainSerde[int]:
    limit = 1 << 8 * struct.calcsize(layout) - 1
    return _number(name, layout, exact_type=int, fits=range(-limit, limit).__contains__)


_STRING: PlainSerde[str] = PlainSerde(
    "string",
    str.encode,
    decode_text,
    exact_type=str,
    fits=str.isascii,  # other texts may contain half of a surrogate pair
    is_written=ascii_written(),
)
# The kernel recognizes decode_text and reads keys as text itself.
set_direct(_STRING.deserializer, decode_text)
_BYTES: PlainSerde[bytes] = PlainSerde(
    "bytes",
    typed(bytes, bytes, codecs.check_bytes),
    bytes,
    exact_type=bytes,
    is_written=sized_written(None),
)
set_direct(_BYTES.deserializer, None)
_JSON: PlainSerde = PlainSerde("json", json_encoder(), json_decoder(), private=private_dicts)
_UUID: PlainSerde[UUID] = PlainSerde(
    "uuid", codecs.encode_uuid, codecs.decode_uuid, exact_type=UUID, is_written=uuid_written()
)
_BOOLEAN: PlainSerde[bool] = PlainSerde("boolean", codecs.encode_boolean, codecs.decode_boolean, exact_type=bool)
_VOID: PlainSerde[None] = PlainSerde("void", codecs.refuse_void, codecs.refuse_void)
_INT16 = _integer("int16", ">h")
_INT32 = _integer("int32", ">i")
_INT64 = _integer("int64", ">q")
# A 32-bit float is rarely equal to the number that was written, so caches keep its bytes.
_FLOAT32: PlainSerde[float] = _number("float32", ">f")
_FLOAT64: PlainSerde[float] = _number("float64", ">d", exact_type=float)


class Serdes:
    """The built-in serdes. Java's names work too: integer() is int32(), long() int64(), bytebuffer() bytes()."""

    _BY_NAME: ClassVar[dict[str, Serde]] = {
        "string": _STRING,
        "bytes": _BYTES,
        "bytearray": _BYTES,
        "bytebuffer": _BYTES,
        "json": _JSON,
        "uuid": _UUID,
        "boolean": _BOOLEAN,
        "void": _VOID,
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
    def of(serde: SerdeLike) -> Serde:
        """Return a serde by its name ("string", "int64", "long", "json" …), or a user's serde as a Serde.

        Java's class names (``org.apache.kafka.common.serialization.Serdes$LongSerde``) work too. Raises ConfigError for
        an unknown name.
        """
        return cast("Serde", as_serde(serde))

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
    def json(*, allow_nan: bool = False) -> Serde: ...

    @overload
    @staticmethod
    def json(kind: type[T], *, allow_nan: bool = False) -> Serde[T]: ...

    @staticmethod
    def json(kind: Any = None, *, allow_nan: bool = False) -> Serde:
        """JSON. Tuples, dates and dataclasses can be written, but are read back as types of JSON.

        kind: the type that values are read as and checked against (msgspec): a ``msgspec.Struct``, a dataclass, a
        NamedTuple or a TypedDict; see typed_json_serde. allow_nan: write and read NaN, Infinity and -Infinity, which
        JSON does not have; otherwise they raise SerializationError. Raises ConfigError for a type that cannot be read.
        """
        if kind is None and not allow_nan:
            return _JSON
        from .typed_json_serde import typed_json_serde

        return typed_json_serde(Any if kind is None else kind, allow_nan)

    @staticmethod
    def uuid() -> Serde[UUID]:
        """UUIDs as text."""
        return _UUID

    @staticmethod
    def boolean() -> Serde[bool]:
        """One byte, 1 or 0: Java's Boolean."""
        return _BOOLEAN

    @staticmethod
    def void() -> Serde[None]:
        """Only null: Java's Void."""
        return _VOID

    @staticmethod
    def list(inner: SerdeLike | None = None) -> Serde:
        """Lists whose elements have another serde; see list_serde. Without inner: ``default.list.*.serde.inner``."""
        from .list_serde import ListSerde

        return ListSerde(inner)

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

    bytebuffer = bytes
    short = int16
    integer = int32
    long = int64
    double = float64

    @staticmethod
    def time_windowed(
        inner: SerdeLike | None = None, window_size: Any = None, window_end: Callable[[int], int] | None = None
    ) -> Serde:
        """Windowed keys of time windows; window_size (timedelta or ms) sets the end of keys that are read.

        window_end(start in ms) -> end does so for windows of several sizes, as CalendarWindows.window_end.
        """
        from .windowed_serdes import TimeWindowedSerde

        return TimeWindowedSerde(inner, window_size, window_end)

    @staticmethod
    def session_windowed(inner: SerdeLike | None = None) -> Serde:
        """Windowed keys of session windows."""
        from .windowed_serdes import SessionWindowedSerde

        return SessionWindowedSerde(inner)

    @staticmethod
    def avro(schema: Any, registry: Any, *, kind: Any = None, is_key: bool = False, **options: Any) -> Serde:
        """Avro with a schema registry, as dicts or objects of a type. Needs penstock-streams[schema-registry].

        schema: its text, or a Schema of confluent-kafka, which may have references; None: read with the record's
        schema, and write with the subject's latest one. registry: a URL, a configuration dict or a
        SchemaRegistryClient. kind: a msgspec.Struct or a dataclass. options: those of confluent-kafka's serializer,
        e.g. auto_register_schemas=False.
        """
        from .avro_serdes import avro_serde

        return avro_serde(schema, registry, kind=kind, is_key=is_key, **options)

    @staticmethod
    def protobuf(message_type: object, registry: object, *, is_key: bool = False, **options: object) -> Serde:
        """Protobuf with a schema registry; see schema_registry_serdes. Needs penstock-streams[schema-registry]."""
        from .schema_registry_serdes import protobuf_serde

        return protobuf_serde(message_type, registry, is_key=is_key, **options)

    @staticmethod
    def json_schema(
        schema: object, registry: object, *, kind: object = None, is_key: bool = False, **options: object
    ) -> Serde:
        """JSON with a schema registry; its arguments are those of avro. Needs penstock-streams[schema-registry]."""
        from .schema_registry_serdes import json_schema_serde

        return json_schema_serde(schema, registry, kind=kind, is_key=is_key, **options)

    @staticmethod
    def debezium(kind: object = None, registry: object = None, **options: object) -> Serde:
        """Rows of a database table, from Debezium's change events: the row after the change, None if it was deleted.

        kind: the type that rows are read as; see json. Events are JSON; with a registry (see avro) they are Avro, and
        options are those of confluent-kafka's deserializer. See docs/databases.md.
        """
        from .debezium_serde import DebeziumSerde

        return DebeziumSerde(kind, registry, options)
