"""The shapes (see shape_changes) of schemas of other formats: as a JSON Schema with the rules of each format.

A default in Avro makes a field optional for readers; Protobuf identifies fields by their numbers.
"""

from __future__ import annotations

import json
from typing import Any

from .shape_changes import ALIASES, Shape

#: Keywords of a JSON Schema whose keys are names of the user's.
_OF_NAMES = ("properties", "$defs")
_NUMBERS = {"int": "integer", "long": "integer", "float": "number", "double": "number"}
#: FieldDescriptor's numbers of types; those of one name are read as each other.
_PROTOBUF = {
    **dict.fromkeys((3, 4, 5, 8, 13), "varint"),
    **dict.fromkeys((17, 18), "zigzag varint"),
    **dict.fromkeys((7, 15), "fixed32"),
    **dict.fromkeys((6, 16), "fixed64"),
    1: "double",
    2: "float",
    9: "string",
    12: "bytes",
}
_NAMES = {"null": "null", "boolean": "boolean", "string": "string", "bytes": "string"}


def text_of(schema: Any) -> str:
    """Return the text of a schema, given as such or as a confluent_kafka.schema_registry.Schema."""
    text: str = schema if isinstance(schema, str) else schema.schema_str
    return text


def without_words(schema: object) -> Any:
    """Return a JSON Schema without what does not change its meaning: the names and docstrings of types."""
    if isinstance(schema, list):
        return [without_words(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: without_words(one) for name, one in value.items()} if key in _OF_NAMES else without_words(value)
        for key, value in schema.items()
        if key not in ("title", "description")
    }


def json_schema_shape(schema: object) -> Shape:
    """Return the shape of a JSON Schema, given as for text_of."""
    shape: Shape = without_words(json.loads(text_of(schema)))
    return shape


def avro_shape(schema: str) -> Shape:
    """Return the shape of an Avro schema."""
    types: dict[str, object] = {}
    shape = _Avro(types).shape(json.loads(schema), "")
    return {**shape, "$defs": types} if types else shape


class _Avro:
    """types: the shapes of named types, added where they are defined."""

    def __init__(self, types: dict[str, Any]) -> None:
        self._types = types

    def shape(self, schema: Any, namespace: str) -> dict[str, Any]:
        if isinstance(schema, list):
            return {"anyOf": [self.shape(one, namespace) for one in schema]}
        if isinstance(schema, str):
            return self._named(schema, namespace)
        match schema["type"]:
            case "record" | "error" | "enum" | "fixed":
                return self._define(schema, namespace)
            case "array":
                return {"type": "array", "items": self.shape(schema["items"], namespace)}
            case "map":
                return {"type": "object", "additionalProperties": self.shape(schema["values"], namespace)}
        found = self.shape(schema["type"], namespace)
        return {**found, "format": schema["logicalType"]} if "logicalType" in schema else found

    def _named(self, name: str, namespace: str) -> dict[str, object]:
        if name in _NUMBERS:
            return {"type": _NUMBERS[name], "format": name}
        if name in _NAMES:
            return {"type": _NAMES[name], **({"contentEncoding": "bytes"} if name == "bytes" else {})}
        return {"$ref": f"#/$defs/{_full(name, namespace)}"}

    def _define(self, schema: dict[str, Any], namespace: str) -> dict[str, object]:
        name = _full(schema["name"], schema.get("namespace", namespace))
        inner = name.rpartition(".")[0]
        self._types[name] = {}  # it may contain itself
        if schema["type"] == "enum":
            self._types[name] = {"enum": sorted(schema["symbols"])}
        elif schema["type"] == "fixed":
            self._types[name] = {"type": "string", "contentEncoding": f"{schema['size']} bytes"}
        else:
            fields = schema["fields"]
            self._types[name] = {
                "type": "object",
                "properties": {field["name"]: self._field(field, inner) for field in fields},
                "required": [field["name"] for field in fields if "default" not in field],
            }
        return {"$ref": f"#/$defs/{name}"}

    def _field(self, field: dict[str, Any], namespace: str) -> dict[str, object]:
        more = {ALIASES: field["aliases"]} if field.get("aliases") else {}
        default = {"default": field["default"]} if "default" in field else {}
        return {**self.shape(field["type"], namespace), **default, **more}


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def protobuf_shape(descriptor: object) -> Shape:
    """Return the shape of a message's descriptor."""
    types: dict[str, object] = {}
    return {**_message(descriptor, types), "$defs": types}


def _message(descriptor: Any, types: dict[str, Any]) -> dict[str, object]:
    if descriptor.full_name not in types:
        types[descriptor.full_name] = {}  # it may contain itself
        fields = {f"field {field.number}": _field(field, types) for field in descriptor.fields}
        types[descriptor.full_name] = {"type": "object", "properties": fields}
    return {"$ref": f"#/$defs/{descriptor.full_name}"}


def _field(field: Any, types: dict[str, Any]) -> dict[str, object]:
    if field.message_type is not None:
        one = _message(field.message_type, types)
    else:
        one = {"type": "enum" if field.enum_type is not None else _PROTOBUF[field.type]}
    return {"type": "array", "items": one} if field.is_repeated else one
