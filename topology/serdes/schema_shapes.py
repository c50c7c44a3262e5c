"""The shapes (see shape_changes) of schemas of other formats: as a JSON Schema with the rules of each format.

A default in Avro makes a field optional for readers; Protobuf identifies fields by their numbers.
"""

from __future__ import annotations

import json
from typing import Any

from .shape_changes import ALIASES, PARTS
from .shape_keywords import KIND, RULES, TYPE_ALIASES, Rules, Shape, without_keywords

_NUMBERS = {"int": "integer", "long": "integer", "float": "number", "double": "number"}
#: The kind of a value and its encoding, by FieldDescriptor's numbers of types.
_PROTOBUF = {
    1: ("double", "double"),
    2: ("float", "float"),
    3: ("int64", "varint"),
    4: ("uint64", "varint"),
    5: ("int32", "varint"),
    6: ("fixed64", "fixed64"),
    7: ("fixed32", "fixed32"),
    8: ("bool", "varint"),
    9: ("string", "string"),
    12: ("bytes", "bytes"),
    13: ("uint32", "varint"),
    14: ("enum", "enum"),
    15: ("sfixed32", "fixed32"),
    16: ("sfixed64", "fixed64"),
    17: ("sint32", "zigzag varint"),
    18: ("sint64", "zigzag varint"),
}
_NAMES = {"null": "null", "boolean": "boolean", "string": "string", "bytes": "string"}


def text_of(schema: Any) -> str:
    """Return the text of a schema, given as such or as a confluent_kafka.schema_registry.Schema."""
    text: str = schema if isinstance(schema, str) else schema.schema_str
    return text


def without_words(schema: object) -> Any:
    """Return a JSON Schema without what does not change its meaning: names and docstrings of types, words of users."""
    return without_keywords(schema, lambda keyword: keyword in ("title", "description") or keyword.startswith("x-"))


def json_schema_shape(schema: object) -> Shape:
    """Return the shape of a JSON Schema, given as for text_of."""
    given = json.loads(text_of(schema))
    if isinstance(given, bool):
        given = {} if given else {"not": {}}
    words: dict[str, object] = without_words(given)
    words.pop(PARTS, None)  # a word of the user's here
    return {RULES: Rules.JSON_SCHEMA.value, **words}


def avro_shape(schema: str) -> Shape:
    """Return the shape of an Avro schema."""
    types: dict[str, object] = {}
    shape = _Avro(types).shape(json.loads(schema), "")
    return {RULES: Rules.AVRO.value, **shape, **({"$defs": types} if types else {})}


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
        return _logical(found, schema["logicalType"]) if "logicalType" in schema else found

    def _named(self, name: str, namespace: str) -> dict[str, object]:
        if name in _NUMBERS:
            return {"type": _NUMBERS[name], "format": name, KIND: name}
        if name in _NAMES:
            return {"type": _NAMES[name], **({"contentEncoding": "bytes"} if name == "bytes" else {}), KIND: name}
        return {"$ref": f"#/$defs/{_full(name, namespace)}"}

    def _define(self, schema: dict[str, Any], namespace: str) -> dict[str, object]:
        name = _full(schema["name"], schema.get("namespace", namespace))
        inner = name.rpartition(".")[0]
        self._types[name] = {}  # it may contain itself
        self._types[name] = {
            **self._defined(schema, name, inner),
            **({TYPE_ALIASES: schema["aliases"]} if schema.get("aliases") else {}),
        }
        return {"$ref": f"#/$defs/{name}"}

    def _defined(self, schema: dict[str, Any], name: str, namespace: str) -> dict[str, object]:
        if schema["type"] == "enum":
            return {"enum": sorted(schema["symbols"]), KIND: f"enum {name}"}
        if schema["type"] == "fixed":
            logical = f",{schema['logicalType']}" if "logicalType" in schema else ""
            size = f"{schema['size']} bytes"
            return {"type": "string", "contentEncoding": size, KIND: f"fixed({schema['size']}{logical}) {name}"}
        fields = schema["fields"]
        return {
            "type": "object",
            "properties": {field["name"]: self._field(field, namespace) for field in fields},
            "required": [field["name"] for field in fields if "default" not in field],
            KIND: f"record {name}",
        }

    def _field(self, field: dict[str, object], namespace: str) -> dict[str, object]:
        more = {ALIASES: field["aliases"]} if field.get("aliases") else {}
        default = {"default": field["default"]} if "default" in field else {}
        return {**self.shape(field["type"], namespace), **default, **more}


def _logical(schema: dict[str, object], logical: str) -> dict[str, object]:
    """Return the shape of a value with a logical type, such as a date, whatever it is written as."""
    if "$ref" in schema:
        return schema
    return {**schema, "format": logical, KIND: f"{schema.get(KIND, schema.get('type', 'any'))} ({logical})"}


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def protobuf_shape(descriptor: object) -> Shape:
    """Return the shape of a message's descriptor."""
    types: dict[str, object] = {}
    return {RULES: Rules.PROTOBUF.value, **_message(descriptor, types), "$defs": types}


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
        kind, encoding = _PROTOBUF[field.type]
        one = {"type": encoding, KIND: kind}
    return {"type": "array", "items": one} if field.is_repeated else one
