"""Serdes with a schema registry: Avro, Protobuf and JSON Schema, through confluent-kafka's serializers.

They need the extra ``penstock-streams[schema-registry]``, imported only when one of them is made.
registry is the URL, a configuration dict, or a SchemaRegistryClient. Their bytes
depend on the topic's name (subject name strategy).
"""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from .serdes import Serde, UserSerde


class RegistrySerde:
    """A serializer and a deserializer of confluent-kafka as one serde; is_key chooses the subject ``<topic>-key``."""

    def __init__(self, kind: str, serializer: Any, deserializer: Any, is_key: bool) -> None:
        from confluent_kafka.serialization import MessageField, SerializationContext

        self.kind = kind
        self._serializer = serializer
        self._deserializer = deserializer
        self._context = SerializationContext
        self._field = MessageField.KEY if is_key else MessageField.VALUE

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Return the bytes of a value; registers its schema if the serializer is set to."""
        if value is None:
            return None
        data: bytes = self._serializer(value, self._context(topic, self._field))
        return data

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        """Return the value of bytes."""
        return None if data is None else self._deserializer(data, self._context(topic, self._field))

    def __repr__(self) -> str:
        return f"Serdes.{self.kind}(…)"


def registry_client(registry: Any) -> Any:
    """Return a SchemaRegistryClient for a URL, a configuration dict, or a client. ConfigError without the extra."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise ConfigError(
            f"Schema registry serdes need the extra: pip install 'penstock-streams[schema-registry]' ({error})"
        ) from error
    if isinstance(registry, str):
        registry = {"url": registry}
    # new_client() knows mock:// too, a registry in memory for tests.
    return SchemaRegistryClient.new_client(registry) if isinstance(registry, dict) else registry


def avro_serde(schema: str | None, registry: Any, *, is_key: bool = False, **options: Any) -> Serde[Any]:
    """Return an Avro serde: values are dicts. options reach the serializer's conf, with dots for underscores."""
    client = registry_client(registry)
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

    return UserSerde(
        RegistrySerde(
            "avro", AvroSerializer(client, schema, conf=_dotted(options)), AvroDeserializer(client, schema), is_key
        )
    )


def protobuf_serde(message_type: Any, registry: Any, *, is_key: bool = False, **options: Any) -> Serde[Any]:
    """Return a Protobuf serde: values are messages of message_type, a generated class."""
    client = registry_client(registry)
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

    conf = {"use.deprecated.format": False}
    return UserSerde(
        RegistrySerde(
            "protobuf",
            ProtobufSerializer(message_type, client, conf={**conf, **(_dotted(options) or {})}),
            ProtobufDeserializer(message_type, conf),
            is_key,
        )
    )


def json_schema_serde(schema: str | None, registry: Any, *, is_key: bool = False, **options: Any) -> Serde[Any]:
    """Return a JSON Schema serde: values are dicts that the schema admits."""
    client = registry_client(registry)
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

    return UserSerde(
        RegistrySerde(
            "json_schema",
            JSONSerializer(schema, client, conf=_dotted(options)),
            JSONDeserializer(schema, schema_registry_client=client),
            is_key,
        )
    )


def _dotted(options: dict[str, Any]) -> dict[str, Any] | None:
    return {name.replace("_", "."): value for name, value in options.items()} or None
