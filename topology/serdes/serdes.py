"""Serdes: how keys and values become bytes. Bytes equal those of Kafka's own serdes.

A user's serde is any object with ``serialize(topic, value) -> bytes | None`` and ``deserialize(topic, data) -> value``.
Inside Penstock it is wrapped, so that every serde has the attributes of Serde.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast, overload
from uuid import UUID

from typing_extensions import override

from penstock.kernel import codecs as compiled_codecs
from penstock.kernel import messages as compiled

from ..errors import ConfigError
from . import codecs
from .json_codec import json_decoder, json_encoder

T = TypeVar("T")

#: A plain function of one argument; None stands for null and gives None.
ToBytes = Callable[[Any], bytes | None]
FromBytes = Callable[[bytes | None], Any]


class UserSerdeLike(Protocol):
    """What a user's serde needs."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Return the bytes of a key or value of this topic; None stays None."""

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        """Return the key or value; None stays None."""


#: What is taken wherever a serde is declared: a serde of any kind, or the name of a built-in one.
SerdeLike: TypeAlias = UserSerdeLike | str


class Serde(ABC, Generic[T]):
    """A serializer and a deserializer of one type, with what the hot path wants to know about them.

    serializer, deserializer: the same as functions of one argument, which take and give None for null; None if the
        bytes depend on the topic's name (schema registry). serializer_for() and deserializer_for() always give one.
    exact: an object (not None) -> what its bytes are read as, which is immutable, so that it may replace them in
        a record cache; raises what serialize raises. None: only the bytes themselves may be kept.
    exact_type: objects of this very type are what exact returns for them, if they can be written at all; None: ask.
    rewrite: bytes (not None) -> what is written for what they are read as, mostly those bytes, None for what is read as
        None; raises what reading and writing raise. So a record's key need not be read to find its row. None: it must.
    is_written: whether bytes are surely those that rewrite returns, without reading them; None: nothing is sure.
    private: what makes of (encode, decode), between objects and bytes, the functions (hold, read, bytes_of) of a record
        cache: hold(object) gives its bytes, or an object of the cache's own that is quicker to copy than to read from
        bytes; read(held) gives a caller's own. None: nothing is. All of them take and give None.
    default_part: "key" or "value" where with_default() wants that default, whatever this serde is used for.
    """

    serializer: ToBytes | None = None
    deserializer: FromBytes | None = None
    exact: Callable[[Any], Any] | None = None
    exact_type: type | None = None
    rewrite: codecs.Rewrite | None = None
    is_written: Callable[[bytes], bool] | None = None
    private: codecs.Private | None = None
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

    def with_elements(self, elements: Serde[Any] | None) -> Serde[T]:
        """Return this serde; one of lists takes elements for the serde of its elements if that was left open."""
        return self

    def open_part(self) -> str | None:
        """Return what is still left open, in words; None if the serde can be used."""
        return None


class PlainSerde(Serde[T]):
    """A serde whose bytes do not depend on the topic. encode, decode: functions that never see None.

    exact_type: a type whose objects cannot be changed, and are read back as they were if they can be written; fits:
    whether one can be, None if all can. See Serde.exact; is_written: see there.
    """

    def __init__(
        self,
        name: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        *,
        exact_type: type | None = None,
        fits: Callable[[Any], bool] | None = None,
        is_written: Callable[[bytes], bool] | None = None,
        private: codecs.Private | None = None,
    ) -> None:
        self.name = name
        self.serializer: ToBytes = nullable(encode)
        self.deserializer: FromBytes = nullable(decode)
        self.exact_type = exact_type
        self.exact = None if exact_type is None else _exact(exact_type, encode, decode, fits)
        self.is_written = is_written
        self.rewrite = codecs.rewriter(encode, decode, is_written)
        self.private = private

    @override
    def serialize(self, topic: str, value: T | None) -> bytes | None:
        return self.serializer(value)

    @override
    def deserialize(self, topic: str, data: bytes | None) -> T | None:
        return cast("T | None", self.deserializer(data))

    def __reduce__(self) -> Any:
        # A topology that travels to another process takes the name along, not the functions.
        return (Serdes.of, (self.name,)) if Serdes._BY_NAME.get(self.name) is self else super().__reduce__()

    def __repr__(self) -> str:
        return f"Serdes.{self.name}()"


class UserSerde(Serde[T]):
    """A user's serde, or one of a schema registry: nothing is known about its values."""

    def __init__(self, serde: UserSerdeLike) -> None:
        self.serde = serde
        self.serialize = serde.serialize  # type: ignore[method-assign]
        self.deserialize = serde.deserialize  # type: ignore[method-assign]

    @override
    def serialize(self, topic: str, value: T | None) -> bytes | None:
        return self.serde.serialize(topic, value)

    @override
    def deserialize(self, topic: str, data: bytes | None) -> T | None:
        return cast("T | None", self.serde.deserialize(topic, data))

    def __repr__(self) -> str:
        return repr(self.serde)


def as_serde(serde: SerdeLike | None) -> Serde[Any] | None:
    """Return a user's serde as a Serde, a built-in one by its name, None as None.

    Raises TypeError for what is no serde, ConfigError for an unknown name.
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


def _serde_named(given: str) -> Serde[Any]:
    name = given.rpartition(".")[2].rpartition("$")[2].removesuffix("Serde").lower()
    if name == "list":
        return Serdes.list()
    if name not in Serdes._BY_NAME:
        known = ", ".join(sorted([*Serdes._BY_NAME, "list"]))
        raise ConfigError(f'There is no serde "{given}"; known are {known}')
    return Serdes._BY_NAME[name]


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
    default = _configured(config, f"default.{part}.serde")
    elements = _configured(config, f"default.list.{part}.serde.inner")
    if default is not None:
        default = default.with_elements(elements)
    found = default if serde is None else serde.with_default(default)
    return None if found is None else found.with_elements(elements)


def _configured(config: Mapping[str, Any] | None, key: str) -> Serde[Any] | None:
    return None if config is None else as_serde(config.get(key))


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


def nullable(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that gives None for None, and calls another one for all else."""

    def plain(value: Any) -> Any:
        return None if value is None else function(value)

    call: Callable[[Any], Any] = plain if compiled_codecs is None else compiled_codecs.nullable(function)
    _INLINE[call] = Inline("{call}({})", {"call": function})
    return call


def same(value: Any) -> Any:
    """Return the value."""
    return value


set_inline(same, ITSELF)


def _exact(
    kind: type, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], fits: Callable[[Any], bool] | None
) -> Callable[[Any], Any]:
    """Return Serde.exact; see PlainSerde."""

    def exact(value: Any) -> Any:
        return value if type(value) is kind and (fits is None or fits(value)) else decode(encode(value))

    return exact


def _number(name: str, layout: str, **exact: Any) -> PlainSerde[Any]:
    """Return the serde of a number; exact: what PlainSerde takes."""
    packer = struct.Struct(layout)
    unpack = packer.unpack
    encoder = codecs.float_encoder if layout in (">f", ">d") else codecs.integer_encoder
    # A float of 32 bits becomes one of 64 and back again, which changes some NaNs.
    is_written = None if layout == ">f" else codecs.sized_written(packer.size)
    serde: PlainSerde[Any] = PlainSerde(
        name, encoder(name, packer.pack), lambda data: unpack(data)[0], is_written=is_written, **exact
    )
    set_inline(serde.deserializer, Inline("{unpack}({})[0]", {"unpack": unpack}))
    return serde


def _integer(name: str, layout: str) -> PlainSerde[int]:
    limit = 1 << 8 * struct.calcsize(layout) - 1
    return _number(name, layout, exact_type=int, fits=range(-limit, limit).__contains__)


_STRING: PlainSerde[str] = PlainSerde(
    "string",
    str.encode,
    codecs.decode_string if compiled is None else compiled.decode_text,
    exact_type=str,
    fits=str.isascii,  # else it may have half of a surrogate pair in it
    is_written=codecs.ascii_written,
)
if compiled is not None:  # fusion.py knows it by this name: keys may be read as texts at once
    set_inline(_STRING.deserializer, Inline("{decode}({})", {"decode": compiled.decode_text}))
_BYTES: PlainSerde[bytes] = PlainSerde(
    "bytes",
    codecs.typed(bytes, bytes, codecs.check_bytes),
    bytes,
    exact_type=bytes,
    is_written=codecs.sized_written(None),
)
set_inline(_BYTES.deserializer, ITSELF)
_JSON: PlainSerde[Any] = PlainSerde("json", json_encoder(), json_decoder(), private=codecs.private_dicts)
_UUID: PlainSerde[UUID] = PlainSerde(
    "uuid", codecs.encode_uuid, codecs.decode_uuid, exact_type=UUID, is_written=codecs.uuid_written
)
_BOOLEAN: PlainSerde[bool] = PlainSerde("boolean", codecs.encode_boolean, codecs.decode_boolean, exact_type=bool)
_VOID: PlainSerde[None] = PlainSerde("void", codecs.refuse_void, codecs.refuse_void)
_INT16 = _integer("int16", ">h")
_INT32 = _integer("int32", ">i")
_INT64 = _integer("int64", ">q")
# A float of 32 bits is seldom what was written: only its bytes are kept.
_FLOAT32: PlainSerde[float] = _number("float32", ">f")
_FLOAT64: PlainSerde[float] = _number("float64", ">d", exact_type=float)


class Serdes:
    """The built-in serdes. Java's names work too: integer() is int32(), long() int64(), bytebuffer() bytes()."""

    _BY_NAME: ClassVar[dict[str, Serde[Any]]] = {
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
    def of(serde: SerdeLike) -> Serde[Any]:
        """Return a serde by its name ("string", "int64", "long", "json" …), or a user's serde as a Serde.

        Java's names as they stand in configurations (``org.apache.kafka.common.serialization.Serdes$LongSerde``) work
        too. Raises ConfigError for an unknown name.
        """
        return cast("Serde[Any]", as_serde(serde))

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
    def json(*, allow_nan: bool = False) -> Serde[Any]: ...

    @overload
    @staticmethod
    def json(kind: type[T], *, allow_nan: bool = False) -> Serde[T]: ...

    @staticmethod
    def json(kind: Any = None, *, allow_nan: bool = False) -> Serde[Any]:
        """JSON. Tuples, dates and dataclasses can be written, and come back as what JSON has.

        kind: a type that values are read as, and checked against (msgspec): a ``msgspec.Struct``, a dataclass, a
        NamedTuple, a TypedDict; see typed_json_serde. allow_nan: write and read NaN, Infinity and -Infinity, which JSON
        does not have; else they raise SerializationError. Raises ConfigError for a type that cannot be read.
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
        """Null and nothing else: Java's Void."""
        return _VOID

    @staticmethod
    def list(inner: SerdeLike | None = None) -> Serde[Any]:
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
    def avro(schema: Any, registry: Any, *, kind: Any = None, is_key: bool = False, **options: Any) -> Serde[Any]:
        """Avro with a schema registry, as dicts or objects of a type. Needs penstock-streams[schema-registry].

        schema: the text; None for that of the record; or a Schema of confluent-kafka, which may have
        references. registry: a URL, a configuration dict or a SchemaRegistryClient. kind: a msgspec.Struct, dataclass.
        options: those of confluent-kafka's serializer, e.g. auto_register_schemas=False.
        """
        from .avro_serdes import avro_serde

        return avro_serde(schema, registry, kind=kind, is_key=is_key, **options)

    @staticmethod
    def protobuf(message_type: Any, registry: Any, *, is_key: bool = False, **options: Any) -> Serde[Any]:
        """Protobuf with a schema registry; see schema_registry_serdes. Needs penstock-streams[schema-registry]."""
        from .schema_registry_serdes import protobuf_serde

        return protobuf_serde(message_type, registry, is_key=is_key, **options)

    @staticmethod
    def json_schema(
        schema: Any, registry: Any, *, kind: Any = None, is_key: bool = False, **options: Any
    ) -> Serde[Any]:
        """JSON with a schema registry; its arguments are those of avro. Needs penstock-streams[schema-registry]."""
        from .schema_registry_serdes import json_schema_serde

        return json_schema_serde(schema, registry, kind=kind, is_key=is_key, **options)

    @staticmethod
    def debezium(kind: Any = None, registry: Any = None, **options: Any) -> Serde[Any]:
        """Rows of a database's table, from Debezium's change events: what the row is after the change.

        A deleted row is None. kind: a type that rows are read as, as for json. Events are JSON, or with a registry (as
        for avro, with options of confluent-kafka's deserializer) Avro. See docs/databases.md.
        """
        from .debezium_serde import DebeziumSerde

        return DebeziumSerde(kind, registry, options)
