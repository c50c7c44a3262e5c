"""Serdes with a schema registry: Protobuf and JSON Schema, and what Avro shares with them.

They wrap confluent-kafka's serializers and need the extra ``penstock-streams[schema-registry]``, which is imported when
the first of them is created. registry is the URL, a configuration dict, or a SchemaRegistryClient. Their bytes depend
on the topic's name (subject name strategy).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from typing_extensions import override

from ..errors import ConfigError, SchemaRegistryUnavailableError
from .codecs import refusing
from .json_codec import json_decoder, json_encoder
from .schema_shapes import json_schema_shape, protobuf_shape
from .serdes import Serde
from .shape_changes import Shape

#: Options that a deserializer has too: how schemas are looked up.
_SHARED = ("subject.name.strategy", "use.latest.version", "use.latest.with.metadata")
#: HTTP status codes of a registry, or a proxy in front of it, that is temporarily unavailable.
_NOT_NOW = frozenset({408, 429, 500, 502, 503, 504})


class RegistrySerde(Serde):
    """A serializer and a deserializer of confluent-kafka as one serde; is_key selects the subject ``<topic>-key``.

    again: makes an equal serde, in another process too. shape: of its schema, None without one.
    """

    def __init__(
        self,
        kind: str,
        serializer: Any,
        deserializer: Any,
        is_key: bool,
        again: Callable[[], Serde],
        shape: Shape | None = None,
    ) -> None:
        from confluent_kafka.schema_registry.common._httpx_compat import httpx
        from confluent_kafka.schema_registry.error import SchemaRegistryError
        from confluent_kafka.serialization import MessageField, SerializationContext

        self.kind = kind
        self._serializer = serializer
        self._deserializer = deserializer
        self._again = again
        self._shape = shape
        self._context = SerializationContext
        self._field = MessageField.KEY if is_key else MessageField.VALUE
        self._refused = SchemaRegistryError
        self._unreachable = httpx.TransportError

    @override
    @refusing("write")
    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Return a value as bytes; registers the schema if the serializer is configured to."""
        data: bytes | None = None if value is None else self._ask(self._serializer, topic, value)
        return data

    @override
    @refusing("read")
    def deserialize(self, topic: str, data: bytes | None) -> Any:
        """Return the value that the bytes stand for, by their schema in the registry."""
        return None if data is None else self._ask(self._deserializer, topic, data)

    def _ask(self, function: Callable[[Any, Any], object], topic: str, argument: object) -> Any:
        try:
            return function(argument, self._context(topic, self._field))
        except self._unreachable as error:
            raise _unavailable(topic, error) from error
        except self._refused as error:
            if error.http_status_code in _NOT_NOW:
                raise _unavailable(topic, error) from error
            raise

    @override
    def shape(self) -> Shape | None:
        return self._shape

    def __reduce__(self) -> tuple[object, ...]:
        return self._again, ()  # connections to the registry cannot be sent

    def __repr__(self) -> str:
        return f"Serdes.{self.kind}(…)"


def _unavailable(topic: str, error: Exception) -> SchemaRegistryUnavailableError:
    return SchemaRegistryUnavailableError(
        f"the schema registry is not available for a schema of topic {topic}: {type(error).__name__}: {error}. "
        "The record may be valid: it is tried again once the registry is available."
    )


def registry_client(registry: object) -> Any:
    """Return a SchemaRegistryClient for a URL, a configuration dict or a client; ConfigError without the extra."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise ConfigError(
            f"Schema registry serdes need the extra: pip install 'penstock-streams[schema-registry]' ({error})"
        ) from error
    if isinstance(registry, str):
        registry = {"url": registry}
    # new_client() also supports mock://, an in-memory registry for tests.
    return SchemaRegistryClient.new_client(registry) if isinstance(registry, dict) else registry


def protobuf_serde(message_type: Any, registry: Any, *, is_key: bool = False, **options: Any) -> Serde:
    """Return a Protobuf serde for messages of message_type, a generated class.

    The files that its file imports become references of its schema.
    """
    client = registry_client(registry)
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

    writing, reading = configurations({"use_deprecated_format": False, **options}, "use.deprecated.format")
    serializer = ProtobufSerializer(message_type, client, conf=writing)
    # Needs no client: fields are identified by their numbers, whatever schema a message was written with.
    deserializer = ProtobufDeserializer(message_type, reading)
    again = partial(protobuf_serde, message_type, registry, is_key=is_key, **options)
    return RegistrySerde("protobuf", serializer, deserializer, is_key, again, protobuf_shape(message_type.DESCRIPTOR))


def json_schema_serde(
    schema: object, registry: object, *, kind: object = None, is_key: bool = False, **options: object
) -> Serde:
    """Return a JSON Schema serde for dicts that match the schema, or for objects of a type; see avro_serde."""
    client = registry_client(registry)
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

    to_dict, from_dict = conversions(kind, ())
    writing, reading = configurations(options, "validate")
    # Theirs write NaN as null, and read whole numbers beyond 64 bits as floats.
    serializer = JSONSerializer(schema, client, to_dict=to_dict, conf=writing, json_encode=json_encoder())
    deserializer = JSONDeserializer(schema, from_dict, client, conf=reading, json_decode=json_decoder())
    again = partial(json_schema_serde, schema, registry, kind=kind, is_key=is_key, **options)
    return RegistrySerde("json_schema", serializer, deserializer, is_key, again, json_schema_shape(schema))


def configurations(options: dict[str, Any], *shared: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configurations of the serializer and of the deserializer."""
    writing = {name.replace("_", "."): value for name, value in options.items()}
    if not any(name.startswith("subject.name.strategy") for name in writing):
        # confluent-kafka's default first requests associations, which only Confluent's registry has.
        writing["subject.name.strategy.type"] = "TOPIC"
    names = (*_SHARED, *shared)
    return writing, {name: value for name, value in writing.items() if name.startswith(names)}


def conversions(kind: Any, natural: tuple[type, ...]) -> tuple[Any, Any]:
    """Return (to_dict, from_dict) of a type, both None without one; natural: types that are not converted in dicts.

    Raises ConfigError for a type that msgspec cannot create.
    """
    if kind is None:
        return None, None
    try:
        described = msgspec.inspect.type_info(kind)
    except TypeError as error:
        raise ConfigError(f"kind={kind!r}: {error}") from error
    if isinstance(described, msgspec.inspect.CustomType):
        raise ConfigError(f"kind={kind.__name__}: use a msgspec.Struct, a dataclass or a TypedDict")

    def to_dict(value: object, _: object) -> object:
        return msgspec.to_builtins(value, builtin_types=natural)

    def from_dict(value: object, _: object) -> object:
        return msgspec.convert(value, kind, builtin_types=natural)

    return to_dict, from_dict
