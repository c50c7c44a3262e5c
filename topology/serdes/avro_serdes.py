"""Avro with a schema registry: confluent-kafka's serializers until a schema is known, then fastavro or the kernel.

For each record those serializers determine the subject, look up schemas, and prepare for rules and tags, which takes
several times as long as Avro itself. For a record schema without rules and references, the result is always the same
five bytes (zero and the schema's id) before those of fastavro. The kernel writes the same for values of exactly the
schema's types; fastavro is left with all others, recursive schemas, and records to be read with another schema.
"""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from typing_extensions import override

from penstock.kernel.avro import (
    HeaderChange,
    Type,
    UnreadBytes,
    compiled,
    reader,
    topic_reader,
    topic_writer,
    unread_bytes,
    writer,
)
from penstock.kernel.conversions import Guarded

from .avro_bounds import bounded_readers, bounds_check
from .codecs import refusal
from .schema_registry_serdes import RegistrySerde, configurations, conversions, registry_client
from .schema_shapes import avro_shape, text_of
from .serdes import FromBytes, Serde, ToBytes, TopicSerde, nullable

#: Python types of Avro's logical types, in addition to those of JSON.
_AVRO_TYPES = (bytes, datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)
#: Serializer options with which every record of a topic is treated like the first one; deserializers have neither.
_SETTLED_OPTIONS = {"auto.register.schemas", "normalize.schemas"}
_BY_TOPIC = "subject.name.strategy.type"
#: A record's bytes begin with zero and four bytes of the schema's id.
_MAGIC, _ID_END = 0, 5


def avro_serde(
    schema: object, registry: object, *, kind: object = None, is_key: bool = False, **options: object
) -> Serde:
    """Return an Avro serde; options reach the serializer's conf, with dots for underscores.

    schema: its text, or a confluent_kafka.schema_registry.Schema, which may have references. None: read with the schema
        that a value was written with, and write with the latest schema of the subject (use_latest_version=True).
    kind: the type of the values, a msgspec.Struct or a dataclass. None: dicts.
    """
    return AvroSerde(schema, registry, kind, is_key, options)


def avro_reader(registry: object, **options: object) -> Callable[[str, bytes], object]:
    """Return a function (topic, value's bytes) that reads Avro as dicts, with the schema that it was written with."""
    return AvroSerde(None, registry, None, False, options).deserialize


class AvroSerde(TopicSerde, RegistrySerde):
    """What ``avro_serde`` returns."""

    unread: UnreadBytes | None

    def __init__(self, schema: object, registry: object, kind: object, is_key: bool, options: dict[str, Any]) -> None:
        self._client = registry_client(registry)
        from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

        self._to_dict, self._from_dict = conversions(kind, _AVRO_TYPES)
        writing, reading = configurations(options)
        self._library_write = AvroSerializer(self._client, schema, to_dict=self._to_dict, conf=writing)
        self._library_read = AvroDeserializer(self._client, schema, from_dict=self._from_dict, conf=reading)
        TopicSerde.__init__(self)
        again = partial(AvroSerde, schema, registry, kind, is_key, options)
        shape = None if schema is None else avro_shape(text_of(schema))
        RegistrySerde.__init__(self, "avro", self._first_write, self._first_read, is_key, again, shape)
        self._is_settled = writing.get(_BY_TOPIC) == "TOPIC" and set(writing) <= {_BY_TOPIC, *_SETTLED_OPTIONS}
        self._schema = schema
        self._parsed = parsed_record(schema)
        self._writers: dict[str, ToBytes] = {}
        self._readers: dict[bytes, Callable[[bytes], object]] = {}
        self._written: dict[int, tuple[Any, Any]] = {}  # schemas and their checks, by id
        self._headers: dict[str, bytes] = {}  # those to write, by topic
        self._own_headers: set[bytes] = set()  # those read until now that name a schema equal to this one
        self.unread = self._unread_bytes()

    @override
    def make_serializer(self, topic: str) -> ToBytes:
        write = topic_writer(self._writers, topic, partial(RegistrySerde.serialize, self, topic))
        change = None if self.unread is None else HeaderChange(self.unread, self._headers, topic)
        return nullable(Guarded(write, refusal(repr(self), "write"), change))

    @override
    def make_deserializer(self, topic: str) -> FromBytes:
        read = topic_reader(self._readers, partial(RegistrySerde.deserialize, self, topic))
        return nullable(Guarded(read, refusal(repr(self), "read")))

    def _first_write(self, value: object, context: Any) -> bytes:
        data: bytes = self._library_write(value, context)
        if self._is_settled and self._parsed is not None and data[0] == _MAGIC:
            self._headers[context.topic] = data[:_ID_END]
            self._writers[context.topic] = _writer(data[:_ID_END], self._parsed, self._to_dict)
        return data

    def _first_read(self, data: bytes, context: object) -> object:
        written = self._written_with(data, context)
        value = self._library_read(data, context)
        if self._is_settled and written is not None and (self._schema is None or self._parsed is not None):
            parsed = parsed_record(written)
            if parsed is not None:
                self._readers[data[:_ID_END]] = _reader(parsed, self._parsed, self._from_dict)
                if parsed == self._parsed:
                    self._own_headers.add(data[:_ID_END])
        return value

    def _unread_bytes(self) -> UnreadBytes | None:
        if self._parsed is None or self._to_dict is not None:
            return None
        schema = _compiled(self._parsed)
        return None if schema is None else unread_bytes(schema, self._own_headers)

    def _written_with(self, data: bytes, context: Any) -> Any:
        """Return the schema of some bytes, None if they do not begin with its id.

        Raises SerializationError for bytes that would take gigabytes in fastavro; see avro_bounds.
        """
        if len(data) <= _ID_END or data[0] != _MAGIC:
            return None
        schema_id = int.from_bytes(data[1:_ID_END])
        if schema_id not in self._written:
            schema = self._client.get_schema(schema_id, f"{context.topic}-{context.field}")
            self._written[schema_id] = schema, self._check_of(schema)
        schema, check = self._written[schema_id]
        if check is not None:
            check(data, _ID_END)
        return schema

    def _check_of(self, schema: Any) -> Callable[[bytes, int], None] | None:
        if schema.schema_type != "AVRO" or (schema.rule_set and schema.rule_set.encoding_rules):
            return None
        return bounds_check(self._parse(schema, {}))

    def _parse(self, schema: Any, named: dict[str, Any]) -> object:
        """Return a schema, parsed by fastavro; named: gets the types that it refers to in other schemas."""
        import fastavro

        for reference in schema.references or ():
            self._parse(self._client.get_version(reference.subject, reference.version, True).schema, named)
        return fastavro.parse_schema(json.loads(schema.schema_str), named_schemas=named)


def parsed_record(schema: Any) -> Any:
    """Return a schema (text or a Schema), parsed by fastavro; None unless a record without rules and references."""
    import fastavro

    if schema is not None and not isinstance(schema, str):
        if schema.schema_type != "AVRO" or schema.references or schema.rule_set is not None:
            return None
        schema = schema.schema_str
    if not schema or not schema.lstrip().startswith("{"):
        return None
    parsed = fastavro.parse_schema(json.loads(schema), named_schemas={})
    return parsed if isinstance(parsed, dict) and parsed.get("type") == "record" else None


def _writer(header: bytes, parsed: Any, to_dict: Any) -> Callable[[Any], bytes]:
    from fastavro import schemaless_writer

    def write_dict(value: Any) -> bytes:
        stream = io.BytesIO()
        stream.write(header)
        schemaless_writer(stream, parsed, value)
        return stream.getvalue()

    schema = _compiled(parsed)
    write = write_dict if schema is None else writer(schema, header, write_dict)
    return write if to_dict is None else lambda value: write(to_dict(value, None))


def _reader(written: Any, wanted: Any, from_dict: Any) -> Callable[[bytes], object]:
    from fastavro import schemaless_reader

    reader_schema = None if wanted == written else wanted  # None spares fastavro the comparison
    check = bounds_check(written)

    def read_dict(data: bytes) -> object:
        if check is not None:
            check(data, _ID_END)
        stream = io.BytesIO(data)
        stream.seek(_ID_END)
        return schemaless_reader(stream, written, reader_schema)

    schema = _compiled(written) if reader_schema is None else None
    read = read_dict if schema is None else reader(schema, read_dict)
    return read if from_dict is None else lambda data: from_dict(read(data), None)


def _compiled(parsed: Any) -> Type | None:
    """Return a schema for the kernel; None for one of fastavro's."""
    from fastavro.read import LOGICAL_READERS
    from fastavro.write import LOGICAL_WRITERS

    return compiled(parsed, bounded_readers(LOGICAL_READERS), LOGICAL_WRITERS)
